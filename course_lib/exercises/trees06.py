"""Trees of nested checkpoints, judged without running anything: what is held, what runs again, what it needs.

A tree is a tuple of parts. A part is a block's number (its activations are kept) or a tuple of parts (a
stretch of which only the input is kept, and which runs again in backward, by the same rules inside).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from .faults import Fault
from .want import want_int, want_sequence, want_true


class Counts(NamedTuple):
    """What a tree costs. `again`: the blocks that run in backward, in order."""

    states: int  # most inputs of checkpointed stretches held at once
    kept: int  # most blocks whose activations are alive at once
    again: tuple


def blocks_of(part) -> list:
    """All block numbers of a tree or a part, in order."""
    return [part] if isinstance(part, int) else [number for inner in part for number in blocks_of(inner)]


def as_tree(value) -> tuple:
    """Nested lists as nested tuples, which a Schedule wants."""
    return tuple(part if isinstance(part, int) else as_tree(part) for part in value)


def want_tree(value, first: int, blocks: int, what: str) -> tuple:
    """`value` as nested tuples of ints, with every block once and in order; else a Fault."""
    tree = _plain(value, what)
    numbers, right = blocks_of(tree), list(range(first, first + blocks))
    if numbers == right:
        return tree
    lost = sorted(set(right) - set(numbers))
    strange = sorted(set(numbers) - set(right))
    want_true(not strange, "wrong blocks", f"{what} holds block {strange[:1]}, but its blocks are {first} to "
              f"{first + blocks - 1}. Does every call count from its own `first`?")  # fmt: skip
    want_true(not lost, "blocks missing", f"{what} lacks block {lost[:1]}: every block from {first} to "
              f"{first + blocks - 1} must be in it once.")  # fmt: skip
    if len(numbers) != len(right):
        raise Fault("block twice", f"{what} holds a block more than once: its numbers are {numbers[:20]}.")
    raise Fault("wrong order", f"{what} has its blocks in the order {numbers[:20]}. They run from left to "
                f"right, so they stand from left to right.")  # fmt: skip


def _plain(value, what, depth=0):
    want_true(depth < 200, "wrong type", f"{what} is nested more than 200 deep.")
    items = want_sequence(value, what)
    want_true(items, "empty part", f"{what} holds an empty stretch, `()`. A stretch has at least one block.")
    return tuple(
        _plain(item, "a stretch of " + what.removeprefix("a stretch of "), depth + 1)
        if isinstance(item, (list, tuple))
        else want_int(item, f"a part of {what}")
        for item in items
    )


def count(tree) -> Counts:
    """Walk through the whole step."""
    states: list = []
    again: list = []
    most = {"states": 0, "kept": 0}
    kept: list = []

    def run(parts, note):
        for part in parts:
            if isinstance(part, int):
                kept.append(part)
                note.append(part)
            else:
                states.append(blocks_of(part)[0])  # a stretch inside may begin with the same input
                note.extend(blocks_of(part))
            most["states"] = max(most["states"], len(set(states)))
            most["kept"] = max(most["kept"], len(kept))

    def back(parts):
        for part in reversed(parts):
            if isinstance(part, int):
                kept.pop()
            else:
                run(part, again)
                back(part)
                states.pop()

    run(tree, [])
    back(tree)
    return Counts(most["states"], most["kept"], tuple(again))


def fewest_again(blocks: int, slots: int) -> int:
    """The fewest blocks that must run again with so many slots, in closed form: r*n - beta(s + 1, r - 1)."""
    r = next(r for r in range(blocks) if blocks <= math.comb(slots + r, slots))
    return r * blocks - math.comb(slots + r, slots + 1)


def depth(tree) -> int:
    """How many checkpoints lie inside each other."""
    return max((1 + depth(part) for part in tree if not isinstance(part, int)), default=0)


# -- bytes ----------------------------------------------------------------------------


def needs(tree, state, saved) -> int:
    """The most bytes alive while some block runs backward, by the rules of exercise 06.7.

    state: bytes of each block's input and of the output (one more than blocks). saved: what each block's
    backward needs, its own input included.
    """
    most = 0

    def back(parts, held):
        nonlocal most
        outside = [held]
        for part in parts:
            outside.append(
                outside[-1] + (saved[part] if isinstance(part, int) else state[blocks_of(part)[0]])
            )
        for part, before in zip(reversed(parts), reversed(outside[:-1])):
            if isinstance(part, int):
                most = max(most, before + saved[part] + state[part] + state[part + 1])
            else:
                back(part, before)

    back(tree, 0)
    return most


def recompute_cost(tree, cost) -> int:
    """What all blocks that run again cost."""
    return sum(cost[number] for number in count(tree).again)


def all_trees(first: int, last: int) -> tuple:
    """Every tree over the blocks first to last - 1 in which no stretch is checkpointed twice in a row."""
    proper = _trees(first, last)
    return (*proper, *((inner,) for inner in proper))


@cache
def _trees(first, last):
    """Those that are not one single stretch."""
    if last - first == 1:
        return ((first,),)
    found = [(first, *rest) for rest in all_trees(first + 1, last)]
    for middle in range(first + 1, last):
        found += [(inner, *rest) for inner in _trees(first, middle) for rest in all_trees(middle, last)]
    return tuple(found)


def brute_force(cost, state, saved, budget):
    """The least recompute cost of any tree that needs at most `budget` bytes; inf if there is none."""
    fitting = (tree for tree in all_trees(0, len(cost)) if needs(tree, state, saved) <= budget)
    return min((recompute_cost(tree, cost) for tree in fitting), default=math.inf)


class Rules(NamedTuple):
    """The rules of the dynamic program, and what is typically forgotten. All right by default."""

    transient: bool = True  # what runs again needs its activations
    states: bool = True  # a checkpointed stretch's input stays while the blocks after it run backward
    gradients: bool = True  # the gradients that come in and go out
    deeper: bool = True  # a stretch that runs again may hold checkpoints
    keep: bool = True  # a block may keep its activations while those after it run
    given_back: bool = True  # what the blocks on the right needed is free again
    in_cost: bool = True  # costs, not numbers of blocks


def least(cost, state, saved, budget, rules: Rules = Rules()):
    """The least recompute cost within `budget` bytes by dynamic programming; inf if nothing fits."""
    price = list(cost) if rules.in_cost else [1] * len(cost)

    @cache
    def best(i, j, room, inside):
        if inside and not rules.transient:
            return 0
        at_work = saved[i] + (state[i] + state[i + 1] if rules.gradients else 0)
        if at_work > room and (rules.transient or j == i + 1):
            return math.inf
        if j == i + 1:
            return 0
        options = (
            [best(i + 1, j, room - saved[i], inside)]
            if rules.keep or inside and not rules.deeper
            else [math.inf]
        )
        for k in range(i + 1, j) if rules.deeper or not inside else ():
            right = best(k, j, room - (state[i] if rules.states else 0), inside)
            left = best(i, k, room - (0 if rules.given_back else state[i]), True)
            options.append(right + sum(price[i:k]) + left)
        return min(options)

    return best(0, len(cost), budget, False)
