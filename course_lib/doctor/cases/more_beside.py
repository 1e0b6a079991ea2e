"""Further wrong loops: clipping, scaler, schedule, averages, memory and logs."""

import torch
from torch import nn

from .case import called, close, ratio, told
from .wrapper import windows


def clips_values_each(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Values are clipped after each backward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            nn.utils.clip_grad_value_(model.parameters(), max_norm)
        optimizer.step()


def clips_by_hook(model, optimizer, loss_fn, batches, accumulation_steps):
    """A hook clips the gradient of each micro-batch before it is added."""
    handles = [p.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02)) for p in model.parameters()]
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
    for handle in handles:
        handle.remove()


def clips_after_the_step(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """The clip comes after the step: it clips what is about to be cleared."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.zero_grad()


def scales_twice(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """The loss goes through scaler.scale twice."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(scaler.scale(loss_fn(model(x), y) / len(window))).backward()
        scaler.step(optimizer)
        scaler.update()


def scales_by_hand(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loss is multiplied by 1024 by hand, and nothing divides .grad again."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (1024 * loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def unscaled_loss(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """scaler.step without scaler.scale: 1/65536 of the gradient."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()


def never_updates_the_scaler(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """scaler.update() is missing: torch refuses the second step."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        scaler.step(optimizer)


def scaler_steps_each(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """The whole scaler dance for every micro-batch, the clear once a window."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            scaler.step(optimizer)
            scaler.update()


def unscales_for_a_look(model, optimizer, loss_fn, batches, accumulation_steps, scaler, log):
    """The gradient is unscaled in the middle of the window, for a look; later ones come scaled."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
            if i == 1:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def schedules_k_times(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """The scheduler is told K times at each update, to make up for K."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        for _ in window:
            scheduler.step()


def schedules_off_boundaries(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """`if i % K:` steps the scheduler everywhere but at the boundary."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            (loss_fn(model(x), y) / len(window)).backward()
            if i % accumulation_steps:
                scheduler.step()
        optimizer.step()


def averages_by_hand(model, optimizer, loss_fn, batches, accumulation_steps, ema):
    """The averaged weights follow at K-1 of K micro-batches."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window, 1):
            (loss_fn(model(x), y) / len(window)).backward()
            if i % accumulation_steps:
                ema.update_parameters(model)
        optimizer.step()


def keeps_outputs(model, optimizer, loss_fn, batches, accumulation_steps):
    """The outputs of the whole epoch are kept for a metric, with their graphs."""
    outputs = []
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            out = model(x)
            (loss_fn(out, y) / len(window)).backward()
            outputs.append(out)
        optimizer.step()
    return float(torch.cat(outputs).mean())


def keeps_in_a_dict(model, optimizer, loss_fn, batches, accumulation_steps):
    """A history of dicts, each with the loss as a tensor."""
    history = []
    for step, window in enumerate(windows(batches, accumulation_steps)):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
            history.append({"step": step, "loss": loss})
        optimizer.step()


def smooths_with_graph(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """A smoothed loss that is a tensor: its history never ends."""
    smooth = None
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
            smooth = loss if smooth is None else 0.9 * smooth + 0.1 * loss
        optimizer.step()


def validates_with_graph(model, optimizer, loss_fn, batches, accumulation_steps):
    """A validation after the epoch adds up losses with their graphs."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
    model.eval()
    total = 0
    for x, y in batches:
        total = total + loss_fn(model(x), y)
    model.train()
    return float(total) / len(batches)


def logs_the_sum(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The window's losses are added up and logged without a division."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        total = 0.0
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
            total += loss.item()
        log(total)
        optimizer.step()


def logs_over_k_twice(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The divided losses are added up, and the sum is divided again."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        total = 0.0
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            total += loss.item()
        log(total / len(window))
        optimizer.step()


def logs_a_total_that_lives_on(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The running loss is never set back."""
    total = 0.0
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            total += loss.item()
        log(total)
        optimizer.step()


def logs_a_mean_of_means(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """Right shares in the gradient, a plain mean in the log."""
    for window in windows(batches, accumulation_steps):
        rows, total = sum(len(x) for x, _ in window), 0.0
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss * len(x) / rows).backward()
            total += loss.item()
        log(total / len(window))
        optimizer.step()


def logs_last_divided(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """What is logged at the boundary is the last micro-batch's divided loss."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
        log(loss)
        optimizer.step()


def _by_the_scale(report):
    window = report.windows[0]
    assert all(close(u * 65536, n) for u, n in zip(window.used, window.needed)), window


EIGHT = {"sizes": [4] * 8}

CASES = (
    told("unseen: clips values each", clips_values_each, ("clipped in the window",)),
    told("unseen: clips in a hook", clips_by_hook, ("not a weighted sum",)),
    told("unseen: scales by hand", scales_by_hand, ("all scaled",), check=ratio(1024.0)),
    told("unseen: scaler without scale", unscaled_loss, ("all scaled",), check=_by_the_scale),
    told("unseen: scaler never updated", never_updates_the_scaler, ("raised",), ("unscaled twice",)),
    told("unseen: scaler steps each time", scaler_steps_each, ("update every micro-batch",),
         ("not cleared", "unscaled twice", "raised", "not a weighted sum", "scaler updated in the window",
          "all scaled")),
    told("unseen: schedule K times at the update", schedules_k_times, ("schedule per micro-batch",),
         options=EIGHT, check=called(scheduler=16, step=4)),
    told("unseen: schedule off boundaries", schedules_off_boundaries, ("schedule per micro-batch",),
         options=EIGHT, check=called(scheduler=12, step=4)),
    told("unseen: EMA off boundaries", averages_by_hand, ("EMA per micro-batch",), options=EIGHT,
         check=called(ema=12, step=4)),
    told("unseen: outputs kept", keeps_outputs, ("graph kept",)),
    told("unseen: dicts of losses", keeps_in_a_dict, ("graph kept",)),
    told("unseen: smoothed loss", smooths_with_graph, ("graph kept",)),
    told("unseen: logs divided twice", logs_over_k_twice, ("logged loss divided",)),
    told("unseen: logs the last, divided", logs_last_divided,
         ("logged loss divided", "logged loss of the last micro-batch")),
    told("unseen: clips after the step", clips_after_the_step, ("clipped after the step",)),
    told("unseen: scales twice", scales_twice, ("not unscaled",)),
    told("unseen: unscale for a look", unscales_for_a_look, ("not unscaled",), ("wrong weights",),
         options=EIGHT),
    told("unseen: validation with graphs", validates_with_graph, ("evaluation keeps the graph",),
         ("graph kept",)),
    told("unseen: logs the sum", logs_the_sum, ("wrong logged loss",)),
    told("unseen: a total that lives on", logs_a_total_that_lives_on, ("wrong logged loss",)),
    told("unseen: logs a mean of means", logs_a_mean_of_means, ("wrong logged loss",),
         options={"sizes": [4, 4, 4, 1]}),
)  # fmt: skip
