"""One real training step under the meter, described by a few plain settings."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from course_lib.experiments.data import digits
from course_lib.experiments.models import GPT, mlp, next_token_loss
from course_lib.measure import Meter, device

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
