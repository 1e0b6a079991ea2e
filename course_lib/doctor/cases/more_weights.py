"""Further wrong loops: the right windows, and weights that are not the window's shares."""

import torch
from torch.nn import functional as F

from ..problems import tokens
from .case import close, first_used, ratio, told
from .wrapper import windows


def fixed_batch_size(model, optimizer, loss_fn, batches, accumulation_steps):
    """Shares by rows, of a window that is always thought to be full."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * len(x) / (4 * accumulation_steps)).backward()
        optimizer.step()


def over_padded_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    """Token losses summed over the window and divided by all positions, padding included."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        positions = sum(y.numel() for _, y in window)
        for x, y in window:
            logits = model(x).flatten(0, 1)
            (F.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum") / positions).backward()
        optimizer.step()


def over_last_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each token sum is divided by its own micro-batch's tokens times K: the mean of means, spelled out."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            logits = model(x).flatten(0, 1)
            total = F.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum")
            (total / (y != -100).sum() / len(window)).backward()
        optimizer.step()


def tokens_so_far(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each token sum is divided by the tokens seen so far in the window."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        seen = 0
        for x, y in window:
            seen += int((y != -100).sum())
            logits = model(x).flatten(0, 1)
            (F.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum") / seen).backward()
        optimizer.step()


def rows_for_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    """Token means weighed by rows."""
    for window in windows(batches, accumulation_steps):
        rows = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * len(x) / rows).backward()
        optimizer.step()


def gradient_argument(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loss is divided, and backward() is told to multiply again."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / accumulation_steps
            loss.backward(torch.full_like(loss, accumulation_steps))
        optimizer.step()


def hooks_pile_up(model, optimizer, loss_fn, batches, accumulation_steps):
    """Hooks that divide, registered again for each window and never removed."""
    for window in windows(batches, accumulation_steps):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient / accumulation_steps)
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()


def adds_cumulative_copies(model, optimizer, loss_fn, batches, accumulation_steps):
    """Copies of .grad are added up, though .grad adds up by itself."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        kept = []
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            kept.append([p.grad.clone() for p in model.parameters()])
        for parameter, gradients in zip(model.parameters(), zip(*kept)):
            parameter.grad = sum(gradients)
        optimizer.step()


def moving_average(model, optimizer, loss_fn, batches, accumulation_steps):
    """A running mean with the wrong formula: old and new count one half each."""
    for window in windows(batches, accumulation_steps):
        mean = None
        for x, y in window:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            new = [p.grad.clone() for p in model.parameters()]
            mean = new if mean is None else [(a + b) / 2 for a, b in zip(mean, new)]
        for parameter, gradient in zip(model.parameters(), mean):
            parameter.grad = gradient
        optimizer.step()


def k_minus_one(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides by K - 1."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / (accumulation_steps - 1)).backward()
        optimizer.step()


def root_of_k(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides by the root of K."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / accumulation_steps**0.5).backward()
        optimizer.step()


def divides_on_the_boundary(model, optimizer, loss_fn, batches, accumulation_steps):
    """Only the loss of the boundary's micro-batch is divided."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss = loss_fn(model(x), y)
        if i % accumulation_steps == 0 or i == len(batches):
            loss = loss / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def divides_after_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loss is divided after backward()."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            loss.backward()
            loss = loss / accumulation_steps
        optimizer.step()


def forgets_the_result(model, optimizer, loss_fn, batches, accumulation_steps):
    """`loss / K` on a line of its own: the result goes nowhere."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            loss / accumulation_steps
            loss.backward()
        optimizer.step()


def divides_in_place_under_no_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """The number changes, the graph does not know of it."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            loss.data /= accumulation_steps
            loss.backward()
        optimizer.step()


def divides_outputs(model, optimizer, loss_fn, batches, accumulation_steps):
    """The outputs are divided by K, not the loss: another loss."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x) / accumulation_steps, y).backward()
        optimizer.step()


def tail_grows(model, optimizer, loss_fn, batches, accumulation_steps):
    """The tail's gradient is scaled up by K / r, after its losses were divided by r."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for parameter in model.parameters():
            parameter.grad *= accumulation_steps / len(window)
        optimizer.step()


def tail_divided_again(model, optimizer, loss_fn, batches, accumulation_steps):
    """The tail is divided by K, and by its own count."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / accumulation_steps).backward()
        if len(window) < accumulation_steps:
            for parameter in model.parameters():
                parameter.grad /= len(window)
        optimizer.step()


def divides_one_layer(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is divided for the first layer only."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        for parameter in model[0].parameters():
            parameter.grad /= len(window)
        optimizer.step()


def freezes_on_odd(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first layer is frozen for every other micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            model[0].requires_grad_(i % 2 == 0)
            (loss_fn(model(x), y) / len(window)).backward()
        model[0].requires_grad_(True)
        optimizer.step()


def targets_of_the_one_before(model, optimizer, loss_fn, batches, accumulation_steps):
    """A pipelined loop pairs each output with the targets of the batch before."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for (x, _), (_, y) in zip(window, window[-1:] + window[:-1]):
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def two_losses_one_divided(model, optimizer, loss_fn, batches, accumulation_steps):
    """The loss goes in two halves; only one of them is divided."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (0.5 * loss / len(window)).backward(retain_graph=True)
            (0.5 * loss).backward()
        optimizer.step()


def compounding(model, optimizer, loss_fn, batches, accumulation_steps):
    """The learning rate is divided by K at every update, again and again."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        for group in optimizer.param_groups:
            group["lr"] /= accumulation_steps
        optimizer.step()


def averages_by_steps(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is divided by the number of updates so far."""
    for step, window in enumerate(windows(batches, accumulation_steps), 1):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for parameter in model.parameters():
            parameter.grad /= step
        optimizer.step()


def _later_ones_shrink(report):
    factors = [w.used[0] / w.needed[0] for w in report.windows[:2]]
    assert close(factors[0], 1) and factors[1] < 0.6, factors


SHORT_AND_LONG = {"problem": tokens([[2] * 4, [16] * 4], 2)}

CASES = (
    told("unseen: fixed batch size", fixed_batch_size, ("all scaled",),
         options={"sizes": [4, 4, 4, 1]}, check=ratio(13 / 16)),
    told("unseen: padded tokens", over_padded_tokens, ("all scaled",), options=SHORT_AND_LONG,
         check=ratio(72 / 128)),
    told("unseen: own tokens", over_last_tokens, ("mean of means",), options=SHORT_AND_LONG,
         check=first_used(0.5, 0.5)),
    told("unseen: tokens so far", tokens_so_far, ("wrong weights",), options=SHORT_AND_LONG),
    told("unseen: rows for tokens", rows_for_tokens, ("mean of means",), options=SHORT_AND_LONG),
    told("unseen: gradient argument", gradient_argument, ("not divided",), check=ratio(4.0)),
    told("unseen: hooks pile up", hooks_pile_up, ("divided twice",), ("all scaled",),
         options={"sizes": [4] * 8, "epochs": 1}, check=ratio(0.25, update=2)),
    told("unseen: cumulative copies", adds_cumulative_copies, ("running total",),
         check=first_used(1.0, 0.75, 0.5, 0.25)),
    told("unseen: halves", moving_average, ("wrong weights",), ("repeated division",),
         check=first_used(0.125, 0.125, 0.25, 0.5)),
    told("unseen: over K - 1", k_minus_one, ("all scaled",), check=ratio(4 / 3)),
    told("unseen: over the root of K", root_of_k, ("all scaled",), check=ratio(2.0)),
    told("unseen: only the last is divided", divides_on_the_boundary, ("wrong weights",),
         ("not divided",), check=first_used(1, 1, 1, 0.25)),
    told("unseen: divided after backward", divides_after_backward, ("not divided",),
         check=ratio(4.0)),
    told("unseen: result forgotten", forgets_the_result, ("not divided",), check=ratio(4.0)),
    told("unseen: .data divided", divides_in_place_under_no_grad, ("not divided",),
         check=ratio(4.0)),
    told("unseen: outputs divided", divides_outputs, ("not a weighted sum",),
         ("gradient of another loss",)),
    told("unseen: tail grows", tail_grows, ("all scaled",), options={"sizes": [4] * 7},
         check=ratio(4 / 3, update=2)),
    told("unseen: tail divided again", tail_divided_again, ("divided twice",),
         ("tail too small", "all scaled"), check=ratio(0.25, update=3)),
    told("unseen: one layer divided", divides_one_layer, ("not a weighted sum",),
         ("wrong weights", "not divided")),
    told("unseen: frozen on odd", freezes_on_odd, ("not a weighted sum",), ("wrong weights",)),
    told("unseen: other targets", targets_of_the_one_before, ("not a weighted sum",),
         ("gradient of another loss",)),
    told("unseen: one of two losses divided", two_losses_one_divided, ("all scaled",),
         check=ratio(2.5)),
    told("unseen: learning rate compounds", compounding, ("not divided",), ("learning rate changed",)),
    told("unseen: divided by the update's number", averages_by_steps, ("all scaled",),
         ("divided twice",), check=_later_ones_shrink),
)  # fmt: skip
