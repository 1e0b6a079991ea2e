"""Loops that cut a loader's batch into micro-batches: the window is one batch, or several."""

import torch

from .case import first_used, ratio, told
from .wrapper import windows


def chunks(model, optimizer, loss_fn, batches, accumulation_steps):
    """Every batch is cut into K chunks and is a window: right."""
    for x, y in batches:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
            (loss_fn(model(part), target) * len(part) / len(x)).backward()
        optimizer.step()


def chunks_by_loader(model, optimizer, loss_fn, batches, accumulation_steps):
    """Every batch becomes a small loader of its own: right."""
    for x, y in batches:
        data = torch.utils.data.TensorDataset(x, y)
        loader = torch.utils.data.DataLoader(data, batch_size=max(1, len(x) // accumulation_steps))
        for part, target in loader:
            (loss_fn(model(part), target) * len(part) / len(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


def chunks_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Chunks, mean losses, no division."""
    for x, y in batches:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
            loss_fn(model(part), target).backward()
        optimizer.step()


def chunks_that_are_fewer(model, optimizer, loss_fn, batches, accumulation_steps):
    """chunk(4) of 6 rows makes three chunks; each counts 1/4."""
    for x, y in batches:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
            (loss_fn(model(part), target) / accumulation_steps).backward()
        optimizer.step()


def chunks_that_are_unequal(model, optimizer, loss_fn, batches, accumulation_steps):
    """split into unequal parts, each counted alike."""
    for x, y in batches:
        optimizer.zero_grad()
        parts = list(zip(x.tensor_split(accumulation_steps), y.tensor_split(accumulation_steps)))
        for part, target in parts:
            (loss_fn(model(part), target) / len(parts)).backward()
        optimizer.step()


def chunks_cleared_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear stands in the inner loop."""
    for x, y in batches:
        for part, target in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
            optimizer.zero_grad()
            (loss_fn(model(part), target) / accumulation_steps).backward()
        optimizer.step()


def chunks_stepped_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """The step stands in the inner loop."""
    for x, y in batches:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(accumulation_steps), y.chunk(accumulation_steps)):
            (loss_fn(model(part), target) / accumulation_steps).backward()
            optimizer.step()


def drops_the_rest(model, optimizer, loss_fn, batches, accumulation_steps):
    """Slices of a fixed size; the rows that are left over are not used."""
    for x, y in batches:
        size = len(x) // accumulation_steps
        optimizer.zero_grad()
        for i in range(accumulation_steps):
            part = slice(i * size, (i + 1) * size)
            (loss_fn(model(x[part]), y[part]) / accumulation_steps).backward()
        optimizer.step()


def first_slice_again(model, optimizer, loss_fn, batches, accumulation_steps):
    """The slice forgets its start: the first rows again and again."""
    for x, y in batches:
        size = len(x) // accumulation_steps
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            (loss_fn(model(x[:size]), y[:size]) / accumulation_steps).backward()
        optimizer.step()


def growing_slices(model, optimizer, loss_fn, batches, accumulation_steps):
    """The slice's start is missing: 2, 4, 6, 8 rows."""
    for x, y in batches:
        size = len(x) // accumulation_steps
        optimizer.zero_grad()
        for i in range(1, accumulation_steps + 1):
            (loss_fn(model(x[: i * size]), y[: i * size]) / accumulation_steps).backward()
        optimizer.step()


def always_the_first_batch(model, optimizer, loss_fn, batches, accumulation_steps):
    """next(iter(...)) makes a new iterator each time: always the first batch."""
    for _ in range(len(batches) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            x, y = next(iter(batches))
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def overlapping_windows(model, optimizer, loss_fn, batches, accumulation_steps):
    """A sliding window: every micro-batch is in K updates."""
    for start in range(len(batches) - accumulation_steps + 1):
        optimizer.zero_grad()
        for x, y in batches[start : start + accumulation_steps]:
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def strided_windows(model, optimizer, loss_fn, batches, accumulation_steps):
    """batches[i::n]: windows of micro-batches that lie apart."""
    count = len(batches) // accumulation_steps
    for start in range(count):
        optimizer.zero_grad()
        for x, y in batches[start::count]:
            (loss_fn(model(x), y) / len(batches[start::count])).backward()
        optimizer.step()


def joins_across(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right: the windows' rows are joined and cut anew into micro-batches of three rows."""
    for window in windows(batches, accumulation_steps):
        x, y = (torch.cat(part) for part in zip(*window))
        optimizer.zero_grad()
        for part, target in zip(x.split(3), y.split(3)):
            (loss_fn(model(part), target) * len(part) / len(x)).backward()
        optimizer.step()


EIGHT_ROWS = {"sizes": [8] * 5}

CASES = (
    told("right: chunks", chunks, options=EIGHT_ROWS),
    told("right: chunks by a loader", chunks_by_loader, options=EIGHT_ROWS),
    told("right: joined and cut anew", joins_across, options=EIGHT_ROWS),
    told("unseen: chunks undivided", chunks_undivided, ("not divided",), options=EIGHT_ROWS,
         check=ratio(4.0)),
    told("unseen: unequal chunks", chunks_that_are_unequal, ("mean of means",), options={"sizes": [9] * 4},
         check=first_used(0.25, 0.25, 0.25, 0.25)),
    told("unseen: chunks cleared inside", chunks_cleared_inside, ("cleared too early",), options=EIGHT_ROWS,
         check=first_used(0, 0, 0, 0.25)),
    told("unseen: chunks stepped inside", chunks_stepped_inside, ("update every micro-batch",),
         ("not cleared",),
         options=EIGHT_ROWS),
    told("unseen: first slice again", first_slice_again, ("data skipped",),
         ("other micro-batches", "wrong window"),
         options=EIGHT_ROWS),
    told("unseen: always the first batch", always_the_first_batch, ("other micro-batches",),
         ("data skipped",)),
    told("unseen: strided windows", strided_windows, ("other micro-batches",), ("wrong window",),
         options={"sizes": [4] * 8}),
    told("right: chunks, unequal", chunks, options={"sizes": [8, 6, 5, 8]}),
    told("unseen: fewer chunks", chunks_that_are_fewer, ("all scaled",), ("tail too small",),
         options={"sizes": [6] * 4}, check=ratio(0.75)),
    told("unseen: rest of the rows dropped", drops_the_rest, ("data skipped",),
         ("wrong window", "mean of means", "all scaled"),
         options={"sizes": [9] * 4}),
    told("unseen: growing slices", growing_slices, ("other micro-batches",),
         ("wrong window", "data skipped", "not a weighted sum"), options=EIGHT_ROWS),
)  # fmt: skip

# the doctor does not say this yet
OPEN = (
    told("unseen: sliding window", overlapping_windows, ("other micro-batches",),
         ("wrong window", "wrong number of updates")),
)  # fmt: skip
