"""The exercises of notebook 04 in which something couples the samples or bends the sum: 04.4 to 04.6."""

import random

import torch
from torch import nn

from course_lib.doctor.problems import drawn, regression
from course_lib.experiments.contrastive import info_nce
from course_lib.experiments.gradients import compared, gradient_of, stored_gradient

from . import answers04b as a
from .alive import Alive
from .faults import Fault
from .loops import want_healthy
from .registry import Exercise, Unusual, Wrong, register
from .watch import Mistake, equal, micro_gradients, want_updates, watch
from .want import want_close, want_number, want_sequence, want_true

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
            want_close(running_statistics(got, k), running_statistics(m, 1), "the running statistics",
                "course error", "")
            continue
        typical = {
            "not adapted": (m, f"With {m} the statistics move {k} times for each update, and forget {k} "
                               "times as fast."),
            "linear share": (m / k, "m/K is close while m is small. But each update keeps (1 - m) of what "
                             "was there, so the kept parts multiply: they do not add."),
            "wrong direction": (1 - (1 - m) ** k, f"That is what {k} updates with {m} amount to. You need "
                                "the small one that amounts to m after K updates."),
            "root of the wrong part": (m ** (1 / k), "You take the root of the new part. It is the kept "
                                       "parts, 1 - m, that multiply over K updates."),
            "kept part": ((1 - m) ** (1 / k), "That is the part which is kept in each update. In torch, "
                          "`momentum` is the part that is replaced."),
            "multiplied": (m * k, "More momentum makes it worse: the statistics move K times already."),
        }  # fmt: skip
        for diagnosis, (number, words) in typical.items():
            want_true(abs(got - number) > 1e-9, diagnosis, f"{what} gives {got:.6g}. {words}")
        if not 0 <= got <= 1:
            raise Fault("no momentum", f"{what} gives {got:.6g}; torch's momentum is a part, between 0 and "
                                       "1.")
        after = float(running_statistics(got, k)[0] / running_statistics(m, 1)[0])
        raise Fault("wrong momentum", f"{what} gives {got:.6g}. With it, {k} passes over the same rows move "
                    f"the running mean to {after:.4g} times where one pass with {m} moves it.")  # fmt: skip


