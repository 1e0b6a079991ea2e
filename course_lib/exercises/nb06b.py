"""The exercises of notebook 06 on trees: nested halves (06.4), the binomial count (06.5) and tree (06.6)."""

from __future__ import annotations

import math
import random

from . import answers06, answers06b as a
from .faults import Fault
from .nb06 import want_values
from .registry import Exercise, Unusual, Wrong, register
from .trees06 import blocks_of, count, fewest_again, want_tree
from .want import shown, want_int, want_true

# -- 06.4 ----------------------------------------------------------------------------


def check_nested(answer):
    draw = random.Random()
    cases = [
        (0, 1),
        (0, 2),
        (3, 5),
        (0, 4),
        (0, 8),
        (0, 64),
        (2, 33),
        (7, 100),
        (draw.randint(0, 9), draw.randint(9, 80)),
    ]
    for first, blocks in cases:
        what = f"nested({first}, {blocks})"
        tree = want_tree(answer.call(first, blocks), first, blocks, what)
        _want_halves(tree, blocks, what)


def _want_halves(tree, blocks, what):
    seen = count(tree)
    levels = math.ceil(math.log2(blocks)) if blocks > 1 else 0
    plain = blocks_of(tree) == list(tree)
    want_true(not plain or blocks == 1, "nothing checkpointed", f"{what} holds no stretch: all {blocks} "
              "blocks keep their activations.")  # fmt: skip
    want_true(len(tree) > 1 or isinstance(tree[0], int), "one big stretch", f"{what} is a single stretch "
              "around everything: its input is held anyway, and all blocks run once more for "
              "nothing.")  # fmt: skip
    want_true(isinstance(tree[-1], int), "last half checkpointed", f"{what} ends with a checkpointed "
              "stretch. Backward begins right there, so what was thrown away is needed at once. Only the "
              "first half is a stretch of its own; the parts of the second half go on in this tuple "
              "(`*nested(...)`).")  # fmt: skip
    want_true(seen.kept == 1, "activations pile up", f"{what}: at some moment the activations of {seen.kept} "
              "blocks are alive. Halve again until one block is left, on both sides.")  # fmt: skip
    want_true(seen.states <= levels, "too many states", f"{what} holds {seen.states} inputs at once; halving "
              f"holds one for each level, so at most {levels}. Is the first half *one* part of the "
              "tuple?")  # fmt: skip
    most = _halving(blocks)
    want_true(len(seen.again) <= most, "unequal halves", f"{what} runs {len(seen.again)} blocks again; equal "
              f"halves need at most {most}: half of the blocks for each of {levels} levels.")  # fmt: skip


def _halving(blocks):
    """Blocks that run again if the larger half is the one that does."""
    if blocks == 1:
        return 0
    left = (blocks + 1) // 2
    return left + _halving(left) + _halving(blocks - left)


register(Exercise(
    id="06.4",
    title="Nested halves",
    prompt="Return the tree for `blocks` blocks, numbered from `first`: the first half is one checkpointed "
    "stretch, the second half follows, and both are halved again until one block is left.",
    reference=answers06.nested,
    hints=(
        "What is the tree of a single block? It is a tuple with one part.",
        "The first half is *one part*: a tuple. The parts of the second half are parts of this tuple.",
        "With half = blocks // 2: nested(first, half) is the stretch; nested(first + half, blocks - half) "
        "gives the parts that follow; `*` unpacks them.",
    ),
    checker=check_nested,
    wrong=(
        Wrong("no stretch", answers06.nested_flat, "nothing checkpointed"),
        Wrong("per block", answers06.nested_per_block, "too many states"),
        Wrong("both halves checkpointed", answers06.nested_both, "last half checkpointed", "B76"),
        Wrong("first forgotten", answers06.nested_forgets_first, "wrong blocks"),
        Wrong("first half kept flat", answers06.nested_right_only, "activations pile up"),
        Wrong("second half kept flat", answers06.nested_left_only, "activations pile up"),
        Wrong("all in one stretch", answers06.nested_wrapped, "one big stretch", "D3"),
        Wrong("segments of sqrt(n)", answers06.nested_root, "activations pile up"),
        Wrong("one block and the rest", answers06.nested_one_by_one, "unequal halves"),
        Wrong("second half first", answers06.nested_reversed, "wrong order"),
    ),
    unusual=(
        Unusual("the larger half first, as lists", answers06.nested_larger_left),
        Unusual("a loop to the right", answers06.nested_loop),
        Unusual("slices of a list", answers06.nested_list),
    ),
))  # fmt: skip

