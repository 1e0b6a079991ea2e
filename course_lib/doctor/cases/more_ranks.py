"""Further loops on two ranks: real processes with gloo, the model is a DistributedDataParallel."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from .case import ratio, told


def _sync(model, last):
    return nullcontext() if last else model.no_sync()


def undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """no_sync is right, nothing divides."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def divided_by_ranks_too(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loss is divided by K and by the number of ranks; DDP takes the mean as well."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps / dist.get_world_size()).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def cleared_each(model, optimizer, loss_fn, batches, accumulation_steps):
    """Cleared with every micro-batch."""
    for i, (x, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def never_cleared(model, optimizer, loss_fn, batches, accumulation_steps):
    """Never cleared: the second window holds the first, too."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def steps_each(model, optimizer, loss_fn, batches, accumulation_steps):
    """Steps with every micro-batch."""
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def drops_the_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    """Whole windows only."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def tail_not_synchronised(model, optimizer, loss_fn, batches, accumulation_steps):
    """The tail is stepped, but its last backward() ran under no_sync."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / min(accumulation_steps, len(batches) - (i - 1) // 4 * 4)).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def clips_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each rank clips its own partial sum."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        clip_grad_norm_(model.parameters(), 0.05)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def only_rank_zero_steps(model, optimizer, loss_fn, batches, accumulation_steps):
    """The step stands under `if rank == 0`."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            if dist.get_rank() == 0:
                optimizer.step()
            optimizer.zero_grad()


def reduces_by_hand(model, optimizer, loss_fn, batches, accumulation_steps):
    """All under no_sync, then one all-reduce by hand: right."""
    for i, (x, y) in enumerate(batches, 1):
        with model.no_sync():
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()


def reduces_without_a_mean(model, optimizer, loss_fn, batches, accumulation_steps):
    """The same without the division by the ranks: a sum."""
    for i, (x, y) in enumerate(batches, 1):
        with model.no_sync():
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


def uses_the_module(model, optimizer, loss_fn, batches, accumulation_steps):
    """Goes forward through model.module: DDP never hears of it."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model.module(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def reduces_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """DDP synchronises each micro-batch, and each partial sum is reduced again."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def window_count(model, optimizer, loss_fn, batches, accumulation_steps):
    """Sums over the global count of the window times the ranks, unequal sizes: right."""
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = torch.tensor(float(sum(len(y) for _, y in window)))
        dist.all_reduce(rows)
        for i, (x, y) in enumerate(window, 1):
            with _sync(model, i == len(window)):
                loss = F.mse_loss(model(x), y, reduction="sum") / rows
                (loss * dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()


def local_window_count(model, optimizer, loss_fn, batches, accumulation_steps):
    """Sums over the rank's own count of the window."""
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = sum(len(y) for _, y in window)
        for i, (x, y) in enumerate(window, 1):
            with _sync(model, i == len(window)):
                (F.mse_loss(model(x), y, reduction="sum") / rows).backward()
        optimizer.step()
        optimizer.zero_grad()


def equal_means(model, optimizer, loss_fn, batches, accumulation_steps):
    """Unequal micro-batches counted alike on each rank."""
    for i, (x, y) in enumerate(batches, 1):
        with _sync(model, i % accumulation_steps == 0):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def waits_for_the_other(model, optimizer, loss_fn, batches, accumulation_steps):
    """Rank 1 has fewer batches: rank 0 waits for an all-reduce that never comes."""
    for x, y in batches[: len(batches) - dist.get_rank()]:
        loss_fn(model(x), y).backward()
    optimizer.step()


FOUR = {"sizes": [[4] * 4, [4] * 4], "accumulation_steps": 4}
EIGHT = {"sizes": [[4] * 8, [4] * 8], "accumulation_steps": 4}
SIX = {"sizes": [[4] * 6, [4] * 6], "accumulation_steps": 4}
UNEQUAL = {"sizes": [[1, 2, 3, 2], [4, 4, 2, 6]], "accumulation_steps": 4}
TWO = {"ranks": 2}

CASES = (
    told("ranks: undivided", undivided, ("not divided",), options=FOUR, check=ratio(4.0), **TWO),
    told("ranks: divided by the ranks, too", divided_by_ranks_too, ("averaged over ranks",), options=FOUR,
         check=ratio(0.5), **TWO),
    told("ranks: cleared each", cleared_each, ("cleared too early",), options=FOUR, **TWO),
    told("ranks: tail not synchronised", tail_not_synchronised, ("ranks differ",), options=SIX, **TWO),
    told("ranks: only rank 0 steps", only_rank_zero_steps, ("ranks differ",), options=FOUR, **TWO),
    told("right: reduces by hand", reduces_by_hand, options=FOUR, **TWO),
    told("ranks: a sum over ranks", reduces_without_a_mean, ("all scaled",), ("not divided",), options=FOUR,
         check=ratio(2.0), **TWO),
    told("ranks: past DDP", uses_the_module, ("ranks differ",), options=FOUR, **TWO),
    told("ranks: reduced twice", reduces_twice, ("wrong weights",),
         ("collectives per micro-batch", "all scaled", "not divided", "repeated division"), options=FOUR, **TWO),
    told("right: window count over ranks", window_count, options=UNEQUAL, **TWO),
    told("ranks: local window count", local_window_count, ("mean over ranks",), options=UNEQUAL, **TWO),
    told("ranks: equal means", equal_means, ("mean over ranks",), ("mean of means",), options=UNEQUAL, **TWO),
    told("ranks: one waits", waits_for_the_other, ("raised",), ("time limit", "ranks differ"),
         options=FOUR | {"time_limit": 8.0}, **TWO),
)  # fmt: skip

# the doctor does not say this yet
OPEN = (
    told("ranks: never cleared", never_cleared, ("not cleared",), options=EIGHT, **TWO),
    told("ranks: steps each", steps_each, ("update every micro-batch",), options=FOUR, **TWO),
    told("ranks: tail dropped", drops_the_tail, ("tail dropped",), options=SIX, **TWO),
    told("ranks: clips inside", clips_inside, ("clipped in the window",), ("ranks differ",), options=FOUR, **TWO),
)  # fmt: skip
