"""The recurring picture of notebooks 03 and 04: the weight each micro-batch got, against the one it needs."""

from __future__ import annotations

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from course_lib.show.style import MUTED, PAPER, SERIES, TEXT, Drawing, house, new_axes, new_figure, title_line

SHOWN = 5  # updates side by side
CAP = 4.2  # a bar ends at this many times the largest needed weight, and says its number


def used_against_needed(report, title: str = "") -> Drawing:
    """Bars for the used weights and a line for the needed ones: one group for each of a report's first updates.

    report: what `course_lib.doctor.examine` returns. Raises ValueError for a report without any update: there is nothing
    to draw then, and its diagnoses say why.
    """
    windows = [window for window in report.windows if window.micro_batches][:SHOWN]
    if not windows:
        raise ValueError("This report has no update to draw; print it to see why.")
    needed = [w for window in windows for w in window.needed if w == w] or [1.0]
    used = [w for window in windows for w in (*window.used, *window.stale.values()) if w == w] or [0.0]
    limit = min(max([*used, *needed]), CAP * max(needed)) * 1.18
    low = min(0.0, *used) * 1.1
    bar, line = SERIES["measured"], SERIES["now"]
    with house():
        figure = new_figure(7.5, 2.6)
        axes = new_axes(figure, (0.085, 0.13, 0.9, 0.65))
        x, ticks, names = 0.0, [], []
        for window in windows:
            start = x
            for weight in window.stale.values():
                _bar(axes, x, weight, limit, bar, hatch="////")
                x += 1
            for weight, right in zip(window.used, window.needed):
                _bar(axes, x, weight, limit, bar)
                if right == right:
                    axes.add_line(Line2D([x - 0.08, x + 0.88], [right, right], color=line.light, lw=2, linestyle=line.dash))
                x += 1
            ticks.append((start + x - 1) / 2 + 0.4)
            names.append(_label(window))
            x += 0.7
        axes.set(xlim=(-0.4, x - 0.5), ylim=(low, limit), ylabel="weight")
        axes.set_xticks(ticks, names)
        axes.tick_params(axis="x", length=0)
        title_line(figure, title or "What each micro-batch counted", "")
        _legend(figure, bar, line, windows)
        figure.alt = sentence(report, title)
    return figure


def _label(window) -> str:
    """Short where there is little room; a wrong update that the bars do not show says why."""
    short = len(window.micro_batches) + len(window.stale) < 3
    name = f"{window.number}" if short else f"update {window.number}"
    if window.right:
        return name
    if window.stale:
        return f"{name}: with old ones" if not short else f"{name}: old"
    return f"{name}: wrong"


def _bar(axes, x, weight, limit, look, hatch="") -> None:
    if weight != weight:
        axes.text(x + 0.4, limit * 0.03, "NaN", ha="center", color=TEXT, fontsize=8)
        return
    height = min(weight, limit)
    axes.add_patch(Rectangle((x, 0), 0.8, height, fc=look.light, ec=PAPER, lw=0.6, hatch=hatch))
    if abs(weight) < 1e-9:
        axes.text(x + 0.4, limit * 0.02, "0", ha="center", va="bottom", color=TEXT, fontsize=8)
    elif weight > limit:
        axes.text(
            x + 0.4, limit * 0.97, f"{weight:.3g}", ha="center", va="top", color=TEXT, fontsize=8,
            bbox={"fc": PAPER, "ec": "none", "pad": 1},
        )  # fmt: skip


def _under(windows) -> str:
    stale = any(window.stale for window in windows)
    return "one bar for each micro-batch" + ("; hatched: of an earlier update" if stale else " of an update")


def _legend(figure, bar, line, windows) -> None:
    high = figure.get_figheight()
    y = 1 - 0.46 / high
    figure.add_artist(Rectangle((0.088, y - 0.05 / high), 0.02, 0.1 / high, fc=bar.light, transform=figure.transFigure))
    figure.text(0.114, y, "used", va="center", color=TEXT)
    figure.add_artist(Line2D([0.18, 0.205], [y, y], color=line.light, lw=2, transform=figure.transFigure))
    figure.text(0.211, y, "needed", va="center", color=TEXT)
    figure.text(0.985, y, _under(windows), va="center", ha="right", color=MUTED)


def sentence(report, title: str = "") -> str:
    """The picture in words: the first wrong update, or that all are right, and the findings."""
    head = f"{title}: " if title else ""
    wrong = [window for window in report.windows if not window.right and window.micro_batches]
    if not wrong:
        body = f"all {len(report.windows)} updates used the weights that they need"
    else:
        first = wrong[0]
        body = (
            f"update {first.number} used {_words(first.used)} and needs {_words(first.needed)}; {len(wrong)} of "
            f"{len(report.windows)} updates are wrong"
        )
    found = "; ".join(report.names)
    return f"{head}{body}." + (f" The doctor says: {found}." if found else "")


def _words(weights) -> str:
    shown = ", ".join(f"{w if abs(w) > 1e-9 else 0:.3g}" for w in weights[:8])
    return shown + (" and more" if len(weights) > 8 else "")
