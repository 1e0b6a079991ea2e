"""Divisions that are missing, doubled, or by the wrong number; shares that are not the samples' or tokens' shares."""

import torch
from torch import nn
from torch.nn import functional as F

from ..problems import Problem, network, tokens
from .case import Case, close, first_used, ratio
from .wrapper import Wrapper, windows


def not_divided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Mean losses, summed over the window."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()


def divides_with_the_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loop divides, and the wrapper's backward divides again."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.backward(loss_fn(model(x), y) / accumulation_steps)
        wrapper.step()
        wrapper.zero_grad()


def running_index(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each loss is divided by the number of losses so far."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            (loss_fn(model(x), y) / i).backward()
        optimizer.step()


def tail_over_k(model, optimizer, loss_fn, batches, accumulation_steps):
    """The tail is stepped, and still divided by K."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def mean_of_means(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each micro-batch counts 1/K, whatever its size."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def tokens_then_divided(model, optimizer, loss_fn, batches, accumulation_steps):
    """A summed loss over the window's token count is right; a wrapper divides it again."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for window in windows(batches, accumulation_steps):
        count = sum(int((y != -100).sum()) for _, y in window)
        for x, y in window:
            wrapper.begin()
            logits = model(x)
            total = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
            wrapper.backward(total / count)
            wrapper.step()
            wrapper.zero_grad()


def loss_ignores_the_count(model, optimizer, loss_fn, batches, accumulation_steps):
    """The trainer leaves the division to the loss, which is given the count and takes a plain mean."""

    def loss_for(outputs, targets, items_in_window):
        return loss_fn(outputs, targets)

    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        items = sum(len(y) for _, y in window)
        for x, y in window:
            loss_for(model(x), y, items).backward()
        optimizer.step()


def low_sum(model, optimizer, loss_fn, batches, accumulation_steps):
    """A right loop, but .grad is bfloat16 and the window long."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


class One(nn.Module):
    """A single weight in bfloat16."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

    def forward(self, x):
        return self.weight * x


def ones(steps=1024):
    """Every micro-batch has the gradient 1."""
    return Problem(
        model=One,
        batches=lambda epoch: [(torch.ones(1, dtype=torch.bfloat16), torch.zeros(1))] * steps,
        loss_fn=lambda output, _: output.sum(),
        accumulation_steps=steps,
    )


def sums_ones(model, optimizer, loss_fn, batches, accumulation_steps):
    """1024 ones in bfloat16 make 256."""
    optimizer.zero_grad()
    for x, y in batches:
        loss_fn(model(x), y).backward()
    optimizer.step()


def random_half(steps=64):
    """Random micro-batches for a network in bfloat16."""

    def batches(epoch):
        draw = torch.Generator().manual_seed(epoch)
        return [(torch.randn(4, 5, generator=draw).bfloat16(), torch.randn(4, 1, generator=draw).bfloat16()) for _ in range(steps)]

    return Problem(model=lambda: network(0, 16, dtype=torch.bfloat16), batches=batches, accumulation_steps=steps)


def _harmonic(report):
    assert close(sum(report.windows[0].used), 1 + 1 / 2 + 1 / 3 + 1 / 4)


def _tail(report):
    tail = report.windows[1]
    assert all(close(u, 0.75 * n) for u, n in zip(tail.used, tail.needed)), tail


def _only_256(report):
    assert "75" in report.diagnoses[0].evidence, report.diagnoses[0].evidence


SHORT_AND_LONG = tokens([[2] * 4, [16] * 4], 2)

CASES = (
    Case("B04", "no division", not_divided, ("not divided",), check=ratio(4.0)),
    Case("B05", "loop and wrapper divide", divides_with_the_wrapper, ("divided twice",), ("tail too small",), check=ratio(0.25)),
    Case("B07", "divided by the running index", running_index, ("running division",), check=_harmonic),
    Case("B13", "tail divided by K", tail_over_k, ("tail too small",), options={"sizes": [4] * 7}, check=_tail),
    Case("B16", "mean of means", mean_of_means, ("mean of means",), options={"sizes": [4, 4, 4, 1]},
         check=first_used(0.25, 0.25, 0.25, 0.25)),
    Case("B18", "mean of token means", mean_of_means, ("mean of means",), options={"problem": SHORT_AND_LONG},
         check=first_used(0.5, 0.5)),
    Case("B19", "token mean, then divided", tokens_then_divided, ("divided twice",), options={"problem": SHORT_AND_LONG},
         check=ratio(0.5)),
    Case("B20", "the loss ignores the count", loss_ignores_the_count, ("not divided",), check=ratio(4.0)),
    Case("B25", "1024 ones in bfloat16", sums_ones, ("low precision sum",), ("not divided",),
         options={"problem": ones(), "epochs": 1}, check=_only_256),
    Case("B25 random", "64 random gradients in bfloat16", low_sum, ("low precision sum",),
         options={"problem": random_half(), "epochs": 1}),
)  # fmt: skip
