"""Answers to the exercises of notebook 02: the references, typical mistakes, and right answers that look different.

The references carry the names that the learner's functions have; their source is what `solution` shows.
"""

import ast
import math
from fractions import Fraction
from itertools import islice

import torch

# -- 02.1 ----------------------------------------------------------------------------------------------------------


def window_weights(sizes):
    return [size / sum(sizes) for size in sizes]


def weights_equal(sizes):
    return [1 / len(sizes) for _ in sizes]


def weights_sizes(sizes):
    return list(sizes)


def weights_largest(sizes):
    return [size / max(sizes) for size in sizes]


def weights_inverse(sizes):
    return [1 / size for size in sizes]


def weights_fractions(sizes):
    return tuple(Fraction(size, sum(sizes)) for size in sizes)


def weights_tensor(sizes):
    shares = torch.tensor(sizes, dtype=torch.float64)
    return shares / shares.sum()


# -- 02.2 ----------------------------------------------------------------------------------------------------------


def big_batch_gradient(micro_gradients, sizes):
    samples = sum(sizes)
    return sum(gradient * (size / samples) for gradient, size in zip(micro_gradients, sizes))


def gradient_sum(micro_gradients, sizes):
    return sum(micro_gradients)


def gradient_mean(micro_gradients, sizes):
    return sum(micro_gradients) / len(micro_gradients)


def gradient_sizes(micro_gradients, sizes):
    return sum(gradient * size for gradient, size in zip(micro_gradients, sizes))


def gradient_in_place(micro_gradients, sizes):
    total = micro_gradients[0]
    total *= sizes[0]
    for gradient, size in zip(micro_gradients[1:], sizes[1:]):
        total += gradient * size
    return total / sum(sizes)


def gradient_einsum(micro_gradients, sizes):
    shares = torch.tensor(sizes, dtype=micro_gradients[0].dtype)
    return torch.einsum("k,k...->...", shares / shares.sum(), torch.stack(list(micro_gradients)))


def gradient_sums(micro_gradients, sizes):
    sums = [gradient * size for gradient, size in zip(micro_gradients, sizes)]
    return torch.stack(sums).sum(0) / sum(sizes)


# -- 02.3 ----------------------------------------------------------------------------------------------------------


