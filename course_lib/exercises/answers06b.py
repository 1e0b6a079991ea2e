"""Answers to 06.5 and 06.6: the binomial count and the binomial tree."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from itertools import accumulate

# -- 06.5 ----------------------------------------------------------------------------


def longest_chain(slots, repeats):
    return math.comb(slots + repeats, slots)


def longest_product(slots, repeats):
    return slots * repeats + 1


def longest_powers(slots, repeats):
    return (repeats + 1) ** slots


@cache
def longest_both_less(slots, repeats):
    """The left part is run with one slot less, too."""
    if slots == 0 or repeats == 0:
        return 1
    return longest_both_less(slots - 1, repeats - 1) + longest_both_less(slots - 1, repeats)


def longest_not_less(slots, repeats):
    return math.comb(slots + repeats - 1, slots)


@cache
def longest_no_last(slots, repeats):
    """Forgets that a chain of one block needs no slot and no repeat."""
    if slots == 0 or repeats == 0:
        return 0
    return longest_no_last(slots - 1, repeats) + longest_no_last(slots, repeats - 1) + 1


def longest_doubling(slots, repeats):
    return 2 ** min(slots, repeats)


def longest_swapped(slots, repeats):
    return math.comb(slots + repeats, slots) - 1


def longest_recursive(slots, repeats):
    @cache
    def beta(s, r):
        return 1 if s == 0 or r == 0 else beta(s, r - 1) + beta(s - 1, r)

    return beta(slots, repeats)


def longest_sums(slots, repeats):
    row = [1] * (repeats + 1)
    for _ in range(slots):
        row = list(accumulate(row))
    return row[-1]


def longest_quotient(slots, repeats):
    top = bottom = 1
    for i in range(1, slots + 1):
        top, bottom = top * (repeats + i), bottom * i
    return top // bottom


# -- 06.6 ----------------------------------------------------------------------------


def binomial(first, blocks, slots):
    @cache
    def fewest(n, s):
        """(extra forwards, length of the first stretch) for n blocks and s slots"""
        if n == 1:
            return 0, 0
        if s == 0:
            return math.inf, 0
        return min((k + fewest(k, s)[0] + fewest(n - k, s - 1)[0], k) for k in range(1, n))

    def tree(first, n, s):
        if n == 1:
            return (first,)
        k = fewest(n, s)[1]
        return (tree(first, k, s), *tree(first + k, n - k, s - 1))

    return tree(first, blocks, slots)


def binomial_bisect(first, blocks, slots):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (binomial_bisect(first, half, slots), *binomial_bisect(first + half, blocks - half, slots))


def binomial_bisect_slots(first, blocks, slots):
    if blocks == 1:
        return (first,)
    half = blocks // 2 if slots > 1 else blocks - 1
    left = binomial_bisect_slots(first, half, slots)
    return (left, *binomial_bisect_slots(first + half, blocks - half, slots - 1))


def binomial_per_block(first, blocks, slots):
    return (*((i,) for i in range(first, first + blocks - 1)), first + blocks - 1)


def binomial_one_less(first, blocks, slots):
    return binomial(first, blocks, max(1, slots - 1))


def binomial_mirrored(first, blocks, slots):
    """The lengths of the two stretches changed over."""
    if blocks == 1:
        return (first,)
    if slots == 1:
        return (binomial_mirrored(first, blocks - 1, 1), first + blocks - 1)
    k = blocks - sum(map(len_of, binomial(0, blocks, slots)[0]))
    return (binomial_mirrored(first, k, slots), *binomial_mirrored(first + k, blocks - k, slots - 1))


def len_of(part):
    return 1 if isinstance(part, int) else sum(map(len_of, part))


def binomial_not_given_back(first, blocks, slots):
    """The left stretch runs with one slot less: its right neighbours' slots count as taken."""
    if blocks == 1:
        return (first,)
    if slots == 1:
        return (binomial_not_given_back(first, blocks - 1, 1), first + blocks - 1)
    k = math.ceil(blocks / slots)
    k = min(k, blocks - 1)
    return (
        binomial_not_given_back(first, k, slots - 1),
        *binomial_not_given_back(first + k, blocks - k, slots - 1),
    )


def binomial_equal(first, blocks, slots):
    """Equal stretches, one for each slot and one more; the same again inside."""
    if blocks == 1:
        return (first,)
    k = blocks - 1 if slots == 1 else max(1, blocks // (slots + 1))
    return (binomial_equal(first, k, slots), *binomial_equal(first + k, blocks - k, slots - 1))


def binomial_keeps(first, blocks, slots):
    """Keeps all activations of the last stretch, as sqrt does."""
    size = max(1, math.ceil(blocks / (slots + 1)))
    edges = [*range(first, first + blocks, size), first + blocks]
    parts = [tuple(range(a, b)) for a, b in zip(edges, edges[1:])]
    return (*parts[:-1], *parts[-1])


def binomial_closed(first, blocks, slots):
    """The split in closed form, without any search."""

    def beta(s, r):
        return math.comb(s + r, s) if r >= 0 else 0

    parts = []
    while blocks > 1:
        r = next(r for r in range(1, blocks) if blocks <= beta(slots, r))
        k = max(1, beta(slots, r - 2), blocks - beta(slots - 1, r))
        parts.append(binomial_closed(first, k, slots))
        first, blocks, slots = first + k, blocks - k, slots - 1
    return (*parts, first)


def binomial_latest(first, blocks, slots):
    """The same search, but the longest of the best first stretches, and as a list."""

    @lru_cache(None)
    def fewest(n, s):
        if n == 1 or s == 1:
            return n * (n - 1) // 2
        return min(k + fewest(k, s) + fewest(n - k, s - 1) for k in range(1, n))

    def tree(first, n, s):
        if n == 1:
            return [first]
        if s == 1:
            return [tree(first, n - 1, 1), first + n - 1]
        k = max(range(1, n), key=lambda k: (-(k + fewest(k, s) + fewest(n - k, s - 1)), k))
        return [tree(first, k, s), *tree(first + k, n - k, s - 1)]

    return tree(first, blocks, slots)
