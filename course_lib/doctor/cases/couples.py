"""Losses and layers that look at several samples at once, and gradients of two losses in one place."""

import torch
from torch import nn
from torch.nn import functional as F

from ..problems import Problem, batchnorm, contrastive, network
from .case import Case
from .wrapper import windows


def micro_negatives(model, optimizer, loss_fn, batches, accumulation_steps):
    """The negatives of a pair come from its micro-batch only."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for first, second in window:
            (loss_fn(model(first), model(second)) / len(window)).backward()
        optimizer.step()


def cached_embeddings(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two passes: embeddings first, their gradients, then each micro-batch with its own: exact."""
    for window in windows(batches, accumulation_steps):
        with torch.no_grad():
            firsts = [model(first) for first, _ in window]
            seconds = [model(second) for _, second in window]
        a, b = torch.cat(firsts).requires_grad_(), torch.cat(seconds).requires_grad_()
        loss_fn(a, b).backward()
        optimizer.zero_grad()
        start = 0
        for first, second in window:
            part = slice(start, start + len(first))
            model(first).backward(a.grad[part])
            model(second).backward(b.grad[part])
            start += len(first)
        optimizer.step()


def plain(model, optimizer, loss_fn, batches, accumulation_steps):
    """A right loop."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def discriminator(batches=8) -> Problem:
    """A discriminator: its own loss has a real and a fake half."""

    def loss_of(model, batch):
        real, fake = batch
        return F.softplus(-model(real)).mean() + F.softplus(model(fake)).mean()

    def made(epoch):
        draw = torch.Generator().manual_seed(epoch)
        rows = lambda: torch.randn(4, 5, generator=draw, dtype=torch.float64)  # noqa: E731
        return [(rows(), rows() + 1) for _ in range(batches)]

    return Problem(model=lambda: network(0, 16), batches=made, loss_of=loss_of, words="a discriminator")


def generator_leaves_gradients(model, optimizer, loss_fn, batches, accumulation_steps):
    """The generator's backward goes through the discriminator and leaves gradients there; accumulation skips the clear."""
    generator = nn.Linear(5, 5, dtype=torch.float64)
    for i, (real, fake) in enumerate(batches, 1):
        made = generator(torch.randn(4, 5, dtype=torch.float64))
        F.softplus(-model(made)).mean().backward()
        loss = F.softplus(-model(real)).mean() + F.softplus(model(fake)).mean()
        (loss / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def real_and_fake(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two backward calls without a clear, on purpose."""
    for i, (real, fake) in enumerate(batches, 1):
        (F.softplus(-model(real)).mean() / accumulation_steps).backward()
        (F.softplus(model(fake)).mean() / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def _four_times(report):
    assert "4 times" in report.diagnoses[0].evidence, report.diagnoses[0].evidence


CASES = (
    Case("B23", "negatives from the micro-batch", micro_negatives, ("loss couples samples",),
         options={"problem": contrastive()}),
    Case("B23 cached", "cached embeddings, two passes", cached_embeddings, options={"problem": contrastive()}),
    Case("B24", "BatchNorm", plain, ("layer couples samples",), options={"problem": batchnorm()}, check=_four_times),
    Case("B49", "the generator's gradients stay in the discriminator", generator_leaves_gradients,
         ("gradient of another loss",), options={"problem": discriminator()}),
    Case("N4", "real and fake in two backward calls", real_and_fake, options={"problem": discriminator()}),
)  # fmt: skip
