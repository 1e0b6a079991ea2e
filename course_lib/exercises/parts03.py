"""03.4 and 03.5: a model and a way to cut one, which are no loops and have their own checks."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.measure import Meter

from . import answers03 as a
from . import odd03 as b
from .case03 import GIVEN, copied
from .faults import Fault
from .names03 import diagnosis, want_diagnosis
from .registry import Exercise, Unusual, Wrong, register
from .want import want_close, want_tensor, want_true

WIDTH = 6


def backward(output) -> None:
    """The backward pass of something that a learner computed."""
    want_true(
        output.requires_grad,
        "no gradient",
        "The output is right, but it has no graph, so that nothing can learn from it. detach() and no_grad() "
        "cut it.",
    )
    try:
        output.square().sum().backward()
    except RuntimeError as error:
        raise Fault(
            "raised", f"The output is right, but the backward pass fails: {str(error).splitlines()[0][:200]}"
        ) from None


# -- 03.4 the same model, but for two lines -----------------------------------------------------------------


def check_model(answer):
    model = getattr(answer, "_function", answer)

    def probe():
        answer(WIDTH)

    want_diagnosis(
        model,
        ("another function",),
        a.Checkpointed.proof,
        "Both run one forward, and both can be trained; put a number through each of them by hand and "
        "compare.",
        {},
        "(output of the plain model, output of the checkpointed one) for input 1, width 1, every weight -1, "
        "every bias 0",
        "Go through it line by line: -1 times 1, then what? torch.relu(-1) is 0.",
        probe,
    )
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            plain, mine = a.Plain(WIDTH).double(), answer(WIDTH)
            x = torch.randn(5, WIDTH, dtype=torch.float64)
        want_true(
            isinstance(mine, nn.Module), "wrong type", "`Checkpointed(width)` should make an nn.Module."
        )
        mine.double()
        try:
            mine.load_state_dict(plain.state_dict())
        except RuntimeError:
            raise Fault(
                "other parameters",
                "The plain model's weights cannot be loaded into yours. Keep layer1, layer2 and layer3.",
            ) from None
        calls = []
        for layer in (mine.layer1, mine.layer2, mine.layer3):
            layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        right, got = plain(x), mine(x)
        what = "Your model's output"
        hint_ = "with equal weights, both must give the same. Compare the forward passes line by line."
        got = want_tensor(got, what, shape=right.shape)
        want_close(got, right, what, "another function", hint_, rel=1e-9)
        before = len(calls)
        backward(right)
        backward(got)
        for name, parameter in mine.named_parameters():
            want_true(
                parameter.grad is not None,
                "no gradient",
                f"The outputs are right, but {name} gets no gradient: with an input that needs none, the "
                f"reentrant checkpoint cuts the graph. Use use_reentrant=False.",
            )
            expected = plain.get_parameter(name).grad
            want_close(
                parameter.grad,
                expected,
                f"The gradient of {name}",
                "wrong gradient",
                "the backward pass is not that of the plain model.",
            )
        want_true(
            len(calls) > before,
            "no checkpoint",
            "The numbers are right, but no layer ran a second time in backward: the checkpoint is gone, and "
            "with it the memory that it saves.",
        )


def add_part(id, reference, given, checker, *, title, prompt, hints, proof, misnamed, wrong, unusual):
    """Register an exercise on something that is no loop; its answers are stated like those of a Case."""
    GIVEN[reference.__name__] = given[0]

    def state(answer, fault=reference.fault, numbers=reference.proof):
        if isinstance(answer, type):
            return diagnosis(fault, numbers)(type(answer.__name__, (answer,), {}))
        return copied(answer, fault, numbers)

    register(
        Exercise(
            id=id,
            title=title,
            prompt=prompt,
            reference=reference,
            hints=hints,
            checker=checker,
            wrong=(
                Wrong("as given", state(given[0]), given[1]),
                Wrong("right name, wrong proof", state(given[0], numbers=proof), "wrong proof"),
                Wrong("mended, wrong name", state(reference, fault=misnamed), "wrong name"),
                *(Wrong(words, state(answer), name, source) for words, answer, name, source in wrong),
            ),
            unusual=tuple(Unusual(words, state(answer)) for words, answer in unusual),
        )
    )


add_part(
    "03.4",
    a.Checkpointed,
    (a.CheckpointedGiven, "another function"),
    check_model,
    title="The third document's two models",
    prompt="Does `Checkpointed` compute what `Plain` computes? Name the fault, prove it by hand with one "
    "number put through both, then repair `Checkpointed`: same outputs and gradients on equal "
    "weights, and still checkpointed.",
    hints=(
        "Checkpointing must not change what is computed, only when. Compare the two forward passes line by "
        "line.",
        "Three linear layers in a row are linear. What makes the second model non-linear?",
        "Take the two torch.relu out of `block`; leave the call of `checkpoint` as it is.",
    ),
    proof=(-1, -1),
    misnamed="one segment",
    wrong=(
        ("one ReLU left", b.OneReluLeft, "another function", ""),
        ("no checkpoint", b.NoCheckpoint, "no checkpoint", ""),
        ("reentrant", b.Reentrant, "no gradient", "B52"),
        ("other names for the layers", b.Renamed, "other parameters", ""),
    ),
    unusual=(("a checkpoint for each layer", b.LayerByLayer), ("calls the plain forward", b.CallsThePlain)),
)


# -- 03.5 one segment around everything ---------------------------------------------------------------------

BLOCKS, ROWS, ENOUGH = 16, 256, 0.5


def chain(count=BLOCKS, width=16, seed=0):
    """Blocks that each keep a few activations of (rows, width)."""
    with torch.random.fork_rng(devices=[]):  # the learner's own random numbers stay as they are
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

    def forward(run, count):
        blocks, calls = chain(count), []
        for block in blocks:
            block.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        return run(blocks, x), blocks, calls

    def gradients(blocks):
        return [parameter.grad for block in blocks for parameter in block.parameters()]

    x = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1))
    want_diagnosis(
        getattr(answer, "_function", answer),
        ("one segment",),
        a.segmented.proof,
        "The numbers that come out are right: the blocks are the same, in the same order. Ask what is alive "
        "when the backward pass reaches the last block.",
        {},
        "(blocks whose activations are alive at the worst moment of the backward pass without any "
        "checkpoint, the same with one around everything), 16 blocks",
        "Before its first gradient, the one segment must be recomputed. How much of it? And what does it "
        "keep meanwhile?",
        probe=lambda: forward(answer, BLOCKS),
    )
    for count in (BLOCKS, 32):
        right, blocks, _ = forward(plain, count)
        got, mine, calls = forward(answer, count)
        want_close(
            got,
            right,
            "What `segmented` returns",
            "another function",
            "every block must run, in order.",
            rel=1e-5,
        )
        backward(right)
        backward(got)
        mine, calls = gradients(mine), len(calls)
        want_true(
            all(g is not None for g in mine),
            "no gradient",
            "The output is right, but some blocks get no gradient. A checkpoint keeps the graph; no_grad and "
            "detach cut it.",
        )
        for got_, expected in zip(mine, gradients(blocks)):
            want_close(
                got_,
                expected,
                "A gradient",
                "wrong gradient",
                "the backward pass is not that of the plain model.",
                rel=1e-4,
            )
        share = peak_above_start(answer, chain(count), x) / peak_above_start(plain, chain(count), x)
        if share > ENOUGH:
            name = "one segment" if calls > count else "no checkpoint"
            raise Fault(
                name,
                f"The diagnosis is right. Measured now: the peak with {count} blocks is {share:.0%} of that "
                f"without any checkpoint; at most {ENOUGH:.0%} is asked. How long is the longest part that "
                f"is recomputed at once?",
            )


add_part(
    "03.5",
    a.segmented,
    (a.segmented_given, "one segment"),
    check_segments,
    title="The third document's one segment",
    prompt=f"One checkpoint stands around the whole model. Name what is wrong, and say how many of 16 blocks "
    f"have their activations alive at the worst moment. Then cut the model so that the measured peak "
    f"falls to {ENOUGH:.0%} or less.",
    hints=(
        "The forward pass keeps only the input. What happens at the first moment of the backward pass?",
        "Recomputing one segment brings back all its activations, and no other segment's. How long should a "
        "segment be?",
        "Loop over range(0, len(blocks), 4) and give checkpoint() a function that runs the blocks of that "
        "part.",
    ),
    proof=(16, 1),
    misnamed="graph kept",
    wrong=(
        ("no checkpoint", b.segmented_not, "no checkpoint", ""),
        ("two halves", b.segmented_two, "one segment", "B76"),
        ("no_grad", b.segmented_no_grad, "no gradient", ""),
        ("the last blocks never run", b.segmented_skips, "another function", ""),
    ),
    unusual=(
        ("a segment for each block", b.segmented_each),
        ("torch's own checkpoint_sequential", b.segmented_sequential),
        ("a checkpoint in a checkpoint", b.segmented_nested),
    ),
)
