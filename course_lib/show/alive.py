"""Who is alive? A schedule's ticks as pictures: one moment, or a strip of moments. Whole steps: alive_map.py.

Every function takes schedules of `course_lib.memory.schedule`, or anything with their `name`, `chain`,
`ticks` and `recomputations`. Bytes are drawn to scale: a block's box is as high as what its backward needs,
the bar in front of it as high as its input (its state).
"""

from __future__ import annotations

from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from course_lib.measure.trace import mib
from course_lib.show.scale import byte_unit, nice_limit
from course_lib.show.scale import ticks as round_ticks
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
from course_lib.show.svg import NOTHING, Scene

TAPED, STATE, NOW = CATEGORY["activations"], SERIES["measured"], SERIES["now"]
WIDTH, HEIGHT = 540, 320  # points, as in every picture of the course
_BEHIND = {"fc": PAPER, "ec": "none", "pad": 1}  # behind words that lie over lines
_CHART = (58, 46, 530, 138)  # left, bottom, right, top of the curve of live bytes


def extra_words(schedule) -> str:
    """ "26 extra forwards": how many blocks run again."""
    extra = schedule.recomputations
    return f"{extra or 'no'} extra forward{'' if extra == 1 else 's'}"


def most_bytes(schedule) -> int:
    """The highest moment of a step."""
    return max(tick.peak_bytes for tick in schedule.ticks)


def during(tick) -> tuple[set, set]:
    """(states, taped blocks) alive while a tick runs: what stays after it, and what its backward uses up."""
    states, taped = set(tick.states), set(tick.taped)
    if tick.action == "backward":
        states.add(tick.block)
        taped.add(tick.block)
    return states, taped


def numbers(items) -> str:
    """ "0, 3 to 5": whole numbers, runs of three and more drawn together."""
    items, parts = sorted(items), []
    for item in items:
        if parts and parts[-1][1] == item - 1:
            parts[-1][1] = item
        else:
            parts.append([item, item])
    return ", ".join(f"{a} to {b}" if b > a + 1 else f"{a}, {b}" if b > a else str(a) for a, b in parts)


def tick_sentence(schedule, tick: int) -> str:
    """One moment in words. `tick` counts from 1."""
    now, n = schedule.ticks[tick - 1], len(schedule.chain)
    how = " and its activations are kept" if now.kept else ""
    states, taped = during(now)
    inputs = [i for i in states if i < n and i not in taped]
    parts = []
    if taped:
        parts.append(f"the activations of block{'s' if len(taped) > 1 else ''} {numbers(taped)}")
    if inputs:
        parts.append(
            f"the input{'s' if len(inputs) > 1 else ''} of block{'s' if len(inputs) > 1 else ''} "
            f"{numbers(inputs)}"
        )
    so_far = max(one.peak_bytes for one in schedule.ticks[:tick])
    return (
        f"{schedule.name}, tick {tick} of {len(schedule.ticks)}: {now.action} of block {now.block}{how}. "
        f"Alive: {' and '.join(parts) or 'no activations'}; up to {mib(now.peak_bytes)}, so far "
        f"{mib(so_far)}."
    )


# -- one row of blocks ----------------------------------------------------------------------------


