"""The gallery of notebook 03, second half: clipping and loss scale, then what stands beside the gradient."""

import torch

from .case03 import rebuilt
from .names03 import diagnosis

# -- clipping and the loss scale ----------------------------------------------------------------------------


def safe_steps_given(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="clipped in the window", proof=[1 / 5**0.5, 2 / 5**0.5])
def safe_steps(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def stuck_model_given(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@diagnosis(fault="clipped before unscale", proof=0.1 / 65536)
def stuck_model(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def eager_scaler_given(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        scaler.unscale_(optimizer)
        if i % accumulation_steps == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


@diagnosis(fault="scaler updated in the window", proof=1 / 4 / 65536)
def eager_scaler(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()


def one_bad_batch_given(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if norm.isfinite():
                optimizer.step()
                optimizer.zero_grad()


@diagnosis(fault="NaN never cleared", proof=1)
def one_bad_batch(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if norm.isfinite():
                optimizer.step()
            optimizer.zero_grad()


# -- beside the gradient ------------------------------------------------------------------------------------


def short_warm_up_given(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


@diagnosis(fault="schedule per micro-batch", proof=1000 / 8)
def short_warm_up(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


def pretty_curve_given(model, optimizer, loss_fn, batches, accumulation_steps, log):
    shown = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        shown += loss.item()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            log(shown / accumulation_steps)
            shown = 0.0


@diagnosis(fault="logged loss divided", proof=2.0 / 4)
def pretty_curve(model, optimizer, loss_fn, batches, accumulation_steps, log):
    shown = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        shown += loss.item()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            log(shown)
            shown = 0.0


def long_memory_given(model, optimizer, loss_fn, batches, accumulation_steps):
    total = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        total = total + loss
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)


@diagnosis(fault="graph kept", proof=16)
def long_memory(model, optimizer, loss_fn, batches, accumulation_steps):
    total = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        total = total + loss.item()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)


def night_shift_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if i == 6:  # the job is killed and starts again from its files
            model, optimizer = rebuilt(model, optimizer)


@diagnosis(fault="partial window lost", proof=2 / 4)
def night_shift(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if i == 6:  # the job is killed and starts again from its files
            gradients = [parameter.grad for parameter in model.parameters()]
            model, optimizer = rebuilt(model, optimizer)
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.grad = gradient


def two_players_given(model, optimizer, loss_fn, batches, accumulation_steps):
    pulls = []
    for i, (inputs, targets) in enumerate(batches, 1):
        fakes = torch.ones_like(inputs, requires_grad=True)  # the generator's output
        (-model(fakes).mean()).backward()
        pulls.append(fakes.grad.norm().item())  # the generator learns from this
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return pulls


@diagnosis(fault="gradient of another loss", proof=[8, 4])
def two_players(model, optimizer, loss_fn, batches, accumulation_steps):
    pulls = []
    for i, (inputs, targets) in enumerate(batches, 1):
        fakes = torch.ones_like(inputs, requires_grad=True)  # the generator's output
        (pull,) = torch.autograd.grad(-model(fakes).mean(), fakes)
        pulls.append(pull.norm().item())  # the generator learns from this
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return pulls
