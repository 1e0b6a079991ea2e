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

    def keep(self, s: int, t: int) -> int:
        """Block s with its activations kept, as the first part of s .. t: its forward, and later its backward."""
        forward = self.chain.taped_forward(s, last_of_rerun=s == t and t != self.last) + self.waits[t]
        return max(forward, self.chain.backward(s))

    def pass_by(self, s: int, t: int) -> np.ndarray:
        """A plain forward of the region s .. k - 1 inside s .. t, for k = s + 1 .. t."""
        return self.plain[s][: t - s] + self.waits[t]


class _Staircases(_Events):
    """best[s, t]: (needs, costs, choices), needs rising and costs falling; a choice is None (keep) or (k, left, right)."""

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        self.budget, self.best, n = budget, {}, len(chain)
        for length in range(n):
            for s in range(n - length):
                self.best[s, s + length] = self.stairs(s, s + length)

    def stairs(self, s: int, t: int):
        chain, work, block = self.chain, self.work, self.chain.blocks[s]
        keep = self.keep(s, t)
        if s == t:
            found = [(np.array([keep]), np.array([0.0]), np.array([[-1, -1, -1]]))]
        else:
            needs, costs, _ = self.best[s + 1, t]
            rows = np.arange(len(needs))
            choice = np.stack([np.full_like(rows, -1), np.full_like(rows, -1), rows], axis=1)
            found = [(np.maximum(keep, block.saved_bytes + needs), costs, choice)]
            passing, state = self.pass_by(s, t), chain.boundary(s)
            for k in range(s + 1, t + 1):
                left, right = self.best[s, k - 1], self.best[k, t]
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
        kept = order[better]
        return needs[kept], costs[kept], choices[kept]

    def tree(self) -> tuple | None:
        needs, _, _ = self.best[0, self.last]
        return self.build(0, self.last, len(needs) - 1) if len(needs) else None

    def build(self, s: int, t: int, row: int) -> tuple:
        parts: list = []
        while True:
            k, i, j = self.best[s, t][2][row]
            parts.append(s if k < 0 else self.build(s, k - 1, i))
            if s == t:
                return tuple(parts)
            s, row = (s + 1 if k < 0 else int(k)), j


class _Units(_Events):
    """cost[s, t][m]: least cost of s .. t within m units. All sizes are rounded up to units."""

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        n, self.unit = len(chain), max(1, math.ceil(budget / UNITS))
        self.levels = budget // self.unit + 1
        self.cost = np.full((n, n, self.levels), np.inf, dtype=np.float32)
        for length in range(n):
            for s in range(n - length):
                self.cost[s, s + length] = np.min(self.options(s, s + length), axis=0)

    def up(self, nbytes) -> int:
        return -(-int(nbytes) // self.unit)

    def options(self, s: int, t: int) -> np.ndarray:
        """Row 0: keep s. Row k - s: a region s .. k - 1. Columns: units of memory."""
        out = np.full((t - s + 1, self.levels), np.inf, dtype=np.float32)
        keep, saved, state = self.up(self.keep(s, t)), self.up(self.chain.blocks[s].saved_bytes), self.up(self.chain.boundary(s))
        if keep < self.levels:
            if s == t:
                out[0, keep:] = 0
                return out
            rest = self.cost[s + 1, t]
            out[0, max(keep, saved) :] = rest[max(keep, saved) - saved : self.levels - saved]
        if s == t or state >= self.levels:
            return out
        regions = out[1:, state:]
        regions[:] = self.cost[s + 1 : t + 1, t, : self.levels - state] + self.cost[s, s:t, state:]
        regions += (self.work[s + 1 : t + 1] - self.work[s])[:, None]
        needs = -(-self.pass_by(s, t) // self.unit)
        regions[np.arange(state, self.levels)[None, :] < needs[:, None]] = np.inf
        return out

    def tree(self) -> tuple | None:
        m = self.levels - 1
        return self.build(0, self.last, m) if np.isfinite(self.cost[0, self.last, m]) else None

    def build(self, s: int, t: int, m: int) -> tuple:
        parts: list = []
        while True:
            choice = int(np.argmin(self.options(s, t)[:, m]))
            parts.append(self.build(s, s + choice - 1, m) if choice else s)
            if s == t:
                return tuple(parts)
            if choice:
                m, s = m - self.up(self.chain.boundary(s)), s + choice
            else:
                m, s = m - self.up(self.chain.blocks[s].saved_bytes), s + 1


def leanest(chain: Chain) -> tuple[int, tuple]:
    """(the smallest budget in bytes that any schedule can keep, a tree that keeps it)."""
    best: dict = {}  # (s, t): (memory, cost, choice): least memory first, then least cost
    events, n = _Events(chain), len(chain)
    work = events.work
    for length in range(n):
        for s in range(n - length):
            t, keep = s + length, events.keep(s, s + length)
            if s == t:
                best[s, t] = (keep, 0.0, None)
                continue
            rest = best[s + 1, t]
            least = (max(keep, chain.blocks[s].saved_bytes + rest[0]), rest[1], None)
            passing = events.pass_by(s, t)
            for k in range(s + 1, t + 1):
                left, right = best[s, k - 1], best[k, t]
                need = max(int(passing[k - 1 - s]), chain.boundary(s) + right[0], left[0])
                if need <= least[0]:
                    least = min(least, (need, left[1] + right[1] + float(work[k] - work[s]), k), key=lambda entry: entry[:2])
            best[s, t] = least

    def build(s: int, t: int) -> tuple:
        parts: list = []
        while s <= t:
            k = best[s, t][2]
            parts.append(s if k is None else build(s, k - 1))
            s = s + 1 if k is None else k
        return tuple(parts)

    return int(best[0, n - 1][0]), build(0, n - 1)
