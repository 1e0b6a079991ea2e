"""The least recompute cost for every amount of memory, over all trees of nested checkpoints: a dynamic program.

After O. Beaumont et al., "Optimal checkpointing for heterogeneous chains", arXiv 1911.13214, with whole staircases (cost
against memory) in place of a table over memory sizes, so that bytes need no rounding.

`again(i, j)` is what blocks i to j - 1 need from the moment at which they run again as one checkpointed stretch until their
backward is done: its first part is block i with its activations kept, or an inner stretch i to k. In both cases what the
rest needs comes on top of what that part keeps meanwhile, and the part's own backward follows when the rest has gone.
`first(i)` is the same for blocks i to the end in the step's forward, where no gradient is there yet.
"""

from __future__ import annotations

import sys

import numpy as np

from .needs import needs_of, state_bytes
from .stairs import Stairs, best, both, flat


class TooLarge(Exception):
    """The staircases have more steps than can be handled exactly."""


class Optimum:
    """All optimal trees of a chain. `stairs` is (bytes, cost) of the whole step, `tree(bytes)` the tree that does it.

    most_steps: raise TooLarge when a staircase has more.
    """

    def __init__(self, chain, most_steps: float = float("inf")):
        self.n, self.needs, self.most_steps = len(chain), needs_of(chain), most_steps
        self.chain = chain
        kinds: dict = {}
        self.kind = [kinds.setdefault(need, len(kinds)) for need in self.needs]  # equal stretches are solved once
        self.gradients = np.cumsum([0, *(need.parameter_gradients for need in self.needs[::-1])])[::-1]
        self.costs = np.cumsum([0, *(need.cost for need in self.needs)])
        self.solved_again: dict = {}
        self.solved_first: dict = {}
        for width in range(1, self.n + 1):
            for i in range(self.n - width + 1):
                for held in {False, self.held_before(i)}:
                    self.again(i, i + width, held)
        for i in range(self.n, -1, -1):
            for held in {False, self.held_before(i)}:
                self.first(i, held)
        self.stairs = self.first(0, False)

    def held_before(self, i: int) -> bool:
        """May the input of block i belong to the tape of the block before it?"""
        return i > 0 and (self.needs[i - 1].owns_output or self.needs[i - 1].same_output)

    # -- pieces --------------------------------------------------------------------------------------------------------

    def made(self, i: int, j: int) -> int:
        """Parameter gradients of blocks i to j - 1."""
        return int(self.gradients[i] - self.gradients[j])

    def state(self, i: int, held: bool) -> int:
        return 0 if held else self.needs[i].state

    def held_after(self, i: int, held: bool) -> bool:
        """Does the tape of block i own its output?"""
        need = self.needs[i]
        return need.owns_output or need.same_output and (need.owns_input or held)

    def moves(self, i: int, which: str) -> list:
        """moves[k]: the peak of running blocks i to k without keeping anything but the first input, above that input."""
        highest, peaks = 0, []
        for k in range(i, self.n):
            highest = max(highest, (self.needs[k].state if k > i else 0) + getattr(self.needs[k], which))
            peaks.append(highest)
        return peaks

    # -- a stretch that runs again -------------------------------------------------------------------------------------

    def again(self, i: int, j: int, held: bool) -> Stairs:
        key = (tuple(self.kind[i:j]), held)
        if key not in self.solved_again:
            points = [self.points(option) for option in self.options_again(i, j, held)]
            self.solved_again[key] = found = best(points)
            if len(found) > self.most_steps:
                raise TooLarge
        return self.solved_again[key]

    def options_again(self, i: int, j: int, held: bool):
        """(least bytes, cost, stairs, stairs, part): a part, and what is needed with it. Bytes above those gradients of
        parameters that exist when the stretch starts."""
        need, last, state = self.needs[i], self.needs[j - 1], self.state(i, held)
        tape = need.tape_again + need.owns_input * state
        at_least = state + last.before_unpack
        if i + 1 == j:
            yield max(at_least, need.at_unpack + state + need.stopped, tape + need.output + need.backward_again), 0, None, None, i
            return
        run = last.at_unpack + state + need.taped_again
        back = tape + need.output + need.backward_again + self.made(i + 1, j)
        rest = self.again(i + 1, j, self.held_after(i, held))
        yield max(at_least, run, back), 0, rest.up(tape + need.output), None, i
        moved = 0
        for k in range(i + 1, j):
            before = self.needs[k - 1]
            moved = max(moved, (before.state if k - 1 > i else 0) + before.dropped_again)
            cost = self.costs[k] - self.costs[i]
            rest, inner = self.again(k, j, False).up(state), self.again(i, k, held).up(self.made(k, j))
            yield max(at_least, last.at_unpack + state + moved), cost, rest, inner, (i, k, held)

    def points(self, option) -> tuple:
        at_least, cost, rest, inner, _ = option
        if rest is None:
            return np.array([at_least], np.int64), np.array([float(cost)])
        need, costs = (rest.need, rest.cost) if inner is None else both(rest, inner)
        return np.maximum(need, at_least), costs + cost

    # -- the step's own forward ----------------------------------------------------------------------------------------

    def first(self, i: int, held: bool) -> Stairs:
        if (i, held) not in self.solved_first:
            points = [self.points(option) for option in self.options_first(i, held)]
            self.solved_first[i, held] = best(points)
        return self.solved_first[i, held]

    def options_first(self, i: int, held: bool):
        if i == self.n:
            yield self.loss(held), 0, None, None, None
            return
        need, state = self.needs[i], self.state(i, held)
        tape = need.tape + need.owns_input * state
        back = tape + need.output + need.backward + self.made(i + 1, self.n)
        rest = self.first(i + 1, self.held_after(i, held))
        yield max(state + need.taped, back), 0, rest.up(tape + need.output), None, i
        moved = 0
        for k in range(i + 1, self.n + 1):
            before = self.needs[k - 1]
            moved = max(moved, (before.state if k - 1 > i else 0) + before.dropped)
            cost = self.costs[k] - self.costs[i]
            # An outermost checkpoint keeps its input to the end, whether or not its first block needs it.
            inner = self.again(i, k, held) if need.owns_input else self.again(i, k, True).up(state)
            yield state + moved, cost, self.first(k, False).up(state), inner.up(self.made(k, self.n)), (i, k, held or not need.owns_input)

    def loss(self, held: bool) -> int:
        output = 0 if held else state_bytes(self.chain, self.n)
        if self.chain.loss is None:
            return max(output, self.chain.output_gradient_bytes)
        forward, backward, _ = self.chain.loss
        now = peak = output
        for rise, change, event in (*forward, *backward):
            peak = max(peak, now + rise)
            now += change
        return peak

    # -- the tree ------------------------------------------------------------------------------------------------------

    def tree(self, memory: int) -> tuple:
        """The cheapest tree for so many bytes (at least `stairs.need[0]`)."""
        root: list = []
        waiting = [(root, self.n, 0, False, memory, True)]  # stretches whose parts are still to be found
        while waiting:
            parts, j, i, held, room, outer = waiting.pop()
            while i < j or outer and i == self.n:
                options = self.options_first(i, held) if outer else self.options_again(i, j, held)
                at_least, _, rest, inner, part = min(options, key=lambda option: self.price(option, room))
                if part is None:
                    break
                if isinstance(part, tuple):
                    opened: list = []
                    parts.append(opened)
                    start, k, flag = part
                    lifted = inner.need[0] - self.again(start, k, flag).need[0]  # what `up` has added
                    waiting.append((opened, k, start, flag, room - lifted, False))
                    nxt, flag = k, False
                else:
                    parts.append(part)
                    nxt, flag = i + 1, self.held_after(i, held)
                if nxt == j:
                    break
                solved = self.first(nxt, flag) if outer else self.again(nxt, j, flag)
                room -= rest.need[0] - solved.need[0]
                i, held = nxt, flag
        return _tuples(root)

    @staticmethod
    def price(option, room) -> float:
        at_least, cost, rest, inner, _ = option
        if at_least > room:
            return float("inf")
        return cost + (rest.at(room) if rest is not None else 0) + (inner.at(room) if inner is not None else 0)


def _tuples(root: list) -> tuple:
    """Nested lists as nested tuples, by a loop: they may be deep."""
    order = [root]
    for inner in order:
        order.extend(part for part in inner if isinstance(part, list))
    done: dict = {}
    for inner in reversed(order):
        done[id(inner)] = tuple(done[id(part)] if isinstance(part, list) else part for part in inner)
    return done[id(root)]
