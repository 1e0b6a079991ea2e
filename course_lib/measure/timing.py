"""Step time that can be trusted, and FLOP counts that need no trust.

Clocks on shared machines drift. So variants are run in turn (A B A B), warmed up first, and the median and the spread are
given; ratios come from one such run. A FLOP ratio is exact and free of noise: use it where the question allows.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from .device import device, synchronize


@dataclass(frozen=True)
class Timing:
    """Times of one variant, in seconds."""

    seconds: tuple

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile, in seconds (the whole range for fewer than four runs)."""
        if len(self.seconds) < 4:
            return min(self.seconds), max(self.seconds)
        quartiles = statistics.quantiles(self.seconds, n=4)
        return quartiles[0], quartiles[2]

    def __repr__(self) -> str:
        low, high = self.spread
        return f"{self.median * 1e3:.2f} ms (half of {len(self.seconds)} runs within {low * 1e3:.2f} to {high * 1e3:.2f})"


def compare(variants: Mapping[str, Callable[[], object]], repeats: int = 9, warmup: int = 2, on=None) -> dict[str, Timing]:
    """Time several callables against each other: {name: Timing}.

    Every round runs each variant once; the order turns from round to round, so that drift hits all alike. On a CPU the
    malloc thresholds are raised first (see `quiet_malloc`). Raises ValueError for no variants, fewer than one repeat or
    a negative warmup.
    """
    if not variants or repeats < 1 or warmup < 0:
        raise ValueError("compare() needs at least one variant, at least one repeat and no negative warmup.")
    on = device() if on is None else torch.device(on)
    if on.type == "cpu":
        quiet_malloc()
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(warmup + repeats):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            synchronize(on)
            start = time.perf_counter()
            variants[name]()
            synchronize(on)
            if round_ >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(times[name])) for name in names}


def flops(function: Callable[[], object]) -> int:
    """Floating-point operations of one call: matrix products, convolutions and attention, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def flop_ratio(variant: Callable[[], object], base: Callable[[], object]) -> float:
    """How many times the FLOPs of `base` the `variant` needs. Exact; raises ValueError if base counts no FLOPs."""
    below = flops(base)
    if below == 0:
        raise ValueError("The base function has no matrix product, convolution or attention, so there is nothing to count.")
    return flops(variant) / below


def quiet_malloc(keep_bytes: int = 32 * 2**20) -> bool:
    """Let glibc keep freed memory instead of returning it to the system at every step. True if that was possible.

    With the default thresholds each large tensor is mapped afresh and its pages fault one by one. A step that keeps many
    activations then pays for page faults, and checkpointing looks cheaper than it is.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD in malloc.h
    return bool(mallopt(mmap_threshold, keep_bytes)) and bool(mallopt(trim_threshold, 2**31 - 1))
