"""Schedules on paper: the binomial optimum, ticks, and the planner against brute force over all trees."""

import random
from functools import cache

import pytest
import torch
from torch import nn

from course_lib.memory import schedule, trees
from course_lib.memory.chain import Block as Data
from course_lib.memory.schedule import Chain

# Griewank and Walther's t(n, s), held against an independent package when this table was made.
SLOTS = (1, 2, 3, 4, 5, 6, 8, 10, 16, 32)
FEWEST = {
    10: (45, 20, 15, 14, 13, 12, 10, 9, 9, 9),
    16: (120, 45, 33, 27, 25, 24, 22, 20, 15, 15),
    24: (276, 88, 61, 51, 44, 40, 38, 36, 30, 23),
    32: (496, 140, 93, 75, 68, 60, 54, 52, 46, 31),
    50: (1225, 285, 180, 144, 122, 114, 95, 88, 82, 66),
    64: (2016, 420, 258, 200, 172, 156, 137, 116, 110, 94),
    100: (4950, 845, 490, 374, 316, 280, 245, 222, 182, 166),
    128: (8128, 1240, 694, 516, 430, 392, 329, 306, 238, 222),
    256: (32640, 3608, 1845, 1330, 1074, 950, 804, 690, 597, 478),
    500: (124750, 10044, 4680, 3213, 2576, 2208, 1785, 1636, 1329, 966),
    1000: (499500, 28820, 12155, 7998, 6284, 5284, 4285, 3636, 2860, 2405),
}
# The rotor optimum of 32 equal blocks (state 1, saved 16, gradient 1, cost 1): {budget: extra forwards}
ROW = {20: 140, 24: 60, 28: 52, 32: 48, 40: 33, 48: 31, 50: 30, 64: 29, 96: 27, 128: 25, 160: 23, 192: 21}
ROW |= {256: 17, 320: 13, 384: 9, 448: 5, 512: 1, 514: 0}


# -- trees ---------------------------------------------------------------------------------------------------


def test_t_is_the_table_of_the_literature():
    assert {n: tuple(schedule.t(n, s) for s in SLOTS) for n in FEWEST} == FEWEST


def test_t_is_the_least_that_any_split_can_give():
    @cache
    def least(n, s):
        if n == 1:
            return 0
        if s == 1:
            return n * (n - 1) // 2
        return min(k + least(k, s) + least(n - k, s - 1) for k in range(1, n))

    assert all(schedule.t(n, s) == least(n, s) for n in range(1, 70) for s in range(1, 9))


def test_beta_is_the_longest_chain_for_a_number_of_repetitions():
    assert [schedule.beta(8, r) for r in (1, 2, 3, 4)] == [9, 45, 165, 495]
    assert [schedule.beta(10, r) for r in (1, 2, 3, 4)] == [11, 66, 286, 1001]
    assert schedule.beta(3, 0) == 1 and schedule.beta(3, -1) == 0
    # one block more takes one more repetition of one block: t grows by r + 1 there, by r before
    for s in (2, 5):
        for r in (1, 2, 3):
            n = schedule.beta(s, r)
            assert schedule.t(n, s) - schedule.t(n - 1, s) == r
            assert schedule.t(n + 1, s) - schedule.t(n, s) == r + 1


def count(tree):
    """(extra forwards, most states kept at once) of a tree: one walk, without the course's own code."""
    extra, most, todo = 0, 1, [(tree, 0, 0)]
    while todo:
        parts, level, kept = todo.pop()
        for place, part in enumerate(parts):
            if isinstance(part, tuple):
                todo.append((part, level + 1, kept + place))
                most = max(most, kept + place + 1)
            else:
                extra += level
    return extra, most


