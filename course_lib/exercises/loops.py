"""What a training loop did to each micro-batch: run it on known gradients, and solve for the weights it used.

The loop gets a small model in float64 and an optimizer that writes down `.grad` at every step. In the first run the
learning rate is next to 0, so the weights stand still and every micro-batch i has one known mean gradient g_i. At each
step we then solve `observed gradient = sum_i w_i g_i` for w (least squares; there are more parameters than
micro-batches). The weights tell what the loop did: ones mean that nothing was divided, zeros that a micro-batch was lost.

A second run, of two epochs with a real learning rate, must end where large-batch SGD ends. Whatever the loop did to its
model or its data, the right values come from fresh copies.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch
from torch import nn

from .faults import Fault
from .want import want_number, want_sequence

CLOSE = 1e-6
STILL = 1e-300  # a learning rate that moves no weight in float64, but shows if the loop changes it


class RecordingSGD(torch.optim.SGD):
    """SGD that keeps a copy of every gradient it was given: `seen` holds one {name: gradient or None} per step."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__(model.parameters(), lr=lr)
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.seen: list[dict] = []

    def step(self, closure=None):
        result = None
        if closure is not None:  # forward and backward happen in here
            with torch.enable_grad():
                result = closure()
        self.seen.append({n: None if p.grad is None else p.grad.detach().clone() for p, n in self.names.items()})
        # SGD's own step without the wrapper that calls step hooks: this method has called them already.
        getattr(torch.optim.SGD.step, "__wrapped__", torch.optim.SGD.step)(self)
        return result


@dataclass(frozen=True)
class Observation:
    """One run of a loop. `used` and `needed`: for each update, the weight of every micro-batch of the epoch."""

    sizes: tuple
    steps_per_window: int
    used: list
    needed: list
    residuals: list  # relative, per update: what no weights can explain
    losses: list  # the right loss of each window
    returned: object
    trained: list = field(default_factory=list)  # the same with a real learning rate: (returned, right losses) per epoch

    @property
    def windows(self) -> list:
        k = self.steps_per_window
        return [range(i, min(i + k, len(self.sizes))) for i in range(0, len(self.sizes), k)]


def problem(sizes, seed: int = 0):
    """(model, [(inputs, targets), …]) in float64: a small tanh network, micro-batches of these sizes."""
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.5)
    batches = [
        (torch.randn(n, 5, generator=draw, dtype=torch.float64), torch.randn(n, 1, generator=draw, dtype=torch.float64) * 3)
        for n in sizes
    ]
    return model, batches


def observe(loop, sizes, steps_per_window: int, seed: int = 0) -> Observation:
    """Run `loop` (a GuardedAnswer or a function) on micro-batches of these sizes; raises Fault for missing gradients."""
    model, batches = problem(sizes, seed)
    optimizer = RecordingSGD(model, lr=STILL)
    returned = _run(loop, model, optimizer, batches, steps_per_window)
    if inspect.isgenerator(returned):
        raise Fault("generator", "Your loop holds a `yield`, so calling it runs nothing: it only makes a generator. "
                    "Remove the `yield`.")  # fmt: skip
    if not optimizer.seen:
        raise Fault(
            "no update", f"Your loop made no update: `optimizer.step()` never ran for {len(sizes)} micro-batches and "
            f"accumulation_steps={steps_per_window}. Step when a window is full."
        )  # fmt: skip
    if any(group["lr"] != STILL for group in optimizer.param_groups):
        raise Fault("learning rate changed", "Your loop changes the learning rate. Leave it: divide the loss. With an "
                    "optimizer such as Adam the two are not the same.")  # fmt: skip
    for number, gradients in enumerate(optimizer.seen, 1):
        _want_gradients(number, gradients)
    fresh, batches = problem(sizes, seed)
    micro = torch.stack([_flat(_gradient(fresh, x, y)) for x, y in batches], dim=1)
    used, residuals = [], []
    for gradients in optimizer.seen:
        seen = _flat(gradients.values())
        weights = torch.linalg.lstsq(micro, seen.unsqueeze(1)).solution.squeeze(1)
        off = (micro @ weights - seen).norm() / max(float(seen.norm()), 1e-30)
        used.append([float(w) for w in weights])
        residuals.append(float(off))
    result = Observation(tuple(sizes), steps_per_window, used, [], residuals, [], returned)
    for window in result.windows:
        samples = sum(sizes[i] for i in window)
        result.needed.append([sizes[i] / samples if i in window else 0.0 for i in range(len(sizes))])
        result.losses.append(_window_loss(fresh, batches, window).item())
    return result


