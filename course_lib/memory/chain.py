"""A chain of blocks as a planner sees it: what each block costs to run, and what it does to memory on the way.

The input of block i is *state* i, the output of the last block is state n. A state's bytes stand once in memory however
many own it: the run loop while it passes through, a checkpoint that keeps it as the input of its stretch, the block that
reads it (when its backward needs it), the block that made it (when its backward needs it, as with ReLU).

What else a block does is a list of `Step`s, one list for each way to run it (`Modes`). An abstract chain (`uniform`, `of`)
gets the simplest lists that fit its numbers; `measure` records them from the real block. One simulator replays both.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """A while inside one run of a block: bytes first go up by `rise` at most, and end `change` higher. Then `event` happens.

    The bytes are those that only this block owns, gradients among them; states are counted by their owners. Events:
    "output" (forward: the output is there), "unpack" (backward reads its first saved tensor; only now a checkpointed
    stretch is run again), "input" and "output" in backward (the block lets go of that state), "done" (all that it saved
    has been read).
    """

    rise: int
    change: int
    event: str | None = None


class Modes(NamedTuple):
    """The ways to run a block, each a tuple of Steps. `again`: in a recompute, where some layers behave otherwise."""

    dropped: tuple  # forward inside a checkpoint: nothing stays but the output
    taped: tuple  # forward, activations stay
    dropped_again: tuple
    taped_again: tuple
    stopped: tuple  # a recompute's last block: taped, and ended at the last tensor that is saved
    backward: tuple  # after `taped`
    backward_again: tuple  # after `taped_again` or `stopped`


@dataclass(frozen=True)
class Block:
    """One block. Bytes are whole numbers; forward_cost is in any unit (`measure` counts floating-point operations).

    saved_bytes is what its backward needs, its own input included and its parameters not. gradient_bytes is the gradient
    of its input. lingering_bytes stay from its run in a recompute to the end of that recompute (BatchNorm's copies).
    """

    forward_cost: float
    state_bytes: int
    saved_bytes: int
    gradient_bytes: int
    parameter_gradient_bytes: int
    saves: bool  # a block that saves nothing is not run again on its own account
    owns_input: bool
    owns_output: bool
    modes: Modes
    lingering_bytes: int = 0


@dataclass(frozen=True)
class Chain:
    """Blocks in a row, and what surrounds them.

    states: bytes of the n + 1 states. root: root[i] is the first state that shares its storage with state i. Where the
    input is the caller's (a measured chain), it was there before and does not count. loss: (Steps of its forward, Steps of
    its backward, whether it owns the output until then), or None: the output's gradient just takes the output's place.
    """

    blocks: tuple
    output_bytes: int
    output_gradient_bytes: int
    root: tuple
    input_counts: bool = True
    loss: tuple | None = None

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def states(self) -> tuple:
        return (*(block.state_bytes for block in self.blocks), self.output_bytes)

    @classmethod
    def uniform(cls, n, state_bytes=1, saved_bytes=16, gradient_bytes=1, forward_cost=1) -> Chain:
        """n equal blocks. Each gradient of a state, that of the output included, has gradient_bytes."""
        n = _whole(n, "the number of blocks", least=1, few="A chain needs at least one block.")
        return cls.of([saved_bytes] * n, [state_bytes] * (n + 1), [gradient_bytes] * (n + 1), [forward_cost] * n)

    @classmethod
    def of(cls, saved_bytes, state_bytes, gradient_bytes=None, forward_cost=None) -> Chain:
        """An abstract chain from lists: saved_bytes and forward_cost for n blocks, state_bytes and gradient_bytes for
        their n inputs and the last output (n + 1 each).

        gradient_bytes: by default those of the states. forward_cost: by default 1 for each block. Raises ValueError for no
        blocks, lists of the wrong length and negative numbers, TypeError for bytes that are not whole numbers.
        """
        saved = [_whole(b, "saved_bytes") for b in saved_bytes]
        n = len(saved)
        if not n:
            raise ValueError("A chain needs at least one block.")
        states = [_whole(b, "state_bytes") for b in state_bytes]
        gradients = states if gradient_bytes is None else [_whole(b, "gradient_bytes") for b in gradient_bytes]
        costs = [1] * n if forward_cost is None else [_cost(c) for c in forward_cost]
        for name, values, length in (("state_bytes", states, n + 1), ("gradient_bytes", gradients, n + 1), ("forward_cost", costs, n)):
            if len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries; {n} blocks need {length}.")
        blocks = tuple(
            _abstract(costs[i], saved[i], states[i], gradients[i], gradients[i + 1]) for i in range(n)
        )
        return cls(blocks, states[n], gradients[n], tuple(range(n + 1)))


def _abstract(cost, saved, state, gradient, gradient_out) -> Block:
    """The plainest block with these numbers: it saves its input first, and its output comes last."""
    owns_input = saved >= state
    own = saved - state if owns_input else saved
    dropped = (Step(0, 0, "output"),)
    taped = (Step(own, own, "output"),)
    backward = (
        Step(0, 0, "unpack"),
        Step(gradient, gradient - gradient_out - own, "input" if owns_input else None),
        Step(0, 0, "done"),
    )
    modes = Modes(dropped, taped, dropped, taped, (Step(own, own),), backward, backward)
    return Block(cost, state, saved, gradient, 0, True, owns_input, False, modes)


def _whole(value, what: str, least: int = 0, few: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be a whole number, not {value!r}.")
    if value < least:
        raise ValueError(few or f"{what} must not be negative, and is {value}.")
    return int(value)


def _cost(value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"forward_cost must be a number, not {value!r}.")
    if not 0 <= value < float("inf"):
        raise ValueError(f"forward_cost must be a finite number that is not negative, and is {value}.")
    return value
