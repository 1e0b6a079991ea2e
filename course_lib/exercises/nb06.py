"""The exercises of notebook 06: segments (06.1, 06.2) and the executor (06.3). 06.4 to 06.8: nb06b, nb06c."""

from __future__ import annotations

import random

import torch
from torch import nn

from course_lib.sandbox.explain import explain

from . import answers06 as a
from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .trees06 import blocks_of, count, depth
from .want import shown, want_int, want_tensor, want_true

# -- values over many cases ----------------------------------------------------------------------------


def want_values(got, right, mistakes, told) -> None:
    """All values right, or the Fault of the mistake that explains every one of them.

    mistakes: (diagnosis, values, words). told(i): a sentence on case i, for an answer that nothing explains.
    """
    wrong = [i for i in range(len(right)) if got[i] != right[i]]
    if not wrong:
        return
    for diagnosis, values, words in mistakes:
        if got == values:
            raise Fault(diagnosis, words)
    raise Fault("wrong value", told(wrong[0]))


# -- 06.1 ----------------------------------------------------------------------------


def segment_cases(seed=None):
    """(blocks, segments, state, saved): small ones that can be counted by hand, then drawn ones."""
    draw = random.Random(seed)
    cases = [
        (6, 3, 1, 4),
        (6, 1, 1, 4),
        (6, 6, 1, 4),
        (7, 3, 1, 4),
        (10, 4, 1, 2),
        (9, 5, 3, 3),
        (1, 1, 2, 5),
    ]
    for _ in range(40):
        blocks = draw.randint(1, 60)
        state = draw.randint(1, 9)
        cases.append((blocks, draw.randint(1, blocks), state, state + draw.randint(0, 150)))
    return cases


def check_segments(answer):
    cases = segment_cases()
    got = [want_int(answer.call(*case), f"segments_peak{case}") for case in cases]
    right = [a.segments_peak(*case) for case in cases]

    def all_of(function):
        return [function(*case) for case in cases]

    want_values(got, right, [
        ("states forgotten", all_of(a.peak_no_states), "You count the activations of one segment, and "
         "nothing that waits: while a late segment runs backward, the inputs of all segments before it are "
         "still held."),
        ("activations forgotten", all_of(a.peak_states_only), "You count the inputs that are held. While a "
         "segment runs backward, the activations of its blocks are alive as well."),
        ("all segments at once", all_of(a.peak_all_segments), "You count the activations of all blocks. "
         "Segments run again one at a time: when one is done, its activations are gone before the next one "
         "is run."),
        ("longer segment forgotten", all_of(a.peak_floor), "Right where the segments are equally long. 7 "
         "blocks in 3 segments are 3 + 2 + 2: the first has one block more, and its moment may be the worst "
         "one."),
        ("not at one moment", all_of(a.peak_worst_of_both), "You add the worst number of states and the "
         "longest segment. They may belong to different moments: with 7 blocks in 3 segments the longest "
         "runs when no other input is held. Take the maximum over the moments, not over the parts."),
        ("input counted twice", all_of(a.peak_textbook), "You count the input of the segment at work, too. A "
         "block's saved bytes include its own input, so only the segments *before* it add a state."),
    ], lambda i: f"segments_peak{cases[i]} is {shown(got[i])}, but the worst moment has {right[i]:,} bytes. "
        "Write down the lengths of the segments; for each of them add the states of those before it and its "
        "own saved bytes; the largest sum is the peak.")  # fmt: skip


register(Exercise(
    id="06.1",
    title="The peak of k segments",
    prompt="Return the most bytes alive while any segment runs backward: the inputs of the segments before "
    "it, and the saved bytes of its own blocks.",
    reference=a.segments_peak,
    hints=(
        "How long are the segments? divmod(blocks, segments) gives the length of a short one, and how many "
        "have one more.",
        "When segment j (counted from 0) is at work, j inputs of earlier segments are held. Its own input is "
        "part of its first block's saved bytes.",
        "One candidate for each segment: j * state_bytes + length * saved_bytes. The peak is the largest of "
        "them.",
    ),
    checker=check_segments,
    wrong=(
        Wrong("only short segments", a.peak_floor, "longer segment forgotten"),
        Wrong("worst of both", a.peak_worst_of_both, "not at one moment"),
        Wrong("k states", a.peak_textbook, "input counted twice", "D0"),
        Wrong("true division", a.peak_division, "wrong type"),
        Wrong("all blocks", a.peak_all_segments, "all segments at once", "B76"),
        Wrong("no states", a.peak_no_states, "states forgotten"),
        Wrong("states only", a.peak_states_only, "activations forgotten"),
    ),
    unusual=(
        Unusual("the two moments that can be worst", a.peak_two_moments),
        Unusual("tensors", a.peak_tensor),
    ),
))  # fmt: skip

# -- 06.2 ----------------------------------------------------------------------------


