"""Answers to the exercises of notebook 04 about the schedule and about sums in bf16."""

import copy
import math
from itertools import islice

import torch

# -- 04.7 schedule ---------------------------------------------------------------------------------------


def train_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
    updates = epochs * math.ceil(len(batches) / accumulation_steps)
    schedule = make_schedule(optimizer, updates)
    optimizer.zero_grad()
    for _ in range(epochs):
        rest = iter(batches)
        while window := list(islice(rest, accumulation_steps)):
            for inputs, targets in window:
                (loss_fn(model(inputs), targets) / len(window)).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def _scheduled(total=None, when="update", k_of=None, again=False):
    """A loop with another total of updates, or with the schedule stepped at another time."""

    def loop(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
        n, k = len(batches), accumulation_steps
        updates = epochs * math.ceil(n / k) if total is None else total(n, k, epochs)
        schedule = make_schedule(optimizer, updates)
        for _ in range(epochs):
            if again:
                schedule = make_schedule(optimizer, updates)
            rest = iter(batches)
            while window := list(islice(rest, k)):
                for inputs, targets in window:
                    (loss_fn(model(inputs), targets) / (k_of or len)(window)).backward()
                    if when == "micro-batch":
                        schedule.step()
                if when == "before":
                    schedule.step()
                optimizer.step()
                if when == "update":
                    schedule.step()
                optimizer.zero_grad()
            if when == "epoch":
                schedule.step()

    return loop


schedule_floor = _scheduled(lambda n, k, epochs: epochs * max(1, n // k))
schedule_total_micro = _scheduled(lambda n, k, epochs: epochs * n)
schedule_one_epoch = _scheduled(lambda n, k, epochs: math.ceil(n / k))
schedule_carried = _scheduled(lambda n, k, epochs: math.ceil(n * epochs / k))
schedule_epochs = _scheduled(lambda n, k, epochs: epochs)
schedule_float = _scheduled(lambda n, k, epochs: epochs * n / k)
schedule_per_micro = _scheduled(when="micro-batch")
schedule_per_epoch = _scheduled(when="epoch")
schedule_never = _scheduled(when="never")
schedule_before = _scheduled(when="before")
schedule_again = _scheduled(again=True)


def schedule_tail_over_k(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
    schedule = make_schedule(optimizer, epochs * -(-len(batches) // accumulation_steps))
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(batches, 1):
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if i % accumulation_steps == 0 or i == len(batches):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


def schedule_ignored(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
    for _ in range(epochs):
        rest = iter(batches)
        while window := list(islice(rest, accumulation_steps)):
            for inputs, targets in window:
                (loss_fn(model(inputs), targets) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()


def schedule_plans_windows(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
    """Right: makes the list of all windows first, and counts it."""
    k = accumulation_steps
    windows = [batches[start : start + k] for _ in range(epochs) for start in range(0, len(batches), k)]
    schedule = make_schedule(optimizer, len(windows))
    for window in windows:
        optimizer.zero_grad()
        sum(loss_fn(model(inputs), targets) / len(window) for inputs, targets in window).backward()
        optimizer.step()
        schedule.step()


def schedule_counts_along(model, optimizer, loss_fn, batches, accumulation_steps, epochs, make_schedule):
    """Right: one loop with a test, the tail's divisor worked out from the index."""
    n, k = len(batches), accumulation_steps
    schedule = make_schedule(optimizer, (n + k - 1) // k * epochs)
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(batches):
            size = min(k, n - i // k * k)
            (loss_fn(model(inputs), targets) / size).backward()
            if (i + 1) % k == 0 or i + 1 == n:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


# -- 04.8 bf16 -------------------------------------------------------------------------------------------


def mean_gradients(model, loss_fn, batches):
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p, dtype=torch.float32) for p in parameters]
    for inputs, targets in batches:
        model.zero_grad()
        loss_fn(model(inputs), targets).backward()
        for total, p in zip(sums, parameters):
            total += p.grad.float()
    return [total / len(batches) for total in sums]


def bf16_plain(model, loss_fn, batches):
    model.zero_grad()
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / len(batches)).backward()
    return [p.grad.float() for p in model.parameters()]


def bf16_divides_late(model, loss_fn, batches):
    model.zero_grad()
    for inputs, targets in batches:
        loss_fn(model(inputs), targets).backward()
    return [p.grad.float() / len(batches) for p in model.parameters()]


def bf16_buffer_too(model, loss_fn, batches):
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]  # zeros_like takes the dtype along
    for inputs, targets in batches:
        model.zero_grad()
        loss_fn(model(inputs), targets).backward()
        for total, p in zip(sums, parameters):
            total += p.grad
    return [total.float() / len(batches) for total in sums]


def bf16_float_loss(model, loss_fn, batches):
    model.zero_grad()
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets).float() / len(batches)).backward()
    return [p.grad.float() for p in model.parameters()]


def bf16_running(model, loss_fn, batches):
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p, dtype=torch.float32) for p in parameters]
    for inputs, targets in batches:
        loss_fn(model(inputs), targets).backward()
        for total, p in zip(sums, parameters):
            total += p.grad.float()
    return [total / len(batches) for total in sums]


def bf16_not_divided(model, loss_fn, batches):
    return [gradient * len(batches) for gradient in mean_gradients(model, loss_fn, batches)]


def bf16_returns_bf16(model, loss_fn, batches):
    return [gradient.bfloat16() for gradient in mean_gradients(model, loss_fn, batches)]


def bf16_casts_model(model, loss_fn, batches):
    model.float()
    floats = [(inputs.float(), targets.float()) for inputs, targets in batches]
    return mean_gradients(model, loss_fn, floats)


def bf16_copies_model(model, loss_fn, batches):
    floats = [(inputs.float(), targets.float()) for inputs, targets in batches]
    return mean_gradients(copy.deepcopy(model).float(), loss_fn, floats)


def bf16_autograd(model, loss_fn, batches):
    """Right: every gradient apart, and one sum at the end in float64."""
    parameters = list(model.parameters())
    each = [torch.autograd.grad(loss_fn(model(x), y), parameters) for x, y in batches]
    return [torch.stack(one).double().mean(0).float() for one in zip(*each)]


def bf16_hooks(model, loss_fn, batches):
    """Right: a hook moves each gradient into the float32 buffer as soon as it is there, and drops it."""
    buffers = {p: torch.zeros(p.shape) for p in model.parameters()}
    model.zero_grad()

    def move(p):
        buffers[p] += p.grad
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(move) for p in buffers]
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / len(batches)).backward()
    for hook in hooks:
        hook.remove()
    return list(buffers.values())
