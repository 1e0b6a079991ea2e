"""Gradients as single long vectors, so that two of them can be compared with two numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F


class Compared(NamedTuple):
    """A gradient beside the right one: ratio of their lengths, cosine between them. 1 and 1 are right."""

    ratio: float
    cosine: float

    def __str__(self) -> str:
        return f"ratio {self.ratio:.4f}, cosine {self.cosine:.4f}"


def gradient_of(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """The gradient of `loss` for all trainable parameters, as one vector. `.grad` stays as it is."""
    return joined(torch.autograd.grad(loss, trainable(model)))


def stored_gradient(model: torch.nn.Module) -> torch.Tensor:
    """What stands in `.grad`, as one vector. Raises ValueError where a parameter has none."""
    if any(p.grad is None for p in trainable(model)):
        raise ValueError("A parameter has no gradient: call backward() before you read it.")
    return joined(p.grad for p in trainable(model)).clone()


def compared(gradient: torch.Tensor, right: torch.Tensor) -> Compared:
    """How a gradient differs from the right one, in length and in direction. A zero one has cosine 0."""
    if gradient.shape != right.shape:
        raise ValueError(f"Two gradients of {tuple(gradient.shape)} and {tuple(right.shape)} cannot be "
                         "compared.")
    gradient, right = gradient.double(), right.double()
    return Compared(float(gradient.norm() / right.norm()), float(F.cosine_similarity(gradient, right, dim=0)))


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that require a gradient, in the model's own order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def joined(tensors) -> torch.Tensor:
    """Tensors of any shapes as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