# -- 06.5 ----------------------------------------------------------------------------


def check_longest(answer):
    draw = random.Random()
    cases = [(1, 1), (1, 5), (2, 2), (3, 2), (5, 1), (8, 3), (10, 4), (4, 0), (0, 3)]
    cases += [(draw.randint(1, 14), draw.randint(1, 14)) for _ in range(20)]
    got = [want_int(answer.call(*case), f"longest_chain{case}") for case in cases]
    right = [math.comb(s + r, s) for s, r in cases]

    def all_of(function):
        return [function(*case) for case in cases]

    want_values(got, right, [
        ("slots times repeats", all_of(a.longest_product), "That is the length if every slot could serve "
         "each repeat once. But the part behind a slot has the other slots for itself, and again all its "
         "repeats: lengths multiply up. Already 2 slots and 2 repeats reach 6 blocks."),
        ("powers", all_of(a.longest_powers), "That would be right if all slots were free again for every "
         "part. The part to the right of a held state has one slot less."),
        ("slot and repeat less", all_of(a.longest_both_less), "You take a slot away from the left part, too. "
         "When the left part runs, the right part is done and its slots are free again: the left part has "
         "all slots, and one repeat less because it has been run once."),
        ("one less", all_of(a.longest_not_less), "One off: with r repeats you return what r - 1 repeats "
         "reach. With 1 slot and 1 repeat two blocks can be done: run block 0, keep block 1's activations, "
         "run block 0 again."),
        ("last block forgotten", all_of(a.longest_swapped), "One block is missing: the last one keeps its "
         "activations, and needs no slot and no repeat."),
        ("last block forgotten", all_of(a.longest_no_last), "A chain of one block needs no slot and no "
         "repeat, so the count begins with 1 there, not with 0."),
        ("doubling", all_of(a.longest_doubling), "Halving doubles the length with each slot and repeat. The "
         "best split is not in the middle: the left part has more slots, the right part more repeats."),
    ], lambda i: f"longest_chain{cases[i]} is {shown(got[i])}, but {right[i]:,} blocks are possible. The "
        "chain splits into a left part (all slots, one repeat less) and a right part (one slot less, all "
        "repeats).")  # fmt: skip


register(Exercise(
    id="06.5",
    title="The longest chain",
    prompt="Return the largest number of blocks that `slots` held states can serve when no block runs again "
    "more than `repeats` times.",
    reference=a.longest_chain,
    hints=(
        "Split the longest chain at its second held state. How many slots and repeats has the part on the "
        "right? The one on the left?",
        "Right: one slot less, all repeats. Left: all slots, but it has been run once already. A single "
        "block needs neither.",
        "beta(s, r) = beta(s, r - 1) + beta(s - 1, r), with 1 at the edges. That is Pascal's triangle.",
    ),
    checker=check_longest,
    wrong=(
        Wrong("product", a.longest_product, "slots times repeats"),
        Wrong("powers", a.longest_powers, "powers"),
        Wrong("a slot less on both sides", a.longest_both_less, "slot and repeat less"),
        Wrong("one repeat less", a.longest_not_less, "one less"),
        Wrong("without the last block", a.longest_swapped, "last block forgotten"),
        Wrong("zero at the edges", a.longest_no_last, "last block forgotten"),
        Wrong("halving", a.longest_doubling, "doubling"),
    ),
    unusual=(
        Unusual("the recursion itself", a.longest_recursive),
        Unusual("running sums", a.longest_sums),
        Unusual("a product of fractions", a.longest_quotient),
    ),
))  # fmt: skip

# -- 06.6 ----------------------------------------------------------------------------


