"""Two ranks, real processes with gloo. The model that these loops are given is a DistributedDataParallel."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn import functional as F

from .case import Case, called, ratio


def synchronises_once(model, optimizer, loss_fn, batches, accumulation_steps):
    """no_sync around forward and backward of all micro-batches but the last: right."""
    for i, (x, y) in enumerate(batches, 1):
        last = i % accumulation_steps == 0
        with nullcontext() if last else model.no_sync():
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def synchronises_always(model, optimizer, loss_fn, batches, accumulation_steps):
    """No context at all: an all-reduce for every micro-batch."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def no_sync_around_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """The forward stands outside of no_sync, and that is where DDP decides."""
    for i, (x, y) in enumerate(batches, 1):
        last = i % accumulation_steps == 0
        loss = loss_fn(model(x), y) / accumulation_steps
        with nullcontext() if last else model.no_sync():
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def synchronises_the_first(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first micro-batch of a window is synchronised, the others are not."""
    for i, (x, y) in enumerate(batches):
        with nullcontext() if i % accumulation_steps == 0 else model.no_sync():
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def synchronises_never(model, optimizer, loss_fn, batches, accumulation_steps):
    """Every micro-batch under no_sync."""
    for i, (x, y) in enumerate(batches, 1):
        with model.no_sync():
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def _count(batches):
    rows = torch.tensor([float(sum(len(y) for _, y in batches))])
    dist.all_reduce(rows)
    return rows.item()


def global_count(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides by the samples of all ranks, and DDP takes the mean over ranks."""
    rows = _count(batches)
    for x, y in batches:
        (F.mse_loss(model(x), y, reduction="sum") / rows).backward()
    optimizer.step()


def global_count_times_ranks(model, optimizer, loss_fn, batches, accumulation_steps):
    """The same times the number of ranks: right."""
    rows = _count(batches)
    for x, y in batches:
        (F.mse_loss(model(x), y, reduction="sum") / rows * dist.get_world_size()).backward()
    optimizer.step()


def local_means(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each rank divides by its own samples."""
    for x, y in batches:
        loss_fn(model(x), y).backward()
    optimizer.step()


FOUR = {"sizes": [[4] * 4, [4] * 4], "accumulation_steps": 4}
UNEQUAL = {"sizes": [[2], [6]], "accumulation_steps": 1}

CASES = (
    Case("B22", "global count without the ranks", global_count, ("averaged over ranks",), options=UNEQUAL, check=ratio(0.5), ranks=2),
    Case("B22 right", "global count times the ranks", global_count_times_ranks, options=UNEQUAL, ranks=2),
    Case("B22 local", "mean of the ranks' means", local_means, ("mean over ranks",), options=UNEQUAL, ranks=2),
    Case("B44", "no_sync around backward only", no_sync_around_backward, ("forward outside no_sync",), options=FOUR,
         check=called(collectives=4), ranks=2),
    Case("B45", "no no_sync", synchronises_always, ("collectives per micro-batch",), options=FOUR,
         check=called(collectives=4), ranks=2),
    Case("B46", "the first micro-batch synchronises", synchronises_the_first, ("ranks differ",), options=FOUR, ranks=2),
    Case("B46 never", "nothing synchronises", synchronises_never, ("ranks differ",), options=FOUR, ranks=2),
    Case("right: no_sync", "no_sync for all but the last", synchronises_once, options=FOUR, check=called(collectives=1), ranks=2),
)  # fmt: skip
