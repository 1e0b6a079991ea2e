"""The exercises of notebook 04: tokens, ranks, tails. The others live in nb04b.py, nb04c.py and nb04d.py."""

import copy
import math

import torch
from torch import nn

from course_lib.doctor.problems import Problem, drawn, regression
from course_lib.experiments.gradients import compared, stored_gradient
from course_lib.experiments.tokens import PADDING, count_tokens, random_rows, token_loss

from . import answers04 as a
from .faults import Fault
from .loops import want_healthy, want_window_losses
from .registry import Exercise, Unusual, Wrong, register
from .watch import Mistake, equal, micro_gradients, want_updates, watch
from .want import want_true

# -- a small language model, and micro-batches with as many tokens as we like ------------------------------

VOCABULARY = 11


def language_model(seed=0):
    return drawn(nn.Sequential(nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)).double(), seed)


def token_batches(lengths, seed=0):
    """lengths[i] lists the rows' lengths of micro-batch i; None makes a micro-batch of padding only."""
    made = []
    for i, rows in enumerate(lengths):
        inputs, targets = random_rows(rows or (3, 2), VOCABULARY, 100 * seed + i)
        made.append((inputs, targets if rows else torch.full_like(targets, PADDING)))
    return made


def windows_of(items, k):
    return [items[start : start + k] for start in range(0, len(items), k)]


def token_sum(batch):
    return lambda model: token_loss(model(batch[0]), batch[1], reduction="sum")


def mean_loss(problem, batch):
    return lambda model: problem.loss_fn(model(batch[0]), batch[1])


def weighted(gradients, windows, weigh):
    """One vector per window: the micro-gradients of token means, each with its weight(batch, window)."""
    made, place = [], 0
    for window in windows:
        means = gradients[place : place + len(window)]
        made.append(sum(g * weigh(batch, window) for g, batch in zip(means, window)))
        place += len(window)
    return made


# -- 04.1 --------------------------------------------------------------------------------------------------


def tokens_in(window):
    return sum(count_tokens(targets) for _, targets in window)


def check_tokens(answer):
    cases = (
        ([(3, 2), (9, 8, 9), (2,), (12, 4), (5, 5, 5)], 2),
        ([(2, 2, 2, 2), (16, 16)], 2),
        ([(4,), (2, 7, 3), (11, 6), (1, 1)], 4),
        ([(5, 3), None, (9,), None, (2, 8)], 3),
    )
    for lengths, k in cases:
        _check_tokens(answer, lengths, k, None in lengths)


