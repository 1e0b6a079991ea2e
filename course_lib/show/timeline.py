"""The time line of one step's memory: what was alive when, and what the peak was made of."""

from __future__ import annotations

from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.measure.trace import ALLOCATOR, CATEGORIES, PHASES, mib
from course_lib.show.scale import byte_unit, nice_limit, percent, spread, ticks
from course_lib.show.style import (
    CATEGORY,
    MUTED,
    PAPER,
    PHASE,
    TEXT,
    Drawing,
    house,
    new_axes,
    new_figure,
    title_line,
)

_KEPT = 240  # points of a time line: more cannot be seen at this width


def memory_timeline(
    trace, ghost=None, title: str | None = None, *, x: str = "progress", note: str = ""
) -> Drawing:
    """Live memory over one step, stacked by category, with phases, the peak, and an earlier trace (`ghost`).

    `x` is "progress" (0 to 100 % of the operators) or "seconds". `note` replaces the words on what was
    counted and where, at the top right. The sentence is in `.alt`.
    Raises ValueError for a trace without records or an unknown `x`.
    """
    if x not in ("progress", "seconds"):
        raise ValueError(f'x must be "progress" or "seconds", not {x!r}.')
    if not trace.records:
        raise ValueError("This trace holds no records: run at least one operator under the meter.")
    with house():
        figure = new_figure(7.5, 3.7)
        axes = new_axes(figure, (0.085, 0.15, 0.62, 0.66))
        where, records = _thin(trace.records, x)
        top = max(trace.peak_bytes, ghost.peak_bytes if ghost else 0, 1)
        unit, size = byte_unit(top)
        limit = nice_limit(top * 1.12 / size)
        axes.set(xlim=(0, where[-1]), ylim=(0, limit))
        axes.set_yticks(ticks(limit))
        axes.set_xlabel("progress through the step (% of operators)" if x == "progress" else "seconds")
        axes.set_ylabel(f"live memory ({unit})")
        present = [c for c in CATEGORIES if any(record.by_category.get(c) for record in records)]
        _areas(axes, where, records, present, size)
        if ghost is not None and ghost.records:
            gx, gr = _thin(ghost.records, x)
            gx = [v * where[-1] / gx[-1] for v in gx] if x == "progress" else gx
            outline = _steps(gx, [record.live_bytes / size for record in gr])
            axes.set_xlim(0, max(where[-1], gx[-1]))
            axes.add_line(
                Line2D(*zip(*outline), color=PAPER, lw=2.8)
            )  # a halo: the dashes cross many colours
            axes.add_line(Line2D(*zip(*outline), color=TEXT, lw=1.3, ls=(0, (4, 2)), gid="ghost"))
        _bands(figure, axes, where, records)
        _peak(axes, trace, where, records, size, limit)
        _column(figure, trace, ghost, present, size, limit)
        title_line(figure, title or "Live memory through one step", note or source_words(trace))
        figure.alt = timeline_sentence(trace, ghost)
    return figure


def source_words(trace) -> str:
    """What was counted and where. Only an accelerator's allocator counts VRAM."""
    if trace.source == ALLOCATOR:
        return f"VRAM by the allocator ({trace.device})"
    return f"{trace.source} ({'CPU' if trace.device == 'cpu' else trace.device})"


def timeline_sentence(trace, ghost=None) -> str:
    """The time line in words: peak, phase, what it was made of, change against the earlier trace."""
    parts = sorted(trace.peak_by_category.items(), key=lambda item: -item[1])
    made_of = ", ".join(f"{name} {mib(n)}" for name, n in parts if n)
    text = (
        f"Memory through one step, {source_words(trace)}: starts at {mib(trace.baseline_bytes)}, "
        f"peaks at {mib(trace.peak_bytes)} in the {trace.peak_record.phase} phase. At the peak: {made_of}."
    )
    if ghost is not None:
        text += (
            f" Before: peak {mib(ghost.peak_bytes)}, now {_change(trace.peak_bytes, ghost.peak_bytes)}."
        )
    return text


def _change(now: int, before: int) -> str:
    if now == before:
        return "the same"
    return f"{percent(abs(now - before), before)} {'more' if now > before else 'less'}"


def _thin(records, x: str):
    """At most `_KEPT` records, the highest of each stretch, so that no peak is lost; and their place on x."""
    n = len(records)
    edges = [round(i * n / min(n, _KEPT)) for i in range(min(n, _KEPT) + 1)]
    kept = [max(range(a, b), key=lambda i: records[i].live_bytes) for a, b in zip(edges, edges[1:])]
    if x == "seconds":
        where = [records[i].t for i in kept]
    else:
        where = [100 * (i + 1) / n for i in kept]
    where[-1] = max(where[-1], records[-1].t if x == "seconds" else 100.0) or 1.0
    return where, [records[i] for i in kept]


def _steps(where, values) -> list[tuple[float, float]]:
    """A staircase: each value holds from the end of the record before it to its own end."""
    points, left = [], 0.0
    for right, value in zip(where, values):
        if points and points[-1][1] == value:
            points[-1] = (right, value)
        else:
            points += [(left, value), (right, value)]
        left = right
    return points