def check_best(answer):
    draw = random.Random()
    cases = [(24, 1, 16), (16, 1, 1), (100, 1, 1), (48, 1, 3), (6, 1, 30), (5, 2, 2)]
    for _ in range(30):
        state = draw.randint(1, 5)
        cases.append((draw.randint(1, 90), state, state * draw.randint(1, 40)))
    got = [want_int(answer.call(*case), f"best_segments{case}") for case in cases]

    def peak(case, k):
        return a.segments_peak(case[0], k, *case[1:])

    least = [min(peak(case, k) for k in range(1, case[0] + 1)) for case in cases]
    right = [
        g if 1 <= g <= case[0] and peak(case, g) == low else None for case, g, low in zip(cases, got, least)
    ]

    def all_of(function):
        return [function(*case) for case in cases]

    def told(i):
        n, k = cases[i][0], got[i]
        if not 1 <= k <= n:
            return f"best_segments{cases[i]} is {shown(k)}, but {n} blocks make 1 to {n} segments only."
        return (f"best_segments{cases[i]} is {k}: that peaks at {peak(cases[i], k):,} bytes, and the best "
                f"number of segments at {least[i]:,}. Try every number with segments_peak.")  # fmt: skip

    want_values(got, right, [
        ("root of n", all_of(a.best_root), "sqrt(n) is best when a state and a block's activations are "
         "equally large. In a transformer block the activations are 16 times as large, so shorter segments "
         "pay: the smooth minimum is at sqrt(n * saved / state)."),
        ("upside down", all_of(a.best_upside_down), "The ratio is upside down: dear activations ask for "
         "short segments, so for *more* of them. Set the derivative of k * state + n / k * saved to zero "
         "once more."),
        ("more segments than blocks", all_of(a.best_unbounded), "sqrt(n * saved / state) can be larger than "
         "n. There are no more segments than blocks, and whole blocks make steps: compare the candidates "
         "with segments_peak."),
        ("smooth minimum", all_of(a.best_smooth), "Close: that is the minimum of the smooth curve k * state "
         "+ n / k * saved. Segments are whole blocks, and the longer ones come first, so the real curve has "
         "steps. For 48 blocks with 16 to 1 the smooth minimum is 28, and 32 segments need less. Compare all "
         "k with segments_peak."),
        ("the peak itself", all_of(a.best_peak), "You return how many bytes the best choice needs. Return "
         "the number of segments: min(..., key=...) gives the k and not its peak."),
        ("always per block", all_of(a.best_most), "As many segments as blocks are best only when activations "
         "are huge. For saved == state that holds n states at once."),
    ], told)  # fmt: skip


register(Exercise(
    id="06.2",
    title="The best number of segments",
    prompt="Return the number of segments (1 to blocks) with the lowest peak.",
    reference=a.best_segments,
    hints=(
        "You have the peak of any number of segments already. How many numbers are there to try?",
        "The textbook's square root is the minimum of a smooth curve; whole blocks make steps. There are few "
        "candidates: try all of them.",
        "min(range(1, blocks + 1), key=...) returns the k, not its peak.",
    ),
    checker=check_best,
    wrong=(
        Wrong("sqrt(n)", a.best_root, "root of n", "D0"),
        Wrong("rounded smooth minimum", a.best_smooth, "smooth minimum"),
        Wrong("ratio upside down", a.best_upside_down, "upside down"),
        Wrong("not limited to n", a.best_unbounded, "more segments than blocks"),
        Wrong("the peak", a.best_peak, "the peak itself"),
        Wrong("per block", a.best_most, "always per block", "D3"),
        Wrong("divisors of n only", a.best_divisors, "wrong value"),
    ),
    unusual=(
        Unusual("the largest of equals", a.best_largest_of_ties),
        Unusual("by segment length", a.best_by_length),
    ),
))  # fmt: skip

# -- 06.3 ----------------------------------------------------------------------------

TREES = (
    ((0, 1), 2),
    ((0,), (1,), (2,), 3),
    ((0, 1, 2), (3, 4, 5), 6, 7),
    (((0, 1), 2), 3),
    (((0,), 1), (2,), 3),
    (((((0,), 1), 2), (3,), 4), ((5,), 6), 7),
    (0, (1, (2,), 3), 4),
)


class Noted(nn.Module):
    """Linear and tanh; notes each call."""

    def __init__(self, number, log):
        super().__init__()
        self.number, self.log = number, log
        self.linear = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x):
        self.log.append(self.number)
        return torch.tanh(self.linear(x))


def check_executor(answer):
    for tree in TREES:
        _check_executor(answer, tree)


