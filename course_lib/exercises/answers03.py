"""The source documents' faults, re-told: each as it is given, and mended with its diagnosis above it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .names03 import diagnosis

# -- 03.1 a training loop that clears in the wrong place and steps in the wrong place -----------------------


def d2_loop_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
    if i % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()


@diagnosis(fault="no update", proof=[0, 0, 0, 0, 0, 0, 0, 1 / 4])
def d2_loop(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# -- 03.2 pseudo-code that reads a gradient nobody computed -------------------------------------------------


def d2_pseudo_given(model, optimizer, loss_fn, batches, accumulation_steps):
    collected, step = 0.0, 0
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        collected = collected + loss.grad
        if step % accumulation_steps == 0:
            optimizer.step()
            collected.zero_()


@diagnosis(fault="no backward", proof=(None, 0, 10))
def d2_pseudo(model, optimizer, loss_fn, batches, accumulation_steps):
    step = 0
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        step += 1
        if step % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# -- 03.3 a loop that is right up to the tail ---------------------------------------------------------------


def d0_loop_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        loss = loss / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="tail too small", proof=2 / 4)
def d0_loop(model, optimizer, loss_fn, batches, accumulation_steps):
    tail = len(batches) % accumulation_steps
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        loss = loss / (tail if i > len(batches) - tail else accumulation_steps)
        loss.backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


# -- 03.4 the same model, but for two lines -----------------------------------------------------------------


class Plain(nn.Module):
    """Three layers, one after the other: what `Checkpointed` claims to be."""

    def __init__(self, width):
        super().__init__()
        self.layer1 = nn.Linear(width, width)
        self.layer2 = nn.Linear(width, width)
        self.layer3 = nn.Linear(width, width)

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(x)))


class CheckpointedGiven(Plain):
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)

    def block(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x)


@diagnosis(fault="another function", proof=(-1, 0))
class Checkpointed(Plain):
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)

    def block(self, x):
        x = self.layer1(x)
        x = self.layer2(x)
        return self.layer3(x)


# -- 03.5 one segment around everything ---------------------------------------------------------------------


def segmented_given(blocks, x):
    def everything(x):
        for block in blocks:
            x = block(x)
        return x

    return checkpoint(everything, x, use_reentrant=False)


@diagnosis(fault="one segment", proof=(16, 16))
def segmented(blocks, x):
    def several(part, x):
        for block in part:
            x = block(x)
        return x

    for start in range(0, len(blocks), 4):
        x = checkpoint(several, blocks[start : start + 4], x, use_reentrant=False)
    return x


# -- 03.6 several forwards, one backward --------------------------------------------------------------------


def d3_row_given(model, optimizer, loss_fn, batches, accumulation_steps):
    window = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        window = window + loss_fn(model(inputs), targets) / accumulation_steps
        if i % accumulation_steps == 0:
            window.backward()
            optimizer.step()
            optimizer.zero_grad()
            window = 0.0


@diagnosis(fault="one backward for the window", proof=(8, 1))
def d3_row(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# -- mistakes, and right answers that look different --------------------------------------------------------


def d2_half_indented(model, optimizer, loss_fn, batches, accumulation_steps):
    """The update went into the loop; the clear stayed where it was."""
    for i, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def d2_half_cleared(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear went out of the loop; the update stayed there."""
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
    if i % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()


def pseudo_only_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """backward() is there; the counter still stands still."""
    step = 0
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if step % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def pseudo_counts_late(model, optimizer, loss_fn, batches, accumulation_steps):
    """The counter moves, after the test."""
    step = 0
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if step % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        step += 1


def pseudo_own_sum(model, optimizer, loss_fn, batches, accumulation_steps):
    """Keeps the document's idea, a sum of its own, and hands it to the optimizer."""
    parameters = list(model.parameters())
    collected, step = [torch.zeros_like(p) for p in parameters], 0
    for inputs, targets in batches:
        found = torch.autograd.grad(loss_fn(model(inputs), targets), parameters)
        collected = [c + g / accumulation_steps for c, g in zip(collected, found)]
        step += 1
        if step % accumulation_steps == 0:
            for parameter, gradient in zip(parameters, collected):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            collected = [torch.zeros_like(p) for p in parameters]


def pseudo_sum_unseen(model, optimizer, loss_fn, batches, accumulation_steps):
    """A sum of its own, which the optimizer never sees."""
    parameters = list(model.parameters())
    collected = [torch.zeros_like(p) for p in parameters]
    for step, (inputs, targets) in enumerate(batches, 1):
        found = torch.autograd.grad(loss_fn(model(inputs), targets), parameters)
        collected = [c + g / accumulation_steps for c, g in zip(collected, found)]
        if step % accumulation_steps == 0:
            optimizer.step()
            collected = [torch.zeros_like(p) for p in parameters]


def d0_drops(model, optimizer, loss_fn, batches, accumulation_steps):
    """Mends the tail by leaving it out."""
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def d0_rescales(model, optimizer, loss_fn, batches, accumulation_steps):
    """Stretches the tail's gradient right before its update."""
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        used = (i - 1) % accumulation_steps + 1
        if used == accumulation_steps or i == len(batches):
            for parameter in model.parameters():
                parameter.grad.mul_(accumulation_steps / used)
            optimizer.step()
            optimizer.zero_grad()


def d0_all_small(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides every micro-batch by the length of the tail."""
    tail = len(batches) % accumulation_steps or accumulation_steps
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / tail).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def row_with_graph(model, optimizer, loss_fn, batches, accumulation_steps):
    """A backward for each micro-batch, and a list that keeps every graph of the window."""
    window = []
    for i, (inputs, targets) in enumerate(batches, 1):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets) / accumulation_steps
        loss.backward(retain_graph=True)
        window.append(loss)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            window.clear()


def row_every_step(model, optimizer, loss_fn, batches, accumulation_steps):
    """One backward, one step: takes the row the other way round."""
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def row_big_batch(model, optimizer, loss_fn, batches, accumulation_steps):
    """The large batch itself."""
    for start in range(0, len(batches), accumulation_steps):
        inputs, targets = (torch.cat(part) for part in zip(*batches[start : start + accumulation_steps]))
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