def _areas(axes, where, records, present, size) -> None:
    """Each area reaches from 0 to the sum so far; from the top down, so that each covers the ones behind."""
    for count in range(len(present), 0, -1):
        heights = [
            sum(record.by_category.get(c, 0) for c in present[:count]) / size for record in records
        ]
        outline = _steps(where, heights)
        points = [(0.0, 0.0), *outline, (outline[-1][0], 0.0)]
        look = CATEGORY[present[count - 1]]
        axes.add_patch(
            PathPatch(
                Path(points),
                facecolor=look.light,
                edgecolor=PAPER,
                hatch=look.hatch,
                lw=0,
                gid=f"area {count}",
            )
        )


def _bands(figure, axes, where, records) -> None:
    """A strip above the axes: one band per phase with its word; a word that does not fit stands above."""
    spans, left = [], 0.0
    for right, record in zip(where, records):
        if spans and spans[-1][0] == record.phase:
            spans[-1][2] = right
        else:
            spans.append([record.phase, left, right])
        left = right
    width = axes.get_position().width * figure.get_figwidth() * 72
    whole = where[-1]
    for i in reversed(
        range(1, len(spans))
    ):  # an operator or two between two phases is no phase to look at
        if spans[i][0] == "forward" and spans[i][2] - spans[i][1] < 0.03 * whole:
            spans[i - 1][2] = spans.pop(i)[2]
    place = axes.get_xaxis_transform()
    named, squeezed = set(), []
    for phase, a, b in spans:
        look = PHASE[phase]
        axes.add_patch(
            Rectangle(
                (a, 1.015),
                b - a,
                0.075,
                transform=place,
                clip_on=False,
                fc=look.light,
                ec=MUTED,
                lw=0.6,
                hatch=look.hatch,
            )
        )
        if a > 0 and len(spans) <= 8:
            axes.plot([a, a], [0, 1], transform=place, color=MUTED, lw=0.8, ls=(0, (1, 2)))
        if (b - a) / whole * width > 5.6 * len(phase) + 6:
            axes.text((a + b) / 2, 1.052, phase, transform=place, ha="center", va="center", color=TEXT)
            named.add(phase)
        else:
            squeezed.append((phase, (a + b) / 2))
    used = []
    for phase in [p for p in PHASES if p not in named]:
        middle = next((m for p, m in squeezed if p == phase), None)
        if middle is None:
            continue
        half = 2.9 * len(phase) / width * whole
        at = min(max(middle, half), whole - half)
        if used:
            at = max(at, used[-1] + half + 2.9 * 9 / width * whole)
        used.append(at)
        axes.text(at, 1.11, phase, transform=place, ha="center", va="bottom", color=TEXT)


def _peak(axes, trace, where, records, size, limit) -> None:
    """A diamond at the peak, with value and phase beside it."""
    i = max(range(len(records)), key=lambda j: records[j].live_bytes)
    height, at = trace.peak_bytes / size, (where[i] + (where[i - 1] if i else 0)) / 2
    axes.plot(
        [at],
        [height],
        marker="D",
        ms=7,
        color=TEXT,
        mec=PAPER,
        mew=1,
        clip_on=False,
        gid="peak",
        zorder=5,
    )
    part = at / where[-1]
    side, pad = ("left", 8) if part < 0.55 else ("right", -8)
    axes.annotate(
        f"peak {mib(trace.peak_bytes)}",
        (at, height),
        xytext=(pad, 4),
        textcoords="offset points",
        ha=side,
        va="bottom",
        color=TEXT,
        weight="bold",
        fontsize=10,
        bbox={"fc": PAPER, "ec": "none", "pad": 1},
    )


def _column(figure, trace, ghost, present, size, limit) -> None:
    """What the peak was made of, from the top of the stack down, beside the plot."""
    axes = figure.axes[0]
    box = axes.get_position()
    parts = trace.peak_by_category
    total, wanted = 0, []
    for name in present:
        n = parts.get(name, 0)
        wanted.append(box.y0 + box.height * (total + n / 2) / size / limit)
        total += n
    heights = spread(wanted, 0.088, 0.155, 0.80)
    for name, y in zip(present, heights):
        look = CATEGORY[name]
        figure.add_artist(
            Rectangle(
                (0.725, y - 0.025),
                0.027,
                0.05,
                fc=look.light,
                ec=PAPER,
                hatch=look.hatch,
                lw=0.6,
                transform=figure.transFigure,
            )
        )
        n = parts.get(name, 0)
        figure.text(0.760, y, name, va="center", color=TEXT)
        figure.text(0.995, y, mib(n) if n else "0", va="center", ha="right", color=TEXT)
    figure.text(0.995, 0.865, "at the peak", ha="right", color=MUTED)
    if ghost is not None:
        figure.add_artist(Line2D([0.725, 0.752], [0.045, 0.045], color=TEXT, lw=1.3, ls=(0, (4, 2))))
        figure.text(0.760, 0.045, "before, peak", va="center", color=TEXT)
        figure.text(0.995, 0.045, mib(ghost.peak_bytes), va="center", ha="right", color=TEXT)
