"""Exercises: `check` an answer, get a `hint`, see a `solution`, go on with `ready`, look at your `status`.

Importing this is cheap; torch and the exercises come with the first call.
"""

import os

from .faults import TODO, CheckFailed

__all__ = ["TODO", "CheckFailed", "check", "hint", "ready", "solution", "status"]

_MISSING = object()


def check(id=_MISSING, answer=_MISSING):
    """Check an answer, show the result, return it as a Verdict(.id .state .diagnosis .message).

    `id` is the exercise's id such as "02.3", `answer` your function (not called) or your value.
    Raises nothing, but CheckFailed with COURSE_STRICT=1 if the answer is anything short of passed.
    """
    from . import progress

    verdict = _judge(id, answer)
    verdict.show()
    if verdict.title:
        progress.record(verdict.id, "check", state=verdict.state, diagnosis=verdict.diagnosis)
    return _strict(verdict)


def ready(id=_MISSING, answer=_MISSING):
    """Your answer if it passes its check, else the reference with a one-line note: the notebook can go on.

    Raises CheckFailed with COURSE_STRICT=1 if the answer does not pass. Raises LookupError for an unknown id.
    """
    from . import judge, page, registry

    if isinstance(id, str) and judge.passed_before(id, answer):
        return answer
    verdict = _judge(id, answer)
    if verdict.state == "passed":
        return answer
    if not verdict.title and verdict.diagnosis != "no answer":
        verdict.show()
    _strict(verdict)
    exercise = registry.get(id)
    reasons = {"not started": "is not written yet", "failed": "does not pass its check yet"}
    why = reasons.get(verdict.state if verdict.title else "", "could not be checked here")
    page.note(
        f"{exercise.id}: `{exercise.name}` {why}, so this notebook goes on with the course's own. "
        f"`{exercise.call}` says more."
    )
    return exercise.reference


def hint(id=_MISSING):
    """Show the next hint of an exercise; each call gives one more."""
    from . import judge, page, progress

    exercise = _exercise(id, "hint")
    if exercise is None:
        return
    number, text = judge.next_hint(exercise)
    if text is None:
        page.note(f'{exercise.id}: these were all {number} hints; `solution("{exercise.id}")` shows one way.')
        return
    page.note(f"Hint {number} of {len(exercise.hints)} for {exercise.id}: {text}")
    progress.record(exercise.id, "hint", number=number)


def solution(id=_MISSING):
    """Show the reference, folded in a notebook. There are other right answers."""
    from . import judge, page, progress

    exercise = _exercise(id, "solution")
    if exercise is None:
        return
    source = judge.reference_source(exercise)
    heading = f"One solution of {exercise.id} {exercise.title}"
    page.show(f"{heading}:\n\n{source}\n", page.box(page.fold(heading, source)))
    progress.record(exercise.id, "solution")


def status():
    """Your progress: a table in a notebook, text in a terminal."""
    from . import progress

    return progress.status()


def _judge(id, answer):
    from . import judge

    id, answer = (judge.MISSING if value is _MISSING else value for value in (id, answer))
    return judge.judge(id, answer)


def _exercise(id, asked):
    """The exercise, or None after a sentence that says what is wrong with the id."""
    from . import page, registry

    if not isinstance(id, str):
        page.note(f'Say which exercise, with its id in quotes: `{asked}("02.3")`.', "bad")
        return None
    try:
        return registry.get(id)
    except registry.UnknownExercise as error:
        page.note(str(error), "bad")
        return None


def _strict(verdict):
    if os.environ.get("COURSE_STRICT") == "1" and verdict.state != "passed":
        raise CheckFailed(f"{verdict.id} {verdict.state} ({verdict.diagnosis}): {verdict.message}")
    return verdict