def _check_executor(answer, tree):
    log, n = [], len(blocks_of(tree))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n)
        blocks = [Noted(i, log) for i in range(n)]
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    right = x
    for block in blocks:
        right = block(right)
    right_gradients = torch.autograd.grad(right.square().sum(), [x, *_parameters(blocks)])
    log.clear()
    what = f"run_tree({tree}, blocks, x)"
    out = want_tensor(answer.call(tree, blocks, x, unchanged=(x,)), what, right.shape, right.dtype)
    order = f"The blocks ran in the order {log[:20]} and should run 0 to {n - 1}, each on what the one "
    "before it returned."
    want_true(log == list(range(n)) and torch.allclose(out, right), "wrong output", f"{what}: {order}")
    want_true(out.requires_grad, "no gradient", f"{what} returns a tensor without a graph. A block that ran "
              "under no_grad cannot be gone back through; checkpoint(...) builds the way back.")  # fmt: skip
    log.clear()
    try:
        out.square().sum().backward()
    except Exception as error:
        _name_error(answer, tree, error, what)
    gradients = [x.grad, *(p.grad for p in _parameters(blocks))]
    missing = [i for i, g in enumerate(gradients) if g is None]
    want_true(not missing, "no gradient", f"{what}: after backward, {len(missing)} of {len(gradients)} "
              "gradients are None. Nothing may run under no_grad: checkpoint(...) builds the way "
              "back.")  # fmt: skip
    _want_order(tree, log, what)
    same = all(torch.allclose(g, r, rtol=1e-9, atol=1e-12) for g, r in zip(gradients, right_gradients))
    want_true(same, "wrong gradient", f"{what} leaves other gradients than the plain model. {LATE}")


LATE = (
    "Does a checkpointed function look up a loop variable? When backward calls it, the loop is long over and "
    "the variable holds the last part: hand the part over as an argument."
)


def _parameters(blocks):
    return [p for block in blocks for p in block.parameters()]


def _name_error(answer, tree, error, what):
    texts = ("stands for another", "different number of tensors", "'int' object")
    if any(text in str(error) for text in texts):
        raise Fault(
            "late binding", f"{what}: in backward a stretch does not run as it ran in forward. {LATE}"
        ) from None
    fault = explain(error, answer._function, answer.name, ((), {}))
    words = fault.message if fault is not None else f"{type(error).__name__}: {error}"
    raise Fault("raised", f"{what}: the backward pass fails. {words}"[:690]) from None


def _want_order(tree, log, what):
    right = list(count(tree).again)
    if log == right:
        return
    tops = [blocks_of(part) for part in reversed(tree) if not isinstance(part, int)]
    flat = [number for stretch in tops for number in stretch]
    told = f"{what}: in backward the blocks {log} ran again, but this tree asks for {right}."
    want_true(log, "nothing checkpointed", f"{what}: no block ran again in backward, so all activations were "
              "kept. A part that is a tuple must go through checkpoint(...).")  # fmt: skip
    whole = list(range(len(blocks_of(tree))))
    wrapped = log[: len(whole)] == whole and right[: len(whole)] != whole
    want_true(not wrapped, "everything checkpointed", f"{told} The whole tree lies in one checkpoint: its "
              "own parts come first, then the checkpoints inside it.")  # fmt: skip
    want_true(log != flat or depth(tree) < 2, "one level only", f"{told} The stretches inside a stretch were "
              "run with all their activations: call run_tree for them again, inside the "
              "checkpoint.")  # fmt: skip
    more = [number for number in log if log.count(number) > right.count(number)]
    if more:
        raise Fault("kept blocks run again", f"{told} Block {more[0]} runs too often: a part that is a "
                    "number is run plainly, so that its activations are kept.")  # fmt: skip
    fewer = [number for number in right if log.count(number) < right.count(number)]
    if fewer:
        raise Fault("stretch not checkpointed", f"{told} Block {fewer[0]} runs too seldom: some tuple did "
                    "not go through a checkpoint of its own.")  # fmt: skip
    raise Fault("late binding", f"{told} {LATE}")


register(Exercise(
    id="06.3",
    title="A tree becomes checkpoints",
    prompt="Run the parts of a tree one after the other: a number is a block and runs plainly, a tuple is a "
    "stretch and runs inside a checkpoint, by the same rules.",
    reference=a.run_tree,
    hints=(
        "One loop over the parts; what a part returns is the next one's input.",
        "isinstance(part, int) tells the two kinds apart. A stretch is a tree, too: which function can run "
        "it?",
        "checkpoint(function, *args) calls function(*args) now and in backward. Take run_tree itself as the "
        "function, and give it the part, the blocks and x as arguments: a lambda would look up `part` when "
        "the loop is over.",
    ),
    checker=check_executor,
    wrong=(
        Wrong("lambda over the loop variable", a.run_late_bound, "late binding", "B73"),
        Wrong("the same with torch's checkpoint", a.run_late_bound_torch, "late binding", "B73"),
        Wrong("inner stretches flattened", a.run_flat, "one level only"),
        Wrong("blocks checkpointed as well", a.run_every_block, "kept blocks run again"),
        Wrong("no checkpoint at all", a.run_nothing, "nothing checkpointed"),
        Wrong("no_grad instead", a.run_no_grad, "no gradient", "B56"),
        Wrong("the whole tree in one checkpoint", a.run_whole, "everything checkpointed", "B76"),
        Wrong("every part gets the first input", a.run_same_input, "wrong output"),
        Wrong("innermost stretches only", a.run_leaves, "stretch not checkpointed"),
    ),
    unusual=(
        Unusual("reduce, partial, torch's checkpoint", a.run_partial),
        Unusual("a lambda that binds its part", a.run_bound),
    ),
))  # fmt: skip

from . import nb06b, nb06c  # noqa: E402, F401  06.4 to 06.8