def _check_tokens(answer, lengths, k, with_padding):
    batches, model = token_batches(lengths, seed=k), language_model(seed=k)
    windows = windows_of(batches, k)
    sums = micro_gradients(model, [token_sum(batch) for batch in batches])
    means = [g / max(1, count_tokens(y)) for g, (_, y) in zip(sums, batches)]

    def typical(weigh):
        return weighted(means, windows, weigh)

    def call(optimizer):
        # two epochs: what the first leaves in .grad shows in the second
        first = answer.call(model, optimizer, token_loss, list(batches), k, unchanged=(batches,))
        answer.call(model, optimizer, token_loss, list(batches), k)
        return first

    seen = watch(model, call)
    needed = typical(lambda batch, window: count_tokens(batch[1]) / tokens_in(window))
    if with_padding and not _finite(seen):
        raise Fault("all padding", "A micro-batch held nothing but padding. The mean of its losses is 0/0 = "
                    "NaN, and NaN times weight 0 is NaN still. Skip such a micro-batch, or use a sum in "
                    "place of the mean.")  # fmt: skip
    counts = [[count_tokens(y) for _, y in window] for window in windows]
    first = counts[0]
    mistakes = [
        Mistake("mean of means", typical(lambda b, w: 1 / len(w)) * 2, "You give every micro-batch the same "
                f"weight. The first window's micro-batches have {first} tokens: a token of a short "
                "micro-batch then pulls harder than one of a long."),
        Mistake("mean of means", typical(lambda b, w: 1 / k) * 2, f"You divide every mean by {k}. The first "
                f"window's micro-batches have {first} tokens: a token of a short micro-batch then pulls "
                "harder than one of a long."),
        Mistake("rows, not tokens", typical(lambda b, w: len(b[1]) / sum(len(y) for _, y in w)) * 2, "You "
                "weigh by rows. The loss is a mean over tokens, so its weight is a share of tokens: rows may "
                "be long or short."),
        Mistake("padding counted", typical(lambda b, w: b[1].numel() / sum(y.numel() for _, y in w)) * 2,
                "You count padding as tokens. The loss leaves targets of -100 out, so the weights must leave "
                "them out as well."),
        Mistake("divided twice", typical(lambda b, w: count_tokens(b[1]) / tokens_in(w) / k) * 2, "The "
                "shares of tokens add up to 1 already; dividing by accumulation_steps as well makes the "
                f"gradient {k} times too short."),
        Mistake("divided twice", typical(lambda b, w: count_tokens(b[1]) / tokens_in(w) / len(w)) * 2, "The "
                "shares of tokens add up to 1 already; dividing by the number of micro-batches as well makes "
                "the gradient too short."),
        Mistake("not divided", typical(lambda b, w: 1.0 if count_tokens(b[1]) else 0.0) * 2, "Nothing turns "
                "the sum of the means into one mean. Each micro-batch should count by its share of the "
                "window's tokens."),
        Mistake("not divided", typical(lambda b, w: count_tokens(b[1])) * 2, "You weigh by the number of "
                "tokens, but never divide by the tokens of the whole window: a sum, not a mean."),
        Mistake("tail dropped", [g for g, w in zip(needed, windows) if len(w) == k] * 2, "The last window is "
                "short, and it never reaches an update. Make one for what is left at the end."),
    ]  # fmt: skip
    ask = None if with_padding else lambda: _ask_doctor(answer, batches, model, k)
    want_updates(seen, needed * 2, mistakes, ask)
    losses = [
        sum(token_sum(batch)(model).item() for batch in window) / tokens_in(window) for window in windows
    ]
    want_window_losses(seen.returned, losses)


def _finite(seen):
    """False where NaN or infinity stands in a gradient or in a returned loss."""
    returned = seen.returned if isinstance(seen.returned, (list, tuple)) else []
    losses = [loss for loss in returned if isinstance(loss, (int, float, torch.Tensor))]
    losses = [float(loss) for loss in losses if torch.as_tensor(loss).ndim == 0]
    return all(bool(torch.isfinite(g).all()) for g in seen.updates) and all(map(math.isfinite, losses))


def _ask_doctor(answer, batches, model, k):
    """Let the doctor name a fault that any training loop can have: cleared early, wrong windows ..."""

    def window_loss(model, window):
        return sum(token_sum(batch)(model) for batch in window) / tokens_in(window)

    want_healthy(answer, Problem(lambda: copy.deepcopy(model), lambda epoch: list(batches), token_loss, k,
                                 window_loss=window_loss))  # fmt: skip


