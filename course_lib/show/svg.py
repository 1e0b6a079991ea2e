"""Live pictures: render a figure to SVG once, then only swap the outlines and words that change.

A full redraw of a figure takes tens of milliseconds, a swap about one. The figure is drawn again only when
something changes that a swap cannot express: limits, tick labels, the set of parts: `Scene.frame`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from course_lib.show.style import new_uid, to_svg

NOTHING = ((0.0, 0.0),)  # the outline of a part that is not to be seen now
BLANK = "\u00a0"  # a word that is not to be seen now; matplotlib leaves out empty text altogether


@dataclass(frozen=True)
class Scene:
    """What a picture holds, in data coordinates of its first axes.

    frame: everything that needs a full redraw when it changes. alt: the sentence.
    paths: {gid: points}, an (n, 2) sequence for a line or a closed outline.
    labels: {gid: (x, y, text)}, words that move. words: {gid: text}, words that stay where they are.
    The keys of the three may only change together with `frame`.
    """

    frame: tuple
    alt: str
    paths: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    words: dict = field(default_factory=dict)


class LiveSvg:
    """`show(scene)` gives the SVG text, by a swap where that is enough; `paint(scene)` draws in full.

    `paint` marks its artists by gid: each of `paths` is a Line2D or a PathPatch, each of `labels` and `words`
    a Text (labels on their baseline). `redraws` and `swaps` count what was done.
    """

    def __init__(self, paint: Callable):
        self._paint = paint
        self._uid = new_uid()
        self._scene: Scene | None = None
        self.redraws = self.swaps = 0

    def show(self, scene: Scene) -> str:
        if self._scene is None or scene.frame != self._scene.frame:
            self._redraw(scene)
            self.redraws += 1
            return self._text
        self.swaps += 1
        self._scene = scene
        return "".join(
            piece if isinstance(piece, str) else piece[0](scene, piece[1]) for piece in self._pieces
        )

    def _redraw(self, scene: Scene) -> None:
        figure = self._paint(scene)
        self._text = to_svg(figure, scene.alt, uid=self._uid)
        self._to_pixels = figure.axes[0].transData.frozen()
        self._height = figure.bbox.height
        self._pieces = self._cut(scene)
        self._scene = scene

    def _cut(self, scene: Scene) -> list:
        """The SVG as constant pieces of text and, between them, (writer, gid) for what changes."""
        text = self._text
        slots = [(*re.search(r'(?<=aria-label=")[^"]*', text).span(), self._write_alt, "")]
        slots.append((*re.search(r"(?<=<title>)[^<]*", text).span(), self._write_alt, ""))
        for gid in scene.paths:
            slots.append((*self._find(gid, r'<path d="([^"]*)"'), self._write_path, gid))
        for gid in scene.labels:
            slots.append((*self._find(gid, r"<text [^>]*?( x=[^>]*>[^<]*)<"), self._write_label, gid))
        for gid in scene.words:
            slots.append((*self._find(gid, r"<text [^>]*>([^<]*)<"), self._write_word, gid))
        pieces, done = [], 0
        for start, end, writer, gid in sorted(slots, key=lambda slot: slot[0]):
            pieces += [text[done:start], (writer, gid)]
            done = end
        return [*pieces, text[done:]]

    def _find(self, gid: str, pattern: str) -> tuple[int, int]:
        match = re.search(rf'<g id="{self._uid}-{re.escape(gid)}">\s*{pattern}', self._text)
        if match is None:
            raise KeyError(f"The figure has no artist marked {gid!r} of the right kind.")
        return match.span(1)

    def _place(self, points) -> np.ndarray:
        pixels = self._to_pixels.transform(np.asarray(points, dtype=float))
        pixels[:, 1] = self._height - pixels[:, 1]
        return pixels

    def _write_alt(self, scene: Scene, _gid: str) -> str:
        return html.escape(scene.alt, quote=True)

    def _write_path(self, scene: Scene, gid: str) -> str:
        points = self._place(scene.paths[gid]).round(2).tolist()
        return "M " + " L ".join(
            [f"{x:g} {y:g}" if abs(x) < 1e4 > abs(y) else f"{x} {y}" for x, y in points]
        )

    def _write_label(self, scene: Scene, gid: str) -> str:
        x, y, words = scene.labels[gid]
        x, y = self._place([(x, y)]).round(2)[0].tolist()
        return f' x="{x}" y="{y}">{html.escape(words or BLANK)}'

    def _write_word(self, scene: Scene, gid: str) -> str:
        return html.escape(scene.words[gid] or BLANK)
