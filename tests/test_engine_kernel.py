"""In a real kernel: a verdict shows once, later again, and Stop ends an answer that loops."""

import os
import time
from pathlib import Path

import pytest

manager = pytest.importorskip("jupyter_client.manager")
TESTS = Path(__file__).parent
SETUP = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from engine_toys import ID, toy
from course_lib.exercises import TODO, check, hint, ready, registry, solution, status
registry.register(toy(time_limit=3.0))
def right(xs): return xs.mean()
def wrong(xs): return xs.sum()
"""


class Kernel:
    """A running kernel; `run` gives the messages that a cell put on the page."""

    def __init__(self):
        self.manager, self.client = manager.start_new_kernel(
            kernel_name="python3", env={**os.environ, "CI": "1"}
        )

    def run(self, code, stop_after=None):
        messages = []

        def listen(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                messages.append((kind, content["text"]))
            elif kind in ("display_data", "execute_result"):
                messages.append((kind, content["data"]))
            elif kind == "error":
                messages.append((kind, content["ename"]))

        if stop_after is not None:
            self.client.execute(code)
            time.sleep(stop_after)
            self.manager.interrupt_kernel()
            end = time.monotonic() + 20
            while time.monotonic() < end:
                message = self.client.get_iopub_msg(timeout=20)
                listen(message)
                if message["content"].get("execution_state") == "idle" and messages:
                    return messages
        self.client.execute_interactive(code, output_hook=listen, timeout=60, store_history=True)
        return messages


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    assert kernel.run(SETUP) == []
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def test_a_check_at_the_end_of_a_cell_shows_once(kernel):
    [(kind, data)] = kernel.run("check(ID, right)")
    assert kind == "display_data" and 'role="status"' in data["text/html"] and "Passed" in data["text/plain"]


def test_two_checks_in_one_cell_show_twice(kernel):
    shown = kernel.run("check(ID, wrong)\ncheck(ID, right)")
    assert ["Passed" in data["text/plain"] for _, data in shown] == [False, True]


def test_a_verdict_that_was_kept_shows_again_in_a_later_cell(kernel):
    assert len(kernel.run("v = check(ID, right)")) == 1
    assert len(kernel.run("v")) == 1
    assert len(kernel.run("v")) == 1
    assert len(kernel.run("v = check(ID, right)\nv")) == 1
    assert kernel.run("v.state")[0][1]["text/plain"] == "'passed'"


def test_hint_solution_status_and_ready_show_on_the_page(kernel):
    assert "Hint 1 of 3" in kernel.run("hint(ID)")[0][1]["text/html"]
    [(_, data)] = kernel.run("solution(ID)")
    assert "<details>" in data["text/html"] and "return total" in data["text/html"]
    assert "<caption" in kernel.run("status()")[0][1]["text/html"]
    assert "does not pass" in kernel.run("mine = ready(ID, wrong)")[0][1]["text/html"]
    assert kernel.run("mine = ready(ID, right); assert mine is right") == []


def test_the_line_of_a_cell_is_shown(kernel):
    kernel.run("def broken(xs):\n    total = xs.sum()\n    return total.backwards()")
    [(_, data)] = kernel.run("check(ID, broken)")
    assert "line 3: `return total.backwards()`" in data["text/plain"]


def test_ten_megabytes_of_output_do_not_reach_the_page(kernel):
    [(_, data)] = kernel.run("check(ID, lambda xs: print('x' * 10_000_000))")
    assert len(data["text/html"]) < 6000


def test_what_an_answer_displays_is_on_the_page_of_the_cell(kernel):
    shown = kernel.run(
        "from IPython.display import display\ncheck(ID, lambda xs: [display('seen'), xs.mean()][1])"
    )
    assert [data["text/plain"].split(":")[0] for _, data in shown] == ["'seen'", "✓ 90.1 The mean"]


def test_stop_ends_a_looping_answer_and_the_kernel_goes_on(kernel):
    kernel.run(
        "def loop(xs):\n    while True:\n        try:\n            while True: pass\n        except: pass"
    )
    shown = kernel.run("check(ID, loop)", stop_after=1.0)
    assert shown == [("error", "KeyboardInterrupt")]
    assert "Passed" in kernel.run("check(ID, right)")[0][1]["text/plain"]
    assert kernel.run("import threading; threading.active_count() < 20 or 1/0")[0][1]["text/plain"] == "True"


def test_an_endless_loop_ends_at_the_time_limit(kernel):
    [(_, data)] = kernel.run("check(ID, loop)")
    assert "still running after 3 seconds" in data["text/plain"]


def test_strict_ends_the_cell_with_an_error_after_the_verdict(kernel):
    shown = kernel.run("import os; os.environ['COURSE_STRICT'] = '1'\ncheck(ID, wrong)")
    kernel.run("del os.environ['COURSE_STRICT']")
    assert [kind for kind, _ in shown] == ["display_data", "error"] and shown[1][1] == "CheckFailed"
