"""Odd answers to notebook 02, found by attacking its graders: wrong ones that looked right, right ones that looked wrong."""

import random

import torch

from .answers02 import accumulate, accumulate_any, peak_bytes, train


def weights_float32(sizes):
    sizes = torch.tensor(sizes)
    return sizes / sizes.sum()


def gradient_pops(micro_gradients, sizes):
    total, samples = 0.0, sum(sizes)
    for size in reversed(sizes):
        total = total + micro_gradients.pop() * (size / samples)
    return total


def loop_clears_first(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()


def loop_stale_epoch(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right for one epoch: the last window's gradients are left for the next epoch to trip over."""
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            if i < len(batches):
                optimizer.zero_grad()


def loop_learning_rate(model, optimizer, loss_fn, batches, accumulation_steps):
    for group in optimizer.param_groups:
        group["lr"] /= accumulation_steps
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_shuffles(model, optimizer, loss_fn, batches, accumulation_steps):
    random.shuffle(batches)
    accumulate(model, optimizer, loss_fn, batches, accumulation_steps)


def loop_pops(model, optimizer, loss_fn, batches, accumulation_steps):
    window = []
    while batches:
        window.append(batches.pop(0))
        if len(window) == accumulation_steps:
            accumulate(model, optimizer, loss_fn, window, accumulation_steps)
            window = []


def loop_other_order(model, optimizer, loss_fn, batches, accumulation_steps):
    accumulate(model, optimizer, loss_fn, list(batches)[::-1], accumulation_steps)


def loop_all_batches(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / (3 * len(batches))).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_yields(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        yield loss
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_float32(model, optimizer, loss_fn, batches, accumulation_steps):
    model.float()
    pairs = [(inputs.float(), targets.float()) for inputs, targets in batches]
    accumulate(model, optimizer, loss_fn, pairs, accumulation_steps)


def loop_hooks(model, optimizer, loss_fn, batches, accumulation_steps):
    hooks = [p.register_hook(lambda g: g / accumulation_steps) for p in model.parameters()]
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    for hook in hooks:
        hook.remove()


def loop_step_hook(model, optimizer, loss_fn, batches, accumulation_steps):
    def divide(*_):
        for parameter in model.parameters():
            parameter.grad /= accumulation_steps

    hook = optimizer.register_step_pre_hook(divide)
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    hook.remove()


def loop_freezes(model, optimizer, loss_fn, batches, accumulation_steps):
    model.requires_grad_(True)
    accumulate(model, optimizer, loss_fn, batches, accumulation_steps)
    model.requires_grad_(False)


def tail_late_losses(model, optimizer, loss_fn, batches, accumulation_steps):
    """The right updates, but each window's loss is computed again after its update."""
    batches, losses = list(batches), []
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        accumulate_any(model, optimizer, loss_fn, window, accumulation_steps)
        inputs, targets = (torch.cat(part) for part in zip(*window))
        losses.append(loss_fn(model(inputs), targets).item())
    return losses


def memory_no_parameters(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return peak_bytes(0, gradients, state, activation_per_sample, batch, accumulation_steps)


def memory_float(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return parameters + gradients + state + activation_per_sample * batch / accumulation_steps


def edit_delegates(model, optimizer, loss_fn, batches, accumulation_steps):
    return accumulate(model, optimizer, loss_fn, batches, accumulation_steps)


edit_lambda = lambda model, optimizer, loss_fn, batches, accumulation_steps: train(  # noqa: E731
    model, optimizer, loss_fn, batches, accumulation_steps
)
