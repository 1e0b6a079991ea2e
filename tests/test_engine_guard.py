"""Each mishap of an answer gets its name and one clear sentence, with the learner's own line."""

import sys
from unittest import mock

import pytest
import torch
from engine_toys import ID, remove, toy

from course_lib.exercises import TODO, check, registry
from course_lib.exercises.want import want_close, want_int, want_number, want_sequence


@pytest.fixture(autouse=True)
def exercise():
    """The toy, with a short time limit."""
    remove()
    yield registry.register(toy(time_limit=1.0))
    remove()


def calls_itself(xs):
    return calls_itself(xs)


def exits(xs):
    sys.exit(0)


def interrupts(xs):
    raise KeyboardInterrupt


def eats_memory(xs):
    raise MemoryError


def misspells(xs):
    total = xs.sum()
    return total.backwards()


def asks(xs):
    return float(input("the mean? "))


def debugs(xs):
    breakpoint()


def checks_itself(xs):
    return check(ID, checks_itself)


class Nasty(Exception):
    def __str__(self):
        raise ValueError("no")


class LyingText(str):
    def __getitem__(self, item):
        return self

    def __len__(self):
        return 1


def raises_nasty(xs):
    raise Nasty


def raises_a_megabyte(xs):
    raise ValueError(LyingText("<script>" * 200_000))


def raises_from_a_callback(xs):
    return xs.apply_(lambda x: 1 / 0)


def takes_too_few():
    return 3


@pytest.mark.parametrize(
    "answer, diagnosis, words",
    [
        (calls_itself, "recursion", "calls itself"),
        (exits, "raised", "`sys.exit(0)`"),
        (interrupts, "raised", "`raise KeyboardInterrupt`"),
        (eats_memory, "out of memory", "more memory"),
        (misspells, "raised", "`return total.backwards()`"),
        (asks, "asks for input", "`input`"),
        (debugs, "asks for input", "`breakpoint`"),
        (checks_itself, "wrong type", "Verdict"),
        (raises_nasty, "raised", "cannot be shown"),
        (raises_a_megabyte, "raised", "<script>"),
        (raises_from_a_callback, "raised", "division by zero"),
        (takes_too_few, "wrong signature", "Keep the parameters"),
        (lambda xs, ys: xs, "wrong signature", "Keep the parameters"),
        (lambda xs: (value for value in xs), "wrong type", "generator"),
        (lambda xs: None, "returned nothing", "`return`"),
        (lambda xs: xs.mean().as_subclass(type("Sneaky", (torch.Tensor,), {})), "wrong type", "Sneaky"),
        (lambda xs: xs * float("nan"), "wrong shape", "(3,)"),
        (lambda xs: xs.mean() * float("nan"), "not finite", "NaN"),
        (torch.nn.Linear, "wrong signature", "out_features"),
    ],
)
def test_each_mishap_gets_its_name_and_one_short_sentence(answer, diagnosis, words):
    verdict = check(ID, answer)
    assert verdict.diagnosis == diagnosis, verdict.message
    assert words in verdict.message and len(verdict.message) < 1000
    assert "Traceback" not in str(verdict) and "<script>" not in verdict._repr_html_()


def test_the_line_shown_is_the_learners_and_not_torchs():
    def answer(xs):
        rows = xs.reshape(3, 1)
        return torch.nn.functional.linear(rows, rows)[0] @ torch.ones(7)

    verdict = check(ID, answer)
    line = answer.__code__.co_firstlineno + 2
    assert f"line {line}: `return torch.nn" in verdict.message


def test_an_exception_inside_a_lazy_result_is_the_learners_too():
    def checker(answer):
        list(answer([1]))

    remove()
    registry.register(toy(checker=checker))
    verdict = check(ID, lambda xs: (1 / 0 for _ in xs))
    assert verdict.diagnosis == "raised" and "ZeroDivisionError" in verdict.message


def test_a_bug_in_a_checker_is_not_blamed_on_the_learner():
    remove()
    registry.register(toy(checker=lambda answer: torch.ones(2).reshape(3), reference=max, name="mean"))
    verdict = check(ID, max)
    assert verdict.diagnosis == "course error" and "not your fault" in verdict.message


@pytest.mark.parametrize("caught", [NotImplementedError, Exception, BaseException])
def test_a_todo_that_is_swallowed_is_still_not_started(caught):
    def answer(xs):
        try:
            TODO("the mean")
        except caught:
            return None

    assert check(ID, answer).state == "not started"


def test_a_todo_that_was_left_behind_does_not_spoil_a_right_answer():
    def answer(xs):
        try:
            TODO("the mean")
        except NotImplementedError:
            return xs.mean()

    assert check(ID, answer).state == "passed"


def asks_twice(answer):
    """A checker that calls the answer a second time and so meets what the first call left behind."""
    for _ in range(2):
        want_close(answer(torch.ones(3)), torch.tensor(1.0), "the mean", "wrong mean", "divide.")


@pytest.mark.parametrize("ask", [lambda: input(), lambda: breakpoint()], ids=["input", "breakpoint"])
def test_the_second_call_cannot_ask_for_input_either(ask):
    calls = []

    def answer(xs):
        calls.append(xs)
        if len(calls) == 2:
            ask()
        return xs.mean()

    remove()
    registry.register(toy(checker=asks_twice))
    assert check(ID, answer).diagnosis == "asks for input"


@pytest.mark.parametrize("kind", [None, int, str, torch.Tensor, list], ids=str)
def test_a_mock_that_pretends_to_be_anything_is_refused(kind):
    fake = mock.MagicMock(spec=kind)
    remove()
    registry.register(toy())
    assert check(ID, lambda xs: fake).diagnosis == "wrong type"
    for want in (want_int, want_number, want_sequence):
        remove()
        registry.register(
            toy(reference=3, name="n", checker=lambda value, want=want: want(value, "the count"))
        )
        assert check(ID, fake).diagnosis == "wrong type"
    assert check(fake, fake).state == "failed"


def test_text_that_no_page_can_show_is_replaced():
    def answer(xs):
        print("\ud800 printed")
        raise ValueError("\udfff raised")

    verdict = check(ID, answer)
    verdict._repr_html_().encode("utf-8")
    assert "printed" in verdict.output and "raised" in verdict.message
