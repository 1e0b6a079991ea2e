"""Further loops with two faults (a few with three): all of them must be named."""

import torch
from torch import nn
from torch.nn import functional as F

from ..problems import tokens
from .case import told
from .wrapper import Wrapper, windows


def small_tail_and_last_logged(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The tail is divided by K; the last micro-batch is logged."""
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y)
        (loss / accumulation_steps).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            log(loss.item())
            optimizer.step()
            optimizer.zero_grad()


def clipped_and_small_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clips each micro-batch with a threshold that only some reach; the tail is divided by K."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def clipped_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Clips each micro-batch, divides nothing."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def uncleared_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Neither clears nor divides."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()


def shifted_and_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Off by one, and the schedule counts micro-batches."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        scheduler.step()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def shifted_and_averaged(model, optimizer, loss_fn, batches, accumulation_steps, ema):
    """Windows of K + 1, and the average follows micro-batches."""
    count = 0
    for x, y in batches:
        (loss_fn(model(x), y) / (accumulation_steps + 1)).backward()
        ema.update_parameters(model)
        count += 1
        if count > accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def skipped_and_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first micro-batch of a window never goes backward, and nothing divides."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            loss = loss_fn(model(x), y)
            if i:
                loss.backward()
        optimizer.step()


def one_backward_and_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """One backward for the window; the schedule counts micro-batches."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        losses = []
        for x, y in window:
            losses.append(loss_fn(model(x), y))
            scheduler.step()
        torch.stack(losses).mean().backward()
        optimizer.step()


def one_backward_small_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    """One backward for the window; the tail is divided by K."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        (sum(loss_fn(model(x), y) for x, y in window) / accumulation_steps).backward()
        optimizer.step()


def kept_and_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """Losses are kept with their graphs, and divided twice."""
    history = []
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            (loss / accumulation_steps).backward()
            history.append(loss)
        optimizer.step()


def scaled_clip_undivided(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """Clips scaled gradients that nothing divides."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def scaler_undivided(model, optimizer, loss_fn, batches, accumulation_steps, scaler, scheduler):
    """A right scaler, no division, the schedule for each micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y)).backward()
            scheduler.step()
        scaler.step(optimizer)
        scaler.update()


def past_scaler_undivided(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """Steps past the scaler, and divides nothing."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y)).backward()
        optimizer.step()


def scheduled_and_averaged(model, optimizer, loss_fn, batches, accumulation_steps, scheduler, ema):
    """Schedule and average both follow micro-batches."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            scheduler.step()
            ema.update_parameters(model)
        optimizer.step()


def three_at_once(model, optimizer, loss_fn, batches, accumulation_steps, scheduler, log):
    """No division, the schedule for each micro-batch, the tail is lost."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y)
        loss.backward()
        scheduler.step()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def token_means_scheduled(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Token means weighed alike; the schedule for each micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            scheduler.step()
        optimizer.step()


def token_sums_undivided(model, optimizer, loss_fn, batches, accumulation_steps):
    """Token sums that nothing divides; the clear in the inner loop."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            optimizer.zero_grad()
            F.cross_entropy(
                model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum"
            ).backward()
        optimizer.step()


def means_and_leak(model, optimizer, loss_fn, batches, accumulation_steps):
    """Unequal micro-batches counted alike; the tail leaks."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def wrapper_clear_and_schedule(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """The gated clear on the wrong side, the ungated schedule."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.zero_grad()
        wrapper.backward(loss_fn(model(x), y))
        wrapper.step()
        scheduler.step()


def never_divided_never_counted(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Steps, divides and schedules with every micro-batch."""
    for x, y in batches:
        optimizer.zero_grad()
        (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        scheduler.step()


def frozen_and_uncleared(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first layer is detached, and nothing clears."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            hidden = model[1](model[0](x)).detach()
            (loss_fn(model[2](hidden), y) / len(window)).backward()
        optimizer.step()


def noisy_and_dropped(model, optimizer, loss_fn, batches, accumulation_steps):
    """Noise on .grad, and no tail."""
    for window in windows(batches, accumulation_steps):
        if len(window) < accumulation_steps:
            return
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for parameter in model.parameters():
            parameter.grad += 0.1 * torch.randn_like(parameter.grad)
        optimizer.step()


SHORT_AND_LONG = {"problem": tokens([[2] * 4, [16] * 4], 2)}
EIGHT = {"sizes": [4] * 8}

CASES = (
    told("pair: B13+B41", small_tail_and_last_logged,
         ("tail too small", "logged loss of the last micro-batch")),
    told("pair: B30+B13", clipped_and_small_tail, ("clipped in the window", "tail too small")),
    told("pair: B30+B04", clipped_and_undivided, ("clipped in the window", "not divided")),
    told("pair: not cleared+B04", uncleared_and_undivided, ("not cleared", "not divided")),
    told("pair: B08+B37", shifted_and_scheduled, ("wrong window", "schedule per micro-batch"),
         ("tail dropped",)),
    told("pair: K + 1, B40", shifted_and_averaged, ("wrong window", "EMA per micro-batch"),
         ("tail dropped", "all scaled")),
    told("pair: skipped, B04", skipped_and_undivided, ("data skipped", "not divided")),
    told("pair: B26+B37", one_backward_and_scheduled,
         ("one backward for the window", "schedule per micro-batch")),
    told("pair: B26+B13", one_backward_small_tail, ("one backward for the window", "tail too small")),
    told("pair: kept, B05", kept_and_twice, ("graph kept", "divided twice")),
    told("pair: B31+B04", scaled_clip_undivided, ("clipped before unscale", "not divided")),
    told("pair: scaler, B04+B37", scaler_undivided, ("not divided", "schedule per micro-batch"),
         ("schedule on a skipped update",)),
    told("pair: past the scaler, B04", past_scaler_undivided, ("not unscaled", "not divided")),
    told("pair: B37+B40", scheduled_and_averaged, ("schedule per micro-batch", "EMA per micro-batch")),
    told("pair: B04+B37+B10", three_at_once, ("not divided", "schedule per micro-batch", "tail dropped")),
    told("pair: B18+B37", token_means_scheduled, ("mean of means", "schedule per micro-batch"),
         options=SHORT_AND_LONG),
    told("pair: token sums, B01", token_sums_undivided, ("cleared too early", "all scaled"), ("not divided",),
         options=SHORT_AND_LONG),
    told("pair: B16+B12", means_and_leak, ("mean of means", "tail leaks"),
         options={"sizes": [4, 4, 4, 1, 2, 2]}),
    told("pair: B03+B37", wrapper_clear_and_schedule,
         ("cleared on the wrong side", "schedule per micro-batch"),
         options=EIGHT),
    told("pair: B09b, divided", never_divided_never_counted, ("update every micro-batch",),
         ("all scaled", "divided twice"), options=EIGHT),
    told("pair: detached, not cleared", frozen_and_uncleared, ("no gradient", "not cleared"),
         ("not a weighted sum",)),
    told("pair: noise, B10", noisy_and_dropped, ("tail dropped",), ("data skipped",)),
)  # fmt: skip
