"""One look for every picture: colours with a second cue each, and the step from a figure to what is shown.

Figures are drawn in the light colours. In the SVG each of these colours becomes a CSS variable, so that
the same picture follows JupyterLab's dark theme without the kernel knowing. The PNG stays opaque white.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import itertools
import re
import secrets
import threading
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

TEXT, MUTED, GRID, PAPER = "#111111", "#595959", "#cccccc", "#ffffff"


class Series(NamedTuple):
    """How one line looks. Colour is never alone: dash and marker differ too."""

    light: str
    dark: str
    dash: object  # a matplotlib line style
    marker: str | None


class Fill(NamedTuple):
    """How one filled part looks: colour and hatch."""

    light: str
    dark: str
    hatch: str


SERIES = {
    "measured": Series("#0072b2", "#56b4e9", "-", "o"),
    "predicted": Series("#767676", "#a8a8a8", (0, (5, 2.5)), None),
    "now": Series("#d55e00", "#e69f00", "-", "D"),
    "limit": Series("#d55e00", "#e69f00", (0, (1, 1.6)), None),
    "pinned": Series("#009e73", "#2cc79b", (0, (7, 2, 1.5, 2)), "s"),
    "other": Series("#aa3377", "#ee99cc", (0, (3, 1.5)), "^"),
}

CATEGORY = {
    "parameters": Fill("#0072b2", "#56b4e9", ""),
    "buffers": Fill("#332288", "#b9a8ff", "xx"),
    "gradients": Fill("#d55e00", "#e69f00", "///"),
    "optimizer state": Fill("#aa3377", "#ee99cc", "\\\\\\"),
    "inputs": Fill("#767676", "#a8a8a8", "---"),
    "activations": Fill("#009e73", "#2cc79b", ".."),
    "recomputed": Fill("#117733", "#8fd14f", "++"),
    "temporary": Fill("#8a6a00", "#f0e442", "||"),
}

# Bands lie behind words in TEXT, so they are pale on white and deep on black. The word is the second cue.
PHASE = {
    "forward": Fill("#dcecf7", "#123a52", ""),
    "recompute": Fill("#e2f0dc", "#2c4518", "////"),
    "backward": Fill("#f8e3d2", "#523410", ""),
    "optimizer": Fill("#f3dfea", "#4c2440", ""),
}

_JUPYTER = {  # colours that JupyterLab's own theme decides; anywhere else the light colour stays
    TEXT: "--jp-ui-font-color1",
    GRID: "--jp-border-color2",
    PAPER: "--jp-layout-color0",
}
_DARK = {MUTED: "#b4b4b4"}
for _look in (*SERIES.values(), *CATEGORY.values(), *PHASE.values()):
    _DARK[_look.light] = _look.dark

# Only these settings are touched, and put back, so that a learner's own plots keep theirs.
_HOUSE = {
    "svg.fonttype": "none",  # text stays text: searchable, readable by a screen reader, small
    "svg.hashsalt": "course",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "text.color": TEXT,
    "path.simplify": False,  # a swapped path must equal a redrawn one, point by point
    "path.sketch": None,
    "hatch.linewidth": 0.7,
    "axes.unicode_minus": True,
}
_lock = threading.RLock()  # matplotlib is not thread-safe, and panels draw in threads


@contextmanager
def house():
    """Everything that draws runs in here: one thread at a time, under the course's own few settings."""
    with _lock:
        before = {name: matplotlib.rcParams[name] for name in _HOUSE}
        matplotlib.rcParams.update(_HOUSE)
        try:
            yield
        finally:
            matplotlib.rcParams.update(before)


class Drawing(Figure):
    """A figure that knows its sentence: `.alt` says what the picture shows. A notebook shows it at once."""

    alt: str = ""

    def _repr_mimebundle_(self, include=None, exclude=None):
        return picture(self)._repr_mimebundle_(include, exclude)


def new_figure(width: float = 7.5, height: float = 3.6) -> Drawing:
    """An empty figure, size in inches. 72 dots per inch, so that its pixels are the SVG's units."""
    figure = Drawing(figsize=(width, height), dpi=72, facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def new_axes(figure: Figure, rect, *, grid: str | None = "y"):
    """Axes at `rect` (left, bottom, width, height as fractions), whatever the global style is."""
    axes = figure.add_axes(rect, facecolor="none")
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=TEXT, labelcolor=TEXT, labelsize=9, length=3, direction="out")
    for side, spine in axes.spines.items():
        spine.set(color=MUTED, linewidth=0.8, visible=side in ("left", "bottom"))
    axes.grid(False)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.7, linestyle="-")
    axes.minorticks_off()
    axes.xaxis.label.set_color(TEXT)
    axes.yaxis.label.set_color(TEXT)
    return axes


