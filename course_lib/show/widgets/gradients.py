"""The panel of notebook 02: do micro-gradients, laid tip to tail, meet the big-batch gradient?"""

from __future__ import annotations

from functools import lru_cache

import ipywidgets as W
import torch

from course_lib.show.stack import GradientState, gradient_stack, paint_stack, stack_scene, stack_sentence
from course_lib.show.svg import LiveSvg
from course_lib.show.widgets.panel import WIDE, Panel

SAMPLES = 24
SPLITS = (1, 2, 3, 4, 6, 8)  # the numbers up to 8 that split 24 samples into equal parts
FEATURES = ("bmi", "bp")


@lru_cache(maxsize=1)
def _data():
    """24 patients of scikit-learn's diabetes data: body mass index, blood pressure, and what to predict."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    columns = [data.feature_names.index(name) for name in FEATURES]
    inputs, target = torch.tensor(data.data[:, columns]), torch.tensor(data.target)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    target = (target - target.mean()) / target.std()
    return inputs[:SAMPLES], target[:SAMPLES]


def _gradient(inputs, target) -> tuple[float, float]:
    """Gradient of the mean squared error of a linear model with two zero weights; autograd, float64."""
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    torch.mean((inputs @ weight - target) ** 2).backward()
    return tuple(weight.grad.tolist())


def split_sizes(k: int, unequal: bool) -> tuple[int, ...]:
    """How many of the 24 samples each of k micro-batches gets: the same, or growing like 1, 4, 9, ..."""
    if not unequal:
        return (SAMPLES // k,) * k
    squares = [(i + 1) ** 2 for i in range(k)]
    sizes = [max(1, round(SAMPLES * square / sum(squares))) for square in squares]
    sizes[-1] += SAMPLES - sum(sizes)
    return tuple(sizes)


@lru_cache(maxsize=32)
def _gradients(k: int, unequal: bool):
    inputs, target = _data()
    sizes = split_sizes(k, unequal)
    parts = zip(inputs.split(sizes), target.split(sizes))
    return tuple(_gradient(x, y) for x, y in parts), sizes, _gradient(inputs, target)


def gradient_state(k: int, added: int, divide: str = "by K", unequal: bool = False) -> GradientState:
    """The real gradients of 24 samples split into `k` micro-batches. Raises ValueError for other k."""
    if k not in SPLITS:
        raise ValueError(
            f"k must split {SAMPLES} samples into equal parts: one of {', '.join(map(str, SPLITS))}."
        )
    micro, sizes, big = _gradients(k, unequal)
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
