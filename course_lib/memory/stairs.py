"""Falling staircases: the least cost for every amount of memory. Numbers are exact; a staircase is two sorted arrays."""

from __future__ import annotations

import numpy as np


class Stairs:
    """need[i]: bytes from which on cost[i] is possible. Needs rise, costs fall; below need[0] nothing is possible."""

    __slots__ = ("need", "cost")

    def __init__(self, need, cost):
        self.need, self.cost = need, cost

    def at(self, memory):
        """The cost for an amount of memory (a number or an array); inf where it does not suffice."""
        place = np.searchsorted(self.need, memory, side="right") - 1
        return np.where(place < 0, np.inf, self.cost[place])

    def up(self, nbytes: int) -> Stairs:
        """The same for somebody who needs `nbytes` for something else all the while."""
        return Stairs(self.need + nbytes, self.cost)

    def __len__(self) -> int:
        return len(self.need)


def flat(need: int, cost: float = 0.0) -> Stairs:
    return Stairs(np.array([need], np.int64), np.array([cost]))


def both(a: Stairs, b: Stairs) -> tuple:
    """Points (needs, costs) of doing one after the other in the same memory."""
    need = np.concatenate((a.need, b.need))
    need = need[need >= max(a.need[0], b.need[0])]
    return need, a.cost[np.searchsorted(a.need, need, "right") - 1] + b.cost[np.searchsorted(b.need, need, "right") - 1]


def best(points: list) -> Stairs:
    """The lower edge of many points: `points` is a list of (needs, costs)."""
    need = np.concatenate([p[0] for p in points])
    cost = np.concatenate([p[1] for p in points])
    order = np.lexsort((cost, need))
    need, cost = need[order], cost[order]
    lowest = np.minimum.accumulate(cost)
    keep = np.ones(len(cost), bool)
    keep[1:] = lowest[1:] < lowest[:-1]
    return Stairs(need[keep], cost[keep])
