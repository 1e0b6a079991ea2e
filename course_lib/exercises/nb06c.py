"""The exercises of notebook 06 on bytes: the cheapest plan that fits (06.7), selective recompute (06.8)."""

from __future__ import annotations

import math
import random

from . import answers06c as c
from .faults import Fault
from .nb06 import want_values
from .registry import Exercise, Unusual, Wrong, register
from .trees06 import Rules, least
from .want import shown, want_number, want_sequence, want_true

# -- 06.7 ----------------------------------------------------------------------------


def chains(draw, number):
    """(cost, state, saved, budget) of random chains of 1 to 7 blocks; budgets from too small to ample."""
    for _ in range(number):
        n = draw.randint(1, 7)
        state = [draw.randint(1, 6) for _ in range(n + 1)]
        saved = [state[i] + draw.randint(0, 24) for i in range(n)]
        cost = [draw.randint(1, 9) for _ in range(n)]
        # the least possible and what keeping everything takes
        low = max(saved[i] + state[i] + state[i + 1] for i in range(n))
        high = sum(saved) + state[-1] + state[-2]
        yield cost, state, saved, draw.randint(max(1, low - 4), high + 2)


def check_least(answer):
    cases = [
        ([1, 1, 1], [1, 1, 1, 1], [4, 4, 4], 14),  # all kept: 4 + 4 + 4 + two gradients
        ([1, 1, 1], [1, 1, 1, 1], [4, 4, 4], 13),
        ([1, 1, 1], [1, 1, 1, 1], [4, 4, 4], 5),
        ([9, 1, 1, 9], [1, 1, 1, 1, 1], [8, 8, 8, 8], 26),
        ([1] * 6, [1] * 7, [6] * 6, 11),
        ([1] * 7, [1] * 8, [3] * 7, 7),
        *chains(random.Random(6), 60),
        *chains(random.Random(), 30),
    ]
    got = [_cost(answer.call(*map(list, case[:3]), case[3]), case) for case in cases]
    want_true(any(value < math.inf for value in got), "returned nothing", "least_recompute finds no plan for "
              "any chain, not even where everything could be kept. A function without `return` returns "
              "None.")  # fmt: skip
    right = [least(*case) for case in cases]

    def without(**what):
        return [least(*case, Rules(**what)) for case in cases]

    def told(i):
        cost, state, saved, budget = cases[i]
        case = f"least_recompute(cost={cost}, state={state}, saved={saved}, budget={budget})"
        right_now = "no plan fits (math.inf)" if right[i] == math.inf else f"the least is {right[i]}"
        way = "There is a cheaper plan that fits: look for a choice that you do not try."
        if got[i] < right[i]:
            way = "No plan within the budget is so cheap: something that is alive is not counted."
        return f"{case} is {_said(got[i])}, but {right_now}. {way}"

    want_values(got, right, [
        ("transient forgotten", [c.least_no_transient(*case) for case in cases], "You plan what is *kept*. A "
         "stretch that is thrown away comes back in backward with all its activations, and they must fit, "
         "too. Shipping planners make this mistake; their real peaks are up to twice the budget."),
        ("transient forgotten", without(transient=False), "A stretch that runs again needs room for its "
         "activations while its blocks run backward: the left part is a plan under the budget, too."),
        ("states forgotten", without(states=False), "The input of a checkpointed stretch stays while "
         "everything to its right runs backward: the right part has state[i] bytes less room."),
        ("gradients forgotten", without(gradients=False), "While block i runs backward, the gradient that "
         "comes in (state[i + 1] bytes) and the one that goes out (state[i]) are alive beside its saved "
         "bytes."),
        ("one level only", without(deeper=False), "Your stretches keep all activations when they run again. "
         "Inside a stretch the same choice is open: keep a block or checkpoint a shorter stretch."),
        ("never keeps", without(keep=False), "You only ever checkpoint. A block whose activations fit beside "
         "the rest need not run again: try best(i + 1, j, room - saved[i]) as well."),
        ("room not given back", without(given_back=False), "When the left stretch runs again, the right part "
         "is done and its room is free: the left part has the whole room, its own input included."),
        ("blocks counted", without(in_cost=False), "You count how many blocks run again. Add up what they "
         "cost: sum(cost[i:k])."),
        ("greedy", [c.least_greedy(*case) for case in cases], "You drop the largest blocks first, one by "
         "one. The largest may be the dearest to run again, and stretches of several blocks hold fewer "
         "states. Try all splits."),
        ("inner repeats forgotten", [c.least_inner_free(*case) for case in cases], "A stretch that runs "
         "again may hold a shorter one that runs a third time. Add what the left part costs inside: best(i, "
         "k, room)."),
        ("impossible not told", [c.least_never_fails(*case) for case in cases], "For a budget that no plan "
         "meets you return a number. Return math.inf (or None): then `min` over the choices drops it by "
         "itself."),
    ], told)  # fmt: skip