def test_the_binomial_tree_recomputes_t_times_for_all_300_blocks_and_40_slots():
    @cache
    def from_splits(n, s):
        if n == 1:
            return 0
        k = trees.first_stretch(n, s)
        assert 1 <= k < n and (s > 1 or k == n - 1)
        return k + from_splits(k, s) + (from_splits(n - k, s - 1) if k < n - 1 else 0)

    for n in range(1, 301):
        for s in range(1, 41):
            assert from_splits(n, s) == schedule.t(n, s)
    for n in [*range(1, 20), 64, 137, 220, 300]:  # and the trees that are built of these splits
        for s in (1, 2, 3, 7, 40):
            extra, states = count(schedule.binomial(n, s).tree)
            assert (extra, schedule.binomial(n, s).recomputations) == (schedule.t(n, s),) * 2
            assert states <= s


def test_the_simple_schedules_are_what_they_are_called():
    chain = Chain.uniform(10)
    assert schedule.none(chain).tree == tuple(range(10))
    assert schedule.per_block(chain).tree == (*((i,) for i in range(9)), 9)
    assert schedule.segments(chain, 3).tree == ((0, 1, 2, 3), (4, 5, 6), 7, 8, 9)
    assert schedule.segments(chain, 1).tree == schedule.none(chain).tree
    assert schedule.segments(chain, 10).tree == schedule.per_block(chain).tree
    assert [f(chain).recomputations for f in (schedule.none, schedule.per_block)] == [0, 9]
    halves = schedule.nested(Chain.uniform(64))
    assert halves.recomputations == 32 * 6 and count(halves.tree)[1] == 6
    k = (
        len(
            [
                part
                for part in schedule.sqrt(Chain.uniform(100, saved_bytes=1)).tree
                if isinstance(part, tuple)
            ]
        )
        + 1
    )
    assert k == 10  # sqrt(n) where saved and state are alike


def test_known_peaks_of_the_uniform_chain():
    chain = Chain.uniform(32)
    assert schedule.none(chain).peak_bytes == 32 * 16 + 2
    assert schedule.per_block(chain).peak_bytes == 31 + 16 + 2
    for slots in (1, 2, 5, 8):
        assert schedule.binomial(chain, slots).peak_bytes == slots + 16 + 2


# -- ticks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [schedule.none, schedule.per_block, schedule.sqrt, schedule.nested, lambda c: schedule.binomial(c, 3)],
)
def test_ticks_are_a_whole_step_in_order(make):
    plan = make(Chain.uniform(13))
    ticks = plan.ticks
    assert [tick.block for tick in ticks if tick.action == "forward"] == list(range(13))
    assert [tick.block for tick in ticks if tick.action == "backward"] == list(range(12, -1, -1))
    assert {tick.action for tick in ticks[:13]} == {"forward"}
    assert sum(tick.action == "recompute" for tick in ticks) == plan.recomputations == count(plan.tree)[0]
    taped = set()
    for tick in ticks:
        if tick.action == "backward":
            assert tick.block in taped  # nothing runs backward without its activations
        elif not tick.kept:
            assert tick.block not in tick.taped
        taped = set(tick.taped)
        assert tick.peak_bytes >= tick.live_bytes >= 0
        assert tick.states == tuple(sorted(set(tick.states))) and set(tick.states) <= set(range(14))
    assert not ticks[-1].taped and plan.peak_bytes == max(tick.peak_bytes for tick in ticks)


# -- the planner ---------------------------------------------------------------------------------------------


def test_the_planner_finds_the_rotor_optimum_of_32_equal_blocks():
    chain = Chain.uniform(32)
    assert schedule.minimum(chain) == 19
    found = {budget: schedule.budgeted(chain, budget) for budget in (19, *ROW)}
    assert {budget: plan.recomputations for budget, plan in found.items() if budget != 19} == ROW
    assert all(plan.peak_bytes <= budget for budget, plan in found.items())
    assert found[19].recomputations == schedule.t(32, 1)


