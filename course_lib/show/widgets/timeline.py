"""The panel of notebook 01: the memory of one real training step, with the one before as a ghost."""

from __future__ import annotations

import html

import ipywidgets as W
import torch
from torch.nn import functional as F

from course_lib.experiments.data import digits
from course_lib.experiments.models import GPT, mlp, next_token_loss
from course_lib.measure import Meter, device
from course_lib.measure.trace import ALLOCATOR, CATEGORIES, mib
from course_lib.show.style import new_uid, to_svg
from course_lib.show.timeline import memory_timeline, timeline_sentence
from course_lib.show.widgets.panel import WIDE, Panel

TOKENS, GREYS = 32, 17  # the GPT reads the upper half of a digit as 32 tokens of 17 shades
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
}


def measured_step(settings: dict, progress=lambda done, total, words: None):
    """Run the training step that the settings describe and return its Trace.

    settings: model "MLP" or "GPT", optimizer a key of OPTIMIZERS, batch, width, depth, and step (1 or 2:
    which step after the start is measured). The model, its data (scikit-learn's digits) and the device are
    real. `progress` is called between the steps and may raise to end it.
    """
    total = settings["step"] + 1
    progress(0, total, "building the model")
    on = device()
    with torch.random.fork_rng(devices=[]):  # the learner's own random numbers stay as they are
        torch.manual_seed(0)
        width, depth = settings["width"], settings["depth"]
        if settings["model"] == "GPT":
            model = GPT(vocab=GREYS, length=TOKENS, width=width, depth=depth, heads=max(1, width // 32))
        else:
            model = mlp(width=width, depth=depth)
    pixels, labels = digits(settings["batch"])
    if settings["model"] == "GPT":
        tokens = (pixels[:, : TOKENS + 1] * 16).round().long()
        inputs, targets, loss = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), next_token_loss
    else:
        inputs, targets, loss = pixels, labels, F.cross_entropy
    model, inputs, targets = model.to(on), inputs.to(on), targets.to(on)
    optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters())

    def one_step():
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

    for number in range(1, settings["step"]):
        progress(number, total, f"step {number}, not measured")
        one_step()
    progress(settings["step"], total, f"step {settings['step']}, measured")
    with Meter(model, optimizer) as meter:  # in the thread that does the work: a meter sees no other
        one_step()
    return meter.trace


def step_title(settings: dict) -> str:
    return "{model}, {optimizer}, step {step}: batch {batch}, width {width}, depth {depth}".format(
        **settings
    )


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
    what = "VRAM, from the allocator" if trace.source == ALLOCATOR else trace.source
    if trace.device == "cpu":
        what += " (CPU)"
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
        f'<table><caption style="text-align:left">What the peak is made of: {html.escape(what)}, '
        f"device {html.escape(trace.device)}</caption>"
        f'<tr><th scope="col" style="text-align:left">part</th>{head}</tr>{body}</table>'
    )