def want_right_loop(loop, sizes, steps_per_window: int, seed: int = 0) -> Observation:
    """Raise the Fault that names what a loop does wrong; return the observation of a right one."""
    seen = observe(loop, sizes, steps_per_window, seed)
    _diagnose(seen)
    model, batches = problem(sizes, seed)
    optimizer = RecordingSGD(model, lr=0.05)
    twin, _ = problem(sizes, seed)
    plain = torch.optim.SGD(twin.parameters(), lr=0.05)
    for epoch in (1, 2):
        returned, losses = _run(loop, model, optimizer, batches, steps_per_window), []
        for window in seen.windows:
            plain.zero_grad()
            loss = _window_loss(twin, batches, window)
            loss.backward()
            plain.step()
            losses.append(loss.item())
        seen.trained.append((returned, losses))
        for (name, mine), right in zip(model.named_parameters(), twin.parameters()):
            if (mine.detach() - right.detach()).abs().max() > CLOSE:
                _wrong_after(epoch, name)
    return seen


def _wrong_after(epoch: int, name: str) -> None:
    if epoch == 2:
        raise Fault("not cleared", "One epoch is right, the second is not: its first window still holds gradients of the "
                    "first epoch's last one. Clear them after the last update, too, or before the first window.")  # fmt: skip
    raise Fault("wrong weights after training", f"The gradients are right, but after an epoch {name} is not where "
                "large-batch SGD leaves it. Let `optimizer.step()` make the update, once per window.")  # fmt: skip


def _window_loss(model, batches, window):
    x, y = (torch.cat([batches[i][part] for i in window]) for part in (0, 1))
    return nn.functional.mse_loss(model(x), y)


def _want_gradients(number: int, gradients: dict) -> None:
    for name, gradient in gradients.items():
        if gradient is None:
            raise Fault(
                "no gradient", f"At update {number} the gradient of {name} is None: no `backward()` reached it "
                "since the gradients were cleared."
            )  # fmt: skip
        if gradient.dtype != torch.float64 or gradient.device.type != "cpu":
            raise Fault("model changed", "Your loop moved the model to another dtype or device. Use it as it is given.")


def want_window_losses(returned, losses) -> None:
    """The loop must return the large-batch loss of each window, as numbers."""
    values = [float(want_number(v, "a window's loss")) for v in want_sequence(returned, "the returned losses", len(losses))]
    for number, (value, right) in enumerate(zip(values, losses), 1):
        if abs(value - right) > CLOSE * max(1.0, abs(right)):
            raise Fault(
                "wrong logged loss", f"Window {number}: your loop returns {value:.6g}, the loss of the large batch is "
                f"{right:.6g}. Add up the weighted losses of all its micro-batches."
            )  # fmt: skip


def _run(loop, model, optimizer, batches, k):
    batches = list(batches)  # the loop's own list; ours stays as it is
    call = getattr(loop, "call", None)
    if call is not None:
        return call(model, optimizer, nn.functional.mse_loss, batches, k, unchanged=(batches,))
    return loop(model, optimizer, nn.functional.mse_loss, batches, k)


def _gradient(model, x, y):
    return torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))


def _flat(gradients) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def _same(a, b) -> bool:
    return all(abs(x - y) < CLOSE for x, y in zip(a, b))


def _diagnose(seen: Observation) -> None:
    n, k, windows = len(seen.sizes), seen.steps_per_window, seen.windows
    short = len(windows[-1]) < k
    if len(seen.used) == n and n > len(windows):
        raise Fault(
            "update every micro-batch", f"Your loop made {n} updates for {n} micro-batches. With accumulation_steps={k} "
            f"there should be {len(windows)}: step only when a window is full."
        )  # fmt: skip
    for number, (used, needed, off, window) in enumerate(zip(seen.used, seen.needed, seen.residuals, windows), 1):
        _diagnose_update(number, used, needed, off, window, seen)
    if short and len(seen.used) == len(windows) - 1:
        raise Fault(
            "tail dropped", f"The last {len(windows[-1])} of {n} micro-batches never reach an update. They fill no whole "
            "window; make a last update for them."
        )  # fmt: skip
    if len(seen.used) != len(windows):
        raise Fault(
            "wrong number of updates", f"Your loop made {len(seen.used)} updates; {n} micro-batches in windows of {k} need "
            f"{len(windows)}."
        )  # fmt: skip


