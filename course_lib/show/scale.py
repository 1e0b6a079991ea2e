"""Numbers on axes: a short ladder of nice limits, binary units, labels that do not overlap."""

from __future__ import annotations

import math

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_LADDER = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0, 10.0)


def nice_limit(value: float) -> float:
    """The smallest of 1, 1.25, 1.6, 2, ... times a power of ten that is at least `value` (1.0 for 0 or less).

    A limit from a ladder stays put while a slider moves the data a little, so the axis does not jump.
    """
    if not (value > 0 and math.isfinite(value)):
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (*_LADDER, 12.5) if step * scale >= value * (1 - 1e-9))


def byte_unit(nbytes: float) -> tuple[str, int]:
    """("MiB", 2**20) and its like: the unit in which `nbytes` is at least 1."""
    return next((name, size) for name, size in _UNITS if nbytes >= size or size == 1)


def ticks(limit: float, most: int = 6) -> list[float]:
    """Round tick positions from 0 to `limit`."""
    for step in (
        s * 10.0**e for e in range(math.floor(math.log10(limit)) - 2, 20) for s in (1, 2, 2.5, 5)
    ):
        if limit / step <= most:
            return [step * i for i in range(int(limit / step + 1e-9) + 1)]
    raise AssertionError("unreachable")


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted` (ascending), at least `gap` apart, inside [low, high] if they fit."""
    placed: list[float] = []
    for value in wanted:
        placed.append(max(value, low, placed[-1] + gap if placed else low))
    ceiling = high
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
