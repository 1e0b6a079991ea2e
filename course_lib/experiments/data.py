"""Real data that ships inside a package (scikit-learn), so that nothing is downloaded when a notebook runs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.utils._python_dispatch import _disable_current_modes


@lru_cache(maxsize=1)
def _digits():
    """NumPy arrays: a tensor that is made while a prediction runs has no data, and must not be what is remembered."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    with _disable_current_modes():
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).numpy()
    return images[order] / 16, labels[order].astype("int64")


def digits(samples: int | None = None, dtype=torch.float32, image: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Handwritten digits: (pixels, labels). 1797 samples at most, always in the same shuffled order.

    pixels (samples, 64) in 0..1, or (samples, 1, 8, 8) with `image`; labels (samples,) of int64 in 0..9.
    Source: scikit-learn's `load_digits`, the UCI optical recognition of handwritten digits test set.
    """
    pixels, labels = map(torch.tensor, _digits())
    if samples is not None and not 0 < samples <= len(pixels):
        raise ValueError(f"There are {len(pixels)} digits; ask for 1 to {len(pixels)} of them, not {samples}.")
    x = pixels[:samples].to(dtype)
    return (x.view(-1, 1, 8, 8) if image else x), labels[:samples].clone()


class Batches:
    """Micro-batches of fixed tensors: yields (inputs, targets) and has a length. The last one may be short."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, size: int):
        if size < 1:
            raise ValueError(f"A micro-batch has at least one sample, not {size}.")
        self.inputs, self.targets, self.size = inputs, targets, size

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.size)

    def __iter__(self):
        for start in range(0, len(self.inputs), self.size):
            yield self.inputs[start : start + self.size], self.targets[start : start + self.size]
