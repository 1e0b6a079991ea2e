"""The panel of notebook 06: who is alive at each tick of a schedule?"""

from __future__ import annotations

import threading
from functools import lru_cache

import ipywidgets as W

from course_lib.memory import schedule as plans
from course_lib.show.alive import alive_at, frame_painter, frame_scene, tick_sentence
from course_lib.show.svg import LiveSvg
from course_lib.show.widgets.panel import WIDE, Panel

MIB = 2**20
CHAINS = {
    "even": [MIB] * 12,
    "narrowing": [4 * MIB] * 3 + [2 * MIB] * 3 + [MIB] * 3 + [MIB // 2] * 3,
}
NAMES = ("none", "per block", "sqrt", "nested", "binomial", "budgeted")


def chain_of(name: str) -> plans.Chain:
    """Twelve blocks: "even" ones, or "narrowing" ones as in an image network: the first are the largest.

    A block's backward needs four times its input, the input included. Raises KeyError for another name.
    """
    sizes = CHAINS[name]
    after = [*sizes[1:], sizes[-1]]
    blocks = tuple(plans.Block(size, 3 * size, gradient_bytes=out) for size, out in zip(sizes, after))
    return plans.Chain(blocks, output_bytes=sizes[-1], input_gradient_bytes=sizes[0])


@lru_cache
def least_bytes(chain: str) -> int:
    """The smallest budget that any schedule of this chain meets."""
    return plans.minimum(chain_of(chain))


@lru_cache(64)
def plan(name: str, chain: str = "even", slots: int = 3, budget: int = 16):
    """The schedule of that name. slots: for "binomial"; budget (MiB): for "budgeted"."""
    blocks = chain_of(chain)
    if name == "binomial":
        return plans.binomial(blocks, slots)
    if name == "budgeted":
        return plans.budgeted(blocks, budget * MIB)
    return getattr(plans, name.replace(" ", "_"))(blocks)


class WhoIsAlive(Panel):
    """Drag the tick, or press Play: which states and activations are alive, which block runs, and the bytes.

    Settings: schedule (one of NAMES), chain "even" or "narrowing", slots 1 to 11 (binomial only), budget in
    MiB (budgeted only), tick from 1. `.plan` is the Schedule shown. `.play()` and `.stop()` do what the
    buttons do; `.play(wait=True)` returns at the last tick.
    """

    title = "Who is alive?"
    seconds_per_tick = 0.3

    def __init__(self, **settings):
        self._live, self._drawn_plan = None, None
        self._halt, self._player = threading.Event(), None
        self._play = W.Button(description="Play", tooltip="Run through the ticks")
        self._pause = W.Button(description="Stop", tooltip="Stay at this tick", disabled=True)
        self._play.on_click(lambda _button: self.play())
        self._pause.on_click(lambda _button: self.stop())
        super().__init__(**settings)
        tick = self._controls["tick"]
        choose = [control for control in self._controls.values() if control is not tick]
        tick.layout.width = "38em"
        head, _, *rest = self.children
        self.children = (head, self._row(choose), self._row((self._play, self._pause, tick)), *rest)

    def controls(self) -> dict:
        narrow = {**WIDE, "button_width": "initial"}
        return {
            "schedule": W.ToggleButtons(options=NAMES, value="sqrt", description="schedule", style=narrow),
            "chain": W.ToggleButtons(options=list(CHAINS), description="chain", style=narrow),
            "slots": W.IntSlider(value=3, min=1, max=11, description="slots", style=WIDE),
            "budget": W.IntSlider(value=16, min=1, max=60, description="budget (MiB)", style=WIDE),
            "tick": W.IntSlider(value=12, min=1, max=99, description="tick", style=WIDE),
        }

    def adapt(self, settings: dict) -> None:
        """As many ticks as the schedule has; sliders that mean nothing for it are off."""
        controls = self._controls
        controls["slots"].disabled = settings["schedule"] != "binomial"
        controls["budget"].disabled = settings["schedule"] != "budgeted"
        low = -(-least_bytes(settings["chain"]) // MIB)
        high = -(-plan("none", settings["chain"]).peak_bytes // MIB)
        if (controls["budget"].min, controls["budget"].max) != (low, high):
            controls["budget"].min, controls["budget"].max = 1, high  # never a minimum above the maximum
            controls["budget"].min = low
        most = len(_plan(self.settings).ticks)
        if controls["tick"].max != most:
            controls["tick"].max = most

    # -- playing --

    def play(self, wait: bool = False) -> None:
        """Move the tick on, one each `seconds_per_tick`, to the end. From the end it begins anew."""
        if self._player is not None and self._player.is_alive():
            return
        tick = self._controls["tick"]
        if tick.value == tick.max:
            tick.value = 1
        self._halt.clear()
        self._play.disabled, self._pause.disabled = True, False
        self._player = threading.Thread(target=self._run_through, daemon=True, name=f"{self.title}: play")
        self._player.start()
        if wait:
            self._player.join()
            self.wait_idle()
            self.check()

    def _run_through(self) -> None:
        tick = self._controls["tick"]
        try:
            while not self._halt.wait(self.seconds_per_tick) and not self._closing and tick.value < tick.max:
                tick.value += 1
        except Exception as error:
            self._fail(error)
        self._play.disabled, self._pause.disabled = False, True

    def stop(self) -> None:
        """Stay at the tick that is shown."""
        self._halt.set()
        super().stop()

    def close(self) -> None:
        """End the threads and the widgets. May be called twice."""
        halt = getattr(self, "_halt", None)
        if halt is not None:
            halt.set()
            if self._player is not None and self._player is not threading.current_thread():
                self._player.join(5)
            for button in (self._play, self._pause):
                button.close()
        super().close()

    # -- pictures --

    @property
    def plan(self):
        """The Schedule that is shown."""
        return _plan(self.settings)

    def figure(self, settings: dict, result, before):
        now = _plan(settings)
        return alive_at(now, min(settings["tick"], len(now.ticks)), _budget(settings))

    def view(self, settings: dict, result, before) -> tuple[str, str]:
        now, budget = _plan(settings), _budget(settings)
        if (now, budget) != self._drawn_plan:
            self._live, self._drawn_plan = LiveSvg(frame_painter(now, budget)), (now, budget)
        tick = min(settings["tick"], len(now.ticks))
        return self._live.show(frame_scene(now, tick, budget)), tick_sentence(now, tick)


def _plan(settings: dict):
    schedule, chain = settings["schedule"], settings["chain"]
    slots = (
        settings["slots"] if schedule == "binomial" else 1
    )  # one entry of the cache for all that means nothing
    budget = settings["budget"] if schedule == "budgeted" else 1
    return plan(schedule, chain, slots, budget)


def _budget(settings: dict) -> int | None:
    """Bytes, or None where the schedule has no budget."""
    if settings["schedule"] != "budgeted":
        return None
    return settings["budget"] * MIB
