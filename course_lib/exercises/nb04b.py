"""The exercises of notebook 04 in which something couples the samples or bends the sum: 04.4 to 04.6."""

import random

import torch
from torch import nn

from course_lib.doctor.problems import drawn
from course_lib.experiments.contrastive import info_nce
from course_lib.experiments.gradients import compared, gradient_of, stored_gradient

from . import answers04b as a
from .alive import Alive
from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .watch import equal
from .want import want_close, want_number, want_true

# -- 04.4 --------------------------------------------------------------------------------------------------


def running_statistics(momentum, updates):
    """Running mean and variance of a real BatchNorm that saw the same rows `updates` times."""
    layer = nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    rows = torch.randn(16, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3 + 5
    for _ in range(updates):
        layer(rows)
    return torch.cat([layer.running_mean, layer.running_var])


def check_momentum(answer):
    draw = random.Random()
    drawn_case = (round(draw.uniform(0.05, 0.6), 3), draw.randrange(3, 12))
    for m, k in ((0.1, 4), (0.3, 2), (0.01, 16), (0.5, 8), (0.1, 1), drawn_case):
        what = f"matching_momentum({m}, {k})"
        got = float(want_number(answer.call(m, k), what))
        right = 1 - (1 - m) ** (1 / k)
        if abs(got - right) <= 1e-9:
            want_close(running_statistics(got, k), running_statistics(m, 1), "the running statistics", "course error", "")
            continue
        typical = {
            "not adapted": (m, f"With {m} the statistics move {k} times for each update, and forget {k} times as fast."),
            "linear share": (m / k, "m/K is close while m is small. But each update keeps (1 - m) of what was there, so the "
                             "kept parts multiply: they do not add."),
            "wrong direction": (1 - (1 - m) ** k, f"That is what {k} updates with {m} amount to. You need the small one "
                                "that amounts to m after K updates."),
            "root of the wrong part": (m ** (1 / k), "You take the root of the new part. It is the kept parts, 1 - m, that "
                                       "multiply over K updates."),
            "kept part": ((1 - m) ** (1 / k), "That is the part which is kept in each update. In torch, `momentum` is the "
                          "part that is replaced."),
            "multiplied": (m * k, "More momentum makes it worse: the statistics move K times already."),
        }  # fmt: skip
        for diagnosis, (number, words) in typical.items():
            want_true(abs(got - number) > 1e-9, diagnosis, f"{what} gives {got:.6g}. {words}")
        if not 0 <= got <= 1:
            raise Fault("no momentum", f"{what} gives {got:.6g}; torch's momentum is a part, between 0 and 1.")
        after = float(running_statistics(got, k)[0] / running_statistics(m, 1)[0])
        raise Fault("wrong momentum", f"{what} gives {got:.6g}. With it, {k} passes over the same rows move the running mean to "
                    f"{after:.4g} times where one pass with {m} moves it.")  # fmt: skip


register(Exercise(
    id="04.4",
    title="BatchNorm's momentum under accumulation",
    prompt="Return the `momentum` for nn.BatchNorm with which `accumulation_steps` forward passes move the running "
    "statistics as far as one pass with the given momentum does.",
    reference=a.matching_momentum,
    hints=(
        "One pass sets running = (1 - m) * running + m * new. How much of the old value is left after K passes?",
        "After K passes with momentum q, (1 - q)**K of the old value is left. How much should be left?",
        "Solve (1 - q)**K == 1 - m for q: take the K-th root, x ** (1 / K).",
    ),
    checker=check_momentum,
    wrong=(
        Wrong("unchanged", a.momentum_same, "not adapted", "B24"),
        Wrong("m / K", a.momentum_share, "linear share", "B24"),
        Wrong("what K updates amount to", a.momentum_power, "wrong direction", "B24"),
        Wrong("root of m", a.momentum_root, "root of the wrong part"),
        Wrong("what is kept", a.momentum_kept, "kept part"),
        Wrong("m * K", a.momentum_times, "multiplied"),
    ),
    unusual=(Unusual("logarithms", a.momentum_log), Unusual("a tensor", a.momentum_tensor)),
))  # fmt: skip

# -- 04.5 --------------------------------------------------------------------------------------------------


def encoder(seed):
    layers = (nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))
    return drawn(nn.Sequential(*layers).double(), seed)


def pairs(rows, seed):
    draw = torch.Generator().manual_seed(seed)
    first = torch.randn(rows, 6, generator=draw, dtype=torch.float64)
    return first, first + 0.3 * torch.randn(rows, 6, generator=draw, dtype=torch.float64)


def check_contrastive(answer):
    for rows, chunk in ((12, 3), (10, 4), (8, 1), (6, 6), (7, 2)):
        _check_contrastive(answer, rows, chunk)


