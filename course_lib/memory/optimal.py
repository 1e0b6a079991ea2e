"""The cheapest checkpoint schedule under a memory budget: dynamic programming over stretches of a chain.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova (arXiv 1911.13214) plan chains whose blocks differ. The first part of a
stretch s .. t is either block s with its activations kept, or a region s .. k - 1 of which only the input is kept:

    keep     cost(s + 1, t)                                  memory: what s keeps stays while the rest is worked off
    region   cost(s, k - 1) + cost(k, t) + the forwards of s .. k - 1, once more
             memory: its input stays while k .. t is worked off; after that the region has the memory to itself

Each entry here is a staircase: pairs (memory needed, cost) of which none is beaten by another in both. So one table serves
every budget, exactly, byte by byte. For long chains the staircases grow; then memory is counted in units, rounded up, so that
the budget is still kept.
"""

from __future__ import annotations

import math

import numpy as np

from .chain import Chain

EXACT = 48  # chains up to this length are planned byte by byte
UNITS = 600  # longer ones in this many units of memory


def optimal(chain: Chain, budget: int) -> tuple | None:
    """The tree with the least recompute cost whose peak is at most `budget` bytes; None if there is none."""
    return (_Staircases if len(chain) <= EXACT else _Units)(chain, budget).tree()


class _Events:
    """The memory that single steps need, in the bytes of the whole schedule less what lies before the stretch."""

    def __init__(self, chain: Chain):
        self.chain, n = chain, len(chain)
        self.work = np.concatenate([[0.0], np.cumsum([block.forward_cost for block in chain.blocks])])
        # peak of a plain forward of s .. i, for all i: running maxima
        self.plain = [np.maximum.accumulate([chain.plain_forward(s, i) for i in range(s, n)]) for s in range(n)]
        self.waits = [chain.waiting(t) for t in range(n)]
        self.last = n - 1

    def keep(self, s: int, t: int, first: bool) -> tuple[int, int]:
        """Block s with its activations kept, before s + 1 .. t: (memory of its forward and its backward, what stays between).

        first: it is the first block of a region, which holds its input.
        """
        forward = self.chain.taped_forward(s, last_of_rerun=s == t and t != self.last) + self.waits[t]
        block = self.chain.blocks[s]
        return max(forward, self.chain.backward(s, t != self.last, first)), block.held_bytes if first else block.saved_bytes

    def alike(self, s: int) -> bool:
        """Does it make no difference to block s whether a region holds its input?"""
        block = self.chain.blocks[s]
        return block.keeps_input and block.rerun_backward_peak == block.held_backward_peak

    def pass_by(self, s: int, t: int) -> np.ndarray:
        """A plain forward of the region s .. k - 1 inside s .. t, for k = s + 1 .. t."""
        return self.plain[s][: t - s] + self.waits[t]


class _Staircases(_Events):
    """best[s, t]: (needs, costs, choices), needs rising and costs falling. inner[s, t]: the same for a whole region.

    A choice is (k, left, right): a region s .. k - 1 by row `left`, and the rest by row `right`; k = -1 keeps block s.
    """

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        self.budget, self.best, self.inner, n = budget, {}, {}, len(chain)
        for length in range(n):
            for s in range(n - length):
                t = s + length
                self.best[s, t] = self.stairs(s, t, False)
                self.inner[s, t] = self.best[s, t] if self.alike(s) else self.stairs(s, t, True)

    def stairs(self, s: int, t: int, first: bool):
        chain, work = self.chain, self.work
        keep, kept = self.keep(s, t, first)
        if s == t:
            found = [(np.array([keep]), np.array([0.0]), np.array([[-1, -1, -1]]))]
        else:
            needs, costs, _ = self.best[s + 1, t]
            rows = np.arange(len(needs))
            choice = np.stack([np.full_like(rows, -1), np.full_like(rows, -1), rows], axis=1)
            found = [(np.maximum(keep, kept + needs), costs, choice)]
            passing, state = self.pass_by(s, t), chain.boundary(s)
            for k in range(s + 1, t + 1):
                left, right = self.inner[s, k - 1], self.best[k, t]
                if not len(left[0]) or not len(right[0]):
                    continue
                behind = state + right[0]
                needs = np.union1d(left[0], behind)
                i = np.searchsorted(left[0], needs, "right") - 1
                j = np.searchsorted(behind, needs, "right") - 1
                both = (i >= 0) & (j >= 0)
                needs, i, j = needs[both], i[both], j[both]
                cost = left[1][i] + right[1][j] + (work[k] - work[s])
                found.append((np.maximum(needs, passing[k - 1 - s]), cost, np.stack([np.full_like(i, k), i, j], axis=1)))
        needs, costs, choices = (np.concatenate(part) for part in zip(*found))
        order = np.lexsort((costs, needs))
        order = order[needs[order] <= self.budget]
        falling = np.minimum.accumulate(costs[order])
        better = np.concatenate([[True], falling[1:] < falling[:-1]]) if len(order) else np.zeros(0, bool)
        rows = order[better]
        return needs[rows], costs[rows], choices[rows]

    def tree(self) -> tuple | None:
        needs, _, _ = self.best[0, self.last]
        return self.build(0, self.last, len(needs) - 1, self.best) if len(needs) else None

    def build(self, s: int, t: int, row: int, table: dict) -> tuple:
        parts: list = []
        while True:
            k, i, j = table[s, t][2][row]
            parts.append(s if k < 0 else self.build(s, k - 1, i, self.inner))
            if s == t:
                return tuple(parts)
            s, row, table = (s + 1 if k < 0 else int(k)), j, self.best


