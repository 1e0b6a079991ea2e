"""Micro-gradients laid tip to tail: do they meet the gradient of the big batch?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from course_lib.show.style import (
    MUTED,
    PAPER,
    SERIES,
    TEXT,
    Drawing,
    house,
    new_axes,
    new_figure,
    title_line,
)
from course_lib.show.svg import BLANK, NOTHING, Scene

DIVIDE = {  # what each micro-gradient is multiplied by
    "by K": "1/K",
    "by nothing": "1",
    "twice": "1/K²",
    "by share": "nᵢ/N",
}
_SUM, _MICRO, _GAP, _BIG = SERIES["now"], SERIES["measured"], SERIES["other"], SERIES["predicted"]
_LINES = {
    "sum line": (2.2, "-", 4),
    "gap": (3.4, (0, (0.7, 0.9)), 2),
}  # width, dash, order: both may lie on one line
_RECT = (0.105, 0.145, 0.585, 0.735)
_SIZE = (7.5, 4.0)


@dataclass(frozen=True)
class GradientState:
    """The gradients of K micro-batches and of the big batch, each of two numbers, and what is done with them.

    micro: ((x, y), ...), each the gradient of the *mean* loss of one micro-batch. sizes: samples in each.
    big: (x, y), the gradient of the mean loss over all samples. added: how many are in the sum, 0 to K.
    divide: a key of DIVIDE. axes: names of the two numbers.
    """

    micro: tuple
    sizes: tuple
    big: tuple
    added: int
    divide: str = "by K"
    axes: tuple = ("first weight", "second weight")

    def __post_init__(self):
        if not self.micro or len(self.micro) != len(self.sizes):
            raise ValueError(
                f"{len(self.micro)} micro-gradients and {len(self.sizes)} sizes: give as many, at least 1."
            )
        if not 0 <= self.added <= len(self.micro):
            raise ValueError(f"added must lie between 0 and {len(self.micro)}, not {self.added}.")
        if self.divide not in DIVIDE:
            raise ValueError(
                f"divide must be one of {', '.join(map(repr, DIVIDE))}, not {self.divide!r}."
            )

    @property
    def k(self) -> int:
        return len(self.micro)

    @property
    def weights(self) -> list[float]:
        k, total = self.k, sum(self.sizes)
        each = {"by K": 1 / k, "by nothing": 1.0, "twice": 1 / k**2}
        return [n / total if self.divide == "by share" else each[self.divide] for n in self.sizes]

    def tips(self, count: int) -> list[tuple[float, float]]:
        """The running sum before and after each of the first `count` micro-batches; starts at (0, 0)."""
        points = [(0.0, 0.0)]
        for weight, (x, y) in list(zip(self.weights, self.micro))[:count]:
            points.append((points[-1][0] + weight * x, points[-1][1] + weight * y))
        return points

    @property
    def total(self) -> tuple[float, float]:
        """The running sum after `added` micro-batches."""
        return self.tips(self.added)[-1]

    @property
    def gap(self) -> float:
        """Distance between the running sum and the big-batch gradient, as a part of the latter's length."""
        return math.dist(self.total, self.big) / (math.hypot(*self.big) or 1.0)


def stack_sentence(state: GradientState) -> str:
    """What is seen, in words."""
    k, added, ratio = state.k, state.added, math.hypot(*state.total) / (math.hypot(*state.big) or 1.0)
    equal = len(set(state.sizes)) == 1
    kinds = "equal" if equal else "unequal (" + ", ".join(map(str, state.sizes)) + " samples)"
    head = f"{added} of {k} micro-batches of {kinds} size added, each multiplied by {DIVIDE[state.divide]}. "
    if added < k:
        return (
            head
            + f"The sum is not complete: it lies {gap_words(state.gap)} away from the big-batch gradient."
        )
    if state.gap < 1e-9:
        return head + "The sum meets the big-batch gradient: what is left of the gap is rounding."
    gap = f"Gap {gap_words(state.gap)} of the big-batch gradient. "
    if state.divide == "by nothing":
        return head + gap + f"The sum is {ratio:.2f} times as long: it was never divided."
    if state.divide == "twice":
        return head + gap + f"The sum has only {ratio:.2f} of the length: it was divided twice."
    return head + gap + "A small batch counts as much as a large one; the weight must be its share nᵢ/N."


