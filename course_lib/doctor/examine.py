"""`examine(loop)`: run a loop on a problem whose gradients are known, and say what it did to each micro-batch."""

from __future__ import annotations

import inspect
import time
from dataclasses import replace

import torch

from course_lib.sandbox.explain import explain
from course_lib.sandbox.faults import Fault
from course_lib.sandbox.protect import one_thread

from .diagnose import diagnose
from .facts import Facts
from .known import Known
from .names import cure_of, kind_of
from .poison import poisoned
from .problems import Owned, Problem, cloned, copied, regression, sgd
from .report import Diagnosis, Report, Window
from .replay import Replay
from .updates import ZERO
from .run import asks_for, globals_of, safely, watched
from .tape import NOTE, facts_of_tape
from .weigh import peaks

ENDED = "The loop was ended after it had shown enough."

COUNTED = {
    "forward": "forward", "backward": "backward", "taken": "autograd.grad", "clear": "clear", "step": "step",
    "scheduler": "scheduler", "ema": "ema", "clip": "clip", "unscale": "unscale", "scaler step": "scaler step",
    "scaler update": "scaler update", "log": "log",
}  # fmt: skip


def examine(
    loop,
    accumulation_steps: int | None = None,
    *,
    problem: Problem | None = None,
    sizes=None,
    model=None,
    loss_fn=None,
    batches=None,
    optimizer=None,
    adapter=None,
    epochs: int = 2,
    time_limit: float = 20.0,
) -> Report:
    """Watch a training loop and name what is wrong with it. Never raises for what the loop does.

    loop: `train(model, optimizer, loss_fn, batches, accumulation_steps)`, called once per epoch; loss_fn is a mean,
    batches a list of (inputs, targets). More parameters are filled by name: scheduler, scaler, ema, log, max_norm, epochs,
    max_steps. Or a function without parameters that makes everything itself and trains (see tape.py), or that returns an
    `Owned`. Or anything, with `adapter(loop, parts)`.
    accumulation_steps: 4 if left out; for a loop that owns everything, what its windows hold.
    sizes: rows of each micro-batch of an epoch (default: equal, with a short tail).
    model, loss_fn, batches, optimizer: your own; optimizer is a function of the parameters.
    time_limit: seconds for all runs together.
    Raises ValueError or TypeError for arguments that make no problem.
    """
    start = time.perf_counter()
    k = _whole(4 if accumulation_steps is None else accumulation_steps, "accumulation_steps")
    epochs = _whole(epochs, "epochs")
    if not callable(loop) and adapter is None:
        raise TypeError(f"examine needs a function to call, not {loop!r:.80}. Leave out the brackets: examine(train).")
    owned = None
    if problem is None and adapter is None and model is None and _is_owner(loop):
        with one_thread():
            made, fault, printed = safely(lambda clean_up: _on_tape(loop, accumulation_steps, clean_up), loop, time_limit)
        if fault is not None:
            return _only(fault, k, start, printed)
        if isinstance(made, Report):
            return replace(made, seconds=time.perf_counter() - start, notes=made.notes + _said(printed))
        owned, problem = made, _problem_of_owned(made, k)
        loop = made.run
        adapter = lambda run, parts: run()  # noqa: E731
        epochs = 1
    elif problem is None:
        problem = _problem(k, sizes, model, loss_fn, batches, optimizer)
    elif problem.accumulation_steps != k:
        problem = replace(problem, accumulation_steps=k) if accumulation_steps is not None else problem
    k = problem.accumulation_steps
    work = lambda clean_up: _examine(loop, problem, adapter, epochs, owned, clean_up)  # noqa: E731
    with one_thread():
        result, fault, printed = safely(work, loop, time_limit)
    if fault is not None:
        return _only(fault, k, start, printed)
    return replace(result, seconds=time.perf_counter() - start, notes=result.notes + _said(printed))


def _examine(loop, problem, adapter=None, epochs=2, owned=None, clean_up=None) -> Report:
    model = copied(problem.model())
    if not [p for p in model.parameters() if p.requires_grad]:
        words = "This model has no parameter that requires a gradient: no loop can train it."
        return _only(Fault("no trainable parameters", words), problem.accumulation_steps, time.perf_counter())
    facts = facts_of(loop, problem, adapter, epochs, clean_up=clean_up)
    whole = all(micro.whole for micro in facts.known.micro)
    if problem.plain and adapter is None and facts.updates and problem.accumulation_steps > 1 and whole:
        facts.memory = peaks(loop, problem)
    found = list(diagnose(facts))
    if owned is None:
        found += poisoned(loop, problem, adapter, facts, clean_up)
    return report_of(facts, found, problem.words)


def _on_tape(loop, accumulation_steps, clean_up):
    """An `Owned`, or the report on a loop that has trained a model of its own."""
    facts, returned, error = facts_of_tape(loop, accumulation_steps, globals_of(loop), clean_up)
    if isinstance(returned, Owned):
        return returned
    if error is not None:
        fault = error if isinstance(error, Fault) else explain(error, loop, getattr(loop, "__name__", "loop"), ((), {}))
        if facts is None:
            raise fault
        facts.log.error = fault
    if facts is None:
        words = "A loop without parameters must train a model of its own, or return Owned(...)."
        raise Fault("nothing went forward", words)
    report = report_of(facts, diagnose(facts), f"its own {type(facts.known.model).__name__}")
    return replace(report, notes=(NOTE, *report.notes, *((ENDED,) if facts.log.cut else ())))


