"""Further wrong loops: updates at the wrong place, clears at the wrong place, data that is lost."""

import copy
from itertools import islice

import torch

from .case import called, first_used, sizes, told
from .wrapper import windows


def iterator_runs_dry(model, optimizer, loss_fn, batches, accumulation_steps):
    """The inner loop takes K batches from an iterator; where it runs dry the epoch ends inside a window."""
    stream = iter(batches)
    while True:
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            try:
                x, y = next(stream)
            except StopIteration:
                return
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def repeats_each_batch(model, optimizer, loss_fn, batches, accumulation_steps):
    """The batch is fetched outside of the inner loop: K times the same one, then a step."""
    for x, y in batches:
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def counts_updates_for_micro_batches(model, optimizer, loss_fn, batches, accumulation_steps):
    """The counter that decides grows with updates, so that it sticks after the first."""
    global_step = 0
    optimizer.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if global_step % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            global_step += 1


def resets_to_one(model, optimizer, loss_fn, batches, accumulation_steps):
    """The counter starts at 0 and is reset to 1."""
    count = 0
    optimizer.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
        count += 1
        if count == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            count = 1


def one_too_many(model, optimizer, loss_fn, batches, accumulation_steps):
    """`>` where `>=` was meant: windows of K + 1."""
    count = 0
    optimizer.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
        count += 1
        if count > accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def steps_before_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """The update stands between forward and backward(): torch refuses, the weights have changed."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y) / accumulation_steps
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        loss.backward()


def backward_on_the_last_only(model, optimizer, loss_fn, batches, accumulation_steps):
    """All micro-batches go forward, only the window's last loss goes backward."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y) / accumulation_steps
        if i % accumulation_steps == 0:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def ungated_wrong_side(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear is under the boundary test, but above backward()."""
    for i, (x, y) in enumerate(batches, 1):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def clears_every_other_update(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear has a period of its own, twice as long."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
        if i % (2 * accumulation_steps) == 0:
            optimizer.zero_grad()


def clears_when_counting(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear comes one micro-batch after the update: the window's first gradient goes, too."""
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()


def clears_one_group(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two groups of parameters; only the first is cleared."""
    optimizer.zero_grad()
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        for parameter in list(model.parameters())[:2]:
            parameter.grad = None


def one_of_two_cleared(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two optimizers step, one clears."""
    body = torch.optim.SGD(model[0].parameters(), lr=0.05)
    head = torch.optim.SGD(model[2].parameters(), lr=0.05)
    for window in windows(batches, accumulation_steps):
        body.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        body.step()
        head.step()


def head_steps_each(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two optimizers: the body accumulates, the head steps with every micro-batch."""
    body = torch.optim.SGD(model[0].parameters(), lr=0.05)
    head = torch.optim.SGD(model[2].parameters(), lr=0.05)
    for window in windows(batches, accumulation_steps):
        body.zero_grad()
        for x, y in window:
            head.zero_grad()
            (loss_fn(model(x), y) / len(window)).backward()
            head.step()
        body.step()


def steps_inside_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """One optimizer for each parameter, stepped by a hook inside backward(): nothing can accumulate."""
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
    for handle in handles:
        handle.remove()


def whole_windows_only(model, optimizer, loss_fn, batches, accumulation_steps):
    """`len(batches) // K` windows, taken from an iterator."""
    stream = iter(batches)
    for _ in range(len(batches) // accumulation_steps):
        optimizer.zero_grad()
        for x, y in islice(stream, accumulation_steps):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def flushes_nothing(model, optimizer, loss_fn, batches, accumulation_steps):
    """A last step after the loop for the tail, also where there is none."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def skips_large_losses(model, optimizer, loss_fn, batches, accumulation_steps):
    """Outliers are left out, and still counted."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        losses = [loss_fn(model(x), y) for x, y in window]
        limit = sorted(loss.item() for loss in losses)[len(losses) // 2]
        for loss in losses:
            if loss.item() <= limit:
                (loss / len(window)).backward()
        optimizer.step()


def clears_at_each_epoch_with_a_living_count(model, optimizer, loss_fn, batches, accumulation_steps):
    """The count goes on over epochs; the gradients are cleared when an epoch begins."""
    state = model.__dict__.setdefault("_count", [0])
    optimizer.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
        state[0] += 1
        if state[0] % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def limit_counts_micro_batches(model, optimizer, loss_fn, batches, accumulation_steps, max_steps):
    """The limit is meant in updates, and compared with the number of micro-batches."""
    seen = 0
    while True:
        for window in windows(batches, accumulation_steps):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
                seen += 1
            optimizer.step()
            if seen >= max_steps:
                return


def epochs_over_k(model, optimizer, loss_fn, batches, accumulation_steps, epochs):
    """The epochs are divided by K, too."""
    for _ in range(max(1, epochs // accumulation_steps)):
        for window in windows(batches, accumulation_steps):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
            optimizer.step()


def trains_a_copy(model, optimizer, loss_fn, batches, accumulation_steps):
    """The optimizer holds the parameters of the model that was copied."""
    model = copy.deepcopy(model)
    for window in windows(batches, accumulation_steps):
        model.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def overwrites_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """`.grad =` where `.grad +=` was meant."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            taken = torch.autograd.grad(loss_fn(model(x), y) / len(window), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), taken):
                parameter.grad = gradient
        optimizer.step()


def keeps_without_clone(model, optimizer, loss_fn, batches, accumulation_steps):
    """The gradients are kept without a copy, and cleared in place: K times the last one."""
    optimizer.zero_grad()
    for window in windows(batches, accumulation_steps):
        kept = []
        for x, y in window:
            optimizer.zero_grad(set_to_none=False)
            loss_fn(model(x), y).backward()
            kept.append([p.grad for p in model.parameters()])
        for parameter, gradients in zip(model.parameters(), zip(*kept)):
            parameter.grad = torch.stack(gradients).mean(0)
        optimizer.step()


def buffers_live_on(model, optimizer, loss_fn, batches, accumulation_steps):
    """Buffers of the loop's own, never set back to zero."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            taken = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
            for buffer, gradient in zip(total, taken):
                buffer += gradient / len(window)
        for parameter, buffer in zip(model.parameters(), total):
            parameter.grad = buffer.clone()
        optimizer.step()


EIGHT = {"sizes": [4] * 8}

CASES = (
    told("unseen: iterator runs dry", iterator_runs_dry, ("tail dropped",)),
    told("unseen: each batch K times", repeats_each_batch, ("other micro-batches",),
         ("update every micro-batch",), options=EIGHT, check=called(step=16)),
    told("unseen: counter of updates", counts_updates_for_micro_batches,
         ("wrong window",), ("tail dropped", "data skipped"), check=called(step=2)),
    told("unseen: reset to one", resets_to_one, ("wrong window",), ("tail dropped",), options=EIGHT,
         check=sizes(4, 3)),
    told("unseen: K + 1", one_too_many, ("wrong window",), ("tail dropped",), check=sizes(5, 5)),
    told("unseen: step before backward", steps_before_backward, ("raised",),
         ("wrong window", "data skipped")),
    told("unseen: clear above backward", ungated_wrong_side, ("cleared on the wrong side",),
         ("tail dropped", "tail leaks"), check=first_used(0, 0, 0, 0.25)),
    told("unseen: clears every other update", clears_every_other_update, ("not cleared",),
         ("tail leaks",)),
    told("unseen: clears one too late", clears_when_counting, ("cleared too early",),
         ("tail dropped", "tail leaks"), check=first_used(0, 0.25, 0.25, 0.25)),
    told("unseen: one group cleared", clears_one_group, ("not cleared",), ("not a weighted sum",)),
    told("unseen: one of two cleared", one_of_two_cleared, ("not cleared",), ("not a weighted sum",)),
    told("unseen: the head steps each time", head_steps_each, ("update every micro-batch",),
         ("cleared too early", "wrong window", "not divided", "divided twice", "not a weighted sum",
          "wrong number of updates", "not cleared", "all scaled")),
    told("unseen: whole windows only", whole_windows_only, ("tail dropped",)),
    told("unseen: flushes nothing", flushes_nothing, ("wrong number of updates",), options=EIGHT,
         check=called(step=6)),
    told("unseen: skips large losses", skips_large_losses, ("data skipped",), ("graph kept",)),
    told("unseen: cleared per epoch, counted on", 
         clears_at_each_epoch_with_a_living_count, ("tail dropped",), ("cleared too early", "all scaled")),
    told("unseen: limit in micro-batches", limit_counts_micro_batches, ("stops early",)),
    told("unseen: epochs over K", epochs_over_k, ("stops early",)),
    told("unseen: kept without a copy", keeps_without_clone, ("cleared too early",),
         ("not divided",), check=first_used(0, 0, 0, 1.0)),
    told("unseen: buffers live on", buffers_live_on, ("not cleared",)),
    told("unseen: only the last goes backward", backward_on_the_last_only,
         ("data skipped",), ("tail dropped",), check=first_used(0, 0, 0, 0.25)),
    told("unseen: steps inside backward", steps_inside_backward, ("update every micro-batch",)),
    told("unseen: trains a copy", trains_a_copy, ("parameters never updated",)),
    told("unseen: overwrites .grad", overwrites_grad, ("cleared too early",),
         check=first_used(0, 0, 0, 0.25)),
)  # fmt: skip
