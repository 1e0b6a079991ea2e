"""Gradient accumulation (梯度累积): the gradient of a large batch, from micro-batches that fit.

For a loss that is a mean over samples, the gradient of a window of micro-batches with n_1, …, n_K samples is

    g = sum_i (n_i / N) * g_i        with N = n_1 + … + n_K and g_i the gradient of micro-batch i's mean loss.

`backward()` adds to `.grad`, so it is enough to weight each micro-batch's loss by n_i / N. When all sizes are equal, the
weight is 1/K: the familiar division. When they are not, or when the last window is short, only n_i / N is right.
"""

from __future__ import annotations

from itertools import islice

import torch

from .checks import require_finite, require_some, require_steps, require_trainable, require_windows, run_model


def accumulate(model, optimizer, loss_fn, batches, accumulation_steps: int, count=torch.Tensor.numel) -> list[float]:
    """Train once through `batches`, one update per window of `accumulation_steps` micro-batches.

    model: called as model(inputs). optimizer: steps once per window, the short last window included.
    loss_fn: loss_fn(outputs, targets) -> scalar, the mean over what `count` counts.
    batches: yields (inputs, targets); sizes may differ. The inputs of one window are held together, since its weights need
        all sizes beforehand; the activations are not.
    count: count(targets) -> how many terms that mean is over. The default counts every target; for a loss that ignores
        padding, pass for example `lambda targets: (targets != -100).sum()`.

    Returns the loss of each window, weighted like its gradient: the number that a log should show.

    Raises ValueError for accumulation_steps < 1, no batches, nothing to train or a window that counts nothing, TypeError
    for the wrong kind of number, FloatingPointError for a loss that is not finite; the weights then stand as they were
    after the last complete window.
    """
    require_steps(accumulation_steps)
    require_trainable(model)
    batches, losses = iter(batches), []
    optimizer.zero_grad()
    while window := list(islice(batches, accumulation_steps)):
        sizes = [int(count(targets)) for _, targets in window]
        samples, window_loss = require_some(sum(sizes)), 0.0
        for (inputs, targets), size in zip(window, sizes):
            if size == 0:
                continue  # all padding: its mean is 0/0, its weight 0
            loss = loss_fn(run_model(model, inputs), targets) * (size / samples)
            loss.backward()  # the activations of this micro-batch are freed here
            window_loss += loss.detach()
        losses.append(require_finite(window_loss, optimizer))
        optimizer.step()
        optimizer.zero_grad()
    return require_windows(losses)
