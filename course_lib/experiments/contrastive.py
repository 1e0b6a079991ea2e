"""A loss that compares the samples of a batch with each other: every sample is a negative for the others."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from course_lib.experiments.data import digits

TEMPERATURE = 0.1


def info_nce(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Mean loss of finding each row's partner among all rows. Both (rows, width); row i belongs to row i.

    With a single row there is nothing to tell apart: the loss is 0.
    """
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    return F.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(len(first), device=first.device))


def two_views(samples: int, noise: float = 0.1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of real digits, (samples, 64) each, float64: the pixels, and pixels plus synthetic noise."""
    pixels, _ = digits(samples, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    return pixels, pixels + noise * torch.randn(pixels.shape, generator=draw, dtype=torch.float64)