class _Units(_Events):
    """cost[s, t][m]: least cost of s .. t within m units; inner: the same for a whole region. Sizes are rounded up to units."""

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        n, self.unit = len(chain), max(1, math.ceil(budget / UNITS))
        self.levels = budget // self.unit + 1
        self.cost = np.full((n, n, self.levels), np.inf, dtype=np.float32)
        self.inner = self.cost if all(map(self.alike, range(n))) else self.cost.copy()
        for length in range(n):
            for s in range(n - length):
                t = s + length
                self.cost[s, t] = np.min(self.options(s, t, False), axis=0)
                if self.inner is not self.cost:
                    self.inner[s, t] = self.cost[s, t] if self.alike(s) else np.min(self.options(s, t, True), axis=0)

    def up(self, nbytes) -> int:
        return -(-int(nbytes) // self.unit)

    def options(self, s: int, t: int, first: bool) -> np.ndarray:
        """Row 0: keep s. Row k - s: a region s .. k - 1. Columns: units of memory."""
        out = np.full((t - s + 1, self.levels), np.inf, dtype=np.float32)
        keep, saved, state = map(self.up, (*self.keep(s, t, first), self.chain.boundary(s)))
        if keep < self.levels:
            if s == t:
                out[0, keep:] = 0
                return out
            rest = self.cost[s + 1, t]
            out[0, max(keep, saved) :] = rest[max(keep, saved) - saved : self.levels - saved]
        if s == t or state >= self.levels:
            return out
        regions = out[1:, state:]
        regions[:] = self.cost[s + 1 : t + 1, t, : self.levels - state] + self.inner[s, s:t, state:]
        regions += (self.work[s + 1 : t + 1] - self.work[s])[:, None]
        needs = -(-self.pass_by(s, t) // self.unit)
        regions[np.arange(state, self.levels)[None, :] < needs[:, None]] = np.inf
        return out

    def tree(self) -> tuple | None:
        m = self.levels - 1
        return self.build(0, self.last, m, False) if np.isfinite(self.cost[0, self.last, m]) else None

    def build(self, s: int, t: int, m: int, first: bool) -> tuple:
        parts: list = []
        while True:
            choice = int(np.argmin(self.options(s, t, first)[:, m]))
            parts.append(self.build(s, s + choice - 1, m, True) if choice else s)
            if s == t:
                return tuple(parts)
            stays = self.chain.boundary(s) if choice else self.keep(s, t, first)[1]
            m, s, first = m - self.up(stays), s + (choice or 1), False


def leanest(chain: Chain) -> tuple[int, tuple]:
    """(the smallest budget in bytes that any schedule can keep, a tree that keeps it)."""
    best: dict = {}  # (s, t, first): (memory, cost, choice): least memory first, then least cost
    events, n = _Events(chain), len(chain)
    work = events.work
    for length in range(n):
        for s in range(n - length):
            t = s + length
            regions = []
            passing = events.pass_by(s, t)
            for k in range(s + 1, t + 1):
                left, right = best[s, k - 1, True], best[k, t, False]
                need = max(int(passing[k - 1 - s]), chain.boundary(s) + right[0], left[0])
                regions.append((need, left[1] + right[1] + float(work[k] - work[s]), k))
            for first in (True, False):
                keep, kept = events.keep(s, t, first)
                rest = best[s + 1, t, False] if s < t else (0, 0.0)
                options = [(max(keep, kept + rest[0]) if s < t else keep, rest[1], -1), *regions]
                best[s, t, first] = min(options, key=lambda entry: entry[:2])

    def build(s: int, t: int, first: bool) -> tuple:
        parts: list = []
        while s <= t:
            k = best[s, t, first][2]
            parts.append(s if k < 0 else build(s, k - 1, True))
            s, first = (s + 1 if k < 0 else k), False
        return tuple(parts)

    return int(best[0, n - 1, False][0]), build(0, n - 1, False)