def facts_of(loop, problem: Problem, adapter=None, epochs: int = 2, run=None, clean_up=None) -> Facts:
    """One watched run, replayed and put into windows."""
    before = copied(problem.model()) if problem.owned else None
    log, rows, _ = watched(problem, loop, adapter, epochs, run=run, clean_up=clean_up)
    model = copied(before if before is not None else problem.model())
    forwards = log.of("forward")
    if forwards:
        modes = forwards[0].info["modes"] or {}
        for name, part in model.named_modules():
            part.training = modes.get(name, forwards[0].info["training"])
    known = Known(problem, model, rows, log)
    asked = epochs if asks_for(loop, "epochs") or asks_for(loop, "max_steps") else None
    return Facts(log, known, Replay(log, known), problem.accumulation_steps, asked)


def report_of(facts: Facts, found, words: str) -> Report:
    """The report of one run."""
    windows = []
    for update in facts.updates:
        rewritten = getattr(facts.known, "taped", False) and any(c.kind == "other" for c in update.changes)
        if facts.blind or rewritten:
            continue  # nothing to tell by
        span = tuple(facts.span(update))
        needed = tuple(facts.known.needed(span)) if update.finite else (float("nan"),) * len(span)
        used = tuple(facts.used(update))
        if facts.exact(update):
            used = needed
        stale = {n: w for n, w in update.weights.items() if n not in span and abs(w) > ZERO}
        near = facts.near * 10
        right = facts.exact(update) or facts.clipped_by_hand(update) or (
            not stale
            and update.residual < max(1e-5, facts.known.tolerance)
            and all(abs(a - b) < near * max(1.0, abs(b)) for a, b in zip(used, needed))
        )
        windows.append(Window(update.number, update.epoch, span, used, needed, update.residual, stale, right))
    found = list(found)
    first = next((window for window in windows if not window.right), None)
    if first is not None and not getattr(facts.known, "taped", False) and not any(one.kind in ("wrong", "limit") for one in found):
        words = f"Update {first.number} did not get the gradient of its window, and no fault of the table explains why."
        found.append(Diagnosis("wrong weights", words, cure_of("wrong weights"), "wrong"))
    counts = {name: len(facts.log.of(kind)) for kind, name in COUNTED.items()}
    counts["step"] = len(facts.updates)
    counts["samples"] = sum(len(event.info["rows"] or ()) for event in facts.log.of("forward"))
    return Report(tuple(found), tuple(windows), counts, facts.memory, _notes(facts), facts.k, words)


def _notes(facts: Facts) -> tuple:
    notes = ["How much each micro-batch counts cannot be read off this loop from outside."] if facts.blind else []
    common = max((update.common for update in facts.updates), default=0.0)
    if common:
        notes.append(f"A part ({common:.0%}) of each gradient is the same in all micro-batches (a penalty?); it is left out here.")
    if any(c.kind == "other" and c.at == u.backwards for u in facts.updates for c in u.changes):
        notes.append("The loop rewrites .grad when a window is full; what stood there before is judged.")
    return tuple(notes)


def _only(fault: Fault, k: int, start: float, printed: str = "") -> Report:
    one = Diagnosis(fault.diagnosis, fault.message, cure_of(fault.diagnosis), kind_of(fault.diagnosis))
    return Report((one,), accumulation_steps=k, seconds=time.perf_counter() - start, notes=_said(printed))


def _said(printed: str) -> tuple:
    text = printed.strip()
    return (f"The loop printed: {text[:200]}",) if text else ()


# -- what the loop is tried on -------------------------------------------------------------------------------------


def _is_owner(loop) -> bool:
    try:
        return not inspect.signature(loop).parameters
    except (TypeError, ValueError):
        return False


def _problem(k, sizes, model, loss_fn, batches, optimizer) -> Problem:
    if model is None and batches is None:
        if sizes is None:
            sizes = [4] * (2 * k + k // 2)
        sizes = [_whole(n, "a size") for n in sizes]
        if not sizes:
            raise ValueError("sizes is empty: give the rows of at least one micro-batch.")
        base = regression(sizes, k)
        changes = {}
        if loss_fn is not None:
            changes["loss_fn"] = loss_fn
        if optimizer is not None:
            changes["optimizer"] = optimizer
        return replace(base, **changes) if changes else base
    if model is None or batches is None or loss_fn is None:
        raise ValueError("Give model, loss_fn and batches together: the doctor needs all three to know the right gradients.")
    make = model if not isinstance(model, torch.nn.Module) and callable(model) else None
    if make is None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a module or a function that makes one, not {type(model).__name__}.")
    if optimizer is not None and not callable(optimizer):
        raise TypeError("optimizer must be a function that makes one: `optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3)`.")
    try:
        held = copied(make() if make else model)
    except Exception as error:
        raise TypeError(f"This model cannot be copied ({error}): give a function that makes it, model=make_model.") from None
    data = list(batches)
    if not data:
        raise ValueError("batches is empty: the doctor needs at least one batch.")
    return Problem(
        model=lambda: copied(held),
        batches=lambda epoch: [cloned(batch) for batch in data],  # a loop may write into its inputs
        loss_fn=loss_fn,
        accumulation_steps=k,
        optimizer=optimizer or sgd,
        words=f"your {type(held).__name__}",
    )


def _problem_of_owned(owned: Owned, k: int) -> Problem:
    return Problem(
        model=lambda: owned.model,
        batches=lambda epoch: list(owned.batches),
        loss_fn=owned.loss_fn,
        accumulation_steps=k,
        optimizer=lambda parameters: owned.optimizer,
        words=f"its own {type(owned.model).__name__}",
        owned=True,
    )


def _whole(value, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number of at least 1, not {value!r:.40}.")
    return value


