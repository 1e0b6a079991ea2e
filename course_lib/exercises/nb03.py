"""The exercises of notebook 03: the faults of the documents here, the gallery in shown03.py and shown03b.py."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.measure import Meter

from . import answers03 as a
from . import odd03 as b
from . import gallery03 as g
from . import shown03, shown03b  # noqa: F401  (they register the gallery)
from .case03 import EIGHT, GIVEN, Case, add, copied
from .faults import Fault
from .names03 import diagnosis, want_diagnosis
from .registry import Exercise, Unusual, Wrong, register
from .want import want_close, want_tensor, want_true

TEN = ((4,) * 10, 4)

add("03.1", Case(
    reference=a.d2_loop, given=a.d2_loop_given, also=("cleared too early", "wrong window"), shows=(TEN,),
    asks="the weights of 8 micro-batches in the only update that they get, K = 4",
    nudge="Which gradients survive the clear at the top? And by what was the one that does divided?",
    against="Ask when the two lines behind the inner loop run, and what the line at its top leaves in `.grad`.",
    near={
        "no backward": "backward() stands in the loop and runs for each micro-batch.",
        "tail dropped": "With 10 micro-batches it is not only the last two that get no update.",
        "cleared on the wrong side": "Count how often the line at the top runs in one window: it is not once.",
        "not cleared": "It is cleared all the time.",
    },
),
    title="The second document's loop",
    story="Predict what the loop does with 10 micro-batches and with 8. Repair it for whole windows.",
    hints=(
        "Run it in your head, with 10 micro-batches: what is i when the inner loop is over?",
        "With 8, the update does happen. `.grad` was cleared before each backward: which micro-batches are in it?",
        "Two lines are in the wrong place: one must leave the inner loop's top, the other block must move into the loop.",
    ),
    proof=[1 / 4] * 8, misnamed="not divided", unmended="wrong window",
    wrong=(
        ("only the update moved", a.d2_half_indented, "cleared too early", "B01"),
        ("only the clear moved", a.d2_half_cleared, "wrong window", ""),
        ("never clears", b.never_clears, "not cleared", ""),
    ),
    unusual=(("clears at the start of a window", a.pseudo_own_sum),),
)  # fmt: skip

add("03.2", Case(
    reference=a.d2_pseudo, given=a.d2_pseudo_given,
    asks="(what `loss.grad` is, `step` after 10 micro-batches, how many of 10 tests `step % 4 == 0` would be true)",
    nudge="`loss` is computed, no leaf; nothing in the loop changes `step`; what is 0 % 4?",
    against="Look for the line that computes gradients.",
    near={"no update": "optimizer.step() stands in the loop and would be called. What would it find in `.grad`?"},
),
    title="The second document's pseudo-code",
    story="Four things are wrong in this sketch. Name the one without which no gradient exists. Repair it for whole windows.",
    hints=(
        "`loss.grad` is what backward() would store for the tensor `loss`. Who calls backward()? Is `loss` a leaf?",
        "The optimizer reads `.grad` of the parameters. A sum in a variable of your own never reaches it.",
        "Replace the sum by backward() on the divided loss; count step up before the test; clear with zero_grad().",
    ),
    proof=(0, 0, 10), misnamed="not cleared", unmended="raised",
    wrong=(
        ("counter stands still", a.pseudo_only_backward, "update every micro-batch", ""),
        ("counts after the test", a.pseudo_counts_late, "wrong window", "B08"),
        ("a sum that the optimizer never sees", a.pseudo_sum_unseen, "no gradient", ""),
        ("no division", g.loud_gradients_given, "not divided", "B04"),
    ),
    unusual=(("keeps a sum of its own and hands it over", a.pseudo_own_sum),),
)  # fmt: skip

add("03.3", Case(
    reference=a.d0_loop, given=a.d0_loop_given, data=(TEN, ((4,) * 7, 3), ((4,) * 3, 4), EIGHT),
    asks="the length of the last update's gradient as a share of what it should be, 10 micro-batches, K = 4",
    nudge="How many micro-batches does the last window have, and by what is each of them divided?",
    against="Eight of the ten micro-batches are treated as they should be, and the last two do get an update. Look at its size.",
    near={
        "tail dropped": "The second half of the `if` makes an update for the last two micro-batches.",
        "divided twice": "That would be true of every window. Here the first two are right.",
    },
),
    title="The first document's loop",
    story="The loop updates at the end of the epoch, too. Predict the last update for 10 micro-batches and K = 4. Repair it.",
    hints=(
        "Write down the weights of the last window's micro-batches. What should they add up to?",
        "Each window's losses are to be divided by the number of micro-batches of that very window.",
        "len(batches) % accumulation_steps is the length of the tail, 0 if there is none.",
    ),
    proof=2, misnamed="tail leaks",
    wrong=(
        ("leaves the tail out", a.d0_drops, "tail dropped", "B10"),
        ("divides all by the tail's length", a.d0_all_small, "all scaled", ""),
        ("leaves the tail in .grad", g.jumpy_epochs_given, "tail leaks", "B12"),
    ),
    unusual=(("stretches the tail's gradient", a.d0_rescales), ("shares of rows", g.odd_sizes)),
)  # fmt: skip


# -- 03.4 the same model, but for two lines -------------------------------------------------------------------------

WIDTH = 6


def check_model(answer):
    model = getattr(answer, "_function", answer)

    def probe():
        answer(WIDTH)

    want_diagnosis(
        model, ("another function",), a.Checkpointed.proof, "Both run one forward, and both can be trained; put a number through "
        "each of them by hand and compare.", {},
        "(output of the plain model, output of the checkpointed one) for input 1, width 1, every weight -1, every bias 0",
        "Go through it line by line: -1 times 1, then what? torch.relu(-1) is 0.", probe,
    )  # fmt: skip
    for seed in range(3):
        torch.manual_seed(seed)
        plain, mine = a.Plain(WIDTH).double(), answer(WIDTH)
        want_true(isinstance(mine, nn.Module), "wrong type", "`Checkpointed(width)` should make an nn.Module.")
        mine.double()
        try:
            mine.load_state_dict(plain.state_dict())
        except RuntimeError:
            raise Fault("other parameters", "The plain model's weights cannot be loaded into yours. Keep layer1, layer2 and "
                        "layer3.") from None  # fmt: skip
        calls = []
        for layer in (mine.layer1, mine.layer2, mine.layer3):
            layer.register_forward_pre_hook(lambda *_: calls.append(1))
        x = torch.randn(5, WIDTH, dtype=torch.float64)
        right, got = plain(x), mine(x)
        what = "Your model's output"
        hint_ = "with equal weights, both models must give the same. Compare their forward passes line by line."
        want_close(want_tensor(got, what, shape=right.shape), right, what, "another function", hint_, rel=1e-9)
        right.square().sum().backward()
        got.square().sum().backward()
        for name, parameter in mine.named_parameters():
            want_true(parameter.grad is not None, "no gradient", f"The outputs are right, but {name} gets no gradient: with an "
                      "input that needs none, the reentrant checkpoint cuts the graph. Use use_reentrant=False.")  # fmt: skip
            expected = plain.get_parameter(name).grad
            want_close(parameter.grad, expected, f"The gradient of {name}", "wrong gradient", "the backward pass is not that of "
                       "the plain model.")  # fmt: skip
        want_true(len(calls) > 3, "no checkpoint", "The numbers are right, but no layer ran a second time in backward: the "
                  "checkpoint is gone, and with it the memory that it saves.")  # fmt: skip


def add_part(id, reference, given, checker, *, title, prompt, hints, proof, misnamed, wrong, unusual):
    """Register an exercise on something that is no loop; the wrong answers are stated like those of a Case."""
    GIVEN[reference.__name__] = given[0]

    def state(answer, fault=reference.fault, numbers=reference.proof):
        if isinstance(answer, type):
            return diagnosis(fault, numbers)(type(answer.__name__, (answer,), {}))
        return copied(answer, fault, numbers)

    register(Exercise(
        id=id, title=title, prompt=prompt, reference=reference, hints=hints, checker=checker,
        wrong=(
            Wrong("as given", state(given[0]), given[1]),
            Wrong("right name, wrong proof", state(given[0], numbers=proof), "wrong proof"),
            Wrong("mended, wrong name", state(reference, fault=misnamed), "wrong name"),
            *(Wrong(words, state(answer), name, source) for words, answer, name, source in wrong),
        ),
        unusual=tuple(Unusual(words, state(answer)) for words, answer in unusual),
    ))  # fmt: skip


add_part(
    "03.4", a.Checkpointed, (a.CheckpointedGiven, "another function"), check_model,
    title="The third document's two models",
    prompt="Does `Checkpointed` compute what `Plain` computes? Name the fault, prove it by hand with one number put through both, "
    "then repair `Checkpointed`: same outputs and gradients on equal weights, and still checkpointed.",
    hints=(
        "Checkpointing must not change what is computed, only when. Compare the two forward passes line by line.",
        "Three linear layers in a row are linear. What makes the second model non-linear?",
        "Take the two torch.relu out of `block`; leave the call of `checkpoint` as it is.",
    ),
    proof=(-1, -1), misnamed="one segment",
    wrong=(
        ("one ReLU left", b.OneReluLeft, "another function", ""),
        ("no checkpoint", b.NoCheckpoint, "no checkpoint", ""),
        ("reentrant", b.Reentrant, "no gradient", "B52"),
        ("other names for the layers", b.Renamed, "other parameters", ""),
    ),
    unusual=(("a checkpoint for each layer", b.LayerByLayer), ("calls the plain forward", b.CallsThePlain)),
)  # fmt: skip


# -- 03.5 one segment around everything -----------------------------------------------------------------------------

BLOCKS, ROWS, ENOUGH = 16, 256, 0.5


def chain(count=BLOCKS, width=16, seed=0):
    """Blocks that each keep a few activations of (rows, width)."""
    torch.manual_seed(seed)
    layers = [[nn.Linear(width, width), nn.Tanh()] for _ in range(4 * count)]
    return [nn.Sequential(*sum(layers[i : i + 4], [])) for i in range(0, len(layers), 4)]


def peak_above_start(run, blocks, x) -> int:
    """Peak of one forward and backward, bytes above what stood there before."""
    model = nn.Sequential(*blocks)
    with Meter(model) as meter:
        run(blocks, x).square().sum().backward()
    trace = meter.trace
    return trace.peak_bytes - trace.baseline_bytes


def check_segments(answer):
    def plain(blocks, x):
        for block in blocks:
            x = block(x)
        return x

    def step(run, count, x):
        blocks, calls = chain(count), []
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: calls.append(1))
        output = run(blocks, x)
        want_tensor(output, "what `segmented` returns", shape=x.shape)
        output.square().sum().backward()
        return output, [p.grad for block in blocks for p in block.parameters()], len(calls)

    x = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1))
    want_diagnosis(
        getattr(answer, "_function", answer), ("one segment",), a.segmented.proof, "The numbers that come out are right: the blocks "
        "are the same, in the same order. Ask what is alive when the backward pass reaches the last block.", {},
        "(blocks whose activations are alive at the worst moment of the backward pass without any checkpoint, the same with one "
        "around everything), 16 blocks",
        "Before its first gradient, the one segment must be recomputed. How much of it? And what does it keep meanwhile?",
        probe=lambda: step(answer, BLOCKS, x),
    )  # fmt: skip
    for count in (BLOCKS, 32):
        right, gradients, _ = step(plain, count, x)
        got, mine, calls = step(answer, count, x)
        want_close(got, right, "What `segmented` returns", "another function", "every block must run, in order.", rel=1e-5)
        want_true(all(g is not None for g in mine), "no gradient", "The output is right, but some blocks get no gradient. "
                  "A checkpoint keeps the graph; no_grad and detach cut it.")  # fmt: skip
        for got_, expected in zip(mine, gradients):
            want_close(got_, expected, "A gradient", "wrong gradient", "the backward pass is not that of the plain model.", rel=1e-4)
        share = peak_above_start(answer, chain(count), x) / peak_above_start(plain, chain(count), x)
        if share > ENOUGH:
            name = "one segment" if calls > count else "no checkpoint"
            raise Fault(name, f"The diagnosis is right. Measured now: the peak with {count} blocks is {share:.0%} of that without any "
                        f"checkpoint; at most {ENOUGH:.0%} is asked. How long is the longest part that is recomputed at once?")  # fmt: skip


add_part(
    "03.5", a.segmented, (a.segmented_given, "one segment"), check_segments,
    title="The third document's one segment",
    prompt="One checkpoint stands around the whole model. Name what is wrong, and say how many of 16 blocks have their activations "
    f"alive at the worst moment. Then cut the model so that the measured peak falls to {ENOUGH:.0%} or less.",
    hints=(
        "The forward pass keeps only the input. What happens at the first moment of the backward pass?",
        "Recomputing one segment brings back all its activations, and no other segment's. How long should a segment be?",
        "Loop over range(0, len(blocks), 4) and give checkpoint() a function that runs the blocks of that part.",
    ),
    proof=(16, 1), misnamed="graph kept",
    wrong=(
        ("no checkpoint", b.segmented_not, "no checkpoint", ""),
        ("two halves", b.segmented_two, "one segment", "B76"),
        ("no_grad", b.segmented_no_grad, "no gradient", ""),
        ("the last blocks never run", b.segmented_skips, "another function", ""),
    ),
    unusual=(("a segment for each block", b.segmented_each), ("torch's own checkpoint_sequential", b.segmented_sequential),
             ("a checkpoint in a checkpoint", b.segmented_nested)),
)  # fmt: skip

add("03.6", Case(
    reference=a.d3_row, given=a.d3_row_given,
    asks="(micro-batches whose activations are alive right before backward() with K = 8, the same once it is mended)",
    nudge="`window` adds up losses, and each loss holds its graph until backward() has run through it.",
    against="The weights are right: each micro-batch counts 1/K, and the updates come on time.",
    near={"graph kept": "Nothing is left over from one window to the next: the memory grows inside a window, and backward() then "
                        "frees it. Why only then?"},
),
    title="A row of the third document's table",
    story='The table says "several forwards, one backward". This loop takes it at its word.',
    hints=(
        "When are a micro-batch's activations freed? Which call does it?",
        "Gradients are added up in `.grad` by themselves; losses need not be.",
        "Call backward() on each micro-batch's divided loss. Once per window remains: step and clear.",
    ),
    proof=(1, 8), misnamed="not divided",
    wrong=(
        ("keeps the graphs all the same", a.row_with_graph, "graph kept", "B27"),
        ("one step each, too", a.row_every_step, "update every micro-batch", "B09"),
        ("the large batch itself", a.row_big_batch, "one backward for the window", "B26"),
    ),
    unusual=(("another test for a full window", a.pseudo_own_sum),),
)  # fmt: skip
