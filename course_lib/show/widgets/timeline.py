"""The panel of notebook 01: the memory of one real training step, with the one before as a ghost."""

from __future__ import annotations

import html

import ipywidgets as W

from course_lib.experiments.steps import OPTIMIZERS, measured_step, step_title
from course_lib.measure.trace import CATEGORIES, mib
from course_lib.show.style import new_uid, to_svg
from course_lib.show.timeline import memory_timeline, source_words, timeline_sentence
from course_lib.show.widgets.panel import WIDE, Panel


class MemoryTimeline(Panel):
    """Choose a model and an optimizer; each change runs one real training step and shows its live memory.

    Settings: model "MLP" or "GPT", optimizer "SGD", "momentum" or "Adam", batch 8 to 128, width 32 to 256
    (powers of two), depth 1 to 4, step 1 or 2. `.result` is {"settings": ..., "trace": Trace}.
    """

    title = "Live memory of one training step"

    def controls(self) -> dict:
        def powers(name, value, low, high):
            options = [2**i for i in range(low, high + 1)]
            return W.SelectionSlider(options=options, value=value, description=name, style=WIDE,
                                     continuous_update=False)  # fmt: skip

        def toggle(name, options):
            return W.ToggleButtons(
                options=options, description=name, style={**WIDE, "button_width": "initial"}
            )

        return {
            "model": toggle("model", ["MLP", "GPT"]),
            "optimizer": toggle("optimizer", list(OPTIMIZERS)),
            "step": toggle("measure", [("first step", 1), ("second step", 2)]),
            "batch": powers("batch", 64, 3, 7),
            "width": powers("width", 128, 5, 8),
            "depth": W.IntSlider(
                value=3, min=1, max=4, description="depth", style=WIDE, continuous_update=False
            ),
        }

    def work(self, settings: dict, job) -> dict:
        return {"settings": settings, "trace": measured_step(settings, job.progress)}

    def figure(self, settings: dict, result, before):
        if result is None:
            raise RuntimeError("nothing is measured yet")
        return memory_timeline(
            result["trace"], before and before["trace"], step_title(result["settings"])
        )

    def view(self, settings: dict, result, before) -> tuple[str, str]:
        if result is None:
            return "", "Measuring the first step."
        ghost = before and before["trace"]
        drawing = self.figure(settings, result, before)
        sentence = f"{step_title(result['settings'])}. {timeline_sentence(result['trace'], ghost)}"
        return to_svg(drawing, drawing.alt, uid=new_uid()) + peak_table(result["trace"], ghost), sentence


def peak_table(trace, ghost=None) -> str:
    """The peak by category as an HTML table: now, and before if there is a ghost."""
    columns = [trace] + ([ghost] if ghost is not None else [])
    names = [c for c in CATEGORIES if any(t.peak_by_category.get(c) for t in columns)]
    rows = [("peak", [t.peak_bytes for t in columns])]
    rows += [(name, [t.peak_by_category.get(name, 0) for t in columns]) for name in names]
    head = "".join(
        f'<th scope="col" style="text-align:right">{word}</th>'
        for word in ("now", "before")[: len(columns)]
    )
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
        + "".join(
            f'<td style="text-align:right;padding-left:1.5em">{mib(n) if n else "0"}</td>'
            for n in values
        )
        + "</tr>"
        for name, values in rows
    )
    return (
        '<table style="line-height:1.35">'
        '<caption style="text-align:left;white-space:nowrap">What the peak is made of: '
        f"{html.escape(source_words(trace))}</caption>"
        f'<tr><th scope="col" style="text-align:left">part</th>{head}</tr>{body}</table>'
    )
