"""Right loops, each written in another way. The doctor must stay silent on all of them."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ..problems import Problem, drawn, network, regression, tokens
from .case import Case
from .wrapper import windows


def fed_by_a_generator(model, optimizer, loss_fn, batches, accumulation_steps):
    """A generator gives micro-batches with their share and whether to step."""

    def shares():
        for window in windows(batches, accumulation_steps):
            for i, batch in enumerate(window):
                yield batch, 1 / len(window), i == len(window) - 1

    for (x, y), share, full in shares():
        (share * loss_fn(model(x), y)).backward()
        if full:
            optimizer.step()
            optimizer.zero_grad()


def by_closure(model, optimizer, loss_fn, batches, accumulation_steps):
    """The optimizer calls the window itself."""
    for window in windows(batches, accumulation_steps):

        def closure(window=window):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()

        optimizer.step(closure)


def sums_by_hand(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is taken away after each backward and put back as a mean."""
    for window in windows(batches, accumulation_steps):
        kept = []
        for x, y in window:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            kept.append([p.grad.clone() for p in model.parameters()])
        for parameter, gradients in zip(model.parameters(), zip(*kept)):
            parameter.grad = sum(gradients) / len(window)
        optimizer.step()


def by_autograd_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """autograd.grad and buffers of the loop's own."""
    parameters = list(model.parameters())
    for window in windows(batches, accumulation_steps):
        total = [torch.zeros_like(p) for p in parameters]
        for x, y in window:
            for buffer, gradient in zip(total, torch.autograd.grad(loss_fn(model(x), y), parameters)):
                buffer.add_(gradient, alpha=1 / len(window))
        for parameter, buffer in zip(parameters, total):
            parameter.grad = buffer
        optimizer.step()


def scaled_sums(model, optimizer, loss_fn, batches, accumulation_steps):
    """Summed losses over the window's rows."""
    for window in windows(batches, accumulation_steps):
        rows = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            (F.mse_loss(model(x), y, reduction="sum") / rows).backward()
        optimizer.step()


