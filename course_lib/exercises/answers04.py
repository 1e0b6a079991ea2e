"""Answers to the first exercises of notebook 04: tokens, ranks, tails.

The references carry the names that the learner's functions have; their source is what `solution` shows.
"""

from itertools import chain, islice

import torch
from torch.nn import functional as F

# -- 04.1 tokens -----------------------------------------------------------------------------------------


def train_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    batches, losses = iter(batches), []
    optimizer.zero_grad()
    while window := list(islice(batches, accumulation_steps)):
        counts = [int((targets != -100).sum()) for _, targets in window]
        window_loss = 0.0
        for (inputs, targets), count in zip(window, counts):
            if count == 0:
                continue
            loss = loss_fn(model(inputs), targets) * (count / sum(counts))
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses


def _weighted(share, log="sum", skip=True, drop_tail=False):
    """A loop that weighs a micro-batch by `share(targets of the micro-batch, targets of the window, K)`."""

    def loop(model, optimizer, loss_fn, batches, accumulation_steps):
        batches, losses = iter(batches), []
        optimizer.zero_grad()
        while window := list(islice(batches, accumulation_steps)):
            if drop_tail and len(window) < accumulation_steps:
                break
            every, logged = [targets for _, targets in window], []
            for inputs, targets in window:
                if skip and not (targets != -100).any():
                    continue
                loss = loss_fn(model(inputs), targets)
                weight = share(targets, every, accumulation_steps)
                (loss * weight).backward()
                logged.append((loss.item(), weight))
            optimizer.step()
            optimizer.zero_grad()
            parts = [loss * weight for loss, weight in logged]
            logs = {"sum": sum(parts), "last": logged[-1][0],
                "mean": sum(one for one, _ in logged) / len(logged),
                    "divided": sum(parts) / accumulation_steps}  # fmt: skip
            losses.append(logs[log])
        return losses

    return loop


def _count(targets):
    return int((targets != -100).sum())


def _share(targets, every, k):
    return _count(targets) / sum(map(_count, every))


tokens_means = _weighted(lambda targets, every, k: 1 / len(every))
tokens_over_k = _weighted(lambda targets, every, k: 1 / k)
tokens_rows = _weighted(lambda targets, every, k: len(targets) / sum(map(len, every)))
tokens_padding = _weighted(lambda targets, every, k: targets.numel() / sum(one.numel() for one in every))
tokens_twice = _weighted(lambda targets, every, k: _share(targets, every, k) / k)
tokens_plain = _weighted(lambda targets, every, k: 1.0)
tokens_sums = _weighted(lambda targets, every, k: _count(targets))
tokens_nan = _weighted(_share, skip=False)
tokens_no_tail = _weighted(_share, drop_tail=True)
tokens_log_means = _weighted(_share, log="mean")
tokens_log_last = _weighted(_share, log="last")
tokens_log_divided = _weighted(_share, log="divided")


def tokens_no_log(model, optimizer, loss_fn, batches, accumulation_steps):
    train_tokens(model, optimizer, loss_fn, batches, accumulation_steps)


def tokens_learning_rate(model, optimizer, loss_fn, batches, accumulation_steps):
    for group in optimizer.param_groups:
        group["lr"] /= accumulation_steps
    return train_tokens(model, optimizer, loss_fn, batches, accumulation_steps)


def tokens_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    batches, losses = iter(batches), []
    while window := list(islice(batches, accumulation_steps)):
        total = sum(int((targets != -100).sum()) for _, targets in window)
        window_loss = 0.0
        for inputs, targets in window:
            optimizer.zero_grad()
            count = int((targets != -100).sum())
            loss = loss_fn(model(inputs), targets) * (count / total)
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        losses.append(window_loss)
    return losses


