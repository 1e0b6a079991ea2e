"""Where to put the checkpoints: schedules that predict their own peak memory and recomputations, and can be run.

    chain = schedule.measure(blocks, x)                  # or Chain.uniform(32), an abstract chain
    plan = schedule.budgeted(chain, 24 * 2**20)
    print(plan.peak_bytes, plan.recomputations)
    plan.run(blocks, x).sum().backward()                 # does what it predicted, to the byte

A schedule is a tree of nested checkpoints (`trees`), its ticks are a step on paper (`ticks`), `run` is the step on real
blocks (`execute`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from . import execute, trees
from .chain import Block, Chain, Modes, Step, _whole
from .ticks import Tick, simulate
from .trees import beta, t

__all__ = [
    "Block",
    "Chain",
    "Modes",
    "Schedule",
    "Step",
    "Tick",
    "beta",
    "binomial",
    "nested",
    "none",
    "per_block",
    "segments",
    "sqrt",
    "t",
]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A chain, and a tree that says which stretches of it are checkpointed."""

    chain: Chain
    tree: tuple
    name: str = "a schedule of one's own"

    def __post_init__(self):
        _chain(self.chain)
        trees.check(self.tree, len(self.chain))

    @cached_property
    def ticks(self) -> tuple:
        """The whole step in order: forward, then backward with its recomputes."""
        return simulate(self.chain, self.tree)

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes alive at once in the step, above what was alive before it."""
        return max(tick.peak_bytes for tick in self.ticks)

    @cached_property
    def recomputations(self) -> int:
        """How many times a block is run beyond its first."""
        return sum(tick.action == "recompute" for tick in self.ticks)

    @cached_property
    def recompute_cost(self) -> float:
        """What these runs cost, in the unit of the blocks' forward_cost. (A run that is stopped early counts in full.)"""
        return sum(self.chain.blocks[tick.block].forward_cost for tick in self.ticks if tick.action == "recompute")

    def run(self, blocks, x):
        """The output of the last block, on a graph whose backward runs blocks again as the tree says.

        blocks: callables of one tensor, as many as the chain has; an nn.Sequential will do. Dropout, autocast, gradients
        of inputs and the rest of `course_lib.memory.checkpoint`'s contract hold. Raises ValueError for another number.
        """
        blocks = list(blocks)
        if len(blocks) != len(self.chain):
            raise ValueError(f"This schedule was made for {len(self.chain)} blocks, and got {len(blocks)}.")
        for i, block in enumerate(blocks):
            if not callable(block):
                raise TypeError(f"Block {i} is a {type(block).__name__}; a block is a module or a function of one tensor.")
        return execute.run(blocks, self.tree, x)

    def __repr__(self) -> str:
        return f"Schedule({self.name}: {len(self.chain)} blocks, {self.recomputations} run again, peak {self.peak_bytes} bytes)"


def none(chain: Chain) -> Schedule:
    """No checkpoint: every activation is kept."""
    return Schedule(_chain(chain), tuple(range(len(chain))), "none")


def per_block(chain: Chain) -> Schedule:
    """Every block is checkpointed but the last, which would be run again at once."""
    n = len(_chain(chain))
    return Schedule(chain, trees.segments(n, n), "per block")


def segments(chain: Chain, k: int) -> Schedule:
    """k stretches of about equal length; all but the last are checkpointed. Raises ValueError unless 1 <= k <= n."""
    n, k = len(_chain(chain)), _integer(k, "k")
    if not 1 <= k <= n:
        raise ValueError(f"k must be from 1 to {n}, the number of blocks, and is {k}.")
    return Schedule(chain, trees.segments(n, k), f"{k} segment{'s' if k > 1 else ''}")


def sqrt(chain: Chain) -> Schedule:
    """About √n stretches of about √n blocks (T. Chen et al., arXiv 1604.06174)."""
    n = len(_chain(chain))
    return Schedule(chain, trees.segments(n, max(1, round(math.sqrt(n)))), "√n")


def nested(chain: Chain) -> Schedule:
    """Halves, halves of halves, ...: about log₂ n states are kept at once, and n/2 · log₂ n blocks run again."""
    return Schedule(_chain(chain), trees.halves(len(chain)), "nested")


def binomial(chain: Chain | int, slots: int) -> Schedule:
    """The fewest recomputations, t(n, slots), when at most `slots` states (the chain's input is one) and the activations
    of one block are kept. chain: a Chain, or a number of blocks. Raises ValueError for slots < 1."""
    chain = Chain.uniform(chain) if isinstance(chain, int) and not isinstance(chain, bool) else _chain(chain)
    t(len(chain), slots)  # complains about slots
    return Schedule(chain, trees.binomial(len(chain), int(slots)), f"binomial, {slots} slot{'s' if slots > 1 else ''}")


def _chain(chain) -> Chain:
    if not isinstance(chain, Chain):
        raise TypeError(f"A schedule is made for a Chain (Chain.uniform, Chain.of, schedule.measure), not {type(chain).__name__}.")
    return chain


def _integer(value, what: str) -> int:
    return _whole(value, what, least=-math.inf)
