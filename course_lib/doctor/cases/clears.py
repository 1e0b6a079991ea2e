"""Gradients that are cleared too early, too late, or not at all."""

import copy

import torch

from .case import Case, called, first_used
from .wrapper import Wrapper, windows


def clears_every_time(model, optimizer, loss_fn, batches, accumulation_steps):
    """The accumulation setting changes nothing but the speed."""
    for i, (x, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()


def gated_clear_on_top(model, optimizer, loss_fn, batches, accumulation_steps):
    """The wrapper's clear does nothing except on the syncing micro-batch: before backward it fires exactly there."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.zero_grad()
        wrapper.backward(loss_fn(model(x), y))
        wrapper.step()


def gated_clear_below(model, optimizer, loss_fn, batches, accumulation_steps):
    """The same with the clear behind the step: right."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.backward(loss_fn(model(x), y))
        wrapper.step()
        wrapper.zero_grad()


def skips_bad_windows_dirty(model, optimizer, loss_fn, batches, accumulation_steps):
    """A window without a finite norm skips the step, and the clear with it."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if torch.isfinite(norm):
            optimizer.step()
            optimizer.zero_grad()


def skips_bad_windows(model, optimizer, loss_fn, batches, accumulation_steps):
    """The same with the clear outside: right."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad()


def resumes_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """A checkpoint is written and loaded again after 6 of 8 micro-batches: the counter survives, .grad does not."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if i == 6:
            saved, states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            model = copy.deepcopy(model)
            model.zero_grad()
            model.load_state_dict(saved)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer.load_state_dict(states)


def adds_to_none(model, optimizer, loss_fn, batches, accumulation_steps):
    """Sums by hand into .grad, which is None after a clear."""
    optimizer.zero_grad()
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            taken = torch.autograd.grad(loss_fn(model(x), y) / len(window), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), taken):
                parameter.grad += gradient
        optimizer.step()
        optimizer.zero_grad()


def _half_a_window(report):
    window = report.windows[1]
    assert [round(w, 9) for w in window.used] == [0, 0, 0.25, 0.25], window.used


CASES = (
    Case("B01", "cleared in every micro-batch", clears_every_time, ("cleared too early",), ("tail dropped",),
         check=first_used(0, 0, 0, 0.25)),
    Case("B03", "gated clear before backward", gated_clear_on_top, ("cleared on the wrong side",),
         options={"sizes": [4] * 8}, check=first_used(0, 0, 0, 0.25)),
    Case("B03 below", "gated clear after the step", gated_clear_below, options={"sizes": [4] * 8}),
    Case("B35", "a bad window is never cleared", skips_bad_windows_dirty, ("NaN never cleared",)),
    Case("B35 right", "a bad window is cleared", skips_bad_windows),
    Case("B43", "resumed inside a window", resumes_inside, ("partial window lost",), options={"sizes": [4] * 8, "epochs": 1},
         check=_half_a_window),
    Case("B50", "None + gradient", adds_to_none, ("raised",), check=called(step=0)),
)  # fmt: skip
