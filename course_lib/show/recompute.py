"""Pictures of recomputing: what ran when, drawn from a log of a real step."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from course_lib.show.style import MUTED, PHASE, TEXT, Drawing, house, new_axes, new_figure, title_line

LETTERS = {"forward": "F", "recompute": "R", "backward": "B"}


def order_of_work(events, title: str = "What ran when") -> Drawing:
    """One square for each piece of work, in its order from left to right; a row for each block.

    events: pairs of a block's number (from 1) and "forward", "recompute" or "backward". Raises ValueError for
    no events, another word, or a number below 1.
    """
    events = [(int(block), str(phase)) for block, phase in events]
    if not events:
        raise ValueError("order_of_work needs at least one event.")
    unknown = sorted({phase for _, phase in events} - set(LETTERS))
    if unknown or min(block for block, _ in events) < 1:
        raise ValueError(f"An event is a block's number from 1 and one of {', '.join(LETTERS)}; not "
                         f"{unknown or 'below 1'}.")
    rows = max(block for block, _ in events)
    with house():
        height = 0.95 + 0.3 * rows
        figure = new_figure(7.5, height)
        axes = new_axes(figure, (0.085, 0.42 / height, 0.9, 0.3 * rows / height), grid=None)
        axes.set(xlim=(-0.2, len(events) + 0.2), ylim=(rows + 0.6, 0.4), xlabel="one piece of work after "
                 "the other")
        axes.set_yticks(range(1, rows + 1), [f"block {row}" for row in range(1, rows + 1)])
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        for i, (block, phase) in enumerate(events):
            look = PHASE[phase]
            style = {"fc": look.light, "ec": MUTED, "hatch": look.hatch, "lw": 0.7}
            axes.add_patch(Rectangle((i + 0.04, block - 0.42), 0.92, 0.84, **style))
            pad = {"fc": look.light, "ec": "none", "pad": 1.2}  # keeps the hatch off the letter
            centred = {"ha": "center", "va": "center", "color": TEXT, "fontsize": 8}
            axes.text(i + 0.5, block, LETTERS[phase], bbox=pad, **centred)
        title_line(figure, title, "F forward, R run again, B backward")
        figure.alt = order_sentence(events, title)
    return figure


def order_sentence(events, title: str = "What ran when") -> str:
    """The picture in words: the order of the work, neighbours of one kind taken together."""
    groups: list = []
    for block, phase in events:
        if groups and groups[-1][0] == phase:
            groups[-1][1].append(block)
        else:
            groups.append((phase, [block]))
    words = "; ".join(f"{phase} of {', '.join(map(str, blocks))}" for phase, blocks in groups)
    return f"{title}, by the blocks' numbers: {words}."