register(Exercise(
    id="04.1",
    title="The mean over all tokens of a window",
    prompt="Make one update per window, with the gradient of the mean loss over all its tokens that are not "
    "padding (-100), and return each window's loss. loss_fn gives a micro-batch's mean over its own tokens; "
    "a micro-batch may be all padding, and the last window may be short.",
    reference=a.train_tokens,
    hints=(
        "A micro-batch's mean was divided by its own number of tokens. What should it have been divided by?",
        "Collect a window with islice(batches, accumulation_steps), then count: (targets != -100).sum().",
        "The weight is count / sum(counts). What is the mean of nothing? Leave such a micro-batch out.",
        "loss = loss_fn(model(inputs), targets) * (count / total), then backward, and add loss.item() to the "
        "window's.",
    ),
    checker=check_tokens,
    wrong=(
        Wrong("mean of means", a.tokens_means, "mean of means", "B18"),
        Wrong("over K", a.tokens_over_k, "mean of means", "B18"),
        Wrong("weighs rows", a.tokens_rows, "rows, not tokens", "B16"),
        Wrong("counts padding", a.tokens_padding, "padding counted", "B18"),
        Wrong("divides by K as well", a.tokens_twice, "divided twice", "B19"),
        Wrong("plain means", a.tokens_plain, "not divided", "B20"),
        Wrong("sums", a.tokens_sums, "not divided", "B20"),
        Wrong("0/0", a.tokens_nan, "all padding"),
        Wrong("drops the tail", a.tokens_no_tail, "tail dropped", "B10"),
        Wrong("clears in the window", a.tokens_clears, "cleared too early", "B01"),
        Wrong("the learning rate over K", a.tokens_learning_rate, "learning rate changed"),
        Wrong("logs the mean of means", a.tokens_log_means, "wrong logged loss", "B18"),
        Wrong("logs the last one", a.tokens_log_last, "wrong logged loss", "B41"),
        Wrong("logs a divided loss", a.tokens_log_divided, "wrong logged loss", "B41"),
        Wrong("logs nothing", a.tokens_no_log, "returned nothing"),
    ),
    unusual=(
        Unusual("a summed loss over the window's tokens", a.tokens_sum_reduction),
        Unusual("divides .grad at the end", a.tokens_divides_grad),
        Unusual("one backward on all tokens", a.tokens_where),
    ),
))  # fmt: skip

# -- 04.2 --------------------------------------------------------------------------------------------------


def check_ranks(answer):
    cases = (
        [[(2,), (3,), (4,)], [(9, 9), (12,)]],
        [[(4, 2)], [(7,)], [(3, 3, 1)]],
        [[(5,), (2,), (8, 8)], [(6,)], [(1, 1), (10,)], [(4,), (4,)]],
        [[(6, 2), (3,)]],
    )
    for number, lengths in enumerate(cases):
        _check_ranks(answer, lengths, number)


def _check_ranks(answer, lengths, seed):
    world, model = len(lengths), language_model(seed)
    shards = [token_batches(rows, 10 * seed + rank) for rank, rows in enumerate(lengths)]
    everywhere = sum(tokens_in(window) for window in shards)
    sums = [micro_gradients(model, [token_sum(batch) for batch in window]) for window in shards]
    seen = []
    for rank, window in enumerate(shards):
        mine = copy.deepcopy(model)
        answer.call(mine, token_loss, list(window), everywhere, world, unchanged=(window,))
        moved = any(not torch.equal(p, q) for p, q in zip(mine.parameters(), model.parameters()))
        want_true(not moved, "steps by hand", "`rank_backward` moved the weights. It should only call "
                  "backward: the average over the ranks comes before any update.")  # fmt: skip
        missing = [name for name, p in mine.named_parameters() if p.grad is None]
        want_true(not missing, "no gradient", f"On rank {rank} the gradient of {(missing or [''])[0]} is "
                  "None: call backward() for each micro-batch, and leave what it adds up in "
                  "`.grad`.")  # fmt: skip
        seen.append(stored_gradient(mine))
    got = sum(seen) / world  # what data parallel leaves on every rank
    right = sum(sum(part) for part in sums) / everywhere
    if equal(got, right):
        return
    local = [sum(part) / tokens_in(window) for part, window in zip(sums, shards)]
    means = [[g / count_tokens(y) for g, (_, y) in zip(part, window)] for part, window in zip(sums, shards)]
    tokens = [tokens_in(window) for window in shards]
    told = f"{world} rank(s) with {tokens} tokens: after averaging over the ranks,"
    typical = {
        "world size forgotten": (right / world, f"the gradient is 1/{world} of what it should be. Data "
                                 "parallel divides by the number of ranks, and you have divided by the "
                                 "tokens of all ranks before."),
        "local mean": (sum(local) / world, "it is the mean of the ranks' own means. A rank with few tokens "
                       "then pulls as hard as one with many; divide by the tokens of all ranks."),
        "mean of means": (sum(sum(part) / len(part) for part in means) / world, "it is a mean of means: "
                          "every micro-batch counts the same, however many tokens it has."),
        "divided by the ranks again": (right / world**2, f"it is 1/{world**2} of what it should be: the "
                                       "average over ranks divides already, so you must multiply by the "
                                       "ranks, not divide."),
        "divided twice": (sum(sum(part) / len(part) for part in sums) / everywhere, "it is too short: shares "
                          "of all tokens need no further division by the micro-batches of a rank."),
        "not divided": (right * everywhere / world, "it is a sum over tokens, divided by the ranks only. "
                        "Divide by the tokens of all ranks, too."),
        "local mean, then the ranks": (sum(local), "it is the sum of the ranks' own means: the ranks are "
                                       "undone, but each rank still divides by its own tokens."),
        "only the last micro-batch": (sum(part[-1] for part in sums) / everywhere, "only the last "
                                      "micro-batch of each rank is in it: the gradients were cleared inside "
                                      "the window."),
    }  # fmt: skip
    for diagnosis, (gradient, words) in typical.items():
        want_true(not equal(got, gradient), diagnosis, f"{told} {words}")
    off = compared(got, right)
    raise Fault("wrong gradient", f"{told} the gradient has {off.ratio:.3g} times the right length, and "
                f"cosine {off.cosine:.3f} to the right one. Each token anywhere should count the "
                "same.")  # fmt: skip


