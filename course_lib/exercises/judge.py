"""From an answer to a verdict: the checks before the check, the guarded run, the words."""

import inspect

from course_lib.sandbox.explain import signature_of

from . import guard, registry
from .page import plain
from .verdict import Verdict

MISSING = object()
_passed = {}  # exercise id -> the answer that passed last, so that `ready` need not check it again
_hints_given = {}  # exercise id -> how many, in this session


def judge(id, answer):
    """The verdict on an answer. Raises nothing but KeyboardInterrupt."""
    try:
        return _judge(id, answer)
    except Exception as error:
        return _bug(id if type(id) is str else "?", f"{type(error).__name__}: {error}")


def _judge(id, answer):
    try:
        exercise = registry.get(id)
    except registry.UnknownExercise as error:
        return _not_asked(id, answer, str(error))
    if answer is MISSING:
        return _malformed(exercise.id, "no answer", f"Pass your answer as well: `{exercise.call}`.")
    if guard.inside():
        return _malformed(
            exercise.id,
            "check in answer",
            "An answer cannot call `check` or `ready` itself: remove that line.",
        )
    early = _before(exercise, answer)
    if early is not None:
        return early
    outcome = guard.run(exercise.checker, answer, exercise.time_limit, exercise.name, exercise.calls)
    if outcome.bug is not None:
        return _bug(exercise.id, outcome.bug)
    printed = {"output": plain(outcome.printed, 10_000), "output_total": outcome.printed_total}
    if outcome.fault is None:
        _passed[exercise.id] = _key(answer)
        return _verdict(exercise, "passed", "", "", **printed)
    if outcome.todo:
        return _not_started(exercise, **printed)
    return _verdict(exercise, "failed", outcome.fault.diagnosis, outcome.fault.message, **printed)


def passed_before(id, answer):
    """True if this very answer passed its last check in this session."""
    old = _passed.get(id)
    return old is not None and all(a is b for a, b in zip(old, _key(answer)))


def next_hint(exercise):
    """(number, text) of the next hint, or (number, None) after the last one."""
    given = _hints_given.get(exercise.id, 0)
    if given >= len(exercise.hints):
        return given, None
    _hints_given[exercise.id] = given + 1
    return given + 1, exercise.hints[given]


def reference_source(exercise):
    """The code of the reference, as it stands in a solved notebook. Raises ValueError if there is none."""
    if not exercise.calls:
        return f"{exercise.name} = {exercise.source or repr(exercise.reference)}"
    source = guard.source_of(exercise.reference)
    if source is None:
        raise ValueError(f"exercise {exercise.id}: the source of its reference cannot be found")
    if getattr(exercise.reference, "__name__", None) != exercise.name:
        raise ValueError(
            f"exercise {exercise.id}: the reference must be called `{exercise.name}`, as in the notebook"
        )
    return source.rstrip()


def _before(exercise, answer):
    """A verdict where the checker need not run, or None."""
    if answer is ...:
        return _not_started(exercise)
    if exercise.calls and not callable(answer):
        return _verdict(
            exercise,
            "failed",
            "not a function",
            f"Pass the function itself, without calling it: `{exercise.call}`.",
        )
    if not exercise.calls and inspect.isroutine(answer):
        return _verdict(
            exercise,
            "failed",
            "not a value",
            f"This asks for a value, and it is a function: call it first, or pass `{exercise.name}`.",
        )
    if exercise.needs == "gpu" and not _has_gpu():
        if exercise.calls and "TODO" in getattr(getattr(answer, "__code__", None), "co_names", ()):
            return _not_started(exercise)
        checked = (
            f"it can be called, as `{exercise.name}{signature_of(answer)}`"
            if exercise.calls
            else "a value is there"
        )
        return _verdict(
            exercise,
            "not verified here",
            "needs a GPU",
            f"Checked: {checked}. Not checked: whether it is right. That needs a GPU, and none is here.",
        )
    return None


def _has_gpu():
    import torch

    return torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())


def _not_asked(id, answer, sentence):
    if isinstance(answer, str) and (callable(id) or registry.looks_like_id(answer)):
        sentence = 'The id comes first, then your answer, as in `check("02.3", accumulate)`.'
    elif not isinstance(id, str):
        sentence = 'Begin with the exercise\'s id in quotes, as in `check("02.3", accumulate)`.'
        if isinstance(id, float) and 0 < id < 100:
            sentence += f" You gave the number {id:g} without quotes."
    return _malformed(plain(id, 20) if isinstance(id, str) else "?", "unknown id", sentence)


def _malformed(id, diagnosis, sentence):
    return Verdict(id, "failed", diagnosis, sentence)


def _bug(id, text):
    return Verdict(
        id,
        "failed",
        "course error",
        f"The course's own checker failed; this is not your fault. Please report: {plain(text, 300)}",
    )


def _not_started(exercise, **printed):
    blank = "replace `TODO(...)` with your code" if exercise.calls else "replace `...` with your answer"
    prompt = exercise.prompt.strip()
    prompt += "" if prompt[-1] in ".?!:" else "."
    return _verdict(exercise, "not started", "not started", f"{prompt} To begin, {blank}.", **printed)


def _verdict(exercise, state, diagnosis, message, **printed):
    left = len(exercise.hints) - _hints_given.get(exercise.id, 0)
    return Verdict(
        exercise.id,
        state,
        _text(diagnosis, 60),
        _text(message, 1500),
        exercise.title,
        hints_left=left,
        **printed,
    )


def _text(value, limit):
    return plain(value, limit) if issubclass(type(value), str) else "?"


def _key(answer):
    """What must be the same object for an answer to count as the same."""
    return answer, getattr(answer, "__code__", None) if inspect.isfunction(answer) else None
