"""All exercises by id. The exercises of notebook 02 live in nb02.py, loaded when one of them is asked for."""

import difflib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ID = re.compile(r"\d\d\.\d{1,2}")
_exercises: dict[str, "Exercise"] = {}
_loaded: set[str] = set()


@dataclass(frozen=True)
class Wrong:
    """A typical wrong answer and the diagnosis it must get. `source` says where it was seen, e.g. "B01"."""

    name: str
    answer: Any
    diagnosis: str
    source: str = ""


@dataclass(frozen=True)
class Unusual:
    """A right answer that looks different from the reference. It must pass."""

    name: str
    answer: Any


@dataclass(frozen=True)
class Exercise:
    """One exercise: what is asked, a reference, hints, a checker, and the answers that test the checker.

    `reference` is a function or class (the answer is called), or a value. `checker(answer)` raises Fault or
    returns None; a function answer arrives as a guard.GuardedAnswer. `time_limit` (seconds) covers the whole
    check. `needs="gpu"`: the check makes no sense without one. `name` is what the learner's function or
    variable is called: the reference's own name unless given, required for values. `source` is the expression
    that solved notebooks and `solution` show for a value, where its repr would teach nothing.
    """

    id: str
    title: str
    prompt: str
    reference: Any
    hints: tuple[str, ...]
    checker: Callable[[Any], None]
    wrong: tuple[Wrong, ...]
    unusual: tuple[Unusual, ...]
    time_limit: float = 20.0
    needs: str | None = None
    name: str | None = None
    source: str | None = None

    def __post_init__(self):
        if self.name is None:
            object.__setattr__(self, "name", getattr(self.reference, "__name__", None))
        for field in ("hints", "wrong", "unusual"):
            object.__setattr__(self, field, tuple(getattr(self, field)))

    @property
    def calls(self):
        """True if the answer is a function or a class, False if it is a value."""
        return callable(self.reference)

    @property
    def call(self):
        """How the learner asks for the check, as code."""
        return f'check("{self.id}", {self.name})'


class UnknownExercise(LookupError):
    """No exercise has this id; the message says which ids are near."""


def register(exercise):
    """Add an exercise and return it. Raises ValueError if it is incomplete or its id is taken."""
    problem = _problem(exercise)
    if problem:
        raise ValueError(f"exercise {exercise.id!r}: {problem}")
    _exercises[exercise.id] = exercise
    return exercise


def looks_like_id(text):
    """True for a text such as "02.3"."""
    return _ID.fullmatch(text) is not None


def get(id):
    """The exercise with this id. Raises UnknownExercise with one sentence that names ids near it."""
    if isinstance(id, str) and _ID.fullmatch(id):
        _load(id[:2])
    if isinstance(id, str) and id in _exercises:
        return _exercises[id]
    known = {exercise.id: exercise for exercise in all_exercises()}
    if isinstance(id, str) and (id.strip() in known or "0" + id.strip() in known):
        near = [id.strip() if id.strip() in known else "0" + id.strip()]
    else:
        near = difflib.get_close_matches(str(id)[:20], known, n=3, cutoff=0.5)
    near = " or ".join(f'"{match}"' for match in near)
    cure = f"did you mean {near}?" if near else "`status()` lists all exercises."
    raise UnknownExercise(f"There is no exercise {str(id)[:40]!r}: {cure}")


def all_exercises():
    """Every exercise, in the order of the ids."""
    for path in sorted(Path(__file__).parent.glob("nb[0-9][0-9].py")):
        _load(path.stem[2:])
    return sorted(_exercises.values(), key=lambda exercise: (exercise.id[:2], int(exercise.id[3:])))


def _load(number):
    """Import the exercises of one notebook, if there are any."""
    if number in _loaded or not (Path(__file__).parent / f"nb{number}.py").exists():
        return
    before = set(_exercises)
    try:
        importlib.import_module(f"{__package__}.nb{number}")
    except BaseException:
        # a second try must meet the same error, not "the id is taken"
        for id in set(_exercises) - before:
            del _exercises[id]
        raise
    _loaded.add(number)


def _problem(exercise):
    """What is wrong with an exercise, or None."""
    if not isinstance(exercise.id, str) or not _ID.fullmatch(exercise.id):
        return 'the id must look like "02.3"'
    if exercise.id in _exercises:
        return "the id is taken"
    for field in ("title", "prompt"):
        if not getattr(exercise, field).strip():
            return f"the {field} is empty"
    if len(exercise.hints) < 3 or not all(isinstance(hint, str) and hint.strip() for hint in exercise.hints):
        return "it needs three hints or more, from a nudge to nearly the solution"
    if len(exercise.wrong) < 3:
        return "it needs three known-wrong answers or more"
    if not exercise.unusual:
        return "it needs one unusual right answer or more"
    if not exercise.name or not exercise.name.isidentifier():
        return "it needs name=..., what the learner's function or variable is called"
    if exercise.needs not in (None, "gpu"):
        return 'needs must be None or "gpu"'
    if not callable(exercise.checker) or not exercise.time_limit > 0:
        return "it needs a checker and a time limit above 0 seconds"
    return None