def all_trees(first, last):
    """Every way to nest checkpoints over blocks first to last - 1 whose stretches end with a kept block."""
    if last - first == 1:
        return [(first,)]
    found = [(first, *rest) for rest in all_trees(first + 1, last)]
    for middle in range(first + 1, last):
        for inner in all_trees(first, middle):
            found += [(inner, *rest) for rest in all_trees(middle, last)]
    return found


def plain_peak(chain, tree):
    """The most bytes alive in a step, and the cost of its recomputes: straight from what must be alive when.

    At each moment: the inputs of the stretches that still wait, all that kept blocks save (their inputs among
    it), the gradient that waits; and what the running block itself brings. Each input counts once.
    """
    blocks = chain.blocks
    state = [*(block.state_bytes for block in blocks), chain.output_bytes]
    gradient = [chain.input_gradient_bytes, *(block.gradient_bytes for block in blocks)]
    weights = [block.weight_gradient_bytes for block in blocks]
    own = [block.saved_bytes - block.state_bytes for block in blocks]
    peak = cost = 0

    def flat(part):
        return [part] if isinstance(part, int) else [i for inner in part for i in flat(inner)]

    def see(inputs, kept, more):
        nonlocal peak
        peak = max(peak, sum(state[i] for i in {*inputs, *kept}) + sum(own[i] for i in kept) + more)

    def run(parts, inputs, kept, waiting, again):
        nonlocal cost
        stages = []
        for part in parts:
            stages.append((part, inputs, kept))
            if isinstance(part, tuple):
                inputs = (*inputs, flat(part)[0])
                for i in flat(part):
                    cost += again * blocks[i].forward_cost
                    see((*inputs, i, i + 1), kept, waiting)
            else:
                kept = (*kept, part)
                ends = again and part == flat(parts)[-1]  # stopped before its output is there
                cost += again * (blocks[part].forward_cost - ends * blocks[part].tail_cost)
                see(inputs if ends else (*inputs, part + 1), kept, waiting)
        for part, inputs, kept in reversed(stages):
            if isinstance(part, tuple):
                end = flat(part)[-1] + 1
                run(part, inputs, kept, gradient[end] + sum(weights[end:]), True)
            else:
                made = sum(weights[part + 1 :])
                see(inputs, (*kept, part), made + gradient[part] + gradient[part + 1])
                see(inputs, kept, made + gradient[part] + weights[part])

    run(tree, (), (), 0, False)
    return peak, cost


def random_chain(n, draw):
    """A chain whose blocks differ in everything; a third of the numbers are 0."""

    def size(most):
        return draw.choice([0, draw.randint(0, most), draw.randint(0, most)])

    blocks = []
    for _ in range(n):
        cost = size(9)
        tail = draw.choice([0, draw.randint(0, cost)])
        blocks.append(Data(size(6), size(20), size(4), cost, size(3), tail_cost=tail))
    return Chain(tuple(blocks), output_bytes=size(5), input_gradient_bytes=size(3))


@pytest.mark.parametrize("n, chains", [(1, 3), (2, 6), (3, 10), (4, 12), (5, 10), (6, 5), (7, 2), (8, 1)])
def test_ticks_and_planner_are_what_brute_force_over_all_trees_finds(n, chains):
    draw = random.Random(n)
    for _ in range(chains):
        chain = random_chain(n, draw)
        points = [(*plain_peak(chain, tree), tree) for tree in all_trees(0, n)]
        for peak, cost, tree in draw.sample(points, min(40, len(points))):
            plan = schedule.from_tree(chain, tree)
            assert (plan.peak_bytes, plan.recompute_cost) == (peak, cost)
        low, high = min(peak for peak, _, _ in points), max(peak for peak, _, _ in points)
        assert schedule.minimum(chain) == low
        for budget in {low, high, *(draw.randint(low, high) for _ in range(12))}:
            plan = schedule.budgeted(chain, budget)
            assert plain_peak(chain, plan.tree) == (plan.peak_bytes, plan.recompute_cost)
            assert plan.peak_bytes <= budget
            assert plan.recompute_cost == min(cost for peak, cost, _ in points if peak <= budget)
        with pytest.raises(ValueError, match=rf"\b{low}\b"):
            schedule.budgeted(chain, low - 1)


