"""A check ends at its time limit or on Stop, whatever the answer does, and keeps what it prints short."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from engine_toys import ID, remove, toy

from course_lib.exercises import check, registry
from course_lib.sandbox import job
from course_lib.sandbox.capture import KEEP


@pytest.fixture(autouse=True)
def exercise():
    """The toy, with a short time limit."""
    remove()
    yield registry.register(toy(time_limit=1.0))
    remove()


def loop(xs):
    while True:
        pass


def loop_that_swallows(xs):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722
            pass


def loop_that_swallows_thrice(xs):
    while True:
        try:
            try:
                while True:
                    try:
                        sum(range(1000))
                    except:  # noqa: E722
                        continue
            except BaseException:
                continue
            finally:
                total = 0
        except BaseException:
            total += 1
            continue


def loop_that_sleeps(xs):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def loop_that_starts_again(xs):
    try:
        while True:
            torch.ones(10) @ torch.ones(10)
    finally:
        loop_that_starts_again(xs)


@pytest.mark.parametrize(
    "answer",
    [loop, loop_that_swallows, loop_that_swallows_thrice, loop_that_sleeps, loop_that_starts_again],
    ids=lambda answer: answer.__name__,
)
def test_an_endless_loop_ends_at_the_time_limit_and_leaves_no_thread(answer):
    before = set(sys._current_frames())
    start = time.monotonic()
    verdict = check(ID, answer)
    assert verdict.diagnosis == "time limit" and "never ends" in verdict.message
    assert "Restart" not in verdict.message
    assert time.monotonic() - start < 4
    time.sleep(0.05)
    assert set(sys._current_frames()) <= before


def test_a_call_that_cannot_be_interrupted_is_left_behind_with_the_cure_and_cannot_flood_the_page(
    capsys, monkeypatch
):
    monkeypatch.setattr(job, "GRACE", 0.3)

    def blocked(xs):
        try:
            time.sleep(3.0)  # waits in C code, where nothing can end it
        finally:
            print("much later " * 1000)

    verdict = check(ID, blocked)
    assert verdict.diagnosis == "time limit" and "Restart the kernel" in verdict.message
    capsys.readouterr()
    time.sleep(2.5)
    assert "much later" not in capsys.readouterr().out
    assert check(ID, lambda xs: xs.mean()).state == "passed"


def test_ten_megabytes_of_output_are_cut_and_counted(capsys):
    def answer(xs):
        for _ in range(10):
            print("<b>x</b>" * (1_000_000 // 8))

    verdict = check(ID, answer)
    assert verdict.state == "failed" and verdict.output_total > 9_999_000
    assert len(verdict.output) == KEEP
    assert len(verdict._repr_html_()) < 4 * KEEP and "<details>" in verdict._repr_html_()
    assert len(capsys.readouterr().out) < 2 * KEEP


def test_a_warning_of_an_answer_is_part_of_its_output():
    def answer(xs):
        print("careful", file=sys.stderr)
        return xs.mean()

    verdict = check(ID, answer)
    assert verdict.state == "passed" and "careful" in verdict.output


def test_an_answer_that_comes_back_late_does_not_undo_what_happened_since(monkeypatch):
    monkeypatch.setattr(job, "GRACE", 0.3)
    notebook = {"time": time, "value": 1}
    exec("def mean(xs):\n    time.sleep(3.0)\n    return xs.mean()", notebook)
    assert check(ID, notebook["mean"]).diagnosis == "time limit"
    notebook["value"] = 2
    time.sleep(2.5)
    assert notebook["value"] == 2


def test_a_function_that_replaces_stdout_does_not_keep_it():
    out, err = sys.stdout, sys.stderr

    def answer(xs):
        sys.stdout = sys.stderr = None
        return xs.mean()

    assert check(ID, answer).state == "passed"
    assert sys.stdout is out and sys.stderr is err


def test_other_threads_print_as_always_during_a_check(capsys):
    def answer(xs):
        other = threading.Thread(target=print, args=("from elsewhere",))
        other.start()
        other.join()
        return xs.mean()

    assert check(ID, answer).output == ""
    assert "from elsewhere" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_stop_comes_through_and_ends_the_answer():
    before = set(sys._current_frames())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        check(ID, loop_that_swallows)
    time.sleep(0.1)
    assert set(sys._current_frames()) <= before
    assert check(ID, lambda xs: xs.mean()).state == "passed"


def test_a_program_can_end_while_an_answer_is_stuck():
    code = (
        "import sys, time; sys.path.insert(0, 'tests')\n"
        "from engine_toys import toy, ID; from course_lib.exercises import check, registry\n"
        "registry.register(toy(time_limit=0.2)); check(ID, lambda xs: time.sleep(600)); print('end')"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    environment = {**os.environ, "COURSE_PROGRESS": "off", "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.endswith("end\n"), done.stderr


def test_the_guard_costs_little_per_call():
    seconds = []

    def checker(answer):
        xs = torch.ones(3)
        start = time.perf_counter()
        for _ in range(100):
            answer(xs)
        seconds.append((time.perf_counter() - start) / 100)

    remove()
    registry.register(toy(checker=checker))
    check(ID, lambda xs: xs)
    assert seconds[0] < 0.01
