"""What stands beside the gradient: memory, schedule, averaged weights, the log."""

from .case import Case, called
from .wrapper import windows


def one_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """All losses of a window are added up, then one backward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        total = sum(loss_fn(model(x), y) for x, y in window) / len(window)
        total.backward()
        optimizer.step()


def running_total(model, optimizer, loss_fn, batches, accumulation_steps):
    """A total for the log that is a tensor with history."""
    total = 0
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            total += loss
        optimizer.step()
    return float(total)


def evaluates_with_graph(model, loss_fn, batches):
    """eval() is on, autograd is, too, and the total holds every graph."""
    model.eval()
    total = 0
    for x, y in batches:
        total = total + loss_fn(model(x), y)
    return float(total) / len(batches)


def evaluates_without(model, loss_fn, batches):
    """The same with item(): right."""
    model.eval()
    total = 0.0
    for x, y in batches:
        total += loss_fn(model(x), y).item()
    return total / len(batches)


def schedules_each(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """The scheduler advances with every micro-batch: the warm-up is over K times too soon."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            scheduler.step()
        optimizer.step()


def averages_each(model, optimizer, loss_fn, batches, accumulation_steps, ema):
    """The averaged weights follow K times per update."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            ema.update_parameters(model)
        optimizer.step()


def logs_the_divided(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The loss is logged after it was divided."""
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        log(loss)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def logs_the_last(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The last micro-batch stands for the window in the log."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
        log(loss.item())
        optimizer.step()


def plain(model, optimizer, loss_fn, batches, accumulation_steps):
    """A right loop: .grad stays alive through the next forward, which costs once and does not grow with K."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def _grows(report):
    low, high = report.memory.values()
    assert high > 2 * low, report.memory


def _flat(report):
    low, high = report.memory.values()
    assert high == low, report.memory


CASES = (
    Case("B26", "one backward for the window", one_backward, ("one backward for the window",), check=_grows),
    Case("B27", "a running loss with its graph", running_total, ("graph kept",)),
    Case("B29", "evaluation with graphs", evaluates_with_graph, ("evaluation keeps the graph",)),
    Case("B29 right", "evaluation with item()", evaluates_without),
    Case("B37", "schedule per micro-batch", schedules_each, ("schedule per micro-batch",), options={"sizes": [4] * 8},
         check=called(scheduler=16, step=4)),
    Case("B40", "EMA per micro-batch", averages_each, ("EMA per micro-batch",), options={"sizes": [4] * 8},
         check=called(ema=16, step=4)),
    Case("B41", "the divided loss is logged", logs_the_divided, ("logged loss divided",), options={"sizes": [4] * 8}),
    Case("B41 last", "the last micro-batch is logged", logs_the_last, ("logged loss of the last micro-batch",)),
    Case("B48", "a rise that does not grow", plain, check=_flat),
)  # fmt: skip
