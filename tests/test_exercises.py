"""Every exercise: the reference passes, a blank is "not started", wrong answers get their own diagnosis."""

import time

import pytest

from course_lib.exercises import TODO, registry
from course_lib.exercises.judge import judge, reference_source

EXERCISES = registry.all_exercises()
each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


def cases(field):
    """One parameter per answer in a field of the exercises, with an id that says which."""
    return [
        pytest.param(exercise, case, id=f"{exercise.id} {case.name}")
        for exercise in EXERCISES
        for case in getattr(exercise, field)
    ]


def test_there_are_exercises():
    assert EXERCISES


@each
def test_the_reference_passes_well_within_the_time_limit(exercise):
    start = time.monotonic()
    verdict = judge(exercise.id, exercise.reference)
    assert verdict.state in ("passed", "not verified here"), str(verdict)
    # a laptop may be several times slower than the machine of the tests
    assert time.monotonic() - start < exercise.time_limit / 3


@each
def test_a_blank_is_not_started(exercise):
    def stub(*args, **kwargs):
        TODO("write this")

    verdict = judge(exercise.id, stub if exercise.calls else ...)
    assert verdict.state == "not started", str(verdict)


@pytest.mark.parametrize("exercise, case", cases("wrong"))
def test_a_known_wrong_answer_gets_its_own_diagnosis(exercise, case):
    verdict = judge(exercise.id, case.answer)
    if verdict.state != "not verified here":
        assert (verdict.state, verdict.diagnosis) == ("failed", case.diagnosis), str(verdict)
        assert 20 < len(verdict.message) < 700


@pytest.mark.parametrize("exercise, case", cases("unusual"))
def test_an_unusual_right_answer_passes(exercise, case):
    verdict = judge(exercise.id, case.answer)
    assert verdict.state in ("passed", "not verified here"), str(verdict)


@each
def test_a_function_that_returns_nothing_fails(exercise):
    verdict = judge(exercise.id, (lambda *args, **kwargs: None) if exercise.calls else None)
    assert verdict.state in ("failed", "not verified here") and verdict.diagnosis != "course error", str(
        verdict
    )


@each
def test_hints_lead_up_to_the_solution_without_being_it(exercise):
    assert len(set(exercise.hints)) == len(exercise.hints) >= 3
    answer = reference_source(exercise).partition("\n")[2] if exercise.calls else str(exercise.reference)
    for hint in exercise.hints:
        assert len(hint) > 20
        if len(answer) > 4:
            assert squeezed(answer) not in squeezed(hint)


@each
def test_the_solution_can_be_shown(exercise):
    compile(reference_source(exercise), exercise.id, "exec")


@pytest.mark.parametrize("field", ["wrong", "unusual"])
@each
def test_the_answers_that_test_the_checker_are_told_apart_by_name(exercise, field):
    names = [case.name for case in getattr(exercise, field)]
    assert len(set(names)) == len(names)


def squeezed(text):
    """The text without blanks and commas, so that only words count."""
    return "".join(text.replace(",", "").split())
