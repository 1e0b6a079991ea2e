"""Panels without a front end: Python calls do what hands do, errors are not lost, threads end."""

import gc
import re
import threading
import time

import ipywidgets as W
import pytest
import torch

from course_lib.experiments.split import SAMPLES, SPLITS, split_gradients, split_sizes
from course_lib.experiments.steps import measured_step
from course_lib.show.plots import lines
from course_lib.show.widgets.gradients import GradientStack, gradient_state
from course_lib.show.widgets.panel import Panel
from course_lib.show.widgets.timeline import MemoryTimeline


class Toy(Panel):
    """Draws its slider; `work` waits in short steps, and fails when told to."""

    title = "Toy"
    steps = 1

    def controls(self):
        return {
            "n": W.IntSlider(value=1, min=0, max=500),
            "mode": W.ToggleButtons(options=["fine", "fail to draw", "fail to work"]),
        }

    def work(self, settings, job):
        for i in range(self.steps):
            job.progress(i, self.steps, "step")
            time.sleep(0.02)
        if settings["mode"] == "fail to work":
            raise RuntimeError("the work broke")
        return settings["n"]

    def view(self, settings, result, before):
        if settings["mode"] == "fail to draw":
            raise RuntimeError("the <drawing> broke")
        return f"<svg><text>{settings['n']}</text></svg>", f"n is {settings['n']}, result {result}"

    def figure(self, settings, result, before):
        return lines([("n", [0, 1], [0, settings["n"]])], "x", "y", "Toy")


@pytest.fixture
def toy():
    panel = Toy()
    panel.wait_idle()
    yield panel
    panel.close()


@pytest.fixture(scope="module")
def stack():
    panel = GradientStack()
    panel.wait_idle()
    yield panel
    panel.close()


def test_a_python_call_does_what_a_hand_does(toy):
    toy.set(n=7)
    toy.wait_idle()
    toy.check()
    assert "7" in toy._picture.value and toy.result == 7
    assert 'role="status"' in toy._status.value and "n is 7, result 7" in toy._status.value
    toy._controls["n"].value = 9  # a slider that is moved
    toy.wait_idle()
    assert toy.result == 9 and toy.run() == 9


def test_wrong_settings_are_refused_with_the_choices_and_change_nothing(toy):
    for wrong, words in (
        ({"m": 1}, "it has n, mode"),
        ({"n": 501}, "from 0 to 500"),
        ({"n": True}, "whole number"),
        ({"n": 2.0}, "whole number"),
        ({"mode": "odd"}, "'fail to work'"),
    ):
        with pytest.raises(ValueError, match=words):
            toy.set(**wrong)
    toy.wait_idle()
    assert toy.settings == {"n": 1, "mode": "fine"}
    with pytest.raises(ValueError, match="from 0 to 500"):
        Toy(n=-1)


@pytest.mark.parametrize("mode", ["fail to draw", "fail to work"])
def test_an_error_is_shown_kept_and_raised_until_the_next_try(toy, mode):
    toy.set(mode=mode)
    toy.wait_idle()
    assert 'role="alert"' in toy._problem.value and "broke" in toy._problem.value
    assert "<drawing>" not in toy._problem.value
    with pytest.raises(RuntimeError, match="broke"):
        toy.check()
    with pytest.raises(RuntimeError, match="broke"):
        toy.run()
    toy.set(mode="fine")
    toy.wait_idle()
    toy.check()
    assert toy._problem.value == ""


def test_stop_ends_a_job_within_a_step(toy):
    toy.steps = 500
    toy.run(wait=False)
    while not toy._bar.value:
        time.sleep(0.01)
    assert toy._run.disabled and not toy._stop.disabled
    asked = time.monotonic()
    toy._stop.click()
    toy.wait_idle()
    assert time.monotonic() - asked < 1.0  # ten seconds of steps were left
    assert toy._doing.value == "stopped" and toy._stop.disabled and not toy._run.disabled
    toy.check()


def test_a_busy_panel_says_so_instead_of_hanging(toy):
    toy.steps = 500
    toy.run(wait=False)
    with pytest.raises(TimeoutError, match="still busy"):
        toy.wait_idle(0.1)
    toy.stop()


def test_callbacks_from_two_threads_never_raise_and_the_latest_state_wins(toy):
    raised = []

    def drag(values):
        try:
            for value in values:
                toy._controls["n"].value = value
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=drag, args=(range(start, 400, 2),)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    toy.set(n=444)
    toy.wait_idle()
    toy.check()
    assert not raised and toy.result == 444 and "444" in toy._picture.value


