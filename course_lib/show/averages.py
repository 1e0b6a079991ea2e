"""Pictures of averages that go wrong: pure functions from numbers to drawings with a sentence in `.alt`."""

from __future__ import annotations

import math

from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch

from course_lib.show.plots import lines
from course_lib.show.style import MUTED, SERIES, TEXT, Drawing, house, new_axes, new_figure, title_line

_SIZE = (7.5, 3.9)
_RECT = (0.075, 0.13, 0.50, 0.75)
_ONCE, _EACH = SERIES["measured"], SERIES["now"]


def cut(vector, limit: float) -> tuple[float, float]:
    """A vector of two numbers, shortened to the limit if it is longer."""
    length = math.hypot(*vector)
    factor = min(1.0, limit / length) if length else 1.0
    return vector[0] * factor, vector[1] * factor


def clipping_paths(micro, limit: float) -> tuple[list, list]:
    """The points that a running sum passes, cuts included: (clipped once, clipped each time)."""
    once, each = [(0.0, 0.0)], [(0.0, 0.0)]
    for x, y in micro:
        once.append((once[-1][0] + x, once[-1][1] + y))
        grown = (each[-1][0] + x, each[-1][1] + y)
        each += [grown, cut(grown, limit)]
    return [*once, cut(once[-1], limit)], each


def clipping(micro, limit: float) -> Drawing:
    """Two ways to clip a sum of two-dimensional gradients: when it is full, and after every micro-batch.

    micro: pairs of numbers, each micro-batch's share of the mean. Raises ValueError for no micro-batch, one
    that is no pair, or a limit of 0 or less.
    """
    micro = [tuple(map(float, pair)) for pair in micro]
    if not micro or any(len(pair) != 2 for pair in micro):
        raise ValueError("clipping needs one pair of numbers for each micro-batch.")
    if not limit > 0:
        raise ValueError(f"The limit must be above 0, not {limit}.")
    once, each = clipping_paths(micro, limit)
    with house():
        figure = new_figure(*_SIZE)
        axes = new_axes(figure, _RECT, grid=None)
        _frame(axes, [*once, *each], limit)
        for points, look, last in ((once, _ONCE, len(once) - 2), (each, _EACH, None)):
            for i, (a, b) in enumerate(zip(points, points[1:])):
                is_cut = i == last if last is not None else i % 2 == 1
                _arrow(axes, a, b, look, is_cut)
        for (x, y), look in ((once[-1], _ONCE), (each[-1], _EACH)):
            axes.plot([x], [y], marker=look.marker, ms=8, color=look.light, ls="none", zorder=5)
        _key(figure, once[-1], each[-1], limit)
        title_line(figure, f"A limit of {limit:g}, applied once and each time")
        figure.alt = clipping_sentence(micro, limit)
    return figure


def _frame(axes, points, limit):
    """Limits that hold everything, with the same scale on both axes."""
    xs, ys = [p[0] for p in points] + [0, limit], [p[1] for p in points] + [0, limit]
    shape = _RECT[2] * _SIZE[0] / (_RECT[3] * _SIZE[1])
    tall = max(max(ys) - min(ys), (max(xs) - min(xs)) / shape) * 1.15
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    axes.set(xlim=(x - tall * shape / 2, x + tall * shape / 2), ylim=(y - tall / 2, y + tall / 2))
    axes.set_xlabel("first entry of the gradient")
    axes.set_ylabel("second entry", color=TEXT)
    axes.add_patch(Circle((0, 0), limit, fill=False, ec=MUTED, lw=1.0, ls=(0, (1, 1.6))))
    axes.axhline(0, color=MUTED, lw=0.6)
    axes.axvline(0, color=MUTED, lw=0.6)


def _arrow(axes, a, b, look, is_cut):
    """One step of a path; a cut is thin and dashed."""
    if math.dist(a, b) == 0:
        return
    wide = 4.5 if look is _ONCE else 2.0  # where both run along the same line, both can be seen
    style = {"lw": 1.2, "ls": (0, (3, 2))} if is_cut else {"lw": wide, "ls": "-"}
    axes.add_patch(FancyArrowPatch(a, b, arrowstyle=
        "-|>", mutation_scale=11, color=look.light, shrinkA=0, shrinkB=0,
                                   zorder=3, **style))  # fmt: skip


def _key(figure, once, each, limit):
    for y, look, name, end in ((0.74, _ONCE, "clipped once", once), (0.50, _EACH, "clipped each time", each)):
        figure.add_artist(Line2D([0.615, 0.655], [y, y], color=look.light, lw=2.2))
        figure.add_artist(Line2D([0.635], [y], color=look.light, marker=look.marker, ms=8))
        figure.text(0.668, y + 0.012, name, color=TEXT, va="bottom", weight="bold")
        figure.text(0.668, y - 0.004, f"ends at ({end[0]:.3f}, {end[1]:.3f})", color=TEXT, va="top")
        figure.text(0.668, y - 0.062, f"length {math.hypot(*end):.3f}", color=MUTED, va="top")
    figure.text(0.615, 0.27, "dashed arrow: a cut", color=MUTED)
    figure.text(0.615, 0.21, f"dotted circle: length {limit:g}", color=MUTED)


def clipping_sentence(micro, limit: float) -> str:
    """The picture in words."""
    once, each = (path[-1] for path in clipping_paths(micro, limit))
    lengths = math.hypot(*once) * math.hypot(*each)
    cosine = (once[0] * each[0] + once[1] * each[1]) / lengths if lengths else 0.0
    parts = ", then ".join(f"({x:g}, {y:g})" for x, y in micro)
    return (
        f"The gradients {parts} are added and cut to a length of {limit:g}. Cut once, the sum ends at "
        f"({once[0]:.3f}, {once[1]:.3f}); cut after each one, at ({each[0]:.3f}, {each[1]:.3f}). The lengths "
        f"are {math.hypot(*once):.3f} and {math.hypot(*each):.3f}, the cosine between them is {cosine:.3f}."
    )


def log_lines(series, xlabel: str, ylabel: str, title: str) -> Drawing:
    """`plots.lines` on two logarithmic axes, with plain numbers (0.02, 0.05, 0.1) at the upright one.

    On such axes a power law is a straight line, and its exponent the slope. Raises ValueError for values of 0
    or less.
    """
    if any(value <= 0 for _, xs, ys, *_ in series for value in (*xs, *ys)):
        raise ValueError("Logarithmic axes need values above 0.")
    figure = lines(series, xlabel, ylabel, title, xscale="log", yscale="log")
    with house():
        axes = figure.axes[0]
        low, high = axes.get_ylim()
        places = round_numbers(low, high)
        axes.set_yticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    return figure


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... between low and high; only powers of ten where that makes more than eight."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [number for number in found if low <= number <= high]
        if len(found) <= 8:
            break
    return found