class Row:
    """Where the blocks of a chain stand: on a line at `bottom`, from `left` to `right`, up to `tall` high."""

    def __init__(self, chain, left: float, right: float, bottom: float, tall: float):
        self.chain, self.left, self.bottom = chain, left, bottom
        self.pitch = (right - left) / (len(chain) + 0.25)
        self.bar_width = min(7.0, 0.22 * self.pitch)
        self.scale = tall / max(1, *(max(b.saved_bytes, b.state_bytes) for b in chain.blocks))
        self.least = min(3.0, tall / 4)

    def _outline(self, x0, x1, nbytes):
        top = self.bottom + max(self.least, nbytes * self.scale)
        return ((x0, self.bottom), (x0, top), (x1, top), (x1, self.bottom), (x0, self.bottom))

    def place(self, i: int) -> float:
        """The left edge of the state in front of block i."""
        return self.left + i * self.pitch

    def box(self, i: int):
        """The outline of block i."""
        start = self.place(i) + 1.7 * self.bar_width
        return self._outline(
            start, self.place(i + 1) - 0.7 * self.bar_width, self.chain.blocks[i].saved_bytes
        )

    def bar(self, i: int):
        """The outline of the state in front of block i; of the output where i is the number of blocks."""
        block = self.chain.blocks[min(i, len(self.chain) - 1)]
        return self._outline(self.place(i), self.place(i) + self.bar_width, block.state_bytes)

    def middle(self, i: int) -> float:
        return (self.box(i)[0][0] + self.box(i)[2][0]) / 2

    def arrow(self, i: int, back: bool, above: float, size: float):
        """An arrow over block i, to the right, or to the left on the way back."""
        half = min(0.48 * self.pitch, 2.2 * size)
        x, sign = self.middle(i), -1 if back else 1
        tail, neck, tip = x - sign * half, x + sign * (half - size), x + sign * half
        low, high, wide = above - size / 5, above + size / 5, size / 1.7
        return (
            (tail, low), (neck, low), (neck, above - wide), (tip, above), (neck, above + wide), (neck, high),
            (tail, high), (tail, low),
        )  # fmt: skip

    def paths(self, now) -> dict:
        """{gid: outline} for everything that changes with the moment; NOTHING for what is not there."""
        n, (states, taped) = len(self.chain), during(now)
        parts = {f"taped-{i}": self.box(i) if i in taped else NOTHING for i in range(n)}
        parts |= {f"state-{i}": self.bar(i) if i in states else NOTHING for i in range(n + 1)}
        return parts | {"running": self.box(now.block)}


def patch(axes, points, gid=None, **look):
    """A filled outline; `gid` names it for swaps."""
    axes.add_patch(PathPatch(Path(points), gid=gid, **look))


def _draw_row(axes, row: Row, now, gids: bool = False) -> None:
    """The blocks in outline, and over them what is alive at this moment."""
    n = len(row.chain)
    for i in range(n):
        patch(axes, row.box(i), fc="none", ec=MUTED, lw=0.7)
    for i in range(n + 1):
        patch(axes, row.bar(i), fc="none", ec=MUTED, lw=0.4)
    for gid, points in row.paths(now).items():
        if points is NOTHING and not gids:
            continue
        if gid == "running":
            look = {"fc": "none", "ec": NOW.light, "lw": 2.4}
        elif gid.startswith("taped"):
            look = {"fc": TAPED.light, "ec": PAPER, "hatch": TAPED.hatch, "lw": 0}
        else:
            look = {"fc": STATE.light, "ec": STATE.light, "lw": 0.4}
        patch(axes, points, gid if gids else None, **look)


def paper(figure):
    """Axes over the whole figure, in points: everything that moves lives in them."""
    axes = figure.add_axes((0, 0, 1, 1), facecolor="none")
    axes.set(xlim=(0, figure.get_figwidth() * 72), ylim=(0, figure.get_figheight() * 72))
    axes.axis("off")
    return axes


def _legend(axes, y: float, words: bool = True) -> None:
    """What is what, in one line."""
    x = 20
    entries = [
        ("activations alive", {"fc": TAPED.light, "ec": PAPER, "hatch": TAPED.hatch, "lw": 0}, 12),
        ("state (a block's input) alive", {"fc": STATE.light, "ec": STATE.light, "lw": 0.4}, 4),
        ("block that runs", {"fc": "none", "ec": NOW.light, "lw": 2.2}, 12),
    ]
    for text, look, wide in entries:
        axes.add_patch(Rectangle((x, y - 5), wide, 10, **look))
        axes.text(x + wide + 6, y, text, va="center", color=TEXT)
        x += wide + 6 + 5.3 * len(text) + 22
    axes.text(WIDTH - 12, y, "heights: bytes", va="center", ha="right", color=MUTED)


# -- one moment ----------------------------------------------------------------------------


def _stairs(schedule, count, tall) -> list:
    """The outline of live bytes over the first `count` ticks, in points; each tick as high as it got."""
    left, bottom, right, _ = _CHART
    step = (right - left) / len(schedule.ticks)
    points = [(left, bottom)]
    for i, tick in enumerate(schedule.ticks[:count]):
        y = bottom + tick.peak_bytes * tall
        points += [(left + i * step, y), (left + (i + 1) * step, y)]
    return [*points, (points[-1][0], bottom), (left, bottom)]


