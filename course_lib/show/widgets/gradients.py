"""The panel of notebook 02: do micro-gradients, laid tip to tail, meet the big-batch gradient?"""

from __future__ import annotations

import ipywidgets as W

from course_lib.experiments.split import FEATURES, SAMPLES, SPLITS, split_gradients
from course_lib.show.stack import GradientState, gradient_stack, paint_stack, stack_scene, stack_sentence
from course_lib.show.svg import LiveSvg
from course_lib.show.widgets.panel import WIDE, Panel


def gradient_state(k: int, added: int, divide: str = "by K", unequal: bool = False) -> GradientState:
    """The real gradients of 24 samples split into `k` micro-batches. Raises ValueError for other k."""
    if k not in SPLITS:
        raise ValueError(
            f"k must split {SAMPLES} samples into equal parts: one of {', '.join(map(str, SPLITS))}."
        )
    micro, sizes, big = split_gradients(k, unequal)
    names = tuple(f"the weight of {name}" for name in FEATURES)
    return GradientState(micro, sizes, big, added, divide, names)


class GradientStack(Panel):
    """Add micro-gradients one by one and see whether their sum meets the gradient of the big batch.

    Settings: k (micro-batches: 1, 2, 3, 4, 6 or 8 of 24 samples), added (0 to k), divide "by K", "by
    nothing", "twice" (a bug) or "by share" (of samples), unequal (sizes of the micro-batches). `.state` is
    the GradientState shown.
    """

    title = "Do the micro-gradients add up to the big-batch gradient?"

    def controls(self) -> dict:
        self._live = LiveSvg(paint_stack)
        ways = [
            ("by K", "by K"),
            ("by nothing", "by nothing"),
            ("by K twice (bug)", "twice"),
            ("by share", "by share"),
        ]
        return {
            "k": W.SelectionSlider(
                options=list(SPLITS), value=4, description="micro-batches K", style=WIDE
            ),
            "added": W.IntSlider(value=4, min=0, max=4, description="micro-batches added", style=WIDE),
            "divide": W.ToggleButtons(
                options=ways, description="divide", style={**WIDE, "button_width": "initial"}
            ),
            "unequal": W.Checkbox(value=False, description="unequal sizes", indent=False),
        }

    def adapt(self, settings: dict) -> None:
        """No more can be added than there are; if all were added, all of the new number are."""
        added, k = self._controls["added"], settings["k"]
        if added.max != k:
            whole = added.value == added.max
            added.max = k
            if whole:
                added.value = k

    @property
    def state(self) -> GradientState:
        return _state(self.settings)

    def figure(self, settings: dict, result, before):
        return gradient_stack(_state(settings))

    def view(self, settings: dict, result, before) -> tuple[str, str]:
        state = _state(settings)
        return self._live.show(stack_scene(state)), stack_sentence(state)


def _state(settings: dict) -> GradientState:
    k = settings["k"]
    return gradient_state(k, min(settings["added"], k), settings["divide"], settings["unequal"])