def test_200_blocks_that_differ_are_planned_in_seconds_within_their_budget():
    draw = random.Random(200)
    blocks = tuple(
        Data(
            draw.randint(1, 9) * 10**6 + draw.randint(0, 9),
            draw.randint(0, 60) * 10**6,
            draw.randint(1, 9) * 10**6,
            draw.randint(1, 9),
        )
        for _ in range(200)
    )
    chain = Chain(blocks, output_bytes=10**6, input_gradient_bytes=10**6)
    budget = schedule.none(chain).peak_bytes // 8
    plan = schedule.budgeted(chain, budget)
    assert plan.peak_bytes <= budget
    better = [schedule.segments(chain, k) for k in (1, 2, 3, 4, 6, 8, 11, 14, 20, 28, 40, 100, 200)]
    assert plan.recompute_cost <= min(s.recompute_cost for s in better if s.peak_bytes <= budget)


def test_long_chains_of_equal_blocks_are_planned_to_the_optimum():
    chain = Chain.uniform(120, 1_000_003, 16_000_007, 1_000_003)
    for slots in (2, 3, 5, 9):
        named = schedule.binomial(chain, slots)
        plan = schedule.budgeted(chain, named.peak_bytes)
        assert plan.peak_bytes <= named.peak_bytes and plan.recompute_cost <= named.recompute_cost
    assert schedule.budgeted(chain, schedule.none(chain).peak_bytes).recompute_cost == 0


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: Chain.uniform(0),
        lambda: Chain((), output_bytes=1),
        lambda: Chain.uniform(3, state_bytes=-1),
        lambda: Chain.uniform(3, gradient_bytes=-1),
        lambda: Chain.uniform(3, forward_cost=-1),
        lambda: schedule.segments(Chain.uniform(3), 0),
        lambda: schedule.segments(Chain.uniform(3), 4),
        lambda: schedule.binomial(3, 0),
        lambda: schedule.binomial(0, 1),
        lambda: schedule.t(0, 1),
        lambda: schedule.t(1, 0),
        lambda: schedule.measure([], torch.ones(1)),
        lambda: schedule.none(Chain.uniform(3)).run([nn.Tanh()] * 2, torch.ones(1)),
        lambda: schedule.from_tree(Chain.uniform(3), (0, 2, 1)),
        lambda: schedule.from_tree(Chain.uniform(3), (0, 1)),
        lambda: schedule.from_tree(Chain.uniform(2), (0, (), 1)),
        lambda: schedule.budgeted(Chain.uniform(3), -5),
    ],
)
def test_bad_numbers_are_a_value_error_in_one_sentence(call):
    with pytest.raises(ValueError) as caught:
        call()
    assert 20 < len(str(caught.value)) < 160 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedule.budgeted(Chain.uniform(3), 30.0),
        lambda: schedule.budgeted(Chain.uniform(3), True),
        lambda: schedule.segments(Chain.uniform(3), 1.5),
        lambda: schedule.measure([lambda x: (x, x)], torch.ones(1)),
    ],
)
def test_the_wrong_kind_of_thing_is_a_type_error_in_one_sentence(call):
    with pytest.raises(TypeError) as caught:
        call()
    assert 20 < len(str(caught.value)) < 160 and "\n" not in str(caught.value)


def test_blocks_without_cost_or_bytes_are_fine():
    chain = Chain((Data(0, 0, 0, 0), Data(4, 9, 2, 3), Data(0, 0, 0, 0), Data(5, 0, 1, 0)), output_bytes=0)
    plan = schedule.budgeted(chain, schedule.minimum(chain))
    assert plan.peak_bytes == schedule.minimum(chain)
    assert schedule.budgeted(Chain.uniform(5, 0, 0, 0, 0), 0).recompute_cost == 0
