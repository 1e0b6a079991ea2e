"""Notebook 03: mended models and loops that are not mended, and right ones that look different."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .answers03 import CheckpointedGiven, Plain
from .case03 import rebuilt

# -- 03.4 ---------------------------------------------------------------------------------------------------


class NoCheckpoint(Plain):
    """Right numbers, because the checkpoint is gone."""


class OneReluLeft(CheckpointedGiven):
    def block(self, x):
        return self.layer3(self.layer2(torch.relu(self.layer1(x))))


class Reentrant(Plain):
    """The older variant: with an input that needs no gradient, the block's own parameters get none."""

    def forward(self, x):
        x = checkpoint(self.inner, x, use_reentrant=True)
        return self.layer3(x)

    def inner(self, x):
        return self.layer2(self.layer1(x))


class Renamed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


class LayerByLayer(Plain):
    """Another place for the checkpoint."""

    def forward(self, x):
        for layer in (self.layer1, self.layer2, self.layer3):
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class CallsThePlain(Plain):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


# -- 03.5 ---------------------------------------------------------------------------------------------------


def segmented_not(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def segmented_two(blocks, x):
    """Two halves: the peak falls, but not far enough."""
    half = len(blocks) // 2
    for part in (blocks[:half], blocks[half:]):
        x = checkpoint(nn.Sequential(*part), x, use_reentrant=False)
    return x


def segmented_no_grad(blocks, x):
    """Keeps nothing, and learns nothing in the first half."""
    half = len(blocks) // 2
    with torch.no_grad():
        for block in blocks[:half]:
            x = block(x)
    for block in blocks[half:]:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def segmented_skips(blocks, x):
    for start in range(0, len(blocks) - 4, 4):
        x = checkpoint(nn.Sequential(*blocks[start : start + 4]), x, use_reentrant=False)
    return x


def segmented_nested(blocks, x):
    """A checkpoint in a checkpoint: less memory still, for a third forward. Right, and dearer."""
    if len(blocks) == 1:
        return checkpoint(blocks[0], x, use_reentrant=False)
    half = len(blocks) // 2
    x = checkpoint(segmented_nested, blocks[:half], x, use_reentrant=False)
    return checkpoint(segmented_nested, blocks[half:], x, use_reentrant=False)


def segmented_each(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def segmented_sequential(blocks, x):
    return checkpoint_sequential(list(blocks), 4, x, use_reentrant=False)


# -- the gallery: mended wrongly ----------------------------------------------------------------------------


def clears_before_step(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
            optimizer.step()


def never_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def one_too_late(model, optimizer, loss_fn, batches, accumulation_steps):
    """Counts from one, and adds one all the same."""
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def repeats_division(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= accumulation_steps
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def lowers_rate(model, optimizer, loss_fn, batches, accumulation_steps):
    """A smaller learning rate instead of a division: the same with SGD, not with Adam or clipping."""
    for group in optimizer.param_groups:
        group["lr"] /= accumulation_steps
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def steps_on_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def slices_without_test(model, optimizer, loss_fn, batches, accumulation_steps):
    for inputs, targets in batches:
        for x, y in zip(inputs.chunk(accumulation_steps), targets.chunk(accumulation_steps)):
            (loss_fn(model(x), y) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()


def slices_step_outside(model, optimizer, loss_fn, batches, accumulation_steps):
    """One loader batch is one window: the update comes after its slices. No counter."""
    for inputs, targets in batches:
        for x, y in zip(inputs.chunk(accumulation_steps), targets.chunk(accumulation_steps)):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def slices_last_slice_only(model, optimizer, loss_fn, batches, accumulation_steps):
    for inputs, targets in batches:
        for x, y in zip(inputs.chunk(accumulation_steps), targets.chunk(accumulation_steps)):
            optimizer.zero_grad()
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def sizes_over_largest(model, optimizer, loss_fn, batches, accumulation_steps):
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        most = max(len(targets) for _, targets in window)
        for inputs, targets in window:
            (loss_fn(model(inputs), targets) * len(targets) / most / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def sizes_divided_again(model, optimizer, loss_fn, batches, accumulation_steps):
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = sum(len(targets) for _, targets in window)
        for inputs, targets in window:
            (loss_fn(model(inputs), targets) * len(targets) / rows / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def sizes_summed(model, optimizer, loss_fn, batches, accumulation_steps):
    """Sums of losses, and one division of .grad by the rows of the window."""
    rows = 0
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) * len(targets)).backward()
        rows += len(targets)
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad /= rows
            optimizer.step()
            optimizer.zero_grad()
            rows = 0


def restarts_at_once(model, optimizer, loss_fn, batches, accumulation_steps):
    """Saves and starts again only where a window ends."""
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            if i == 8:
                model, optimizer = rebuilt(model, optimizer)


def restart_halves(model, optimizer, loss_fn, batches, accumulation_steps):
    """Stretches what is left after the restart: the length is right, two micro-batches are still gone."""
    stretch = 1.0
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) * stretch / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            stretch = 1.0
        if i == 6:
            model, optimizer = rebuilt(model, optimizer)
            stretch = 2.0