def title_line(figure: Figure, title: str, under: str = "", *, inches: float = 0.22) -> None:
    """The title at the top left, a quieter word (device, source) at the top right, `inches` from the edge."""
    y = 1 - inches / figure.get_figheight()
    figure.text(0.012, y, title, fontsize=11, weight="bold", color=TEXT, va="center")
    if under:
        figure.text(0.995, y, under, ha="right", color=MUTED, va="center")


def png(figure: Figure, dpi: int = 144) -> bytes:
    """Opaque white PNG."""
    with house():
        FigureCanvasAgg(figure)
        out = io.BytesIO()
        figure.canvas.print_figure(
            out, format="png", dpi=dpi, facecolor=PAPER, metadata={"Software": None}
        )
        return out.getvalue()


def to_svg(figure: Figure, alt: str, *, uid: str, themed: bool = True) -> str:
    """The figure as one `<svg role="img">` element with the alt sentence as label and title.

    `uid` goes in front of every id, so that two pictures on a page never share a clip path or a hatch. With
    `themed=False` the colours stay as drawn: for files, which are shown where no theme can reach them.
    The same figure, alt and uid always give the same text.
    """
    with house():
        FigureCanvasSVG(figure)
        out = io.StringIO()
        figure.canvas.print_svg(
            out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        FigureCanvasAgg(figure)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.S)
    text = text.replace(
        '<style type="text/css">*{', f'<style type="text/css">.{uid} *{{'
    )  # else it styles the page
    text = re.sub(
        r"font-family: [^;\"]*", "font-family: 'DejaVu Sans', Verdana, Arial, sans-serif", text
    )
    text = re.sub(r' d="[^"]*"', lambda match: _short(match.group()), text)
    text = re.sub(r' (?:x|y|transform)="[^"]*"', lambda match: _short(match.group()), text)
    text = re.sub(r' id="', f' id="{uid}-', text)
    text = text.replace("url(#", f"url(#{uid}-").replace('href="#', f'href="#{uid}-')
    dark = ""
    if themed:
        text, dark = _themed(text, uid)
    label = html.escape(alt, quote=True)
    head = f'<svg class="{uid}" role="img" aria-label="{label}" style="max-width:100%;height:auto" '
    start = text.index(">") + 1
    return head + text[5:start] + f"<title>{label}</title>{dark}" + text[start:].rstrip() + "\n"


def _short(text: str) -> str:
    """Two decimals are a hundredth of a point: nothing to see, a third of the bytes."""
    text = re.sub(
        r"-?\d+\.\d+", lambda match: f"{float(match.group()):.2f}".rstrip("0").rstrip("."), text
    )
    return re.sub(r"\s*\n", " ", text).replace(' "', '"')


def _themed(text: str, uid: str) -> tuple[str, str]:
    """Colours become CSS variables; returned with the style rule that sets them in the dark theme."""
    used = set()

    def variable(match):
        colour = match.group().lower()
        if colour in _JUPYTER:
            return f"var({_JUPYTER[colour]},{colour})"
        if colour in _DARK:
            used.add(colour)
            return f"var(--c{colour[1:]},{colour})"
        return colour

    text = re.sub(r"(?<=[ \"])#[0-9a-fA-F]{6}(?=[;\"])", variable, text)
    rules = "".join(f"--c{colour[1:]}:{_DARK[colour]};" for colour in sorted(used))
    return text, f'<style>body[data-jp-theme-light="false"] .{uid}{{{rules}}}</style>'


_session = secrets.token_hex(2)  # two notebooks open in one JupyterLab share a page
_count = itertools.count(1)


def new_uid() -> str:
    """A prefix for ids that no other picture on the page has."""
    return f"p{_session}-{next(_count)}"


class Picture:
    """What a notebook shows for a figure: inline SVG that follows the theme, a PNG for static viewers, words.

    `print(picture)` gives the sentence, `.svg()` and `.png()` the picture, `.save(path)` writes an SVG file.
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    def svg(self) -> str:
        return to_svg(self.figure, self.alt, uid=new_uid())

    def png(self) -> bytes:
        return png(self.figure)

    def save(self, path) -> None:
        """Write a stand-alone SVG file in light colours on white. Same data, same bytes."""
        uid = "f" + hashlib.sha256(self.alt.encode()).hexdigest()[:6]
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(to_svg(self.figure, self.alt, uid=uid, themed=False))

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            "text/html": self.svg(),
            "image/png": base64.b64encode(self.png()).decode(),
            "text/plain": self.alt,
        }


def picture(figure: Figure, alt: str | None = None) -> Picture:
    """Show `figure` with the sentence `alt`; the course's own drawings bring theirs along.

    Raises ValueError if there is no sentence: a picture without words is lost on some readers.
    """
    alt = (alt or getattr(figure, "alt", "")).strip()
    if not alt:
        raise ValueError("picture(figure, alt) needs one sentence that says what the picture shows.")
    return Picture(figure, alt)
