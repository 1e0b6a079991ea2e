"""Answers to 06.7 and 06.8: the cheapest plan under a budget of bytes, and selective recompute."""

from __future__ import annotations

import math
from functools import cache

# -- 06.7 ----------------------------------------------------------------------------


def least_recompute(cost, state, saved, budget):
    @cache
    def best(i, j, room):
        """Blocks i to j-1; `room`: bytes for all that is alive in them, input and gradients included."""
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            options.append(best(k, j, room - state[i]) + sum(cost[i:k]) + best(i, k, room))
        return min(options)

    return best(0, len(cost), budget)


def least_greedy(cost, state, saved, budget):
    """Checkpoints single blocks, the largest first, until the rest fits."""
    n = len(cost)

    def fits(dropped):
        held = most = 0
        for i in range(n):
            most = max(most, held + saved[i] + state[i] + state[i + 1])
            held += state[i] if i in dropped else saved[i]
        return most <= budget

    dropped = set()
    for i in sorted(range(n), key=lambda i: -saved[i]):
        if fits(dropped):
            break
        dropped.add(i)
    return sum(cost[i] for i in dropped) if fits(dropped) else math.inf


def least_no_transient(cost, state, saved, budget):
    """A knapsack: what is kept must fit; what comes back in backward is not looked at."""

    @cache
    def best(i, room):
        if i == len(cost):
            return 0 if room >= 0 else math.inf
        return min(best(i + 1, room - saved[i]), cost[i] + best(i + 1, room - state[i]))

    return best(0, budget)


def least_no_states(cost, state, saved, budget):
    @cache
    def best(i, j, room):
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            options.append(best(k, j, room) + sum(cost[i:k]) + best(i, k, room))
        return min(options)

    return best(0, len(cost), budget)


def least_no_gradients(cost, state, saved, budget):
    @cache
    def best(i, j, room):
        if saved[i] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            options.append(best(k, j, room - state[i]) + sum(cost[i:k]) + best(i, k, room))
        return min(options)

    return best(0, len(cost), budget)


def least_one_level(cost, state, saved, budget):
    @cache
    def kept(i, k, room):
        """All of a stretch kept at once."""
        at_work = saved[i] + state[i] + state[i + 1]
        if at_work > room:
            return False
        return k == i + 1 or kept(i + 1, k, room - saved[i])

    @cache
    def best(i, j, room):
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            if kept(i, k, room):
                options.append(best(k, j, room - state[i]) + sum(cost[i:k]))
        return min(options)

    return best(0, len(cost), budget)


def least_counts_blocks(cost, state, saved, budget):
    return least_recompute([1] * len(cost), state, saved, budget)


def least_not_given_back(cost, state, saved, budget):
    @cache
    def best(i, j, room):
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            options.append(best(k, j, room - state[i]) + sum(cost[i:k]) + best(i, k, room - state[i]))
        return min(options)

    return best(0, len(cost), budget)


def least_keeps_none(cost, state, saved, budget):
    @cache
    def best(i, j, room):
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        return min(best(k, j, room - state[i]) + sum(cost[i:k]) + best(i, k, room) for k in range(i + 1, j))

    return best(0, len(cost), budget)


def least_never_fails(cost, state, saved, budget):
    found = least_recompute(cost, state, saved, budget)
    return sum(cost) * len(cost) if found == math.inf else found


def least_inner_free(cost, state, saved, budget):
    """Forgets that a stretch which runs again may have blocks in it that run a third time."""

    @cache
    def best(i, j, room):
        if saved[i] + state[i] + state[i + 1] > room:
            return math.inf
        if j == i + 1:
            return 0
        options = [best(i + 1, j, room - saved[i])]
        for k in range(i + 1, j):
            possible = 0 if best(i, k, room) < math.inf else math.inf
            options.append(best(k, j, room - state[i]) + sum(cost[i:k]) + possible)
        return min(options)

    return best(0, len(cost), budget)


def least_none(cost, state, saved, budget):
    found = least_recompute(cost, state, saved, budget)
    return None if found == math.inf else float(found)


def least_from_the_right(cost, state, saved, budget):
    """Bottom-up: for each stretch the trade-offs (bytes needed, cost), without the dearer and larger ones."""
    n = len(cost)
    front = {}
    for length in range(1, n + 1):
        for i in range(n - length + 1):
            j = i + length
            work = saved[i] + state[i] + state[i + 1]
            if length == 1:
                front[i, j] = [(work, 0)]
                continue
            found = [(max(work, saved[i] + need), extra) for need, extra in front[i + 1, j]]
            for k in range(i + 1, j):
                once = sum(cost[i:k])
                found += [
                    (max(left, state[i] + right), once + more + extra)
                    for left, more in front[i, k]
                    for right, extra in front[k, j]
                ]
            front[i, j], lowest = [], math.inf
            for need, extra in sorted(found):
                if extra < lowest:
                    front[i, j].append((need, extra))
                    lowest = extra
    return min((extra for need, extra in front[0, n] if need <= budget), default=math.inf)


# -- 06.8 ----------------------------------------------------------------------------


def cheap_first(operators, need):
    chosen, freed = [], 0
    for name, nbytes, flops in sorted(operators, key=lambda one: one[2] / one[1]):
        if freed >= need:
            break
        chosen.append(name)
        freed += nbytes
    return chosen


def cheap_by_bytes(operators, need):
    return _first(sorted(operators, key=lambda one: -one[1]), need)


def cheap_by_flops(operators, need):
    return _first(sorted(operators, key=lambda one: one[2]), need)


def cheap_backwards(operators, need):
    return _first(sorted(operators, key=lambda one: -one[2] / one[1]), need)


def cheap_divides_by_zero(operators, need):
    return _first(sorted(operators, key=lambda one: one[1] / one[2], reverse=True), need)


def cheap_in_order(operators, need):
    return _first(list(operators), need)


def cheap_all(operators, need):
    return [name for name, _, _ in sorted(operators, key=lambda one: one[2] / one[1])]


def cheap_stops_early(operators, need):
    chosen, freed = [], 0
    for name, nbytes, _ in sorted(operators, key=lambda one: one[2] / one[1]):
        if freed + nbytes > need:
            break
        chosen.append(name)
        freed += nbytes
    return chosen


def cheap_kept(operators, need):
    chosen = cheap_first(operators, need)
    return [name for name, _, _ in operators if name not in chosen]


def cheap_free_only(operators, need):
    return [name for name, _, flops in operators if flops == 0]


def _first(ordered, need):
    chosen, freed = [], 0
    for name, nbytes, _ in ordered:
        if freed >= need:
            break
        chosen.append(name)
        freed += nbytes
    return chosen


def cheap_bytes_per_flop(operators, need):
    worth = lambda one: one[1] / one[2] if one[2] else math.inf
    return tuple(_first(sorted(operators, key=worth, reverse=True), need))


def cheap_one_by_one(operators, need):
    left, chosen = list(operators), set()
    while left and need > 0:
        best = min(left, key=lambda one: one[2] / one[1])
        left.remove(best)
        chosen.add(best[0])
        need -= best[1]
    return [name for name, *_ in operators if name in chosen]


def cheap_large_ties(operators, need):
    return _first(sorted(operators, key=lambda one: (one[2] / one[1], -one[1])), need)
