"""Two faults in one loop, as in real life: both must be named."""

from torch.nn.utils import clip_grad_norm_

from .case import Case
from .wrapper import windows


def undivided_and_dropped(model, optimizer, loss_fn, batches, accumulation_steps):
    """No division; the tail is wiped."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def cleared_and_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Clears and schedules with every micro-batch."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            optimizer.zero_grad()
            (loss_fn(model(x), y) / len(window)).backward()
            scheduler.step()
        optimizer.step()


def twice_and_clipped(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Divides twice, clips each time."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window) / accumulation_steps).backward()
            clip_grad_norm_(model.parameters(), max_norm / 10)
        optimizer.step()


def early_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """The boundary is off by one, and nothing divides."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def graph_and_dropped(model, optimizer, loss_fn, batches, accumulation_steps):
    """The running loss keeps its graph; the tail is wiped."""
    optimizer.zero_grad()
    total = 0
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        total = total + loss
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return float(total)


def means_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Unequal micro-batches, and nothing divides."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()


def logged_and_uncleared(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """Never clears, and logs the divided loss."""
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        log(loss)
        if i % accumulation_steps == 0:
            optimizer.step()


def averaged_and_small_tail(model, optimizer, loss_fn, batches, accumulation_steps, ema):
    """The average follows each micro-batch; the tail is divided by K."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        ema.update_parameters(model)
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def one_backward_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """One backward for the window, of the sum."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        sum(loss_fn(model(x), y) for x, y in window).backward()
        optimizer.step()


def cleared_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears inside the window, and nothing divides."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
        optimizer.step()
    return None


def running_and_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Divides by the running index, schedules each micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            (loss_fn(model(x), y) / i).backward()
            scheduler.step()
        optimizer.step()


def leak_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """The tail joins the next epoch, and nothing divides."""
    for i, (x, y) in enumerate(batches, 1):
        loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def scaled_clip_and_schedule(model, optimizer, loss_fn, batches, accumulation_steps, scaler, scheduler):
    """Clips scaled gradients, schedules each micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            scheduler.step()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def order_and_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """Takes the batches backwards, and divides twice."""
    for window in windows(batches[::-1], accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window) / accumulation_steps).backward()
        optimizer.step()


def skipped_and_last_logged(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """One micro-batch of each window never goes forward; the last one is logged."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window[1:]:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
        log(loss.item())
        optimizer.step()


CASES = (
    Case("pair: B04+B10", undivided_and_dropped.__doc__, undivided_and_dropped, ("not divided", "tail dropped")),
    Case("pair: B01+B37", cleared_and_scheduled.__doc__, cleared_and_scheduled, ("cleared too early", "schedule per micro-batch")),
    Case("pair: B05+B30", twice_and_clipped.__doc__, twice_and_clipped, ("divided twice", "clipped in the window")),
    Case("pair: B08+B04", early_and_undivided.__doc__, early_and_undivided, ("wrong window", "not divided"), ("tail dropped",)),
    Case("pair: B27+B10", graph_and_dropped.__doc__, graph_and_dropped, ("graph kept", "tail dropped")),
    Case("pair: B16+B04", means_and_undivided.__doc__, means_and_undivided, ("mean of means", "not divided"),
         options={"sizes": [4, 4, 4, 1]}),
    Case("pair: never cleared+B41", logged_and_uncleared.__doc__, logged_and_uncleared, ("not cleared", "logged loss divided"),
         ("tail leaks",)),
    Case("pair: B40+B13", averaged_and_small_tail.__doc__, averaged_and_small_tail, ("EMA per micro-batch", "tail too small")),
    Case("pair: B26+B04", one_backward_undivided.__doc__, one_backward_undivided, ("one backward for the window", "not divided")),
    Case("pair: B01+B04", cleared_and_undivided.__doc__, cleared_and_undivided, ("cleared too early", "not divided")),
    Case("pair: B07+B37", running_and_scheduled.__doc__, running_and_scheduled, ("running division", "schedule per micro-batch")),
    Case("pair: B12+B04", leak_and_undivided.__doc__, leak_and_undivided, ("tail leaks", "not divided")),
    Case("pair: B31+B37", scaled_clip_and_schedule.__doc__, scaled_clip_and_schedule,
         ("clipped before unscale", "schedule per micro-batch")),
    Case("pair: B51+B05", order_and_twice.__doc__, order_and_twice, ("other micro-batches", "divided twice")),
    Case("pair: B09+B41", skipped_and_last_logged.__doc__, skipped_and_last_logged,
         ("data skipped", "logged loss of the last micro-batch")),
)  # fmt: skip
