"""Peak memory against the number of segments: a formula, measured dots, and rules of thumb as marks."""

from __future__ import annotations

import math

from course_lib.measure.trace import mib
from course_lib.show.averages import round_numbers
from course_lib.show.scale import byte_unit
from course_lib.show.style import MUTED, PAPER, SERIES, TEXT, Drawing, house, new_axes, new_figure, title_line


def segments_curve(predicted, measured, marks=(), title: str = "", *, note: str = "") -> Drawing:
    """Peak bytes against the number of segments k, both on logarithmic axes.

    predicted: [(k, bytes)], the line. measured: [(k, bytes)], the dots; may be empty. marks: [(name, k)],
    drawn as upright dotted lines. The lowest dot (or point of the line) gets a diamond and its value.
    Raises ValueError for an empty line or a k below 1.
    """
    predicted, measured = [tuple(p) for p in predicted], [tuple(p) for p in measured]
    if not predicted or min(k for k, _ in (*predicted, *measured)) < 1:
        raise ValueError("segments_curve needs a predicted line, with segments k of 1 and more.")
    heights = [y for _, y in (*predicted, *measured)]
    unit, size = byte_unit(max(heights))
    floor, limit = 0.75 * min(heights) / size, 1.15 * max(heights) / size
    with house():
        figure = new_figure(7.5, 3.5)
        axes = new_axes(figure, (0.085, 0.155, 0.885, 0.66))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        last = max(k for k, _ in (*predicted, *measured))
        axes.set(xlim=(0.92, last * 1.09), ylim=(floor, limit))
        places = round_numbers(floor, limit)
        axes.set_yticks(places, [f"{place:g}" for place in places])
        shown = sorted({k for k, _ in measured} or {2**i for i in range(int(math.log2(last)) + 1)})
        shown = [k for i, k in enumerate(shown) if i == 0 or k > 1.06 * shown[i - 1]]
        axes.set_xticks(shown, [str(k) for k in shown])
        axes.minorticks_off()
        axes.set_xlabel("segments k")
        axes.set_ylabel(f"peak of the step ({unit})", color=TEXT)
        look = SERIES["predicted"]
        axes.plot(*zip(*[(k, y / size) for k, y in predicted]), color=look.light, ls=look.dash, lw=1.8)
        for name, k in marks:
            axes.plot([k, k], [floor, limit], color=MUTED, ls=(0, (1, 1.6)), lw=1.2)
            axes.text(k, limit * 1.05, f"{name} = {k:.3g}", ha="center", va="bottom", color=TEXT)
        look = SERIES["measured"]
        if measured:
            points = [(k, y / size) for k, y in measured]
            axes.plot(
                *zip(*points), color=look.light, ls="none", marker=look.marker, ms=6.5, mec=PAPER, mew=0.8
            )
        k, y = min(measured or predicted, key=lambda point: point[1])
        axes.plot([k], [y / size], marker="D", ms=9, color=SERIES["now"].light, mec=PAPER, mew=1)
        axes.annotate(
            f"lowest: k = {k}, {mib(y)}",
            (k, y / size),
            xytext=(-8, -14),
            textcoords="offset points",
            ha="right",
            color=TEXT,
            weight="bold",
            bbox={"fc": PAPER, "ec": "none", "pad": 1},
        )
        _key(axes, bool(measured))
        title_line(figure, title, note)
        figure.alt = curve_sentence(predicted, measured, marks, title)
    return figure


def _key(axes, dots: bool) -> None:
    look = SERIES["predicted"]
    axes.plot([0.60, 0.65], [0.9, 0.9], transform=axes.transAxes, color=look.light, ls=look.dash, lw=1.8)
    axes.text(0.66, 0.9, "formula", transform=axes.transAxes, va="center", color=TEXT,
              bbox={"fc": PAPER, "ec": "none", "pad": 1})  # fmt: skip
    if dots:
        look = SERIES["measured"]
        axes.plot(
            [0.625], [0.8], transform=axes.transAxes, color=look.light, marker=look.marker, ms=6.5, mec=PAPER
        )
        axes.text(0.66, 0.8, "measured", transform=axes.transAxes, va="center", color=TEXT,
                  bbox={"fc": PAPER, "ec": "none", "pad": 1})  # fmt: skip


def curve_sentence(predicted, measured, marks, title: str) -> str:
    """The curve in words."""
    k, y = min(measured or predicted, key=lambda point: point[1])
    low = min(predicted, key=lambda point: point[1])
    lowest = f"the measurement at k = {k} with {mib(y)}" if measured else f"with {mib(y)}"
    points = "; ".join(f"{mib(value)} at k = {number}" for number, value in measured)
    rules = ", ".join(f"{name} is {value:.3g}" for name, value in marks)
    return (
        f"{title}: peak memory against the number of segments. The formula is lowest at k = {low[0]}, "
        f"{lowest}. "
        + (f"Measured: {points}. " if measured else "")
        + (f"{rules[0].upper() + rules[1:]}." if marks else "")
    ).strip()