register(Exercise(
    id="04.2",
    title="The token mean over all ranks",
    prompt="You are one of `world_size` ranks. Call backward for each micro-batch of your window, so that "
    "the mean of `.grad` over all ranks, which data parallel takes next, is the gradient of the mean over "
    "all tokens everywhere.",
    reference=a.rank_backward,
    hints=(
        "Write down what you want, a sum over all tokens of all ranks divided by their number. Then what "
        "data parallel does.",
        "Data parallel adds the ranks' gradients and divides by world_size. So each rank must hand over a "
        "gradient that is world_size times its part of the answer.",
        "Its part: every micro-batch's mean times its own count, divided by tokens_everywhere.",
        "weight = count / tokens_everywhere * world_size",
    ),
    checker=check_ranks,
    wrong=(
        Wrong("its own mean", a.rank_local, "local mean", "B22"),
        Wrong("no world size", a.rank_no_world, "world size forgotten", "B22"),
        Wrong("mean of means", a.rank_means, "mean of means", "B18"),
        Wrong("divides by micro-batches, too", a.rank_divided, "divided twice", "B19"),
        Wrong("divides by the ranks", a.rank_over_world, "divided by the ranks again", "B22"),
        Wrong("sums", a.rank_sums, "not divided", "B20"),
        Wrong("its own mean times the ranks", a.rank_double, "local mean, then the ranks", "B22"),
        Wrong("makes the update", a.rank_steps, "steps by hand"),
        Wrong("clears in the window", a.rank_last_only, "only the last micro-batch", "B01"),
    ),
    unusual=(
        Unusual("a summed loss", a.rank_sum_reduction),
        Unusual("scales .grad", a.rank_scales_grad),
        Unusual("one backward for the window", a.rank_one_backward),
    ),
))  # fmt: skip

# -- 04.3 --------------------------------------------------------------------------------------------------


def check_carry(answer):
    for per_epoch, k, epochs in ((7, 4, 2), (5, 3, 3), (3, 4, 5), (8, 4, 2), (6, 4, 1)):
        _check_carry(answer, per_epoch, k, epochs)


