"""What `check`, `ready`, `hint` and `solution` say, return and show."""

import html.parser
import os
import re

import pytest
import torch
from engine_toys import ID, mean, remove, toy

from course_lib.exercises import CheckFailed, check, hint, ready, registry, solution
from course_lib.exercises.faults import Fault
from course_lib.exercises.verdict import STATES, Verdict


@pytest.fixture(autouse=True)
def exercise():
    remove()
    yield registry.register(toy())
    remove()


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")


def right(xs):
    return xs.mean()


def wrong(xs):
    return xs.sum()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "exercise's id in quotes"),
        ((ID,), 'check("90.1", mean)'),
        ((right, ID), "id comes first"),
        (("my text", ID), "id comes first"),
        ((None, right), "in quotes"),
        ((90.1, right), "90.1 without quotes"),
        (("90.2", right), 'did you mean "90.1"'),
        (("9O.1", right), 'did you mean "90.1"'),
        ((" 90.1", right), 'did you mean "90.1"'),
        (("", right), "There is no exercise"),
        (("<b>" * 10_000, right), "There is no exercise"),
        ((ID, 3.0), "without calling it"),
        ((ID, None), "without calling it"),
    ],
)
def test_a_call_that_makes_no_sense_gets_a_sentence_and_no_exception(arguments, words, capsys):
    verdict = check(*arguments)
    assert verdict.state == "failed" and words in verdict.message
    assert len(capsys.readouterr().out) < 1000


def test_check_shows_and_returns_the_verdict(capsys):
    verdict = check(ID, right)
    assert (verdict.id, verdict.state, verdict.diagnosis, verdict.message) == (ID, "passed", "", "")
    assert capsys.readouterr().out == "✓ 90.1 The mean: Passed.\n"
    verdict = check(ID, wrong)
    assert (verdict.state, verdict.diagnosis) == ("failed", "wrong mean")
    assert "divide the sum" in verdict.message and "divide the sum" in capsys.readouterr().out
    assert repr(verdict) == "<90.1: failed>"


def test_a_blank_is_not_started_and_the_message_says_how_to_begin():
    remove()
    registry.register(toy(reference=3, checker=lambda value: None, name="answer"))
    verdict = check(ID, ...)
    assert verdict.state == "not started" and "replace `...`" in verdict.message


def test_a_function_where_a_value_is_asked_gets_a_sentence():
    remove()
    registry.register(toy(reference=3, checker=lambda value: None, name="answer"))
    assert check(ID, right).diagnosis == "not a value"
    assert check(ID, 3).state == "passed"


def test_strict_raises_for_anything_short_of_passed(strict):
    assert check(ID, right).state == "passed"
    assert ready(ID, right) is right
    for call in (check, ready):
        for answer in (wrong, ..., 3):
            with pytest.raises(CheckFailed, match="90.1"):
                call(ID, answer)
        with pytest.raises(CheckFailed):
            call("90.7", right)


def test_ready_gives_the_learners_own_function_only_if_it_passes(capsys):
    assert ready(ID, right) is right
    assert capsys.readouterr().out == ""
    for answer, why in ((wrong, "does not pass"), (..., "not written yet")):
        assert ready(ID, answer) is mean
        out = capsys.readouterr().out
        assert why in out and out.count("\n") == 1
    assert ready(ID) is mean


def test_ready_does_not_check_the_same_function_again():
    calls = []
    remove()
    registry.register(toy(checker=calls.append))
    check(ID, right)
    assert ready(ID, right) is right and ready(ID, right) is right
    assert len(calls) == 1
    ready(ID, lambda xs: xs.mean())
    assert len(calls) == 2


def test_ready_forgets_a_pass_when_the_code_of_the_function_was_replaced():
    def mine(xs):
        return xs.mean()

    check(ID, mine)
    mine.__code__ = (lambda xs: xs.sum()).__code__
    assert ready(ID, mine) is mean