def _tall(schedule, budget) -> tuple[float, float, str, int]:
    """(points per byte, limit of the axis in its unit, unit, its bytes) of the curve."""
    unit, size = byte_unit(max(most_bytes(schedule), budget or 0))
    limit = nice_limit(1.16 * max(most_bytes(schedule), budget or 0) / size)
    return (_CHART[3] - _CHART[1]) / (limit * size), limit, unit, size


def frame_scene(schedule, tick: int, budget: int | None = None) -> Scene:
    """What the picture of one moment holds. `tick` counts from 1; `budget` (bytes) is drawn as a line."""
    if not 1 <= tick <= len(schedule.ticks):
        raise ValueError(f"tick must be from 1 to {len(schedule.ticks)}, not {tick}.")
    now = schedule.ticks[tick - 1]
    row = Row(schedule.chain, 20, WIDTH - 20, 196, 62)
    tall = _tall(schedule, budget)[0]
    back = now.action == "backward"
    top = max(y for _, y in row.box(now.block))
    at = _stairs(schedule, tick, tall)[2 * tick]
    paths = row.paths(now)
    paths["arrow"] = row.arrow(now.block, back, top + 9, 8)
    paths["past"] = _stairs(schedule, tick, tall)
    paths["now"] = ((at[0], _CHART[1]), at)
    word = {"forward": "forward", "recompute": "again", "backward": "backward"}[now.action]
    x = min(max(row.middle(now.block), 40), WIDTH - 40)
    labels = {"doing": (x - 2.7 * len(word), top + 17, word)}
    words = {"tick": f"tick {tick} of {len(schedule.ticks)}", "live": f"{mib(now.peak_bytes)} live"}
    shape = [(b.saved_bytes, b.state_bytes) for b in schedule.chain.blocks]
    frame = (schedule.name, tuple(shape), len(schedule.ticks), most_bytes(schedule), budget, schedule.ticks)
    return Scene(frame, tick_sentence(schedule, tick), paths, labels, words)


def frame_painter(schedule, budget: int | None = None):
    """`paint` for svg.LiveSvg: draws a scene of this schedule in full."""

    def paint(scene: Scene) -> Drawing:
        return _paint(schedule, scene, budget)

    return paint


def alive_at(schedule, tick: int, budget: int | None = None) -> Drawing:
    """One moment of a step: which states and activations are alive, which block runs, and the bytes so far.

    tick: from 1 to the number of ticks. budget: bytes, drawn as a line. Raises ValueError for another tick.
    """
    return _paint(schedule, frame_scene(schedule, tick, budget), budget)


def _paint(schedule, scene: Scene, budget) -> Drawing:
    with house():
        figure = new_figure(WIDTH / 72, HEIGHT / 72)
        axes = paper(figure)
        row = Row(schedule.chain, 20, WIDTH - 20, 196, 62)
        tick = int(scene.words["tick"].split()[1])
        _draw_row(axes, row, schedule.ticks[tick - 1], gids=True)
        for i in range(len(schedule.chain)):
            axes.text(row.middle(i), 186, str(i), ha="center", va="center", color=MUTED, fontsize=8)
        patch(axes, scene.paths["arrow"], "arrow", fc=NOW.light, ec=NOW.light, lw=0.5)
        for gid, (x, y, text) in scene.labels.items():
            axes.text(x, y, text, gid=gid, color=TEXT, weight="bold", va="baseline")
        _legend(axes, 164)
        _curve(figure, axes, schedule, scene, budget)
        title_line(figure, f"{schedule.name}: {len(schedule.chain)} blocks, {extra_words(schedule)}")
        axes.text(
            WIDTH - 104, HEIGHT - 16, scene.words["tick"], gid="tick", ha="right", va="center", color=MUTED
        )
        axes.text(WIDTH - 12, HEIGHT - 16, scene.words["live"], gid="live", ha="right", va="center",
                  color=TEXT, weight="bold")  # fmt: skip
        figure.alt = scene.alt
    return figure