def _check_carry(answer, n, k, epochs):
    problem = regression([4] * n, k, seed=n)
    data, model = [list(problem.batches(epoch)) for epoch in range(epochs)], problem.model()
    stream = [batch for batches in data for batch in batches]
    gradients = micro_gradients(model, [mean_loss(problem, batch) for batch in stream])

    def updates(windows, divisor):
        return [sum(gradients[i] for i in window) / divisor(window) for window in windows]

    def call(optimizer):
        given = [list(batches) for batches in data]
        return answer.call(model, optimizer, problem.loss_fn, given, k, unchanged=(given,))

    every = windows_of(range(epochs * n), k)
    whole = [window for window in every if len(window) == k]
    by_epoch = [list(w) for epoch in range(epochs) for w in windows_of(range(epoch * n, epoch * n + n), k)]
    full = [window for window in by_epoch if len(window) == k]
    leaking, pending = [], []
    for window in by_epoch:
        pending += window
        if len(window) == k:
            leaking, pending = [*leaking, pending], []
    told = f"{epochs} epochs of {n} micro-batches, accumulation_steps={k}:"
    r, rest = n % k, (epochs * n) % k
    mistakes = [
        Mistake("tail dropped", updates(full, lambda w: k), f"{told} the last {r} micro-batches of each "
                "epoch reach no update. Carry them over: let the count go on, and do not clear between "
                "epochs."),
        Mistake("tail leaks", updates(leaking, lambda w: k), f"{told} the count begins anew in each epoch, "
                f"but the gradients of the last {r} micro-batches are still there. A window then holds "
                f"{k + r} of them, divided by {k}."),
        Mistake("tail too small", updates(every, lambda w: k), f"{told} the very last update has {rest} "
                f"micro-batches and is divided by {k}: {rest}/{k} of its gradient. Divide it by {rest}."),
        Mistake("tail too small", updates(by_epoch, lambda w: k), f"{told} every epoch ends with an update "
                f"on {r} micro-batches that is divided by {k}. Here they should be carried into the next "
                "epoch."),
        Mistake("flushed, not carried", updates(by_epoch, len), f"{told} every epoch ends with an update of "
                f"its own on {r} micro-batches. That is a good rule, too; here the rule is to carry them "
                "over, so that only the last one is short."),
        Mistake("leftover dropped", updates(whole, lambda w: k), f"{told} carried over well, but the last "
                f"{rest} micro-batches of the training reach no update. Make one for them, divided by their "
                "own number."),
        Mistake("first epoch only", updates(windows_of(range(n), k), len), f"{told} you make updates for the "
                "first epoch only. Go through all of them."),
        Mistake("not divided", updates(every, lambda w: 1), f"{told} the windows are right, but nothing "
                "turns their sums into means."),
    ]  # fmt: skip

    def ask_doctor():
        def two_epochs(model, optimizer, loss_fn, batches, k):
            middle = len(batches) // 2
            return answer.call(model, optimizer, loss_fn, [batches[:middle], batches[middle:]], k)

        want_healthy(two_epochs, problem)

    want_updates(watch(model, call), updates(every, len), mistakes, ask_doctor if n > 1 else None)


register(Exercise(
    id="04.3",
    title="Carry the tail over",
    prompt="`epochs` is a list of epochs, each a list of micro-batches of equal size. Fill windows across "
    "the ends of epochs; only the very last update of the training may be short, and it must have the right "
    "length, too.",
    reference=a.train_carry,
    hints=(
        "What must not happen at the end of an epoch, if its leftover is to count in the next one?",
        "Either keep the counter *and* the gradients across epochs, or see all epochs as one stream.",
        "itertools.chain.from_iterable(epochs) is that stream; islice takes a window from it.",
        "Divide by len(window), not by accumulation_steps: they differ once, at the end.",
    ),
    checker=check_carry,
    wrong=(
        Wrong("cleared at the start of an epoch", a.tail_wiped, "tail dropped", "B10"),
        Wrong("counts anew, clears not", a.tail_leaks, "tail leaks", "B12"),
        Wrong("last one over K", a.tail_over_k, "tail too small", "B13"),
        Wrong("each epoch's tail over K", a.tail_each_epoch_over_k, "tail too small", "B13"),
        Wrong("a flush for each epoch", a.tail_each_epoch, "flushed, not carried"),
        Wrong("never flushes", a.tail_never, "leftover dropped", "B14"),
        Wrong("does not divide", a.tail_not_divided, "not divided", "B04"),
        Wrong("one epoch only", a.tail_first_epoch, "first epoch only"),
    ),
    unusual=(
        Unusual("one counter, stretched at the end", a.carry_rescales),
        Unusual("knows what is left", a.carry_counts_down),
        Unusual("a queue of data", a.carry_queue),
    ),
))  # fmt: skip

from . import nb04b  # noqa: E402, F401  the exercises that follow