def test_hints_come_one_by_one_and_then_point_to_the_solution(capsys):
    texts = []
    for _ in range(5):
        hint(ID)
        texts.append(capsys.readouterr().out)
    assert [text.split(":")[0] for text in texts[:3]] == [f"Hint {n} of 3 for 90.1" for n in (1, 2, 3)]
    assert 'solution("90.1")' in texts[3] == texts[4]
    assert 'solution("90.1")' in str(check(ID, wrong))


@pytest.mark.parametrize("call", [hint, solution])
@pytest.mark.parametrize("id", [None, mean, "90.9", 90.1])
def test_hint_and_solution_of_nothing_say_what_to_write(call, id, capsys):
    call(id)
    assert "90.1" in capsys.readouterr().out or not isinstance(id, str)
    call()


def test_solution_shows_the_source(capsys):
    solution(ID)
    assert "return total / len(xs)" in capsys.readouterr().out


def test_what_needs_a_gpu_is_not_verified_here_and_says_what_was_checked(monkeypatch):
    monkeypatch.setattr("course_lib.exercises.judge._has_gpu", lambda: False)
    remove()
    registry.register(toy(needs="gpu"))
    verdict = check(ID, wrong)
    assert verdict.state == "not verified here"
    assert "Checked: it can be called, as `mean(xs)`" in verdict.message and "Not checked" in verdict.message
    assert ready(ID, wrong) is mean


def test_with_a_gpu_it_is_checked_like_any_other(monkeypatch):
    monkeypatch.setattr("course_lib.exercises.judge._has_gpu", lambda: True)
    remove()
    registry.register(toy(needs="gpu"))
    assert check(ID, right).state == "passed" and check(ID, wrong).state == "failed"


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and holds the nesting together."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("state", STATES)
def test_the_html_announces_itself_uses_words_and_jupyters_colours_and_escapes_everything(state):
    evil = '<script>alert("x")</script> & `<img src=x onerror=y>`'
    verdict = Verdict(
        "90.1", state, "slug", evil, f"The {evil}", output=f"</pre>{evil}", output_total=9, hints_left=2
    )
    page = Page(verdict._repr_html_())
    assert ("role", "status") in page.tags[0][1].items()
    assert {tag for tag, _ in page.tags} <= {
        "div",
        "strong",
        "code",
        "details",
        "summary",
        "pre",
        "small",
        "br",
    }
    assert evil.replace("`", "") in page.words and f"</pre>{evil}" in page.words
    words = {"not started": "Not started", "failed": "Not right", "passed": "Passed"}
    assert words.get(state, "Not verified here") in page.words
    colours = re.findall(r"#[0-9a-f]{3,}\b|\brgb|: *white|: *black", verdict._repr_html_())
    assert colours == [] and "var(--jp-ui-font-color1" in verdict._repr_html_()


def test_messages_of_a_learners_exception_reach_the_page_escaped():
    def answer(xs):
        raise ValueError("<img src=x onerror=alert(1)>")

    assert "<img" not in check(ID, answer)._repr_html_()


def test_a_fault_whose_words_are_no_text_is_still_a_verdict():
    def checker(answer):
        raise Fault(None, torch.ones(2))

    remove()
    registry.register(toy(checker=checker))
    assert check(ID, right).state == "failed"


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"id": "1.2"}, "id"),
        ({"id": "01.2.3"}, "id"),
        ({"hints": ("a", "b")}, "hints"),
        ({"hints": ("a", "b", "")}, "hints"),
        ({"wrong": ()}, "wrong"),
        ({"unusual": ()}, "unusual"),
        ({"reference": 3}, "name"),
        ({"name": "not a name"}, "name"),
        ({"needs": "tpu"}, "gpu"),
        ({"title": " "}, "title"),
        ({"time_limit": 0}, "time limit"),
        ({}, "taken"),
    ],
)
def test_an_incomplete_exercise_cannot_be_registered(changes, problem):
    if changes:
        remove()
    with pytest.raises(ValueError, match=problem):
        registry.register(toy(**changes))


def test_the_engine_is_cheap_to_import():
    code = "import sys, course_lib.exercises; print('torch' in sys.modules or 'IPython' in sys.modules)"
    assert os.popen(f'{os.sys.executable} -c "{code}"').read().strip() == "False"
