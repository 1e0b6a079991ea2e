"""Reports in which the loop was right after all: the doctor must stay silent."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..problems import Problem, network, regression
from .case import Case
from .wrapper import Wrapper, windows


def plain(model, optimizer, loss_fn, batches, accumulation_steps):
    """64 x 2 against 128, without BatchNorm: the same."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def divides_at_the_step(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides .grad, not the loss."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad /= len(window)
        optimizer.step()


def divides_for_the_log(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The wrapper has divided; what is divided after backward is a number for the log."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    shown = 0.0
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        loss = loss_fn(model(x), y)
        wrapper.backward(loss)
        shown += loss.item() / accumulation_steps
        if wrapper.sync:
            log(shown)
            shown = 0.0
        wrapper.step()
        wrapper.zero_grad()


def float_without_detach(model, optimizer, loss_fn, batches, accumulation_steps):
    """float(loss) needs no detach before it."""
    total = 0.0
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            total += float(loss)
        optimizer.step()
    return total


class Checked(nn.Module):
    """A network with dropout whose first layers run under torch's checkpoint."""

    def __init__(self):
        super().__init__()
        layers = network(0, 24)
        self.first, self.last = nn.Sequential(layers[0], layers[1], nn.Dropout(0.5)), layers[2]

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=False))


def checked() -> Problem:
    """Dropout under a checkpoint: the mask is the same when it is drawn again."""
    return Problem(model=Checked, batches=regression([4] * 10, 4).batches)


def every_micro_batch(model, optimizer, loss_fn, batches, accumulation_steps):
    """K = 1: a suspicion of accumulation that was withdrawn."""
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def looks_first(model, optimizer, loss_fn, batches, accumulation_steps):
    """A checkpoint under no_grad in an evaluation is one call, without harm."""
    model.eval()
    with torch.no_grad():
        for x, y in batches:
            loss_fn(checkpoint(model, x, use_reentrant=False), y)
    model.train()
    plain(model, optimizer, loss_fn, batches, accumulation_steps)


CASES = (
    Case("N1", "no layer couples samples", plain),
    Case("N2", "divides at the step", divides_at_the_step),
    Case("N3", "divides for the log only", divides_for_the_log, options={"sizes": [4] * 8}),
    Case("N5", "float(loss)", float_without_detach),
    Case("N6", "dropout under a checkpoint", plain, options={"problem": checked()}),
    Case("N7", "K = 1", every_micro_batch, options={"accumulation_steps": 1}),
    Case("N8", "checkpoint under no_grad", looks_first),
)  # fmt: skip
