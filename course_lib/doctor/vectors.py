"""Small questions about gradients as vectors."""

from __future__ import annotations

import torch

from .known import relative


class Nothing:
    """An event that changed no gradient."""

    before = after = None


def norm(vector) -> float:
    """Its length; 0 for None."""
    return 0.0 if vector is None else float(vector.norm())


def finite(vector) -> bool:
    """No NaN and no infinity in it."""
    return bool(torch.isfinite(vector).all())


def factor_between(before, after):
    """c where after = c * before, or None."""
    square = float((before.conj() @ before).real)
    if square == 0.0:
        return None
    factor = float((before.conj() @ after).real) / square
    return factor if relative(after - factor * before, after) < 1e-6 and factor != 0.0 else None


def clamped(before, after) -> bool:
    """Was every value cut at the same limit?"""
    if before.is_complex() or not bool(before.any()):
        return False
    limit = float(after.abs().max())
    return limit > 0 and bool(torch.equal(before.clamp(-limit, limit), after))


def hand_clips(log) -> set:
    """Events in which the loop itself cut the gradient's norm: other factors, and each time the same norm after it."""
    scalings = []
    for event in log.of("hand"):
        if finite(event.after) and finite(event.before):
            factor = factor_between(event.before, event.after)
            if factor is not None and 0 < factor < 1:
                scalings.append((event, factor, norm(event.after)))
    found = set()
    for event, _, length in scalings:
        alike = [f for _, f, n in scalings if abs(n - length) < 1e-3 * length]
        if len(alike) > 1 and max(alike) - min(alike) > 1e-3 * max(alike):
            found.add(id(event))
    return found
