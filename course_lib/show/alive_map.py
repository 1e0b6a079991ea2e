"""Whole steps of schedules as maps: time to the right, blocks upwards, and the live bytes below."""

from __future__ import annotations

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from course_lib.measure.trace import mib
from course_lib.show.alive import NOW, STATE, TAPED, WIDTH, during, extra_words, most_bytes, paper, patch
from course_lib.show.style import PAPER, TEXT, Drawing, house, new_axes, new_figure, title_line


def alive_map(schedules, title: str = "Who is alive, tick by tick", *, note: str = "") -> Drawing:
    """Whole steps as maps under each other: time to the right, blocks upwards, and the live bytes below each.

    Green and dotted: a block's activations are alive. Blue line below a block: its input is kept. A triangle
    to the right: the block runs forward; the same in orange, in a box: it runs again; to the left: backward.
    All maps share the scale of time and that of bytes. Raises ValueError for no schedules.
    """
    schedules = list(schedules)
    if not schedules:
        raise ValueError("alive_map needs at least one schedule.")
    longest = max(len(schedule.ticks) for schedule in schedules)
    most = max(map(most_bytes, schedules))
    cell = max(5.0, min(9.0, 96 / max(len(schedule.chain) for schedule in schedules)))
    tall = [cell * len(schedule.chain) for schedule in schedules]
    under, gap, head, left, right = 26, 26, 58, 36, 442
    total = head + sum(tall) + len(schedules) * (under + gap) - 12
    with house():
        figure = new_figure(WIDTH / 72, total / 72)
        whole = paper(figure)
        _map_legend(whole, total - 42)
        y = total - head
        for schedule, height in zip(schedules, tall):
            y -= height
            rect = (left / WIDTH, y / total, (right - left) / WIDTH, height / total)
            _map(new_axes(figure, rect, grid=None), schedule, longest)
            whole.text(
                right + 10,
                y + height - 6,
                schedule.name,
                color=TEXT,
                weight="bold",
                va="center",
                fontsize=8.5,
            )
            for k, words in enumerate((f"peak {mib(most_bytes(schedule))}", extra_words(schedule),
                                       f"{len(schedule.ticks)} ticks")):  # fmt: skip
                whole.text(right + 10, y + height - 20 - 13 * k, words, color=TEXT, va="center", fontsize=8.5)
            y -= under + 3
            rect = (left / WIDTH, y / total, (right - left) / WIDTH, under / total)
            _silhouette(new_axes(figure, rect, grid=None), schedule, longest, most)
            y -= gap - 3
        title_line(figure, title, note)
        figure.alt = map_sentence(schedules, title)
    return figure


def map_sentence(schedules, title: str) -> str:
    """The maps in words."""
    words = [
        f"{s.name}: peak {mib(most_bytes(s))}, {extra_words(s)}, {len(s.ticks)} ticks" for s in schedules
    ]
    return f"{title}. Time runs to the right, blocks are stacked upwards. {'; '.join(words)}."


def spans(schedule, field: str):
    """(number, first tick, one after the last tick) of each stretch of time in which something is alive.

    field: "taped" (blocks) or "states" (boundaries). Ticks count from 0 here.
    """
    began: dict[int, int] = {}
    for i, tick in enumerate(schedule.ticks):
        alive = during(tick)[field == "taped"]
        for number in sorted(set(began) - alive):
            yield number, began.pop(number), i
        for number in alive - set(began):
            began[number] = i
    for number, first in sorted(began.items()):
        yield number, first, len(schedule.ticks)


def _map(axes, schedule, longest: int) -> None:
    n = len(schedule.chain)
    axes.set(xlim=(0, longest), ylim=(-0.5, n - 0.5))
    axes.set_xticks([])
    axes.set_ylabel("block", fontsize=8, labelpad=1)
    axes.set_yticks(range(0, n, 1 if n <= 4 else 4 if n > 8 else 2))
    axes.tick_params(labelsize=8)
    axes.spines["bottom"].set_visible(False)
    for block, first, last in spans(schedule, "taped"):
        axes.add_patch(Rectangle((first, block - 0.42), last - first, 0.84, fc=TAPED.light, ec=PAPER,
                                 hatch=TAPED.hatch, lw=0))  # fmt: skip
    for i, first, last in spans(schedule, "states"):
        if i < n:
            axes.plot(
                [first, last],
                [i - 0.5, i - 0.5],
                color=STATE.light,
                lw=1.8,
                solid_capstyle="butt",
                clip_on=False,
            )
    looks = {
        "forward": (">", TEXT, PAPER),
        "recompute": (">", NOW.light, PAPER),
        "backward": ("<", PAPER, TEXT),
    }
    for action, (marker, face, edge) in looks.items():
        where = [(i + 0.5, tick.block) for i, tick in enumerate(schedule.ticks) if tick.action == action]
        if not where:
            continue
        size = min(5.0, 0.8 * 406 / longest)
        if action == "recompute":
            for x, y in where:
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.42), 1, 0.84, fc="none", ec=NOW.light, lw=0.9, zorder=2.5)
                )
        axes.plot(*zip(*where), ls="none", marker=marker, ms=size, mfc=face, mec=edge, mew=0.7, zorder=3)


def _silhouette(axes, schedule, longest: int, most: int) -> None:
    """Live bytes under a map."""
    xs, ys = [0.0], [0.0]
    for i, tick in enumerate(schedule.ticks):
        xs += [i, i + 1]
        ys += [tick.peak_bytes, tick.peak_bytes]
    axes.set(xlim=(0, longest), ylim=(0, most))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    patch(axes, [*zip(xs, ys), (xs[-1], 0.0), (0.0, 0.0)], fc=STATE.light, ec="none", lw=0, alpha=0.55)
    axes.plot(xs, ys, color=STATE.light, lw=1)


def _map_legend(axes, y: float) -> None:
    x = 30
    for kind, text in (("taped", "activations"), ("state", "state"), (">", "forward"), ("again", "again"),
                       ("<", "backward"), ("bytes", "live bytes")):  # fmt: skip
        if kind == "taped":
            axes.add_patch(Rectangle((x, y - 4), 12, 8, fc=TAPED.light, ec=PAPER, hatch=TAPED.hatch, lw=0))
        elif kind == "state":
            axes.plot([x, x + 12], [y, y], color=STATE.light, lw=2)
        elif kind == "bytes":
            axes.add_patch(Rectangle((x, y - 4), 12, 8, fc=STATE.light, ec=STATE.light, lw=0, alpha=0.55))
        else:
            again = kind == "again"
            if again:
                axes.add_patch(Rectangle((x, y - 5), 11, 10, fc=PAPER, ec=NOW.light, lw=0.9))
            look = {
                "mfc": NOW.light if again else PAPER if kind == "<" else TEXT,
                "mec": NOW.light if again else TEXT,
            }
            axes.add_line(
                Line2D([x + 5.5], [y], marker="<" if kind == "<" else ">", ms=5, mew=0.7, ls="none", **look)
            )
        axes.text(x + 17, y, text, va="center", color=TEXT)
        x += 17 + 5.2 * len(text) + 18