def token_sums(model, optimizer, loss_fn, batches, accumulation_steps):
    """Summed token losses over the window's tokens."""
    for window in windows(batches, accumulation_steps):
        count = sum((y != -100).sum() for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            logits = model(x).flatten(0, 1)
            (F.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum") / count).backward()
        optimizer.step()


def clips_once(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """The norm is clipped when the window is full."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def clips_values_once(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Each value is clipped when the window is full."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        nn.utils.clip_grad_value_(model.parameters(), max_norm)
        optimizer.step()


def clips_by_hand(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """The same by hand."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
        optimizer.step()


class Carrying:
    """A trainer whose window goes on into the next epoch, with its gradients and its count."""

    def __init__(self):
        self.count = 0

    def __call__(self, model, optimizer, loss_fn, batches, accumulation_steps):
        for x, y in batches:
            (loss_fn(model(x), y) / accumulation_steps).backward()
            self.count += 1
            if self.count % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


class CarryingAfresh:
    """One Carrying for each examination."""

    def __call__(self, model, optimizer, loss_fn, batches, accumulation_steps):
        trainer = model.__dict__.setdefault("trainer", Carrying())
        trainer(model, optimizer, loss_fn, batches, accumulation_steps)


def grad_to_none(model, optimizer, loss_fn, batches, accumulation_steps):
    """No zero_grad: .grad = None."""
    for window in windows(batches, accumulation_steps):
        for parameter in model.parameters():
            parameter.grad = None
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def module_zero_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """The model clears, to zeros."""
    for window in windows(batches, accumulation_steps):
        model.zero_grad(set_to_none=False)
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def zeros_in_place(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears .grad in place by hand, after the step."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.zero_()


def by_recursion(model, optimizer, loss_fn, batches, accumulation_steps):
    """A window is a call."""
    if not batches:
        return
    window, rest = batches[:accumulation_steps], batches[accumulation_steps:]
    optimizer.zero_grad()
    for x, y in window:
        (loss_fn(model(x), y) / len(window)).backward()
    optimizer.step()
    by_recursion(model, optimizer, loss_fn, rest, accumulation_steps)


def hooks_divide(model, optimizer, loss_fn, batches, accumulation_steps):
    """A hook on each parameter divides what arrives."""
    size = [1]
    handles = [p.register_hook(lambda gradient: gradient / size[0]) for p in model.parameters()]
    for window in windows(batches, accumulation_steps):
        size[0] = len(window)
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()
    for handle in handles:
        handle.remove()


def schedule_and_average(model, optimizer, loss_fn, batches, accumulation_steps, scheduler, ema):
    """Scheduler and averaged weights once per update."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)


def logs_right(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The window's loss in the log."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        total = 0.0
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            total += loss.item()
        log(total)
        optimizer.step()


def plain(model, optimizer, loss_fn, batches, accumulation_steps):
    """The plain right loop: shares of the rows, a flushed tail."""
    for window in windows(batches, accumulation_steps):
        rows = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * (len(y) / rows)).backward()
        optimizer.step()


def evaluates_between(model, optimizer, loss_fn, batches, accumulation_steps):
    """Looks at all the data between two windows."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in batches:
                loss_fn(model(x), y)
        model.train()


def in_autocast(model, optimizer, loss_fn, batches, accumulation_steps):
    """bfloat16 autocast around the forward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y) / len(window)
            loss.backward()
        optimizer.step()


def with_decay_schedule(rate, model, optimizer, loss_fn, batches, accumulation_steps):
    """Sets the learning rate of each update by hand."""
    for i, window in enumerate(windows(batches, accumulation_steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate / (i + 1)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def two_optimizers(model, optimizer, loss_fn, batches, accumulation_steps):
    """One optimizer for the first layer, another for the last."""
    both = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
    for window in windows(batches, accumulation_steps):
        for one in both:
            one.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for one in both:
            one.step()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))).sum(1, keepdim=True)


def frozen():
    """The first layer is frozen."""
    model = network(0, 24)
    model[0].requires_grad_(False)
    return model


def single(rows=12) -> Problem:
    """float32, as models are outside of tests."""
    base = regression([rows] * 10, 4)
    batches = lambda epoch: [(x.float(), y.float()) for x, y in base.batches(epoch)]  # noqa: E731
    return Problem(model=lambda: network(0, 16, dtype=torch.float32), batches=batches)


def dropping() -> Problem:
    """A network with dropout: every forward draws its own mask."""
    model = lambda: drawn(nn.Sequential(nn.Linear(5, 24), nn.Dropout(0.5), nn.Linear(24, 1)).double())  # noqa: E731
    return Problem(model=model, batches=regression([4] * 10, 4).batches)


def _on(model) -> Problem:
    return Problem(model=model, batches=regression([4] * 10, 4).batches)


LOOPS = (
    fed_by_a_generator, by_closure, sums_by_hand, by_autograd_grad, scaled_sums, clips_once, clips_values_once, clips_by_hand,
    grad_to_none, module_zero_grad, zeros_in_place, by_recursion, hooks_divide, schedule_and_average, logs_right, plain,
    evaluates_between, two_optimizers,
)  # fmt: skip

CASES = tuple(Case(f"right: {loop.__name__.replace('_', ' ')}", loop.__doc__, loop) for loop in LOOPS) + (
    Case("right: carried tail", "the window goes on into the next epoch", CarryingAfresh()),
    Case("right: partial", "a functools.partial that sets the learning rate", partial(with_decay_schedule, 0.1)),
    Case("right: tokens", "summed token losses", token_sums, options={"problem": tokens([[2] * 4, [16] * 4], 2)}),
    Case("right: sizes", "shares of unequal micro-batches", plain, options={"sizes": [5, 1, 3, 4, 2, 6, 1]}),
    Case("right: autocast", "bfloat16 autocast on float32 weights", in_autocast, options={"problem": single()}),
    Case("right: dropout", "every micro-batch its own mask", plain, options={"problem": dropping()}),
    Case("right: tied", "tied weights", plain, options={"problem": _on(lambda: drawn(Tied().double()))}),
    Case("right: frozen", "a frozen layer", plain, options={"problem": _on(frozen)}),
    Case("right: K = 1", "no accumulation", plain, options={"accumulation_steps": 1}),
    Case("right: one batch", "a single batch", plain, options={"sizes": [4]}),
    Case("right: AdamW", "AdamW with decay", plain, options={"optimizer": partial(torch.optim.AdamW, lr=1e-3)}),
    Case("right: momentum", "momentum and decay", plain,
         options={"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)}),
)  # fmt: skip