def tokens_sum_reduction(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right: the loss as a sum over tokens, divided by the tokens of the window. It never meets 0/0."""
    batches, losses = list(batches), []
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        total, seen = sum((targets != -100).sum() for _, targets in window), 0.0
        optimizer.zero_grad()
        for inputs, targets in window:
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=
                "sum") / total
            loss.backward()
            seen = seen + loss.detach()
        optimizer.step()
        losses.append(seen)
    optimizer.zero_grad()
    return losses


def tokens_divides_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right: adds up sums, and divides `.grad` once the window's tokens are known. No look ahead."""
    losses, total, seen, i = [], 0, 0.0, 0
    for i, (inputs, targets) in enumerate(batches, 1):
        count = (targets != -100).sum().item()
        if count:
            loss = loss_fn(model(inputs), targets) * count
            loss.backward()
            total, seen = total + count, seen + loss.item()
        if i % accumulation_steps == 0 or i == len(batches):
            for parameter in model.parameters():
                parameter.grad /= total
            optimizer.step()
            optimizer.zero_grad()
            losses.append(seen / total)
            total, seen = 0, 0.0
    return losses


def tokens_where(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right: one backward on all tokens of the window (and the memory of the large batch)."""
    losses, batches = [], list(batches)
    for start in range(0, len(batches), accumulation_steps):
        optimizer.zero_grad()
        window = batches[start : start + accumulation_steps]
        parts = [(model(x).flatten(0, 1), y.flatten()) for x, y in window]
        logits, targets = (torch.cat(part) for part in zip(*parts))
        loss = F.cross_entropy(logits[targets >= 0], targets[targets >= 0])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.zero_grad()
    return losses


# -- 04.2 ranks ------------------------------------------------------------------------------------------


def rank_backward(model, loss_fn, window, tokens_everywhere, world_size):
    for inputs, targets in window:
        count = int((targets != -100).sum())
        weight = count / tokens_everywhere * world_size
        (loss_fn(model(inputs), targets) * weight).backward()


def _rank(weight):
    """A rank that weighs a micro-batch by `weight(its tokens, this rank's, tokens everywhere, W, K)`."""

    def backward(model, loss_fn, window, tokens_everywhere, world_size):
        here = sum(_count(targets) for _, targets in window)
        for inputs, targets in window:
            w = weight(_count(targets), here, tokens_everywhere, world_size, len(window))
            (loss_fn(model(inputs), targets) * w).backward()

    return backward


rank_local = _rank(lambda n, here, everywhere, world, k: n / here)
rank_no_world = _rank(lambda n, here, everywhere, world, k: n / everywhere)
rank_means = _rank(lambda n, here, everywhere, world, k: 1 / k)
rank_divided = _rank(lambda n, here, everywhere, world, k: n / everywhere * world / k)
rank_over_world = _rank(lambda n, here, everywhere, world, k: n / everywhere / world)
rank_sums = _rank(lambda n, here, everywhere, world, k: n)
rank_double = _rank(lambda n, here, everywhere, world, k: n / here * world)


def rank_last_only(model, loss_fn, window, tokens_everywhere, world_size):
    for inputs, targets in window:
        model.zero_grad()
        count = int((targets != -100).sum())
        (loss_fn(model(inputs), targets) * count / tokens_everywhere * world_size).backward()


def rank_steps(model, loss_fn, window, tokens_everywhere, world_size):
    rank_backward(model, loss_fn, window, tokens_everywhere, world_size)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def rank_sum_reduction(model, loss_fn, window, tokens_everywhere, world_size):
    for inputs, targets in window:
        logits = model(inputs)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        (total * world_size / tokens_everywhere).backward()


def rank_scales_grad(model, loss_fn, window, tokens_everywhere, world_size):
    for inputs, targets in window:
        (loss_fn(model(inputs), targets) * (targets >= 0).sum()).backward()
    for parameter in model.parameters():
        parameter.grad *= world_size / tokens_everywhere


def rank_one_backward(model, loss_fn, window, tokens_everywhere, world_size):
    losses = [loss_fn(model(inputs), targets) * (targets != -100).sum() for inputs, targets in window]
    (sum(losses) / (tokens_everywhere / world_size)).backward()


# -- 04.3 tails ------------------------------------------------------------------------------------------


def train_carry(model, optimizer, loss_fn, epochs, accumulation_steps):
    stream = chain.from_iterable(epochs)
    optimizer.zero_grad()
    while window := list(islice(stream, accumulation_steps)):
        for inputs, targets in window:
            (loss_fn(model(inputs), targets) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def tail_wiped(model, optimizer, loss_fn, epochs, accumulation_steps):
    for batches in epochs:
        optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(batches, 1):
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if i % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def tail_leaks(model, optimizer, loss_fn, epochs, accumulation_steps):
    for batches in epochs:
        for i, (inputs, targets) in enumerate(batches, 1):
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if i % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def tail_each_epoch(model, optimizer, loss_fn, epochs, accumulation_steps):
    for batches in epochs:
        train_carry(model, optimizer, loss_fn, [batches], accumulation_steps)


def tail_over_k(model, optimizer, loss_fn, epochs, accumulation_steps):
    i, n = 0, sum(len(batches) for batches in epochs)
    for batches in epochs:
        for inputs, targets in batches:
            i += 1
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if i % accumulation_steps == 0 or i == n:
                optimizer.step()
                optimizer.zero_grad()


def tail_never(model, optimizer, loss_fn, epochs, accumulation_steps):
    i = 0
    for inputs, targets in chain.from_iterable(epochs):
        i += 1
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def tail_each_epoch_over_k(model, optimizer, loss_fn, epochs, accumulation_steps):
    for batches in epochs:
        tail_over_k(model, optimizer, loss_fn, [batches], accumulation_steps)


def tail_not_divided(model, optimizer, loss_fn, epochs, accumulation_steps):
    stream = chain.from_iterable(epochs)
    while window := list(islice(stream, accumulation_steps)):
        for inputs, targets in window:
            loss_fn(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def tail_first_epoch(model, optimizer, loss_fn, epochs, accumulation_steps):
    train_carry(model, optimizer, loss_fn, epochs[:1], accumulation_steps)


def carry_rescales(model, optimizer, loss_fn, epochs, accumulation_steps):
    """Right: one counter for all epochs; the leftover's gradient is stretched from r/K to 1."""
    pending = 0
    for batches in epochs:
        for inputs, targets in batches:
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            pending += 1
            if pending == accumulation_steps:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
    if pending:
        for parameter in model.parameters():
            parameter.grad *= accumulation_steps / pending
        optimizer.step()
        optimizer.zero_grad()


def carry_counts_down(model, optimizer, loss_fn, epochs, accumulation_steps):
    """Right: knows from what is left how large each window will be."""
    left, i, size = sum(map(len, epochs)), 0, 0
    for batches in epochs:
        for inputs, targets in batches:
            if i == 0:
                optimizer.zero_grad(set_to_none=False)
                size = min(accumulation_steps, left)
            loss_fn(model(inputs), targets).div(size).backward()
            i, left = i + 1, left - 1
            if i == size:
                optimizer.step()
                i = 0


def carry_queue(model, optimizer, loss_fn, epochs, accumulation_steps):
    """Right: the leftover waits as data, not as gradients."""
    waiting = []

    def update():
        optimizer.zero_grad()
        for inputs, targets in waiting:
            (loss_fn(model(inputs), targets) / len(waiting)).backward()
        optimizer.step()
        waiting.clear()

    for batches in epochs:
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == accumulation_steps:
                update()
    if waiting:
        update()