def _cost(value, case):
    if value is None or type(value) is float and value == math.inf:
        return math.inf
    return want_number(value, f"the cost for a chain of {len(case[0])} blocks")


def _said(value):
    return "math.inf" if value == math.inf else shown(value)


register(Exercise(
    id="06.7",
    title="The cheapest plan that fits",
    prompt="Return the least total cost of the blocks that run again, over all trees whose backward never "
    "needs more than `budget` bytes; math.inf if there is none.",
    reference=c.least_recompute,
    hints=(
        "Solve it for stretches: best(i, j, room) is the least cost for the blocks i to j-1, when everything "
        "alive in that stretch, its input and its gradients included, must fit into `room` bytes. What can "
        "happen to block i?",
        "Block i itself needs saved[i] + state[i] + state[i + 1] when it runs backward. If that is more than "
        "the room: math.inf. If it is the only block: 0.",
        "Either keep block i: the rest has saved[i] bytes less. Or checkpoint the blocks i to k-1, for every "
        "k: the right part has state[i] bytes less; then the stretch runs again, which costs sum(cost[i:k]) "
        "and what it needs inside.",
        "The second choice: best(k, j, room - state[i]) + sum(cost[i:k]) + best(i, k, room). Put "
        "functools.cache on best.",
    ),
    checker=check_least,
    wrong=(
        Wrong("largest blocks first", c.least_greedy, "greedy", "B76"),
        Wrong("a knapsack of saved bytes", c.least_no_transient, "transient forgotten"),
        Wrong("states are free", c.least_no_states, "states forgotten"),
        Wrong("gradients are free", c.least_no_gradients, "gradients forgotten"),
        Wrong("one level of checkpoints", c.least_one_level, "one level only"),
        Wrong("counts blocks", c.least_counts_blocks, "blocks counted"),
        Wrong("the input's room stays taken", c.least_not_given_back, "room not given back"),
        Wrong("never keeps a block", c.least_keeps_none, "never keeps"),
        Wrong("repeats inside are free", c.least_inner_free, "inner repeats forgotten"),
        Wrong("a number when nothing fits", c.least_never_fails, "impossible not told"),
    ),
    unusual=(
        Unusual("None, and floats", c.least_none),
        Unusual("bottom-up trade-offs", c.least_from_the_right),
    ),
    time_limit=30.0,
))  # fmt: skip

# -- 06.8 ----------------------------------------------------------------------------


def operator_lists(draw):
    """(operators, need): some of them free, and a need that all of them together can meet."""
    for _ in range(25):
        found = []
        for i in range(draw.randint(1, 9)):
            flops = draw.choice([0, draw.randint(1, 400), draw.randint(100, 4000)])
            found.append((f"op{i}", draw.randint(1, 40), flops))
        yield found, draw.randint(0, sum(nbytes for _, nbytes, _ in found))