def test_making_the_panel_again_closes_the_earlier_one_and_its_threads():
    first = Toy()
    second = Toy()
    assert first._closing and not any(thread.is_alive() for thread in first._threads)
    second.set(n=3)
    second.wait_idle()
    second.close()
    second.close()
    assert not any(thread.is_alive() for thread in second._threads)


def test_a_viewer_without_widgets_gets_a_png_and_a_sentence(toy):
    bundle = toy._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    assert bundle["text/plain"] == toy.snapshot().alt
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_five_hundred_updates_of_a_panel_keep_memory_flat(stack):
    def update(i):
        stack._controls["added"].value = i % 5
        settings = stack.settings
        stack._picture.value, _ = stack.view(
            settings, None, None
        )  # what the draw thread does, without its pauses

    for i in range(50):
        update(i)
    gc.collect()
    before = len(gc.get_objects())
    for i in range(500):
        update(i)
    gc.collect()
    assert len(gc.get_objects()) - before < 200


# -- the gradient stack --


def test_the_stack_shows_what_its_controls_say(stack):
    stack.set(k=4, added=4, divide="by K", unequal=False)
    stack.wait_idle()
    stack.check()
    assert "meets the big-batch gradient" in stack._status.value and stack.state.gap < 1e-9
    stack.set(divide="by nothing")
    stack.wait_idle()
    assert "4.00 times as long" in stack._status.value
    stack.set(divide="by K", unequal=True)
    stack.wait_idle()
    assert stack.state.gap > 0.05 and "unequal" in stack._status.value
    stack.set(divide="by share")
    stack.wait_idle()
    assert stack.state.gap < 1e-9
    assert re.search("<svg", stack.snapshot().svg())


def test_more_micro_batches_than_there_are_cannot_be_added(stack):
    stack.set(k=8, added=8, unequal=False, divide="by K")
    stack.set(k=2)
    stack.wait_idle()
    stack.check()
    assert stack.settings["added"] == 2 and stack.state.added == 2
    with pytest.raises(ValueError, match="from 0 to 2"):
        stack.set(added=3)
    with pytest.raises(ValueError, match="equal parts"):
        gradient_state(5, 1)


def test_gradients_are_real_and_splits_use_every_sample_once():
    for k in SPLITS:
        for unequal in (False, True):
            micro, sizes, big = split_gradients(k, unequal)
            assert sum(sizes) == SAMPLES and len(sizes) == k and min(sizes) >= 1
            shares = torch.tensor(sizes, dtype=torch.float64) / SAMPLES
            total = shares @ torch.tensor(micro, dtype=torch.float64)
            torch.testing.assert_close(
                total, torch.tensor(big, dtype=torch.float64), rtol=1e-12, atol=1e-15
            )
    assert len(set(split_sizes(4, True))) == 4


# -- the memory time line --


SMALL = {"model": "MLP", "optimizer": "Adam", "batch": 8, "width": 32, "depth": 1}


def test_the_time_line_runs_a_real_step_and_keeps_the_last_one_as_ghost():
    state_before = torch.random.get_rng_state()
    panel = MemoryTimeline(**SMALL, step=1)
    try:
        panel.wait_idle()
        panel.check()
        first = panel.result["trace"]
        assert first.baseline_bytes == sum(first.records[0].by_category.values()) > 0
        assert 'id="' in panel._picture.value and "-ghost" not in panel._picture.value
        panel.set(step=2)
        panel.wait_idle()
        panel.check()
        second = panel.result["trace"]
        assert second.records[0].by_category["optimizer state"] > 0
        assert "optimizer state" not in first.records[0].by_category
        assert "-ghost" in panel._picture.value
        assert "<table" in panel._picture.value and "(CPU)" in panel._picture.value
        assert "VRAM" not in panel._picture.value + panel._status.value
        assert "step 2" in panel._status.value and "peaks at" in panel._status.value
        assert torch.equal(
            torch.random.get_rng_state(), state_before
        )  # the learner's random numbers stay
    finally:
        panel.close()


@pytest.mark.parametrize("model", ["MLP", "GPT"])
@pytest.mark.parametrize("optimizer, states", [("SGD", 0), ("momentum", 1), ("Adam", 2)])
def test_the_second_step_starts_with_the_optimizers_state(model, optimizer, states):
    trace = measured_step({**SMALL, "model": model, "optimizer": optimizer, "step": 2})
    start = trace.records[0].by_category
    tensors = start["parameters"] // 4
    spare = start.get("optimizer state", 0) - states * 4 * tensors
    assert 0 <= spare <= 4 * 64  # Adam keeps a step counter of 4 bytes for each parameter
    assert [phase for phase in ("forward", "backward", "optimizer") if phase in trace.peak_by_phase] == [
        "forward",
        "backward",
        "optimizer",
    ]
