"""Trees of nested checkpoints, and the numbers of the binomial one.

A tree is a tuple of parts for a stretch of blocks. A part is a block's number: it runs with its activations kept. Or a part
is a tuple of parts: a checkpointed stretch. Only its input is kept; in backward it runs again, and inside it the same rules
hold. `(0, (1, 2), 3)`: blocks 0 and 3 keep their activations, 1 and 2 are run again.

Binomial schedules: A. Griewank, A. Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000).
"""

from __future__ import annotations

import math
from functools import lru_cache

from .chain import _whole


def beta(s: int, r: int) -> int:
    """The longest chain that can be reversed with s kept states (its input is one) and no block run more than r times
    again: the binomial coefficient C(s + r, s). 0 for r < 0."""
    return math.comb(s + r, s) if r >= 0 and s >= 0 else 0


def repeats(n: int, s: int) -> int:
    """The smallest r with n <= beta(s, r): how often the busiest block of the best schedule is run again."""
    r = 0
    while beta(s, r) < n:
        r += 1
    return r


@lru_cache(maxsize=None)
def _t(n: int, s: int) -> int:
    r = repeats(n, s)
    return r * n - beta(s + 1, r - 1)


def t(n: int, s: int) -> int:
    """The fewest extra block forwards with which a chain of n blocks can be reversed when s states (the input is one) and
    one block's activations may be kept: r n - beta(s + 1, r - 1). Raises ValueError unless n >= 1 and s >= 1."""
    n = _whole(n, "the number of blocks", 1, "A chain needs at least one block.")
    return _t(n, _whole(s, "slots", 1, f"slots must be at least 1 (the chain's input takes one), and is {s}."))


def split(n: int, s: int) -> int:
    """How many blocks of a chain of n >= 2 the first checkpoint of the binomial schedule spans.

    Then t(n, s) = k + t(k, s) + t(n - k, s - 1): the k blocks are run once more, with all s states free again when their
    turn comes; the others must do with one state less, since the input of the k is kept for them.
    """
    if s == 1:
        return n - 1
    r = repeats(n, s)
    return max(1, beta(s, r - 2), n - beta(s - 1, r))


def binomial(n: int, s: int) -> tuple:
    """The tree of the binomial schedule: `(binomial of the first k with s, then binomial of the others with s - 1)`."""

    def parts(first: int, last: int, slots: int) -> tuple:
        found: list = []
        while last - first > 1:
            k = split(last - first, slots)
            found.append((first, first + k, slots))
            first, slots = first + k, max(1, slots - 1)
        return (*found, first)

    return _grow(parts, 0, n, s)


def halves(n: int) -> tuple:
    """Checkpoint the first half, and treat both halves in the same way."""

    def parts(first: int, last: int, _) -> tuple:
        found: list = []
        while last - first > 1:
            middle = first + (last - first + 1) // 2
            found.append((first, middle, None))
            first = middle
        return (*found, first)

    return _grow(parts, 0, n, None)


def _grow(parts, first: int, last: int, room) -> tuple:
    """The tree whose stretches `parts` describes as (first, last, room). By a loop: trees may be 1000 deep."""
    root: list = list(parts(first, last, room))
    opened, i = [root], 0
    while i < len(opened):
        for place, part in enumerate(opened[i]):
            if isinstance(part, tuple):
                opened[i][place] = list(parts(*part))
                opened.append(opened[i][place])
        i += 1
    for inner in reversed(opened):  # the innermost first: lists become tuples
        for place, part in enumerate(inner):
            if isinstance(part, list):
                inner[place] = tuple(part)
    return tuple(root)


def segments(n: int, k: int) -> tuple:
    """k stretches that differ by at most one in length, the longer ones first; all but the last are checkpointed."""
    size, longer = divmod(n, k)
    ends = [size * (i + 1) + min(i + 1, longer) for i in range(k)]
    starts = [0, *ends[:-1]]
    return (*(tuple(range(a, b)) for a, b in zip(starts[:-1], ends[:-1])), *range(starts[-1], n))


def span(part) -> tuple:
    """(first block, last block) of a part."""
    first = last = part
    while isinstance(first, tuple):
        first = first[0]
    while isinstance(last, tuple):
        last = last[-1]
    return first, last


def check(tree, n: int) -> None:
    """Raises ValueError unless the tree holds the blocks 0 to n - 1, in order, and no empty stretch."""
    if not isinstance(tree, tuple):
        raise TypeError(f"A tree is a tuple of parts, not {type(tree).__name__}.")
    pending, expected = [tree], 0
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            if not part:
                raise ValueError("A stretch of a tree is empty: `()`. Each holds at least one block.")
            pending.extend(reversed(part))
        elif isinstance(part, bool) or not isinstance(part, int):
            raise TypeError(f"A part of a tree is a block's number or a tuple of parts, not {part!r}.")
        elif part != expected:
            raise ValueError(f"A tree holds its blocks in order, each once: where block {expected} should be, there is {part}.")
        else:
            expected += 1
    if expected != n:
        raise ValueError(f"The tree has {expected} blocks, the chain {n}.")