def check_cheap(answer):
    fixed = [
        ([("matmul", 4, 4000), ("gelu", 4, 40), ("norm", 1, 8), ("dropout mask", 1, 0)], 5),
        ([("a", 10, 1000), ("b", 1, 1), ("c", 10, 100)], 10),
        ([("a", 3, 30)], 0),
    ]
    cases = [*fixed, *operator_lists(random.Random(8)), *operator_lists(random.Random())]
    got = []
    for operators, need in cases:
        names = want_sequence(
            answer.call(list(operators), need), f"cheap_first for {len(operators)} operators"
        )
        known = {one[0] for one in operators}
        strange = [name for name in names if type(name) is not str or name not in known]
        want_true(not strange, "wrong names", "cheap_first should return names of operators, such as "
                  f"{operators[0][0]!r}; it holds {shown(strange[0]) if strange else ''}.")  # fmt: skip
        want_true(len(set(names)) == len(names), "name twice", "An operator's output can be thrown away only "
                  "once, but a name stands in your list twice.")  # fmt: skip
        got.append(set(names))

    wrong = [i for i, case in enumerate(cases) if not _good_choice(*case, got[i])]
    if not wrong:
        return

    def all_of(function):
        return [set(function(*case)) for case in cases]

    mistakes = [
        ("largest first", all_of(c.cheap_by_bytes), "You take the largest outputs first, whatever they cost. "
         "A matrix product's output is large and dear; look at FLOPs per byte freed."),
        ("cheapest first", all_of(c.cheap_by_flops), "You take the operators with the fewest FLOPs first, "
         "whatever they free. Many tiny outputs cost more than one large cheap one; look at FLOPs per byte "
         "freed."),
        ("dearest first", all_of(c.cheap_backwards), "Your order is the wrong way round: it begins with the "
            "most FLOPs per byte."),
        ("not sorted", all_of(c.cheap_in_order), "You take the operators as they come. Sort them by FLOPs "
            "per byte freed."),
        ("never stops", all_of(c.cheap_all), "You throw away everything. Stop as soon as `need` bytes are "
         "freed: what is kept need not run again."),
        ("kept, not thrown away", all_of(c.cheap_kept), "You return the operators whose outputs are kept. "
         "Asked are those that run again."),
        ("free ones only", all_of(c.cheap_free_only), "You take the operators without FLOPs and no others. "
         "Go on up the ratio until `need` bytes are freed."),
    ]  # fmt: skip
    for diagnosis, values, words in mistakes:
        want_true(got != values, diagnosis, words)
    operators, need = cases[wrong[0]]
    freed = sum(nbytes for name, nbytes, _ in operators if name in got[wrong[0]])
    paid = sum(flops for name, _, flops in operators if name in got[wrong[0]])
    told = f"For {operators} and need={need} you throw away {sorted(got[wrong[0]])}: {freed} bytes for "
    f"{paid} FLOPs."
    want_true(freed >= need, "frees too little", f"{told} That is less than needed: go on until at least "
              "`need` bytes are freed.")  # fmt: skip
    raise Fault("wrong choice", f"{told} Take the operators in order of FLOPs per byte, and stop as soon as "
                "it is enough.")  # fmt: skip


def _good_choice(operators, need, chosen) -> bool:
    """A shortest prefix in some order of FLOPs per byte; among equal ratios any order is as good."""
    inside = [one for one in operators if one[0] in chosen]
    if sum(nbytes for _, nbytes, _ in inside) < need or not inside:
        return need <= 0 and not inside
    worst = max(flops / nbytes for _, nbytes, flops in inside)
    if any(flops / nbytes < worst for name, nbytes, flops in operators if name not in chosen):
        return False
    last = max(nbytes for _, nbytes, flops in inside if flops / nbytes == worst)
    return sum(nbytes for _, nbytes, _ in inside) - last < need


register(Exercise(
    id="06.8",
    title="Cheap and large first",
    prompt="operators is a list of (name, bytes, flops): what keeping an output takes, and what it costs to "
    "make it again. Return the names to throw away, in order of FLOPs per byte freed, as few as free at "
    "least `need` bytes.",
    reference=c.cheap_first,
    hints=(
        "What is a good bargain: many bytes freed for few FLOPs. Which quotient says that, and may its "
        "divisor be zero?",
        "FLOPs per byte: flops / bytes. Small is good, and no output has 0 bytes. Sort by it.",
        "Walk through sorted(operators, key=lambda one: one[2] / one[1]) and add up the bytes; stop when "
        "they reach need.",
    ),
    checker=check_cheap,
    wrong=(
        Wrong("by bytes", c.cheap_by_bytes, "largest first"),
        Wrong("by FLOPs", c.cheap_by_flops, "cheapest first"),
        Wrong("wrong way round", c.cheap_backwards, "dearest first"),
        Wrong("divides by FLOPs", c.cheap_divides_by_zero, "raised"),
        Wrong("as they come", c.cheap_in_order, "not sorted"),
        Wrong("all of them", c.cheap_all, "never stops"),
        Wrong("stops before it is enough", c.cheap_stops_early, "frees too little"),
        Wrong("returns what is kept", c.cheap_kept, "kept, not thrown away"),
        Wrong("free ones only", c.cheap_free_only, "free ones only"),
    ),
    unusual=(
        Unusual("bytes per FLOP, infinite for free ones", c.cheap_bytes_per_flop),
        Unusual("the best of the rest, again and again", c.cheap_one_by_one),
        Unusual("of equal ratios the largest first", c.cheap_large_ties),
    ),
))  # fmt: skip
