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
JOINS = 60_000  # longer ones, too, if so many joins of staircases (some seconds) are enough, since their blocks repeat
UNITS = 600  # longer ones in this many units of memory


def optimal(chain: Chain, budget: int) -> tuple | None:
    """The tree with the least recompute cost whose peak is at most `budget` bytes; None if there is none."""
    exact = len(chain) <= EXACT or _joins(chain) <= JOINS
    return (_Staircases if exact else _Units)(chain, budget).tree()


def _joins(chain: Chain) -> int:
    """How many pairs of staircases have to be joined: equal stretches count once."""
    names, n = _names(chain), len(chain)
    return sum(len(key[0]) for key in {_key(names, s, t) for s in range(n) for t in range(s, n)})


def _names(chain: Chain) -> list:
    """A number for each block; blocks with the same number are alike in all that a planner asks, what comes before included."""
    known: dict = {}
    return [known.setdefault((block, chain.gradient(i)), len(known)) for i, block in enumerate(chain.blocks)]


def _key(names: list, s: int, t: int) -> tuple:
    return tuple(names[s : t + 1]), t == len(names) - 1


class _Events:
    """The memory that single steps need, in the bytes of the whole schedule less what lies before the stretch."""

    def __init__(self, chain: Chain):
        self.chain, n = chain, len(chain)
        self.work = np.concatenate([[0.0], np.cumsum([block.forward_cost for block in chain.blocks])])
        self.tail = np.array([block.tail_cost for block in chain.blocks])
        # peak of a plain forward of s .. i, for all i: running maxima
        self.plain = [np.maximum.accumulate([chain.plain_forward(s, i) for i in range(s, n)]) for s in range(n)]
        self.waits = [chain.waiting(t) for t in range(n)]
        self.last = n - 1

    def keep(self, s: int, t: int, held: bool) -> tuple[int, int]:
        """Block s with its activations kept, before s + 1 .. t: (memory of its forward and its backward, what stays between).

        held: somebody else keeps its input, a region of which it is the first block, or the block before.
        """
        forward = self.chain.taped_forward(s, last_of_rerun=s == t and t != self.last) + self.waits[t]
        block = self.chain.blocks[s]
        return max(forward, self.chain.backward(s, t != self.last, held)), block.held_bytes if held else block.saved_bytes

    def rerun(self, s: int, t: int) -> np.ndarray:
        """What running the region s .. k - 1 again costs, for k = s + 1 .. t."""
        return self.work[s + 1 : t + 1] - self.work[s] - self.tail[s:t]

    def alike(self, s: int, t: int) -> bool:
        """Does it make no difference to block s whether somebody else keeps its input?"""
        block = self.chain.blocks[s]
        if block.backward_peak != block.backward_peak_held or block.rerun_backward_peak != block.rerun_backward_peak_held:
            return False
        return block.keeps_input

    def pass_by(self, s: int, t: int) -> np.ndarray:
        """A plain forward of the region s .. k - 1 inside s .. t, for k = s + 1 .. t."""
        return self.plain[s][: t - s] + self.waits[t]


class _Staircases(_Events):
    """free[s, t]: (needs, costs, choices), needs rising and costs falling. held[s, t]: the same if somebody keeps boundary s.

    Needs are bytes above those that wait for all of s .. t (`below`), so that equal stretches have equal rows. A choice is
    (length, left, right): a region of that length by row `left`, and the rest by row `right`; a length of -1 keeps block s.
    """

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        self.budget, self.free, self.held, n = budget, {}, {}, len(chain)
        self.below = [chain.weight_gradients_after(t) + chain.loss_bytes for t in range(n - 1)] + [0]
        names, solved = _names(chain), {}
        for length in range(n):
            for s in range(n - length):
                t, key = s + length, _key(names, s, s + length)
                if key not in solved:
                    free = self.stairs(s, t, False)
                    solved[key] = free, free if self.alike(s, t) else self.stairs(s, t, True)
                self.free[s, t], self.held[s, t] = solved[key]

    def after(self, s: int) -> dict:
        """The table for what follows block s, if s is kept."""
        return self.held if self.chain.blocks[s].saves_output else self.free

    def region(self, t: int, held: bool) -> dict:
        """The table for a region inside .. t: one of the first run keeps its input, deeper ones hand it to their rerun."""
        return self.held if held or t == self.last else self.free

    def stairs(self, s: int, t: int, held: bool):
        chain, again, below = self.chain, self.rerun(s, t), self.below[t]
        keep, kept = self.keep(s, t, held)
        keep -= below
        if s == t:
            found = [(np.array([keep]), np.array([0.0]), np.array([[-1, -1, -1]]))]
        else:
            needs, costs, _ = self.after(s)[s + 1, t]
            rows = np.arange(len(needs))
            choice = np.stack([np.full_like(rows, -1), np.full_like(rows, -1), rows], axis=1)
            found = [(np.maximum(keep, kept + needs), costs, choice)]
            passing, state = self.pass_by(s, t) - below, chain.boundary(s)
            for k in range(s + 1, t + 1):
                left, right = self.region(t, held)[s, k - 1], self.free[k, t]
                if not len(left[0]) or not len(right[0]):
                    continue
                inside, behind = left[0] + (self.below[k - 1] - below), state + right[0]
                needs = np.union1d(inside, behind)
                i = np.searchsorted(inside, needs, "right") - 1
                j = np.searchsorted(behind, needs, "right") - 1
                both = (i >= 0) & (j >= 0)
                needs, i, j = needs[both], i[both], j[both]
                cost = left[1][i] + right[1][j] + again[k - 1 - s]
                found.append((np.maximum(needs, passing[k - 1 - s]), cost, np.stack([np.full_like(i, k - s), i, j], axis=1)))
        needs, costs, choices = (np.concatenate(part) for part in zip(*found))
        order = np.lexsort((costs, needs))
        order = order[needs[order] <= self.budget]
        falling = np.minimum.accumulate(costs[order])
        better = np.concatenate([[True], falling[1:] < falling[:-1]]) if len(order) else np.zeros(0, bool)
        rows = order[better]
        return needs[rows], costs[rows], choices[rows]

    def tree(self) -> tuple | None:
        needs, _, _ = self.free[0, self.last]
        return self.build(0, self.last, len(needs) - 1, False) if len(needs) else None

    def build(self, s: int, t: int, row: int, held: bool) -> tuple:
        parts: list = []
        while True:
            length, i, j = (self.held if held else self.free)[s, t][2][row]
            k = s + length if length > 0 else -1
            parts.append(s if k < 0 else self.build(s, k - 1, i, held or t == self.last))
            if s == t:
                return tuple(parts)
            held = k < 0 and self.chain.blocks[s].saves_output
            s, row = (s + 1 if k < 0 else int(k)), j


