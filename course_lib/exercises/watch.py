"""Run a loop on an optimizer that moves nothing, and compare what each update was given with what it needed.

The weights stand still, so the right gradient of every update is known beforehand. Typical mistakes are known
beforehand, too: they are gradients like any other, and a run that gave exactly these gets the mistake's name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch

from course_lib.experiments.gradients import compared, gradient_of

from .faults import Fault

CLOSE = 1e-7


class Still(torch.optim.SGD):
    """SGD that moves nothing. Of each step `seen` keeps {name: gradient or None}, `rates` the rate."""

    def __init__(self, model: torch.nn.Module, lr: float = 1.0):
        super().__init__(model.parameters(), lr=lr)
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self.seen: list[dict] = []
        self.rates: list[float] = []

    def step(self, closure=None):
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self.rates.append(float(self.param_groups[0]["lr"]))
        found = {name: p.grad for p, name in self.names.items()}
        self.seen.append({name: None if g is None else g.detach().clone() for name, g in found.items()})
        return result


@dataclass
class Seen:
    """One run: the gradient of each update as a vector, its learning rate, and what the loop returned."""

    updates: list
    rates: list
    returned: object


@dataclass(frozen=True)
class Mistake:
    """A mistake that can be told from numbers: the gradients that it gives, one for each update."""

    diagnosis: str
    updates: list = field(repr=False)
    message: str = ""


def watch(model: torch.nn.Module, call, scheduled: bool = False) -> Seen:
    """Run `call(optimizer)` and note every update.

    scheduled: the loop may change the learning rate, which is 1 at first. Raises Fault for a generator, a
    step that finds no gradient, a model or learning rate that is not as it was, or weights moved by hand.
    """
    optimizer = Still(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    returned = call(optimizer)
    if inspect.isgenerator(returned):
        raise Fault("generator", "Your loop holds a `yield`, so calling it runs nothing: it only makes a "
                    "generator. Remove the `yield`.")  # fmt: skip
    for old, parameter in zip(before, model.parameters()):
        if (parameter.dtype, parameter.device) != (old.dtype, old.device):
            raise Fault("model changed", "Your loop moved the model to another dtype or device. Use it as it "
                                         "is given.")
        if not torch.equal(parameter.detach(), old):
            raise Fault("steps by hand", "Something other than `optimizer.step()` moved the weights. Leave "
                        "them to the optimizer: it may be Adam, or one that shards its state.")  # fmt: skip
    if not scheduled and {1.0} != {*optimizer.rates, float(optimizer.param_groups[0]["lr"])}:
        raise Fault("learning rate changed", "Your loop changes the learning rate. Leave it, and weigh the "
                    "losses: under Adam, say, the two are not the same.")  # fmt: skip
    for number, gradients in enumerate(optimizer.seen, 1):
        for name, gradient in gradients.items():
            if gradient is None:
                raise Fault("no gradient", f"At update {number} the gradient of {name} is None: no "
                            "`backward()` has reached it since the gradients were cleared.")  # fmt: skip
    updates = [torch.cat([g.flatten() for g in gradients.values()]) for gradients in optimizer.seen]
    return Seen(updates, optimizer.rates, returned)


def micro_gradients(model: torch.nn.Module, losses) -> list:
    """One vector for each loss (a function of the model), each with its own graph."""
    return [gradient_of(loss(model), model) for loss in losses]


def equal(got, right, close: float = CLOSE) -> bool:
    """Two vectors that agree relative to the larger entries of the right one."""
    bound = close * max(float(right.abs().max()), 1e-12)
    return got.shape == right.shape and bool((got - right).abs().max() <= bound)


def want_updates(seen: Seen, needed: list, mistakes=(), otherwise=None, close: float = CLOSE) -> None:
    """Raise a Fault unless the run made exactly the needed updates.

    A Mistake whose gradients are those of the run names it; then `otherwise()` may raise a Fault; the last
    word says how far the first wrong update is off. close: what is equal, relative to the largest entry.
    """
    if _same_run(seen.updates, needed, close):
        return
    for mistake in mistakes:
        if _same_run(seen.updates, mistake.updates, close):
            raise Fault(mistake.diagnosis, mistake.message)
    if otherwise is not None:
        otherwise()
    if not seen.updates:
        raise Fault("no update", f"Your loop made no update: `optimizer.step()` never ran, and {len(needed)} "
                                 "were due.")
    for number, (got, right) in enumerate(zip(seen.updates, needed), 1):
        if not bool(torch.isfinite(got).all()):
            raise Fault("not finite", f"Update {number} got a gradient with NaN or infinity in it. Find the "
                        "first operation that makes it; 0 / 0 is the usual one.")  # fmt: skip
        if not equal(got, right, close):
            off = compared(got, right)
            raise Fault("wrong gradient", f"Update {number} got a gradient of {off.ratio:.3g} times the "
                        f"right length, with cosine {off.cosine:.3f} to the right one (1 and 1 are "
                        "right).")  # fmt: skip
    raise Fault("wrong number of updates", f"Your loop made {len(seen.updates)} updates; {len(needed)} were "
                                           "due.")


def _same_run(got: list, right: list, close: float) -> bool:
    return len(got) == len(right) and all(equal(a, b, close) for a, b in zip(got, right))
