"""Checkpoint schedules: which activations of a chain of blocks to keep, and what that costs.

    chain = schedule.measure(blocks, x)                  # or schedule.Chain.uniform(32)
    plan = schedule.budgeted(chain, 64 * 2**20)          # the least recompute under 64 MiB
    plan.peak_bytes, plan.recomputations                 # predicted
    loss = plan.run(blocks, x).sum(); loss.backward()    # executed, with nested calls of `checkpoint`

`trees` says what a schedule is, `chain` what a block costs, `ticks` what happens when, `optimal` finds the best one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from . import trees
from .chain import Block, Chain
from .measured import measure
from .optimal import leanest, optimal
from .run import run
from .ticks import Tick
from .ticks import ticks as ticks_of
from .trees import beta, t

__all__ = [
    "Block",
    "Chain",
    "Schedule",
    "Tick",
    "beta",
    "binomial",
    "budgeted",
    "from_tree",
    "measure",
    "minimum",
    "nested",
    "none",
    "per_block",
    "segments",
    "sqrt",
    "t",
]


@dataclass(frozen=True)
class Schedule:
    """A tree (see `trees`) for a chain, with what it predicts.

    peak_bytes: the most bytes alive at once in `run(blocks, x).sum().backward()`, above what was alive before it: parameters,
    x, gradients that exist. A Chain made by hand counts its first input, too; a measured one does not.
    """

    name: str
    chain: Chain
    tree: tuple

    @functools.cached_property
    def ticks(self) -> tuple:
        """Every block run of forward and backward, in order, with what is alive (see `ticks.Tick`)."""
        return ticks_of(self.chain, self.tree)

    @property
    def peak_bytes(self) -> int:
        return max(tick.peak_bytes for tick in self.ticks)

    @property
    def recomputations(self) -> int:
        """Block forwards beyond the first of each block."""
        if all(block.saves for block in self.chain.blocks):
            return trees.extra_forwards(self.tree)
        return sum(tick.action == "recompute" for tick in self.ticks)

    @property
    def recompute_cost(self) -> float:
        """The same in units of the blocks' forward_cost, less the tail that each rerun saves by stopping early."""
        blocks = self.chain.blocks
        forwards = sum(blocks[i].forward_cost for run_again, _ in trees.reruns(self.tree) for i in run_again)
        return forwards - sum(blocks[run_again[-1]].tail_cost for run_again, ends_kept in trees.reruns(self.tree) if ends_kept)

    def run(self, blocks, x):
        """Run the blocks on x by this schedule: the output, on the autograd graph. backward does the recomputing.

        Raises ValueError when the number of blocks is not that of the chain.
        """
        blocks = list(blocks)
        if len(blocks) != len(self.chain):
            raise ValueError(f"This schedule is for {len(self.chain)} blocks; it was given {len(blocks)}.")
        return run(self.tree, blocks, x)

    def __repr__(self) -> str:
        return f"Schedule({self.name}: {len(self.chain)} blocks, {self.recomputations} recomputed, peak {self.peak_bytes} bytes)"


def from_tree(chain: Chain, tree: tuple, name: str = "tree") -> Schedule:
    """A schedule of your own. Raises ValueError unless the tree names each block once, in order."""
    return Schedule(name, chain, trees.checked(tree, len(chain)))


def none(chain: Chain) -> Schedule:
    """Keep everything: no recompute, the highest peak."""
    return Schedule("none", chain, trees.none(len(chain)))


def per_block(chain: Chain) -> Schedule:
    """Keep the input of each block; the last block is free, since its backward comes at once."""
    return Schedule("per block", chain, trees.per_block(len(chain)))


def segments(chain: Chain, k: int) -> Schedule:
    """k segments of equal length, the last one kept (Chen et al. 2016). Raises ValueError unless 1 <= k <= n."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"The number of segments is a whole number, not {k!r}.")
    return Schedule(f"{k} segments", chain, trees.segments(len(chain), k))


def sqrt(chain: Chain) -> Schedule:
    """Segments, as many as k * state + (n / k) * saved asks for: sqrt(n * saved / state). Mean sizes of the chain."""
    n = len(chain)
    saved = sum(block.saved_bytes for block in chain.blocks)
    states = sum(chain.boundary(i) for i in range(1, n + 1))
    k = trees.root_of(n, saved, states)
    return Schedule(f"sqrt: {k} segments", chain, trees.segments(n, k))


def nested(chain: Chain) -> Schedule:
    """Halves inside halves: about log2(n) states, and about log2(n) / 2 extra forwards for each block."""
    return Schedule("nested", chain, trees.nested(len(chain)))


def binomial(chain, slots: int) -> Schedule:
    """The fewest extra forwards with `slots` states (the input is one) and one block's activations: t(n, slots) of them.

    chain: a Chain, or a number of blocks. Raises ValueError for n < 1 or slots < 1.
    """
    chain = Chain.uniform(chain) if isinstance(chain, int) else chain
    return Schedule(f"binomial, {slots} slots", chain, trees.binomial(len(chain), slots))


def budgeted(chain: Chain, budget_bytes: int) -> Schedule:
    """The least recompute cost of all trees whose peak is at most budget_bytes.

    Exact for chains of up to 48 blocks, and for some hundred where blocks repeat: then a smaller budget never gives a
    larger peak, nor a larger one more recompute. Other long chains are planned with sizes rounded up to a 600th of the
    budget: the peak keeps it, the cost may be a little above the least. Raises TypeError for a budget that is no whole
    number, and ValueError below the minimum, which it says.
    """
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int):
        raise TypeError(f"The budget is a whole number of bytes, not {budget_bytes!r}.")
    least, tree = leanest(chain)
    if budget_bytes < least:
        raise ValueError(f"No schedule fits into {budget_bytes} bytes: this chain needs at least {least}.")
    if none(chain).peak_bytes <= budget_bytes:  # where sizes are rounded up, the planner may not see it
        return Schedule("budgeted", chain, trees.none(len(chain)))
    return Schedule("budgeted", chain, optimal(chain, budget_bytes) or tree)


def minimum(chain: Chain) -> int:
    """The smallest budget in bytes that any schedule of this chain can keep."""
    return leanest(chain)[0]
