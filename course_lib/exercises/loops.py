"""Judge a training loop that a learner wrote: the doctor looks for faults, then real training must end where it should.

First the doctor runs the loop for two epochs while it holds the weights still (course_lib/doctor). Its findings of
kind "wrong" fail the answer; what merely costs memory does not. Then the loop trains for two epochs with a real
learning rate and must end where large-batch SGD ends, with the large batch's losses.
"""

from __future__ import annotations

from dataclasses import dataclass, field


from course_lib.doctor.diagnose import diagnose
from course_lib.doctor.examine import facts_of
from course_lib.doctor.problems import Problem, regression

from .faults import Fault
from .want import want_number, want_sequence

CLOSE = 1e-6
JUDGED = ("wrong",)  # kinds of diagnoses that fail an answer


@dataclass(frozen=True)
class Training:
    """How a right loop trained. `trained`: (what it returned, the windows' losses) for each epoch."""

    sizes: tuple
    accumulation_steps: int
    trained: list = field(default_factory=list)


def want_right_loop(loop, sizes, accumulation_steps: int, seed: int = 0) -> Training:
    """Raise the Fault that names what a loop does wrong; return how a right one trained.

    loop: a GuardedAnswer or a function. sizes: rows of each micro-batch.
    """
    problem = regression(sizes, accumulation_steps, seed)
    want_healthy(loop, problem)
    return _want_trained(loop, problem, tuple(sizes))


def want_healthy(loop, problem: Problem, ignore: tuple = ()) -> None:
    """Raise the doctor's worst finding as a Fault. `ignore`: names that this exercise does not mind."""
    facts = facts_of(loop, problem, run=lambda parts: _call(loop, parts.model, parts.optimizer, problem, parts.batches))
    for found in diagnose(facts):
        if found.kind in JUDGED and found.name not in ignore:
            raise Fault(found.name, f"{found.evidence} {found.cure}")


def _call(loop, model, optimizer, problem: Problem, batches):
    arguments = (model, optimizer, problem.loss_fn, batches, problem.accumulation_steps)
    if hasattr(loop, "call"):
        return loop.call(*arguments, unchanged=(batches,))
    return loop(*arguments)


def _want_trained(loop, problem: Problem, sizes) -> Training:
    model, twin = problem.model(), problem.model()
    optimizer, plain = problem.optimizer(model.parameters()), problem.optimizer(twin.parameters())
    k, result = problem.accumulation_steps, Training(sizes, problem.accumulation_steps)
    for epoch in (1, 2):
        batches = problem.batches(epoch - 1)
        returned, losses = _call(loop, model, optimizer, problem, list(batches)), []
        for start in range(0, len(batches), k):
            plain.zero_grad()
            loss = problem.loss_of_window(twin, batches[start : start + k])
            loss.backward()
            plain.step()
            losses.append(loss.item())
        result.trained.append((returned, losses))
        for (name, mine), right in zip(model.named_parameters(), twin.parameters()):
            if (mine.detach() - right.detach()).abs().max() > CLOSE:
                raise Fault(
                    "wrong weights after training", f"The gradients are right, but after epoch {epoch} {name} is not where "
                    "large-batch SGD leaves it. Let `optimizer.step()` make the update, once per window."
                )  # fmt: skip
    return result


def want_window_losses(returned, losses) -> None:
    """The loop must return the large-batch loss of each window, as numbers."""
    values = [float(want_number(v, "a window's loss")) for v in want_sequence(returned, "the returned losses", len(losses))]
    for number, (value, right) in enumerate(zip(values, losses), 1):
        if abs(value - right) > CLOSE * max(1.0, abs(right)):
            raise Fault(
                "wrong logged loss", f"Window {number}: your loop returns {value:.6g}, the loss of the large batch is "
                f"{right:.6g}. Add up the weighted losses of all its micro-batches."
            )  # fmt: skip