def _diagnose_update(number, used, needed, off, window, seen) -> None:
    """Name what is wrong with one update. The order goes from what explains most to what explains least."""
    if off < CLOSE and _same(used, needed):
        return
    k, r, sizes = seen.steps_per_window, len(window), seen.sizes
    mine = [used[i] for i in window]
    right = [needed[i] for i in window]
    table = f"Update {number} used the weights {_list(mine)}; needed are {_list(right)}."
    if off > 1e-4:
        raise Fault(
            "not a weighted sum", f"The gradient of update {number} is no weighted sum of the micro-batches' gradients. "
            "Something changed it on the way: clipping inside the window, weights that moved, or other data."
        )  # fmt: skip
    if any(abs(used[i]) > CLOSE for i in range(window[0])):
        raise Fault("not cleared", f"Update {number} still holds gradients of an earlier window. "
                    "Clear them after each update.")  # fmt: skip
    later = any(abs(used[i]) > CLOSE for i in range(window[-1] + 1, len(used)))
    if later and not all(abs(w) > CLOSE for w in mine):
        raise Fault("other micro-batches", f"Update {number} uses micro-batches of later windows in place of its own. "
                    "Take them in the order in which they come, each once.")  # fmt: skip
    if later:
        raise Fault("wrong window", f"Update {number} should come after {window[-1] + 1} micro-batches and comes later. "
                    "Count from one, or test `(i + 1) % accumulation_steps`.")  # fmt: skip
    if all(abs(w) < CLOSE for w in mine):
        raise Fault("cleared before the step", f"{table} The gradients are cleared between backward and step, so the step "
                    "finds nothing.")  # fmt: skip
    if r > 1 and all(abs(w) < CLOSE for w in mine[:-1]) and abs(mine[-1]) > CLOSE:
        raise Fault("cleared too early", f"{table} Only the last micro-batch counts: the gradients are cleared "
                    "inside the window.")  # fmt: skip
    if r > 1 and abs(mine[-1]) < CLOSE:
        raise Fault("wrong window", f"{table} The update comes before its window is full.")
    if r < k and all(abs(w * r - right_ * len(window) * r / k) < CLOSE for w, right_ in zip(mine, right)):
        raise Fault("tail too small", f"{table} The last window has {r} micro-batches and is still divided by {k}: "
                    f"its gradient is {r}/{k} of what it should be.")  # fmt: skip
    if _same(mine, [1.0] * r) or _same(mine, [w * k for w in right]):
        raise Fault("not divided", f"{table} `backward()` adds gradients up; nothing here turns the sum into a mean, so "
                    f"the step is {r} times too long.")  # fmt: skip
    if k > 1 and (_same(mine, [w / k for w in right]) or _same(mine, [1 / k**2] * r)):
        raise Fault("divided twice", f"{table} The mean is taken twice.")
    if r > 1 and _same(mine, [1 / (i + 1) for i in range(r)]):
        raise Fault("running division", f"{table} Each loss is divided by the number so far. The divisor of a window is "
                    "the same for all of it.")  # fmt: skip
    if len({sizes[i] for i in window}) > 1 and (_same(mine, [1 / r] * r) or _same(mine, [1 / k] * r)):
        raise Fault("mean of means", f"{table} The micro-batches have {_list([sizes[i] for i in window])} samples, so a "
                    "plain mean of their means favours the small ones.")  # fmt: skip
    factor = mine[0] / right[0]
    if r > 1 and _same(mine, [w * factor for w in right]):
        raise Fault("all scaled", f"{table} The shares are right, but all of them are {factor:.3g} times what they should be. "
                    "Look for a wrong divisor, or for clipping.")  # fmt: skip
    raise Fault("wrong weights", f"{table} Each micro-batch should weigh its share of the window's samples.")


def _list(values) -> str:
    return ", ".join(f"{v if abs(v) > CLOSE else 0:.3g}" for v in values)