def check_binomial(answer):
    draw = random.Random()
    cases = [(0, 1, 1), (0, 2, 1), (0, 5, 1), (0, 10, 3), (2, 12, 4), (0, 6, 8), (0, 24, 2), (5, 33, 5)]
    cases += [(draw.randint(0, 5), draw.randint(2, 30), draw.randint(1, 7)) for _ in range(6)]
    for first, blocks, slots in cases:
        what = f"binomial({first}, {blocks}, {slots})"
        tree = want_tree(answer.call(first, blocks, slots), first, blocks, what)
        _want_fewest(tree, first, blocks, slots, what)


def _want_fewest(tree, first, blocks, slots, what):
    seen, fewest = count(tree), fewest_again(blocks, slots)
    want_true(seen.kept == 1, "activations pile up", f"{what}: at some moment the activations of {seen.kept} "
              "blocks are alive. A slot holds a state; activations are kept for one block at a time, so each "
              "stretch is split down to single blocks.")  # fmt: skip
    have = f"{slots} slots" if slots > 1 else "1 slot"
    want_true(seen.states <= slots, "too many slots", f"{what} holds {seen.states} states at once and "
              f"has {have}. What is right of a held state has one slot less.")  # fmt: skip
    if len(seen.again) == fewest:
        return
    told = f"{what} runs {len(seen.again)} blocks again; {fewest} are enough."
    if slots > 1 and len(seen.again) == fewest_again(blocks, slots - 1):
        raise Fault("a slot unused", f"{told} That is the best for {slots - 1} slots. The input of the whole "
                    "chain takes one of the slots, and the last block needs none.")  # fmt: skip
    for diagnosis, wrong, words in (
        ("slot not given back", a.binomial_not_given_back, "The left stretch runs when all to its right is "
         "done: it has all slots again, not one less."),
        ("split mirrored", a.binomial_mirrored, "The lengths of the two stretches are changed over: the left "
         "one runs again, so it is the one whose length is paid for."),
        ("equal stretches", a.binomial_equal, "You cut equal stretches. The left part has more slots but one "
         "repeat less; the best length follows from min over k of k + t(k, s) + t(n - k, s - 1)."),
    ):  # fmt: skip
        if want_tree(wrong(first, blocks, slots), first, blocks, what) == tree:
            raise Fault(diagnosis, f"{told} {words}")
    raise Fault("split not best", f"{told} Try every length k of the first stretch: k to run it again, t(k, "
                "s) inside it, t(n - k, s - 1) for the rest.")  # fmt: skip


register(Exercise(
    id="06.6",
    title="The binomial tree",
    prompt="Return the tree with the fewest extra forwards for `blocks` blocks, numbered from `first`, that "
    "holds at most `slots` states at once and keeps the activations of one block at a time.",
    reference=a.binomial,
    hints=(
        "The shape is that of `nested`: a stretch of the first k blocks, then the parts of the rest. Only k "
        "is new.",
        "What does a split at k cost? The stretch runs again, k forwards, with all slots inside it; the rest "
        "has one slot less. Without a slot only a single block is possible.",
        "t(n, s) = min over k of k + t(k, s) + t(n - k, s - 1); t(1, s) = 0; t(n, 0) is infinite for n > 1.",
        "Write t with functools.cache so that it returns the best k as well, then build the tree with it.",
    ),
    checker=check_binomial,
    wrong=(
        Wrong("halves, whatever the slots", a.binomial_bisect, "too many slots"),
        Wrong("halves while there are slots", a.binomial_bisect_slots, "split not best"),
        Wrong("per block", a.binomial_per_block, "too many slots"),
        Wrong("a slot less than there are", a.binomial_one_less, "a slot unused"),
        Wrong("lengths changed over", a.binomial_mirrored, "split mirrored"),
        Wrong("slots not given back", a.binomial_not_given_back, "slot not given back"),
        Wrong("equal stretches", a.binomial_equal, "equal stretches"),
        Wrong("stretches with all activations", a.binomial_keeps, "activations pile up"),
    ),
    unusual=(
        Unusual("the closed form, no search", a.binomial_closed),
        Unusual("the longest of equally good stretches", a.binomial_latest),
    ),
    time_limit=30.0,
))  # fmt: skip
