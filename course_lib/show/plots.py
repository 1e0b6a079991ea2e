"""Pure functions from data to a picture. Each returns a matplotlib figure with its sentence in `.alt`.

Nothing here measures, and nothing touches pyplot. Bytes come in as integers and go out with a binary unit.
`memory_timeline` and `gradient_stack` live in rooms of their own and are offered here too.
"""

from __future__ import annotations

import math

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from course_lib.measure.trace import CATEGORIES, mib
from course_lib.show.scale import byte_unit, nice_limit, spread, ticks
from course_lib.show.stack import GradientState, gradient_stack
from course_lib.show.style import (
    CATEGORY,
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
from course_lib.show.timeline import memory_timeline

__all__ = ["GradientState", "gradient_stack", "lines", "memory_timeline", "stacked_bars"]


def stacked_bars(rows, title: str, *, note: str = "") -> Drawing:
    """One horizontal bar per row, `rows = [(label, {category: bytes}), ...]`, each part with its own value.

    Unknown categories raise ValueError; parts of 0 bytes are left out. `note` stands at the top right
    (device, source).
    """
    rows = [(str(label), {c: int(n) for c, n in parts.items() if n}) for label, parts in rows]
    if not rows:
        raise ValueError("stacked_bars needs at least one row.")
    unknown = {c for _, parts in rows for c in parts} - set(CATEGORIES)
    if unknown:
        raise ValueError(f"Unknown categories {sorted(unknown)}; the names are {', '.join(CATEGORIES)}.")
    present = [c for c in CATEGORIES if any(c in parts for _, parts in rows)]
    top = max(1, *(sum(parts.values()) for _, parts in rows))
    unit, size = byte_unit(top)
    limit = nice_limit(top * 1.02 / size)
    with house():
        lines_of_legend = math.ceil(len(present) / 4)
        height = 1.05 + 0.24 * lines_of_legend + 0.42 * len(rows)
        figure = new_figure(7.5, height)
        left = min(0.3, 0.03 + 0.0118 * max(len(label) for label, _ in rows))
        axes = new_axes(figure, (left, 0.5 / height, 0.865 - left, 0.42 * len(rows) / height), grid="x")
        axes.set(xlim=(0, limit), ylim=(len(rows) - 0.5, -0.5), xlabel=unit)
        axes.set_xticks(ticks(limit))
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.tick_params(axis="y", length=0)
        width = axes.get_position().width * 7.5 * 72
        for y, (_, parts) in enumerate(rows):
            start = 0
            for name in present:
                n = parts.get(name, 0)
                if not n:
                    continue
                look = CATEGORY[name]
                axes.add_patch(
                    Rectangle(
                        (start / size, y - 0.36),
                        n / size,
                        0.72,
                        fc=look.light,
                        ec=PAPER,
                        hatch=look.hatch,
                        lw=0.8,
                    )
                )
                if n / size / limit * width > 5.6 * len(mib(n)) + 6:
                    axes.text(
                        (start + n / 2) / size,
                        y,
                        mib(n),
                        ha="center",
                        va="center",
                        color=TEXT,
                        fontsize=8.5,
                        bbox={"fc": PAPER, "ec": "none", "pad": 1.5},
                    )
                start += n
            axes.text(
                start / size + 0.008 * limit, y, mib(start), va="center", color=TEXT, weight="bold"
            )
        _swatches(figure, present, height)
        title_line(figure, title, note)
        figure.alt = bars_sentence(rows, title)
    return figure


def _swatches(figure, present, height: float) -> None:
    """Names of the parts under the title, four to a line."""
    for i, name in enumerate(present):
        x, y = 0.015 + 0.245 * (i % 4), 1 - (0.47 + 0.24 * (i // 4)) / height
        look = CATEGORY[name]
        figure.add_artist(
            Rectangle(
                (x, y - 0.075 / height),
                0.027,
                0.15 / height,
                fc=look.light,
                ec=PAPER,
                lw=0.6,
                hatch=look.hatch,
                transform=figure.transFigure,
            )
        )
        figure.text(x + 0.035, y, name, va="center", color=TEXT)


def bars_sentence(rows, title: str) -> str:
    """The bars in words: each row's total and its largest part."""
    words = []
    for label, parts in rows:
        total = sum(parts.values())
        most = max(parts, key=parts.get) if parts else None
        words.append(f"{label} {mib(total)}" + (f" (most: {most} {mib(parts[most])})" if most else ""))
    return f"{title}: " + "; ".join(words) + "."


def lines(
    series,
    xlabel: str,
    ylabel: str,
    title: str,
    *,
    unit: str = "",
    xscale: str = "linear",
    yscale: str = "linear",
    note: str = "",
) -> Drawing:
    """A small line plot with the names at the lines. `series = [(name, xs, ys[, look]), ...]`.

    `look` is a key of `style.SERIES`; without it a name that starts with "predicted" or "measured" gets that
    look and the others take the rest in turn. `unit="bytes"` shows ys with a binary unit; any other unit is
    printed as it is.
    `xscale` and `yscale` are "linear" or "log". Raises ValueError for empty series or unequal lengths.
    """
    series = _checked(series)
    every = [y for _, _, ys, _ in series for y in ys]
    name_of_unit, size = byte_unit(max(map(abs, every))) if unit == "bytes" else (unit, 1)
    with house():
        figure = new_figure(7.5, 3.5)
        axes = new_axes(figure, (0.095, 0.155, 0.655, 0.70))
        axes.set_xscale(xscale)
        axes.set_yscale(yscale)
        for name, xs, ys, look in series:
            way = SERIES[look]
            axes.plot(
                xs,
                [y / size for y in ys],
                color=way.light,
                ls=way.dash,
                marker=way.marker,
                lw=1.8,
                ms=6,
                mec=PAPER,
                mew=0.8,
                label=name,
                gid=name,
            )
            if look == "measured" and len(xs) <= 8:
                falls = ys[-1] < ys[0]  # the value stands on the side from which the line does not come
                for x, y in zip(xs, ys):
                    axes.annotate(
                        _value(y, unit),
                        (x, y / size),
                        xytext=(4 if falls else -4, 5),
                        textcoords="offset points",
                        ha="left" if falls else "right",
                        color=TEXT,
                        fontsize=8.5,
                    )
        if yscale == "linear":
            low = min(0.0, *(y / size for y in every))
            high = nice_limit(max(every) * 1.05 / size)
            axes.set_ylim(low if low == 0 else -nice_limit(-low * 1.05), high)
            if low == 0:
                axes.set_yticks(ticks(high))
        places = sorted({x for _, xs, _, _ in series for x in xs})
        if len(places) <= 9:
            axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
        axes.set_xlabel(xlabel)
        axes.set_ylabel(f"{ylabel} ({name_of_unit})" if name_of_unit else ylabel, color=TEXT)
        _names_at_the_lines(figure, axes, series, size, unit)
        title_line(figure, title, note)
        figure.alt = lines_sentence(series, xlabel, title, unit)
    return figure


def _checked(series):
    """Every series with its look, as plain floats."""
    spare, out = [look for look in SERIES if look not in ("predicted", "limit")], []
    for name, xs, ys, *look in series:
        xs, ys = [float(x) for x in xs], [float(y) for y in ys]
        if not xs or len(xs) != len(ys):
            raise ValueError(
                f"The series {name!r} has {len(xs)} x values and {len(ys)} y values; give as many of each."
            )
        if not look:
            own = [key for key in ("predicted", "measured") if name.startswith(key)]
            look = own or [spare[0]]
        if look[0] in spare and len(spare) > 1:
            spare.remove(look[0])
        out.append((name, xs, ys, look[0]))
    if not out:
        raise ValueError("lines needs at least one series.")
    return out


def _names_at_the_lines(figure, axes, series, size, unit) -> None:
    """Name and last value of each line at its right end, pushed apart where ends meet."""
    box = axes.get_position()
    figure.canvas.draw()  # log limits are only settled when drawn
    height = figure.get_figheight() * 72
    ends = []
    for name, xs, ys, look in series:
        y = axes.transData.transform((xs[-1], ys[-1] / size))[1] / height
        ends.append((y, name, ys[-1], look))
    ends.sort()
    for (_, name, value, look), y in zip(ends, spread([e[0] for e in ends], 0.115, box.y0, box.y1)):
        way = SERIES[look]
        figure.add_artist(Line2D([0.765, 0.795], [y, y], color=way.light, ls=way.dash, lw=1.8))
        if way.marker:
            figure.add_artist(
                Line2D([0.78], [y], color=way.light, marker=way.marker, ms=6, mec=PAPER, mew=0.8)
            )
        figure.text(0.803, y + 0.004, name, color=TEXT, va="bottom")
        figure.text(
            0.803, y - 0.004, f"last: {_value(value, unit)}", color=MUTED, va="top", fontsize=8.5
        )


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return mib(round(value))
    return f"{value:.4g} {unit}".rstrip()


def lines_sentence(series, xlabel: str, title: str, unit: str) -> str:
    """The lines in words: first and last value of each."""
    words = [
        f"{name} goes from {_value(ys[0], unit)} at {xs[0]:g} to {_value(ys[-1], unit)} at {xs[-1]:g}"
        for name, xs, ys, _ in series
    ]
    return f"{title}. Over {xlabel}: " + "; ".join(words) + "."
