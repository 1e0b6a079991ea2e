"""Which learning rate is best for which batch: many small models trained side by side on real data."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


@lru_cache(maxsize=1)
def patients() -> tuple[torch.Tensor, torch.Tensor, float]:
    """(inputs, target, floor): 442 patients, ten measurements and a constant, and how their diabetes went on.

    inputs (442, 11) and target (442,) in float64, all but the constant with mean 0 and variance 1. floor: the
    mean squared error of the best linear prediction. Source: scikit-learn's `load_diabetes`.
    """
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    inputs, target = torch.tensor(data.data), torch.tensor(data.target)
    inputs, target = (inputs - inputs.mean(0)) / inputs.std(0), (target - target.mean()) / target.std()
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
    best = torch.linalg.lstsq(inputs, target.unsqueeze(1)).solution.squeeze(1)
    return inputs, target, float((inputs @ best - target).square().mean())


def losses_above_best(optimizer: str, batch: int, rates, passes: int = 2, seeds: int = 12) -> list[float]:
    """For each learning rate: how far a linear model is above the best one after some passes over the data.

    optimizer: "SGD" or "Adam". batch: samples per update; what does not fill a batch is dropped. The result
    is the mean squared error over all patients, less that of the best linear model, as a mean over `seeds`
    orders of the data (inf where training blew up). All rates and seeds are trained in one go with torch's
    own optimizer, one parameter group for each rate; nothing is drawn from torch's global generator.
    Raises ValueError for an unknown optimizer or a batch larger than the data.
    """
    inputs, target, floor = patients()
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"There is no optimizer {optimizer!r} here; there are {', '.join(OPTIMIZERS)}.")
    if not 1 <= batch <= len(inputs):
        raise ValueError(f"A batch has 1 to {len(inputs)} samples here, not {batch}.")
    models = [torch.zeros(seeds, inputs.shape[1], dtype=torch.float64, requires_grad=True) for _ in rates]
    trainer = OPTIMIZERS[optimizer]([{"params": [model], "lr": rate} for model, rate in zip(models, rates)])
    draw = torch.Generator().manual_seed(0)
    for _ in range(passes):
        order = torch.stack([torch.randperm(len(inputs), generator=draw) for _ in range(seeds)])
        for picks in order[:, : len(inputs) // batch * batch].split(batch, dim=1):
            predicted = torch.einsum("sbf,rsf->rsb", inputs[picks], torch.stack(models))
            trainer.zero_grad()
            (predicted - target[picks]).square().mean(2).sum().backward()
            trainer.step()
    with torch.no_grad():
        errors = (torch.stack(models) @ inputs.T - target).square().mean((1, 2)) - floor
    return [float(error) if math.isfinite(error) else math.inf for error in errors]


def best_rate(rates, losses) -> float:
    """Where the loss is lowest: the vertex of a parabola through the best rate and its neighbours (log axis).

    Raises ValueError if the best rate is the first or the last one: then the range was too narrow.
    """
    at = min(range(len(losses)), key=losses.__getitem__)
    if at in (0, len(losses) - 1):
        raise ValueError(f"The lowest loss is at the edge of the range, {rates[at]:g}: try a wider one.")
    x, y = [math.log(rate) for rate in rates[at - 1 : at + 2]], losses[at - 1 : at + 2]
    if not all(map(math.isfinite, y)):
        return float(rates[at])
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    return math.exp((x[0] + x[1]) / 2 - left * (x[2] - x[0]) / 2 / (right - left))


def slope(batches, rates) -> float:
    """The exponent p of the power law rate ~ batch^p that fits best (least squares on logs)."""
    x, y = (torch.tensor(list(values)).double().log() for values in (batches, rates))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())