def _curve(figure, axes, schedule, scene: Scene, budget) -> None:
    """Live bytes over the ticks: the whole step in grey, filled up to now."""
    left, bottom, right, top = _CHART
    tall, limit, unit, _ = _tall(schedule, budget)
    chart = new_axes(figure, (left / WIDTH, bottom / HEIGHT, (right - left) / WIDTH, (top - bottom) / HEIGHT))
    chart.set(xlim=(0, len(schedule.ticks)), ylim=(0, limit), zorder=-1)  # words lie over its lines
    chart.set_yticks(round_ticks(limit, 4))
    chart.set_xlabel("ticks: one block forward, again, or backward")
    chart.set_ylabel(f"live ({unit})")
    patch(axes, scene.paths["past"], "past", fc=STATE.light, ec="none", lw=0, alpha=0.55)
    whole = _stairs(schedule, len(schedule.ticks), tall)
    axes.plot(*zip(*whole[:-1]), color=SERIES["predicted"].light, lw=1.2)
    axes.plot(*zip(*scene.paths["now"]), color=NOW.light, lw=2, gid="now")
    most = most_bytes(schedule)
    first = next(i for i, tick in enumerate(schedule.ticks) if tick.peak_bytes == most)
    x = left + (first + 0.5) * (right - left) / len(schedule.ticks)
    axes.plot([x], [bottom + most * tall], marker="D", ms=6, color=TEXT, mec=PAPER, mew=1)
    side = "left" if x < WIDTH * 0.7 else "right"
    axes.text(x + (8 if side == "left" else -8), bottom + most * tall + 4, f"peak {mib(most)}", ha=side,
              va="bottom", color=TEXT, weight="bold", bbox=_BEHIND)  # fmt: skip
    if budget:
        y = bottom + budget * tall
        axes.plot([left, right], [y, y], color=SERIES["limit"].light, ls=SERIES["limit"].dash, lw=1.6)
        end, side = (right - 5, "right") if x < (left + right) / 2 else (left + 5, "left")
        axes.text(end, y + 4, f"budget {mib(budget)}", ha=side, va="bottom", color=TEXT, bbox=_BEHIND)


# -- a strip of moments ----------------------------------------------------------------------------


def strip(moments, title: str, *, note: str = "") -> Drawing:
    """Moments of one or several schedules, one under another: `moments = [(schedule, tick), ...]`, from 1.

    All rows share one scale of bytes only if their chains are equal. Raises ValueError for no moments.
    """
    moments = list(moments)
    if not moments:
        raise ValueError("strip needs at least one (schedule, tick).")
    one = len({id(schedule) for schedule, _ in moments}) == 1
    each, head = 58, 62
    with house():
        figure = new_figure(WIDTH / 72, (head + each * len(moments) + 8) / 72)
        axes = paper(figure)
        total = figure.get_figheight() * 72
        _legend(axes, total - 44)
        for k, (schedule, tick) in enumerate(moments):
            now, bottom = schedule.ticks[tick - 1], total - head - each * (k + 1) + 14
            row = Row(schedule.chain, 122, WIDTH - 92, bottom, 26)
            _draw_row(axes, row, now)
            top = max(y for _, y in row.box(now.block))
            patch(
                axes,
                row.arrow(now.block, now.action == "backward", top + 6, 6),
                fc=NOW.light,
                ec=NOW.light,
                lw=0.4,
            )
            first = f"tick {tick} of {len(schedule.ticks)}" if one else schedule.name
            axes.text(12, bottom + 21, first, color=TEXT, va="center", weight="bold")
            doing = {"recompute": "again"}.get(now.action, now.action)
            axes.text(12, bottom + 7, f"block {now.block} {doing}", color=TEXT, va="center")
            axes.text(
                WIDTH - 12,
                bottom + 21,
                mib(now.peak_bytes),
                ha="right",
                va="center",
                color=TEXT,
                weight="bold",
            )
            under = "at its highest" if now.peak_bytes == most_bytes(schedule) else "live"
            axes.text(WIDTH - 12, bottom + 7, under, ha="right", va="center", color=MUTED)
        title_line(figure, title, note)
        figure.alt = f"{title}. " + " ".join(tick_sentence(schedule, tick) for schedule, tick in moments)
    return figure


def peak_tick(schedule) -> int:
    """The first tick (from 1) at which the most bytes are alive."""
    most = most_bytes(schedule)
    return next(i for i, tick in enumerate(schedule.ticks, 1) if tick.peak_bytes == most)