class _Units(_Events):
    """free[s, t][m]: least cost of s .. t within m units; held: the same if somebody keeps boundary s. Sizes are rounded up."""

    def __init__(self, chain: Chain, budget: int):
        super().__init__(chain)
        n, self.unit = len(chain), max(1, math.ceil(budget / UNITS))
        self.levels = budget // self.unit + 1
        self.free = np.full((n, n, self.levels), np.inf, dtype=np.float32)
        self.held = self.free.copy()
        for length in range(n):
            for s in range(n - length):
                t = s + length
                self.free[s, t] = np.min(self.options(s, t, False), axis=0)
                self.held[s, t] = self.free[s, t] if self.alike(s, t) else np.min(self.options(s, t, True), axis=0)

    def up(self, nbytes) -> int:
        return -(-int(nbytes) // self.unit)

    def options(self, s: int, t: int, held: bool) -> np.ndarray:
        """Row 0: keep s. Row k - s: a region s .. k - 1. Columns: units of memory."""
        out = np.full((t - s + 1, self.levels), np.inf, dtype=np.float32)
        keep, saved, state = map(self.up, (*self.keep(s, t, held), self.chain.boundary(s)))
        if keep < self.levels:
            if s == t:
                out[0, keep:] = 0
                return out
            rest = (self.held if self.chain.blocks[s].saves_output else self.free)[s + 1, t]
            out[0, max(keep, saved) :] = rest[max(keep, saved) - saved : self.levels - saved]
        if s == t or state >= self.levels:
            return out
        regions = out[1:, state:]
        inner = self.held if held or t == self.last else self.free
        regions[:] = self.free[s + 1 : t + 1, t, : self.levels - state] + inner[s, s:t, state:]
        regions += self.rerun(s, t)[:, None]
        needs = -(-self.pass_by(s, t) // self.unit)
        regions[np.arange(state, self.levels)[None, :] < needs[:, None]] = np.inf
        return out

    def tree(self) -> tuple | None:
        m = self.levels - 1
        return self.build(0, self.last, m, False) if np.isfinite(self.free[0, self.last, m]) else None

    def build(self, s: int, t: int, m: int, held: bool) -> tuple:
        parts: list = []
        while True:
            choice = int(np.argmin(self.options(s, t, held)[:, m]))
            parts.append(self.build(s, s + choice - 1, m, held or t == self.last) if choice else s)
            if s == t:
                return tuple(parts)
            stays = self.chain.boundary(s) if choice else self.keep(s, t, held)[1]
            held = not choice and self.chain.blocks[s].saves_output
            m, s = m - self.up(stays), s + (choice or 1)


def leanest(chain: Chain) -> tuple[int, tuple]:
    """(the smallest budget in bytes that any schedule can keep, a tree that keeps it)."""
    events, n = _Events(chain), len(chain)
    # [held][s, t]: least memory of s .. t, then the least cost with it, and the choice: -1 keeps s, k is a region s .. k - 1
    memory, cost, choice = np.zeros((2, n, n), np.int64), np.zeros((2, n, n)), np.full((2, n, n), -1)
    for length in range(n):
        for s in range(n - length):
            t = s + length
            for held in (0, 1):
                if held and events.alike(s, t):
                    for table in (memory, cost, choice):
                        table[1, s, t] = table[0, s, t]
                    continue
                keep, kept = events.keep(s, t, bool(held))
                after = int(chain.blocks[s].saves_output)
                best = (keep, 0.0) if s == t else (max(keep, kept + memory[after, s + 1, t]), cost[after, s + 1, t])
                if s < t:
                    inner, rest = (int(held or t == n - 1), s, slice(s, t)), (0, slice(s + 1, t + 1), t)
                    needs = np.maximum(np.maximum(events.pass_by(s, t), chain.boundary(s) + memory[rest]), memory[inner])
                    costs = cost[inner] + cost[rest] + events.rerun(s, t)
                    costs[needs > needs.min()] = np.inf
                    i = int(np.argmin(costs))
                    if (needs[i], costs[i]) < best:
                        best, choice[held, s, t] = (needs[i], costs[i]), s + 1 + i
                memory[held, s, t], cost[held, s, t] = best

    def build(s: int, t: int, held: int) -> tuple:
        parts: list = []
        while s <= t:
            k = int(choice[held, s, t])
            parts.append(s if k < 0 else build(s, k - 1, int(held or t == n - 1)))
            held = int(k < 0 and chain.blocks[s].saves_output)
            s = s + 1 if k < 0 else k
        return tuple(parts)

    return int(memory[0, 0, n - 1]), build(0, n - 1, 0)