def _check_contrastive(answer, rows, chunk):
    model, (first, second) = encoder(rows), pairs(rows, rows)
    right_loss = info_nce(model(first), model(second))
    right = gradient_of(right_loss, model)
    alive = Alive(without=[first, second, *model.parameters()])
    with alive.watching():
        returned = answer.call(model, info_nce, first, second, chunk, unchanged=(first, second, model))
    what = f"cached_backward on {rows} pairs in chunks of {chunk}"
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    want_true(not missing, "no gradient", f"{what} leaves the gradient of {(missing or [''])[0]} at None. The cached embeddings "
              "have no graph behind them: send each chunk through the encoder again, and call backward on what comes "
              "out, with the cached gradient.")  # fmt: skip
    got = stored_gradient(model)
    if not equal(got, right):
        _name_contrastive(model, first, second, chunk, got, right, what)
    loss = want_number(returned, f"the loss returned by {what}")
    want_close(loss, right_loss.item(), f"the loss returned by {what}", "wrong loss", "return the loss over all pairs, the one "
               "whose gradients you cached.")  # fmt: skip
    if chunk < rows:
        _want_little_alive(model, first, second, chunk, alive.most, what)


def _name_contrastive(model, first, second, chunk, got, right, what):
    parts = list(zip(first.split(chunk), second.split(chunk)))
    each = [gradient_of(info_nce(model(x), model(y)), model) for x, y in parts]
    a, b = model(first), model(second)
    one = [gradient_of(info_nce(x, y), model) for x, y in ((a, b.detach()), (a.detach(), b))]
    few = ("Every chunk only sees its own rows: the other chunks' rows are missing as negatives, and no weights can bring them "
           "back.")  # fmt: skip
    typical = [
        ("negatives of the chunk only", sum(each) / len(each), few),
        ("negatives of the chunk only", sum(g * len(x) for g, (x, _) in zip(each, parts)) / len(first), few),
        ("negatives of the chunk only", sum(each), few),
        ("one view only", one[0], "Only the first view sends its gradient back. The encoder made both."),
        ("one view only", one[1], "Only the second view sends its gradient back. The encoder made both."),
        ("divided twice", right / len(parts), "The cached gradients are those of the whole loss: they need no division by the "
         "number of chunks."),
        ("multiplied", right * len(parts), "It is counted once for each chunk: a chunk must send back its own rows only."),
    ]  # fmt: skip
    for diagnosis, gradient, words in typical:
        if bool(gradient.any()):
            want_true(not equal(got, gradient), diagnosis, f"{what}: {words}")
    off = compared(got, right)
    raise Fault("wrong gradient", f"{what} leaves a gradient of {off.ratio:.3g} times the right length, with cosine "
                f"{off.cosine:.3f}. Did every chunk of both views go through the encoder a second time, with its own slice "
                "of the cached gradients, and was nothing cleared in between?")  # fmt: skip


def _want_little_alive(model, first, second, chunk, most, what):
    """Autograd may keep two chunks of the encoder at once, and what the loss itself needs."""
    small = Alive(without=[first, *model.parameters()])
    with small.watching():
        kept = model(first[:chunk])
    of_chunk = small.most
    loss = Alive()
    with torch.no_grad():
        a, b = model(first), model(second)
    with loss.watching():
        kept = info_nce(a.requires_grad_(), b.requires_grad_())
    allowed = 2 * of_chunk + 2 * loss.most
    del kept
    want_true(most <= allowed, "whole batch alive", f"The gradient is right, but {what} keeps {most:,} numbers for backward at once; "
              f"two chunks of the encoder and the loss are {allowed:,}. The first pass should keep no graph (no_grad), the second "
              "pass only one chunk's.")  # fmt: skip


register(Exercise(
    id="04.5",
    title="The exact gradient of a contrastive loss",
    prompt="Leave in `.grad` the exact gradient of loss_fn(encoder(first), encoder(second)) over all rows, and return the "
    "loss, while autograd never keeps the encoder's graph for more than a chunk or two.",
    reference=a.cached_backward,
    hints=(
        "The loss needs all embeddings at once, but embeddings are small. What is large is the encoder's graph behind them.",
        "First pass: embed every chunk under torch.no_grad and join them. Make the two results require a gradient, and "
        "go backward through the loss alone.",
        "Now a.grad[i] says what the loss wants from row i. Second pass: embed each chunk again, with its graph.",
        "output.backward(gradient) continues a backward pass from a given gradient: encoder(part).backward(part_of_a_grad), "
        "for the chunks of both views; view.split(chunk) and a.grad.split(chunk) go side by side.",
    ),
    checker=check_contrastive,
    wrong=(
        Wrong("micro-batches", a.contrast_chunks, "negatives of the chunk only", "B23"),
        Wrong("micro-batches by rows", a.contrast_shares, "negatives of the chunk only", "B23"),
        Wrong("the whole batch", a.contrast_whole, "whole batch alive", "B26"),
        Wrong("chunks, and all their graphs", a.contrast_keeps, "whole batch alive", "B26"),
        Wrong("no second pass", a.contrast_no_second_pass, "no gradient", "B23"),
        Wrong("one view", a.contrast_one_view, "one view only"),
        Wrong("divides by the chunks", a.contrast_divided, "divided twice", "B05"),
        Wrong("the chunks' loss", a.contrast_loss_of_chunks, "wrong loss", "B41"),
        Wrong("clears between chunks", a.contrast_clears, "wrong gradient", "B01"),
        Wrong("returns nothing", a.contrast_no_loss, "returned nothing"),
    ),
    unusual=(
        Unusual("one live chunk among cached rows", a.contrast_live_chunk),
        Unusual("a dot product as stand-in loss", a.contrast_surrogate),
    ),
))  # fmt: skip