def accumulate(model, optimizer, loss_fn, batches, accumulation_steps):
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_no_division(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def loop_steps(model, optimizer, loss_fn, batches, accumulation_steps):
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def loop_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad /= accumulation_steps
            optimizer.step()
            optimizer.zero_grad()


def loop_never_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def loop_off_by_one(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_running(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        (loss_fn(model(inputs), targets) / (i % accumulation_steps + 1)).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_no_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets) / accumulation_steps
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_outside(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
    if i % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()


def loop_clips(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.1, 0.1)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_divides_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad.div_(accumulation_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def loop_autograd(model, optimizer, loss_fn, batches, accumulation_steps):
    parameters, window = list(model.parameters()), []
    for inputs, targets in batches:
        window.append(torch.autograd.grad(loss_fn(model(inputs), targets), parameters))
        if len(window) == accumulation_steps:
            for parameter, gradients in zip(parameters, zip(*window)):
                parameter.grad = torch.stack(gradients).mean(0)
            optimizer.step()
            window = []


def loop_none(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad = None
        (loss_fn(model(inputs), targets) * (1 / accumulation_steps)).backward()
        if i % accumulation_steps == accumulation_steps - 1:
            optimizer.step()


def loop_concatenates(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right gradients, and the memory of the large batch: the grader of gradients must let it pass."""
    batches = list(batches)
    for start in range(0, len(batches), accumulation_steps):
        inputs, targets = (torch.cat(part) for part in zip(*batches[start : start + accumulation_steps]))
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()


def loop_closure(model, optimizer, loss_fn, batches, accumulation_steps):
    batches = list(batches)
    for start in range(0, len(batches), accumulation_steps):

        def closure(window=batches[start : start + accumulation_steps]):
            optimizer.zero_grad()
            return sum((loss_fn(model(x), y) / len(window)).backward() or 0.0 for x, y in window)

        optimizer.step(closure)


# -- 02.4 ----------------------------------------------------------------------------------------------------------


def accumulate_any(model, optimizer, loss_fn, batches, accumulation_steps):
    batches, losses = iter(batches), []
    optimizer.zero_grad()
    while window := list(islice(batches, accumulation_steps)):
        samples, window_loss = sum(len(targets) for _, targets in window), 0.0
        for inputs, targets in window:
            loss = loss_fn(model(inputs), targets) * (len(targets) / samples)
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses


def tail_small(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def tail_dropped(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def tail_means(model, optimizer, loss_fn, batches, accumulation_steps):
    batches, losses = iter(batches), []
    while window := list(islice(batches, accumulation_steps)):
        for inputs, targets in window:
            loss = loss_fn(model(inputs), targets) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tail_last_loss(model, optimizer, loss_fn, batches, accumulation_steps):
    batches, losses = iter(batches), []
    while window := list(islice(batches, accumulation_steps)):
        samples = sum(len(targets) for _, targets in window)
        for inputs, targets in window:
            loss = loss_fn(model(inputs), targets)
            (loss * (len(targets) / samples)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tail_no_losses(model, optimizer, loss_fn, batches, accumulation_steps):
    accumulate_any(model, optimizer, loss_fn, batches, accumulation_steps)


def tail_sums(model, optimizer, loss_fn, batches, accumulation_steps):
    losses, samples, total, i = [], 0, 0.0, 0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) * len(targets)
        loss.backward()
        samples, total = samples + len(targets), total + loss.item()
        if i % accumulation_steps == 0 or i == len(batches):
            for parameter in model.parameters():
                parameter.grad /= samples
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / samples)
            samples, total = 0, 0.0
    return losses


def tail_two_passes(model, optimizer, loss_fn, batches, accumulation_steps):
    batches = list(batches)
    sizes = [len(targets) for _, targets in batches]
    losses = [0.0] * -(-len(batches) // accumulation_steps)
    for i, (inputs, targets) in enumerate(batches):
        start = i - i % accumulation_steps
        share = sizes[i] / sum(sizes[start : start + accumulation_steps])
        loss = share * loss_fn(model(inputs), targets)
        loss.backward()
        losses[i // accumulation_steps] += float(loss.detach())
        if i + 1 in (start + accumulation_steps, len(batches)):
            optimizer.step()
            optimizer.zero_grad()
    return losses


# -- 02.5 ----------------------------------------------------------------------------------------------------------


def peak_bytes(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    largest = -(-batch // accumulation_steps)
    return parameters + gradients + state + activation_per_sample * largest


def memory_all(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return (parameters + gradients + state + activation_per_sample * batch) // accumulation_steps


def memory_none(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return parameters + gradients + state + activation_per_sample * batch


def memory_piles(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return parameters + gradients * accumulation_steps + state + activation_per_sample * -(-batch // accumulation_steps)


def memory_no_gradients(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return parameters + state + activation_per_sample * -(-batch // accumulation_steps)


def memory_floor(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return parameters + gradients + state + activation_per_sample * (batch // accumulation_steps)


def memory_ceil(parameters, gradients, state, activation_per_sample, batch, accumulation_steps):
    return math.ceil(batch / accumulation_steps) * activation_per_sample + state + gradients + parameters


# -- 02.6 ----------------------------------------------------------------------------------------------------------


def train_plain(model, optimizer, loss_fn, batches, accumulation_steps):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()


def train(model, optimizer, loss_fn, batches, accumulation_steps):
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def edit_division(model, optimizer, loss_fn, batches, accumulation_steps):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        optimizer.step()


def edit_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def edit_no_division(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def edit_rewrite(model, optimizer, loss_fn, batches, accumulation_steps):
    window = []
    for pair in batches:
        window.append(pair)
        if len(window) < accumulation_steps:
            continue
        for x, y in window:
            part = loss_fn(model(x), y)
            part = part / len(window)
            part.backward()
        optimizer.step()
        optimizer.zero_grad()
        window = []


def edit_other(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()


def plain_lines(source):
    """The lines of a function's body without comments, indentation and layout, to count edits fairly.

    None where the source holds no `def`.
    """
    function = ast.parse(source).body[0]
    if not isinstance(function, ast.FunctionDef):
        return None
    return [line.strip() for part in function.body for line in ast.unparse(part).splitlines() if "TODO(" not in line]
