"""Clipping and the loss scaler: once per update, in the right order."""

from torch.nn.utils import clip_grad_norm_

from .case import Case, close
from .wrapper import windows


def clips_each(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """The partial sum is clipped after every micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def clips_scaled(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """The threshold meets gradients that are still multiplied by 65536."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def unscales_each(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """unscale after each backward: torch refuses the second one."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def unscales_and_updates_each(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """update after each micro-batch: later ones are added, still scaled, to what was unscaled before."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            scaler.unscale_(optimizer)
            if i == len(window):
                scaler.step(optimizer)
            scaler.update()


def updates_each(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """update after each micro-batch, with no unscale before it: torch refuses."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            if i == len(window):
                scaler.step(optimizer)
            scaler.update()


def schedules_skipped_updates(model, optimizer, loss_fn, batches, accumulation_steps, scaler, scheduler):
    """The scaler skips an update with infinities in it, the scheduler does not."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def asks_the_scale(model, optimizer, loss_fn, batches, accumulation_steps, scaler, scheduler):
    """The scheduler steps where the scale did not fall: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()


def unscale_clip_step(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    """Scale, backward, and at the window's end unscale, clip, step, update: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


def scaler_alone(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """A scaler without clipping: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        scaler.step(optimizer)
        scaler.update()


def steps_scaled(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """The loss is scaled, the step goes past the scaler."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def _mostly_the_last(report):
    used = report.windows[0].used
    assert used[3] > 1000 * abs(used[2]) > 0, used


def _scaled_by_65536(report):
    window = report.windows[0]
    assert all(close(u / n / 65536, 1) for u, n in zip(window.used, window.needed)), window


CASES = (
    Case("B30", "clip after every micro-batch", clips_each, ("clipped in the window",)),
    Case("B31", "clip before unscale", clips_scaled, ("clipped before unscale",)),
    Case("B33", "unscale after every backward", unscales_each, ("unscaled twice",)),
    Case("B34", "update after every micro-batch", unscales_and_updates_each, ("scaler updated in the window",),
         check=_mostly_the_last),
    Case("B34 alone", "update with no unscale", updates_each, ("scaler updated in the window",)),
    Case("B38", "schedule steps for a skipped update", schedules_skipped_updates, ("schedule on a skipped update",)),
    Case("B38 right", "schedule asks the scale", asks_the_scale),
    Case("right: unscale, clip, step", "GradScaler with clipping", unscale_clip_step),
    Case("right: scaler", "GradScaler alone", scaler_alone),
    Case("more: steps past the scaler", "a scaled gradient in the step", steps_scaled, ("not unscaled",), check=_scaled_by_65536),
)  # fmt: skip
