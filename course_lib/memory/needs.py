"""What a planner must know of each block, in bytes: read off its Steps.

Two things make a planner's life easier than the simulator's: a stretch is looked at as if nothing else were alive, and
what it needs is a maximum over few moments. Both are exact for abstract chains. For measured ones the numbers are upper
ends (a state that two owners share may count for both), so a plan never needs more than the planner thought.
"""

from __future__ import annotations

from typing import NamedTuple


class Needs(NamedTuple):
    """One block's numbers; bytes. "Above" says what is alive already and not part of the number."""

    cost: float
    state: int  # its input
    dropped: int  # peak of a dropped forward, above its input
    dropped_again: int
    taped: int  # peak of a taped forward, above its input
    taped_again: int
    stopped: int
    tape: int  # what stays of it, without its input
    tape_again: int
    owns_input: bool
    owns_output: bool  # its output stays with it, so that the next block's input costs nothing
    same_output: bool  # its output is its input, seen otherwise
    output: int  # bytes that its output adds to its tape
    gradient_out: int
    before_unpack: int  # peak of its backward before it reads a saved tensor (gradient_out included)
    at_unpack: int  # what is alive of it then
    backward: int  # peak of its backward, above its tape
    backward_again: int
    parameter_gradients: int


def needs_of(chain) -> tuple:
    """The Needs of every block of a chain."""
    return tuple(_block(chain, i) for i in range(len(chain)))


def state_bytes(chain, state: int) -> int:
    """What a state takes. Nothing, where it is the input that the caller owns anyway."""
    given = not chain.input_counts and chain.root[state] == 0
    return 0 if given else chain.states[state]


def _block(chain, i: int) -> Needs:
    block, modes, n = chain.blocks[i], chain.blocks[i].modes, len(chain)
    state, output = state_bytes(chain, i), state_bytes(chain, i + 1)
    same = chain.root[i] == chain.root[i + 1]
    made = 0 if same else output
    out = chain.blocks[i + 1].gradient_bytes if i + 1 < n else chain.output_gradient_bytes
    linger = block.lingering_bytes
    first, again = _forward(modes.taped, made), _forward(modes.taped_again, made)
    before, at, later = _backward(modes.backward_again, out, state if block.owns_input else 0)
    return Needs(
        cost=block.forward_cost,
        state=state,
        dropped=_forward(modes.dropped, made)[0],
        dropped_again=_forward(modes.dropped_again, made)[0] + linger,
        taped=first[0],
        taped_again=again[0] + linger,
        stopped=_forward(modes.stopped, made)[0] + linger,
        tape=first[1],
        tape_again=again[1] - linger,
        owns_input=block.owns_input,
        owns_output=block.owns_output and not same,
        same_output=same,
        output=made if block.owns_output else 0,
        gradient_out=out,
        before_unpack=before,
        at_unpack=at,
        backward=max(_backward(modes.backward, out, state if block.owns_input else 0)),
        backward_again=later,
        parameter_gradients=block.parameter_gradient_bytes,
    )


def _forward(steps, output: int) -> tuple[int, int]:
    """(peak, what stays without the output) of a forward, above its input."""
    own = peak = out = 0
    for rise, change, event in steps:
        peak = max(peak, own + rise + out)
        own += change
        if event == "output":
            out = output
            peak = max(peak, own + out)
    return peak, own


def _backward(steps, gradient_out: int, state: int) -> tuple[int, int, int]:
    """(peak before the first unpack, alive at it, peak after it) of a backward, above its tape."""
    now = gradient_out
    before = after = at = now
    unpacked = False
    for rise, change, event in steps:
        if unpacked:
            after = max(after, now + rise)
        else:
            before = max(before, now + rise)
        now += change
        if event == "unpack":
            unpacked, at, after = True, now, now
        elif event == "input":
            now -= state
    return before, at, max(after, now) if unpacked else before
