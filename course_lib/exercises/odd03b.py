"""Notebook 03, the second half of the gallery: loops mended wrongly, and right ones that look different."""

import torch

# -- clipping and the loss scale ----------------------------------------------------------------------------


def clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def clip_shared_out(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm / accumulation_steps)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def clip_undivided(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def clip_by_hand(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
            optimizer.step()
            optimizer.zero_grad()


def scaled_no_clip(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def scaled_each_unscale(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        scaler.unscale_(optimizer)
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def scaled_unscales_late(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def scaled_mean(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    """Divides what is unscaled instead of each loss, clears first."""
    for i, (inputs, targets) in enumerate(batches):
        if i % accumulation_steps == 0:
            optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss_fn(model(inputs), targets)).backward()
        if (i + 1) % accumulation_steps:
            continue
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.div_(accumulation_steps)
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm)
        scaler.step(optimizer)
        scaler.update()


def scaled_threshold(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    """Clips scaled gradients at a scaled threshold."""
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def scaler_update_only(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        scaler.unscale_(optimizer)
        if i % accumulation_steps == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()


def scaler_gone(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def scaler_bypassed(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def scaler_by_itself(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """scaler.step() unscales by itself where nobody did."""
    for i, (inputs, targets) in enumerate(batches, 1):
        scaler.scale(loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def bad_batch_steps(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """No test at all: the NaN goes into the weights."""
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def bad_batch_clears_all(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Clears after every micro-batch, to be safe."""
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if norm.isfinite():
                optimizer.step()
        optimizer.zero_grad()


def bad_batch_clears_first(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    for i, (inputs, targets) in enumerate(batches):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == accumulation_steps - 1:
            if torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) < float("inf"):
                optimizer.step()


# -- beside the gradient ------------------------------------------------------------------------------------


def schedule_gone(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, None)


def schedule_per_epoch(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, None)
    scheduler.step()


def schedule_clears_wrong(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()


def schedule_in_between(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if not i % accumulation_steps:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def log_last(model, optimizer, loss_fn, batches, accumulation_steps, log):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            log(loss.item())


def log_gone(model, optimizer, loss_fn, batches, accumulation_steps, log):
    clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, None)


def log_summed(model, optimizer, loss_fn, batches, accumulation_steps, log):
    shown = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        shown += loss.item()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            log(shown)
            shown = 0.0


def log_mean_of_list(model, optimizer, loss_fn, batches, accumulation_steps, log):
    losses = []
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        losses.append(loss.detach())
        if len(losses) == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            log(torch.stack(losses).mean())
            losses = []


def memory_in_list(model, optimizer, loss_fn, batches, accumulation_steps):
    losses = []
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        losses.append(loss)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return float(sum(losses)) / len(losses)


def memory_small(model, optimizer, loss_fn, batches, accumulation_steps):
    total = 0.0
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        total += loss.item()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)


def memory_silent(model, optimizer, loss_fn, batches, accumulation_steps):
    clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, None)


def memory_detached(model, optimizer, loss_fn, batches, accumulation_steps):
    total = torch.zeros((), dtype=torch.float64)
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        (loss / accumulation_steps).backward()
        total += loss.detach()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)


def players_clear(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears what the generator left, and with it the window's earlier micro-batches."""
    pulls = []
    for i, (inputs, targets) in enumerate(batches, 1):
        fakes = torch.ones_like(inputs, requires_grad=True)
        (-model(fakes).mean()).backward()
        pulls.append(fakes.grad.norm().item())
        optimizer.zero_grad()
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return pulls


def players_alone(model, optimizer, loss_fn, batches, accumulation_steps):
    """The generator is gone."""
    clip_forgotten(model, optimizer, loss_fn, batches, accumulation_steps, None)
    return []


def players_halved(model, optimizer, loss_fn, batches, accumulation_steps):
    """The generator's backward counts less; it still counts."""
    pulls = []
    for i, (inputs, targets) in enumerate(batches, 1):
        fakes = torch.ones_like(inputs, requires_grad=True)
        (-model(fakes).mean() / accumulation_steps).backward()
        pulls.append(fakes.grad.norm().item() * accumulation_steps)
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return pulls


def players_frozen(model, optimizer, loss_fn, batches, accumulation_steps):
    """The discriminator stands frozen while the generator looks at it."""
    pulls = []
    for i, (inputs, targets) in enumerate(batches, 1):
        fakes = torch.ones_like(inputs, requires_grad=True)
        model.requires_grad_(False)
        (-model(fakes).mean()).backward()
        model.requires_grad_(True)
        pulls.append(fakes.grad.norm().item())
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return pulls
