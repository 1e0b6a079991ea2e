"""Checkpoint schedules as trees, and the well-known ones.

A tree is a tuple of parts, in order. A part is a block's number (the block is run with its activations kept) or a tuple
of parts again: a region of which only the input is kept; in backward it is run once more, by the rules inside it.

    (0, 1, 2)            no checkpointing            ((0,), (1,), 2)      each block a region, the last one free
    ((0, 1), (2, 3), 4)  two segments and a rest     (((0,), 1), 2)       a region inside a region
"""

from __future__ import annotations

from math import comb, isqrt


def none(n: int) -> tuple:
    return tuple(range(n))


def per_block(n: int) -> tuple:
    return segments(n, n)


def segments(n: int, k: int) -> tuple:
    """k stretches that differ by at most one block, longer ones first; the last one is not a region."""
    if not 1 <= k <= n:
        raise ValueError(f"The number of segments is from 1 to {n}, the number of blocks; got {k}.")
    size, longer = divmod(n, k)
    ends = [size * (i + 1) + min(i + 1, longer) for i in range(k)]
    cuts = list(zip([0, *ends], ends))
    return (*(tuple(range(a, b)) for a, b in cuts[:-1]), *range(*cuts[-1]))


def root_of(n: int, saved: int, state: int) -> int:
    """The number of segments k with the smallest k * state + (n / k) * saved: sqrt(n * saved / state)."""
    guess = isqrt(n * max(saved, 1) // max(state, 1))
    return min(max(1, guess), n)


def nested(n: int, start: int = 0) -> tuple:
    """Halves inside halves: about log2(n) states, each block run about log2(n) times."""
    if n == 1:
        return (start,)
    half = n // 2
    return (nested(half, start), *nested(n - half, start + half))


def beta(s: int, r: int) -> int:
    """The longest chain that s states and r runs of each block can reverse: C(s + r, s) (Griewank and Walther 2000)."""
    return comb(s + r, s) if r >= 0 else 0


def repetitions(n: int, slots: int) -> int:
    """The smallest r with n <= beta(slots, r)."""
    r = 0
    while beta(slots, r) < n:
        r += 1
    return r


def t(n: int, slots: int) -> int:
    """Fewest extra block forwards that reverse n blocks with `slots` states, the input being one of them.

    Closed form of Griewank and Walther (Algorithm 799, revolve): r n - beta(slots + 1, r - 1).
    """
    _counts(n, slots)
    r = repetitions(n, slots)
    return r * n - beta(slots + 1, r - 1)


def binomial(n: int, slots: int, start: int = 0) -> tuple:
    """The tree with t(n, slots) extra forwards: run k blocks, keep a state there, treat the rest with one slot less."""
    _counts(n, slots)
    parts: list = []
    while n > 1:
        k = first_stretch(n, slots)
        parts.append(binomial(k, slots, start))
        start, n, slots = start + k, n - k, slots - 1
    return (*parts, start)


def first_stretch(n: int, slots: int) -> int:
    """How far to run before the first state is kept. Any k within these bounds is optimal; the smallest is taken.

    With r = repetitions(n, slots): the k blocks before it are repeated at most r times with all slots, the n - k behind it
    at most r times with one slot less, and neither may be so short that r - 1 repetitions would do for the other's surplus.
    """
    if slots == 1:
        return n - 1
    r = repetitions(n, slots)
    return max(beta(slots, r - 2), n - beta(slots - 1, r), 1)


def _counts(n: int, slots: int) -> None:
    for name, value in (("the number of blocks", n), ("the number of slots", slots)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}.")


def blocks_of(tree: tuple) -> list:
    """The numbers of all blocks of a tree, in order. A loop: trees may be as deep as a chain is long."""
    found, todo = [], [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(reversed(part))
        else:
            found.append(part)
    return found


def reruns(tree: tuple) -> list:
    """For each region of a tree, at any depth: the blocks that its rerun runs, and whether it ends with a kept block.

    A rerun stops after the last tensor that it must save. So a region that ends with another region runs only up to that
    one's input.
    """
    found, todo = [], [part for part in tree if isinstance(part, tuple)]
    while todo:
        region = todo.pop()
        todo.extend(part for part in region if isinstance(part, tuple))
        ends_kept = not isinstance(region[-1], tuple)
        found.append((blocks_of(region if ends_kept else region[:-1]), ends_kept))
    return found


def extra_forwards(tree: tuple) -> int:
    """Block forwards that backward adds: each region runs its blocks once more, and what is inside again."""
    return sum(len(blocks) for blocks, _ in reruns(tree))


def checked(tree: tuple, n: int) -> tuple:
    """The tree itself. Raises ValueError unless it holds the blocks 0 .. n - 1 in order and no empty part."""
    todo, empty = [tree], False
    while todo:
        part = todo.pop()
        empty = empty or part == ()
        todo.extend(inner for inner in part if isinstance(inner, tuple))
    if empty or blocks_of(tree) != list(range(n)):
        raise ValueError(f"A tree for {n} blocks names each of 0 to {n - 1} once and in order; got {tree!r}.")
    return tree
