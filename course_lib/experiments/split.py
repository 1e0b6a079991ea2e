"""A linear model with two weights on real data: its gradients are arrows in a plane and can be drawn."""

from __future__ import annotations

from functools import lru_cache

import torch

SAMPLES = 24
SPLITS = (1, 2, 3, 4, 6, 8)  # the numbers up to 8 that split 24 samples into equal parts
FEATURES = ("bmi", "bp")


@lru_cache(maxsize=1)
def _data():
    """24 patients of scikit-learn's diabetes data: body mass index, blood pressure, and what to predict."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    columns = [data.feature_names.index(name) for name in FEATURES]
    inputs, target = torch.tensor(data.data[:, columns]), torch.tensor(data.target)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    target = (target - target.mean()) / target.std()
    return inputs[:SAMPLES], target[:SAMPLES]


def _gradient(inputs, target) -> tuple[float, float]:
    """Gradient of the mean squared error of a linear model with two zero weights; autograd, float64."""
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    torch.mean((inputs @ weight - target) ** 2).backward()
    return tuple(weight.grad.tolist())


def split_sizes(k: int, unequal: bool) -> tuple[int, ...]:
    """How many of the 24 samples each of k micro-batches gets: the same, or growing like 1, 4, 9, ..."""
    if not unequal:
        return (SAMPLES // k,) * k
    squares = [(i + 1) ** 2 for i in range(k)]
    sizes = [max(1, round(SAMPLES * square / sum(squares))) for square in squares]
    sizes[-1] += SAMPLES - sum(sizes)
    return tuple(sizes)


@lru_cache(maxsize=32)
def split_gradients(k: int, unequal: bool):
    """(gradient of each micro-batch, samples in each, gradient of all 24): gradients are pairs of floats."""
    inputs, target = _data()
    sizes = split_sizes(k, unequal)
    parts = zip(inputs.split(sizes), target.split(sizes))
    return tuple(_gradient(x, y) for x, y in parts), sizes, _gradient(inputs, target)