register(Exercise(
    id="04.4",
    title="BatchNorm's momentum under accumulation",
    prompt="Return the `momentum` for nn.BatchNorm with which `accumulation_steps` forward passes move the "
    "running statistics as far as one pass with the given momentum does.",
    reference=a.matching_momentum,
    hints=(
        "One pass sets running = (1 - m) * running + m * new. How much of the old value is left after K "
        "passes?",
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
    want_true(not missing, "no gradient", f"{what} leaves the gradient of {(missing or [''])[0]} at None. "
              "The cached embeddings have no graph behind them: send each chunk through the encoder again, "
              "and call backward on what comes out, with the cached gradient.")  # fmt: skip
    got = stored_gradient(model)
    if not equal(got, right):
        _name_contrastive(model, first, second, chunk, got, right, what)
    loss = want_number(returned, f"the loss returned by {what}")
    want_close(loss, right_loss.item(), f"the loss returned by {what}", "wrong loss", "return the loss over "
               "all pairs, the one whose gradients you cached.")  # fmt: skip
    if chunk < rows:
        _want_little_alive(model, first, second, chunk, alive.most, what)


def _name_contrastive(model, first, second, chunk, got, right, what):
    parts = list(zip(first.split(chunk), second.split(chunk)))
    each = [gradient_of(info_nce(model(x), model(y)), model) for x, y in parts]
    a, b = model(first), model(second)
    one = [gradient_of(info_nce(x, y), model) for x, y in ((a, b.detach()), (a.detach(), b))]
    few = ("Every chunk only sees its own rows: the other chunks' rows are missing as negatives, and no "
           "weights can bring them back.")  # fmt: skip
    typical = [
        ("negatives of the chunk only", sum(each) / len(each), few),
        ("negatives of the chunk only", sum(g * len(x) for g, (x, _) in zip(each, parts)) / len(first), few),
        ("negatives of the chunk only", sum(each), few),
        ("one view only", one[0], "Only the first view sends its gradient back. The encoder made both."),
        ("one view only", one[1], "Only the second view sends its gradient back. The encoder made both."),
        ("divided twice", right / len(parts), "The cached gradients are those of the whole loss: they need "
         "no division by the number of chunks."),
        ("multiplied", right * len(parts), "It is counted once for each chunk: a chunk must send back its "
                                           "own rows only."),
    ]  # fmt: skip
    for diagnosis, gradient, words in typical:
        if bool(gradient.any()):
            want_true(not equal(got, gradient), diagnosis, f"{what}: {words}")
    off = compared(got, right)
    raise Fault("wrong gradient", f"{what} leaves a gradient of {off.ratio:.3g} times the right length, with "
                f"cosine {off.cosine:.3f}. Did every chunk of both views go through the encoder a second "
                "time, with its own slice of the cached gradients, and was nothing cleared in "
                "between?")  # fmt: skip


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
    want_true(most <= allowed, "whole batch alive", f"The gradient is right, but {what} keeps {most:,} "
              f"numbers for backward at once; two chunks of the encoder and the loss are {allowed:,}. The "
              "first pass should keep no graph (no_grad), the second pass only one chunk's.")  # fmt: skip


register(Exercise(
    id="04.5",
    title="The exact gradient of a contrastive loss",
    prompt="Leave in `.grad` the exact gradient of loss_fn(encoder(first), encoder(second)) over all rows, "
    "and return the loss, while autograd never keeps the encoder's graph for more than a chunk or two.",
    reference=a.cached_backward,
    hints=(
        "The loss needs all embeddings at once, but embeddings are small. What is large is the encoder's "
        "graph behind them.",
        "First pass: embed every chunk under torch.no_grad and join them. Make the two results require a "
        "gradient, and go backward through the loss alone.",
        "Now a.grad[i] says what the loss wants from row i. Second pass: embed each chunk again, with its "
        "graph.",
        "output.backward(gradient) continues a backward pass from a given gradient: "
        "encoder(part).backward(part_of_a_grad), for the chunks of both views; view.split(chunk) and "
        "a.grad.split(chunk) go side by side.",
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

# -- 04.6 --------------------------------------------------------------------------------------------------


def cut(gradient, limit):
    """A gradient vector with its norm cut to the limit."""
    return gradient * min(1.0, limit / float(gradient.norm()))


def check_clipping(answer):
    cases = [(8, 4, 30.0), (8, 4, 0.5), (6, 3, 1.0), (4, 2, 0.2)]
    # the gradients of all cases before any norm: a wrong gradient explains a wrong norm
    for seen, norms, limit, k in [_check_clipping(answer, *case) for case in cases]:
        _want_norms(seen.returned, norms, limit, k)


def _check_clipping(answer, n, k, part):
    """`part`: the limit, as a part of the windows' middle norm; 1 cuts some windows only."""
    problem = regression([4] * n, k, seed=n)
    batches, model = problem.batches(0), problem.model()
    micro = micro_gradients(model, [lambda m, b=batch: problem.loss_fn(m(b[0]), b[1]) for batch in batches])
    windows = [micro[start : start + k] for start in range(0, n, k)]
    means = [sum(window) / k for window in windows]
    norms = [float(mean.norm()) for mean in means]
    limit = part * (min(norms) + max(norms)) / 2

    def call(optimizer):
        first = answer.call(model, optimizer, problem.loss_fn, list(batches), k, limit, unchanged=(batches,))
        answer.call(model, optimizer, problem.loss_fn, list(batches), k, limit)
        return first

    def partial(window):
        total = 0.0
        for gradient in window:
            total = cut(total + gradient / k, limit)
        return total

    def per_tensor(mean):
        return torch.cat([cut(p, limit) for p in mean.split([p.numel() for p in model.parameters()])])

    def whole(function, over=means):
        return [function(item) for item in over] * 2

    told = f"{k} micro-batches a window, max_norm={limit:.4g}:"
    mistakes = [
        Mistake("clipped in the window", whole(partial, windows), f"{told} the partial sum is cut after each "
                "micro-batch. What came early is cut again and again; the norm looks right, the direction is "
                "not. Clip when the window is full."),
        Mistake("clipped one by one", whole(lambda w: sum(cut(g, limit) for g in w) / k, windows), f"{told} "
                "each micro-batch's own gradient is cut before it is added. Large ones lose their say. Clip "
                "the window's mean."),
        Mistake("clipped one by one", whole(lambda w: sum(cut(g / k, limit) for g in w), windows), f"{told} "
                "each micro-batch's share is cut before it is added: the limit works on parts, not on the "
                "mean. Clip the window's mean."),
        Mistake("not clipped", whole(lambda g: g), f"{told} the update got the gradient uncut. Clip before "
                "the step: after it, the weights have moved already."),
        Mistake("not divided", whole(lambda g: cut(g * k, limit)), f"{told} the update got the sum, cut "
                "where it is longer than max_norm, not the mean. Where the cut bites it hides the missing "
                f"division; the limit has become {k} times as strict."),
        Mistake("another limit", whole(lambda g: cut(g, limit / k)), f"{told} the mean is cut to max_norm / "
                f"{k}, either so or by cutting the sum and dividing after that. A mean is as long as a large "
                "batch's gradient: the limit stays what it is."),
        Mistake("clipped by value", whole(lambda g: g.clamp(-limit, limit)), f"{told} every entry is cut on "
                "its own. That bends the direction; clip_grad_norm_ shortens the whole gradient."),
        Mistake("clipped tensor by tensor", whole(per_tensor), f"{told} every parameter is cut by its own "
                "norm. One norm over all parameters keeps the direction."),
        Mistake("always scaled", whole(lambda g: g * (limit / float(g.norm()))), f"{told} short gradients "
                "are stretched to max_norm as well. Clipping only shortens: the factor is at most 1."),
    ]  # fmt: skip

    def ask_doctor():
        def five(model, optimizer, loss_fn, batches, k):  # a limit so far away that it plays no part
            return answer.call(model, optimizer, loss_fn, batches, k, 1e9)

        want_healthy(five, problem)

    seen = watch(model, call)
    # torch adds 1e-6 to the norm
    want_updates(seen, whole(lambda g: cut(g, limit)), mistakes, ask_doctor, close=1e-5)
    return seen, norms, limit, k


def _want_norms(returned, norms, limit, k):
    values = [float(want_number(v, "a returned norm")) for v in want_sequence(returned, "the returned "
        "norms", len(norms))]
    for value, right in zip(values, norms):
        if abs(value - right) <= 1e-5 * right:
            continue
        want_true(abs(value - right * k) > 1e-5 * right * k, "norm of the sum", "The returned norm "
                  f"{value:.4g} is that of the sum; the mean's is {right:.4g}, and that is what max_norm is "
                  "compared with.")  # fmt: skip
        want_true(abs(value - min(right, limit)) > 1e-4 * right, "norm after clipping", "The returned norm "
                  f"{value:.4g} is the one after clipping: in a log it never passes max_norm, and hides how "
                  "often it bites. clip_grad_norm_ returns the norm before.")  # fmt: skip
        raise Fault("wrong norm", f"The returned norm is {value:.4g}; the window's mean gradient has the "
                                  f"norm {right:.4g}.")


register(Exercise(
    id="04.6",
    title="Clip once per window",
    prompt="Accumulate over whole windows of equal micro-batches, cut the norm of each window's mean "
    "gradient to `max_norm`, update, and return the list of the norms before the cut.",
    reference=a.train_clipped,
    hints=(
        "The large batch's loop clips once per update. When is this window's gradient as complete as that "
        "one?",
        "Between the last backward of a window and the step: "
        "`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`.",
        "It returns the norm that it found, as a tensor. norms.append(norm.item()), then step, then clear.",
    ),
    checker=check_clipping,
    wrong=(
        Wrong("after each backward", a.clip_partial_sums, "clipped in the window", "B30"),
        Wrong("each mean on its own", a.clip_each_mean, "clipped one by one", "B30"),
        Wrong("each share on its own", a.clip_each_share, "clipped one by one", "B30"),
        Wrong("the sum", a.clip_undivided, "not divided", "B04"),
        Wrong("cuts, then divides", a.clip_then_divide, "another limit", "B31"),
        Wrong("max_norm / K", a.clip_smaller_limit, "another limit", "B04"),
        Wrong("after the step", a.clip_late, "not clipped"),
        Wrong("only measures", a.clip_never, "not clipped"),
        Wrong("by value", a.clip_by_value, "clipped by value"),
        Wrong("tensor by tensor", a.clip_tensors, "clipped tensor by tensor"),
        Wrong("stretches, too", a.clip_always, "always scaled"),
        Wrong("logs the cut norm", a.clip_norm_after, "norm after clipping"),
    ),
    unusual=(
        Unusual("by hand", a.clip_by_hand),
        Unusual("the sum against K times the limit", a.clip_sum_scaled),
    ),
))  # fmt: skip

from . import nb04c  # noqa: E402, F401  the exercises that follow