def gap_words(gap: float) -> str:
    """0.123 -> "12 %"; rounding errors keep their size: "2e-16"."""
    if gap == 0:
        return "0"
    return (
        f"{100 * gap:.0f} %" if gap >= 0.095 else f"{100 * gap:.1f} %" if gap >= 5e-4 else f"{gap:.0e}"
    )


def stack_scene(state: GradientState) -> Scene:
    """All that the picture holds; only `state.added` can change without a full redraw."""
    limits = _limits(state)
    frame = (limits, state.k, state.divide, state.sizes, state.big, state.axes)
    unit = (limits[1][1] - limits[1][0]) / (_RECT[3] * _SIZE[1] * 72)  # data units in one point of paper
    tips, total, origin = state.tips(state.added), state.total, (0.0, 0.0)
    paths = {"big": _arrow(origin, state.big, 9 * unit, 20 * unit), "sum line": (origin, total)}
    head = min(11 * unit / (math.hypot(*total) or 1.0), 1.0)
    paths["sum head"] = _arrow((total[0] * (1 - head), total[1] * (1 - head)), total, 0, 11 * unit)
    paths["gap"] = (total, state.big)
    labels = {}
    for i in range(state.k):
        seen = i < state.added
        paths[f"micro {i + 1}"] = _arrow(tips[i], tips[i + 1], 2.4 * unit, 9 * unit) if seen else NOTHING
        name = (0, 0, "")
        if seen and math.dist(tips[i], tips[i + 1]) > 18 * unit:
            name = _label(f"g{i + 1}", tips[i], tips[i + 1], total, unit)
            if any(math.dist(name[:2], other[:2]) < 12 * unit for other in labels.values() if other[2]):
                name = (0, 0, "")  # two words on one spot are none
        labels[f"name {i + 1}"] = name
    room = math.dist(total, state.big) > 14 * unit
    name = f"gap {gap_words(state.gap)}"
    labels["gap name"] = (
        _label(name, total, state.big, tips[len(tips) // 2], unit) if room else (0, 0, "")
    )
    words = {
        "added": f"{state.added} of {state.k} added",
        "sum": f"length {math.hypot(*total):.3g}",
        "gap value": gap_words(state.gap),
    }
    return Scene(frame, stack_sentence(state), paths, labels, words)


def _limits(state: GradientState):
    """Limits that hold every sum on the way, with the same scale on both axes, whatever `added` is."""
    points = [*state.tips(state.k), state.big]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    shape = _RECT[2] * _SIZE[0] / (_RECT[3] * _SIZE[1])
    tall = max(max(ys) - min(ys), (max(xs) - min(xs)) / shape) * 1.3 or 1.0
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return (x - tall * shape / 2, x + tall * shape / 2), (y - tall / 2, y + tall / 2)


def _arrow(tail, tip, width: float, head: float):
    """The outline of an arrow from tail to tip; the head is never longer than the arrow."""
    dx, dy = tip[0] - tail[0], tip[1] - tail[1]
    length = math.hypot(dx, dy)
    if length == 0:
        return NOTHING
    ux, uy = dx / length, dy / length
    head = min(head, length)
    width = min(width, head)

    def at(along, across):
        return (tail[0] + ux * along - uy * across, tail[1] + uy * along + ux * across)

    neck, w, h = length - head, width / 2, head * 0.42
    return (
        at(0, w),
        at(neck, w),
        at(neck, h),
        at(length, 0),
        at(neck, -h),
        at(neck, -w),
        at(0, -w),
        at(0, w),
    )


def _label(text: str, a, b, avoid, unit: float):
    """(x, y, text) for a word beside the middle of a-b, on the side away from the line to `avoid`."""
    dx, dy, length = b[0] - a[0], b[1] - a[1], math.dist(a, b)
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    other = dx * (avoid[1] / 2 - middle[1]) - dy * (avoid[0] / 2 - middle[0])  # > 0: it lies on the left
    side = -1 if other > 1e-9 * length else 1
    nx, ny = -dy / length * side, dx / length * side
    away = (7 + abs(nx) * 3.2 * len(text) + abs(ny) * 5) * unit  # clear of wide arrows
    return middle[0] + nx * away, middle[1] + ny * away - 3.2 * unit, text


def paint_stack(scene: Scene) -> Drawing:
    """The full picture of a scene, its parts marked by gid."""
    (xlim, ylim), k, divide, sizes, big, names = scene.frame
    with house():
        figure = new_figure(*_SIZE)
        axes = new_axes(figure, _RECT, grid=None)
        axes.set(xlim=xlim, ylim=ylim)
        axes.set_xlabel(f"gradient of {names[0]}")
        axes.set_ylabel(f"gradient of {names[1]}", color=TEXT)
        axes.axhline(0, color=MUTED, lw=0.6)
        axes.axvline(0, color=MUTED, lw=0.6)
        for gid, points in scene.paths.items():
            _part(axes, gid, points)
        for gid, (x, y, text) in scene.labels.items():
            colour = _GAP.light if gid == "gap name" else TEXT
            axes.text(
                x, y, text or BLANK, gid=gid, ha="center", va="baseline", color=colour, weight="bold"
            )
        _key(figure, scene, k, divide, sizes, big)
        title_line(figure, "Micro-gradients, tip to tail")
        figure.alt = scene.alt
    return figure


def _part(axes, gid: str, points) -> None:
    if gid in ("sum line", "gap"):
        look = _SUM if gid == "sum line" else _GAP
        width, dash, order = _LINES[gid]
        line = Line2D(*zip(*points), color=look.light, lw=width, ls=dash, gid=gid, zorder=order)
        axes.add_line(line)
        return
    face = {"big": _BIG.light, "sum head": _SUM.light}.get(gid, _MICRO.light)
    order = {"big": 1, "sum head": 4}.get(gid, 3)
    axes.add_patch(
        PathPatch(
            Path(points),
            facecolor=face,
            edgecolor=PAPER,
            lw=0.5 if gid.startswith("micro") else 0,
            gid=gid,
            zorder=order,
        )
    )


def _key(figure, scene: Scene, k: int, divide: str, sizes, big) -> None:
    """The numbers, each beside the look of its arrow."""
    weight = {"by K": f"1/K = {1 / k:.3g}", "by nothing": "1", "twice": f"1/K² = {1 / k**2:.3g}"}
    rows = [
        (_BIG, 6, "-", "big batch", f"length {math.hypot(*big):.3g}", None),
        (_MICRO, 3.5, "-", "micro-gradients", scene.words["added"], "added"),
        (_SUM, *_LINES["sum line"][:2], "running sum", scene.words["sum"], "sum"),
        (_GAP, *_LINES["gap"][:2], "gap", scene.words["gap value"], "gap value"),
    ]
    for i, (look, width, dash, name, value, gid) in enumerate(rows):
        y = 0.80 - 0.125 * i
        figure.add_artist(Line2D([0.715, 0.755], [y, y], color=look.light, lw=width, ls=dash))
        figure.text(0.768, y + 0.006, name, color=TEXT, va="bottom")
        figure.text(
            0.768,
            y - 0.01,
            value or BLANK,
            color=TEXT,
            va="top",
            weight="bold" if gid else "normal",
            gid=gid,
        )
    figure.text(0.715, 0.27, "each multiplied by", color=MUTED)
    figure.text(0.715, 0.21, weight.get(divide, "nᵢ/N, its share of samples"), color=TEXT, weight="bold")
    figure.text(0.715, 0.145, _samples(sizes), color=MUTED)


def _samples(sizes) -> str:
    each = (
        f"{sizes[0]} samples in each"
        if len(set(sizes)) == 1
        else "samples: " + ", ".join(map(str, sizes))
    )
    return each if len(sizes) > 1 else f"{sizes[0]} samples"


def gradient_stack(state: GradientState) -> Drawing:
    """The picture of a GradientState, with its sentence in `.alt`."""
    return paint_stack(stack_scene(state))
