"""Further wrong loops that people write and that are in none of the reports: the doctor must work for the whole kind."""

import torch
from torch.nn import functional as F

from .case import Case
from .wrapper import windows


def steps_inside_and_outside(model, optimizer, loss_fn, batches, accumulation_steps):
    """A second step after the loop, with nothing new."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
    optimizer.step()


def over_all_batches(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides by the number of batches of the epoch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(batches)).backward()
        optimizer.step()


def over_the_rows_again(model, optimizer, loss_fn, batches, accumulation_steps):
    """A mean, divided by the number of rows once more."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(x)).backward()
        optimizer.step()


def backward_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """backward() twice, the first time with retain_graph to silence an error."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward(retain_graph=True)
            loss.backward()
        optimizer.step()


def of_the_running_total(model, optimizer, loss_fn, batches, accumulation_steps):
    """backward() of the running total at each micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        total = 0
        for x, y in window:
            total = total + loss_fn(model(x), y) / len(window)
            total.backward(retain_graph=True)
        optimizer.step()


def divides_grad_each_time(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is divided after each backward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad /= accumulation_steps
        optimizer.step()


def clears_per_epoch(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears at the start of the epoch only."""
    optimizer.zero_grad()
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def modulo_slip(model, optimizer, loss_fn, batches, accumulation_steps):
    """Steps where the remainder is 1."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 1:
            optimizer.step()
            optimizer.zero_grad()


def one_less(model, optimizer, loss_fn, batches, accumulation_steps):
    """Windows of K - 1."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % (accumulation_steps - 1) == 0:
            optimizer.step()
            optimizer.zero_grad()


def truthy_remainder(model, optimizer, loss_fn, batches, accumulation_steps):
    """`if i % K` steps on every micro-batch but the last of a window."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()


def continues_on_odd(model, optimizer, loss_fn, batches, accumulation_steps):
    """A `continue` before backward on some micro-batches."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            loss = loss_fn(model(x), y)
            if i == 1:
                continue
            (loss / len(window)).backward()
        optimizer.step()


def half_without_graph(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first half of each window runs under no_grad."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            with torch.set_grad_enabled(i >= len(window) // 2):
                loss = loss_fn(model(x), y) / len(window)
            if loss.requires_grad:
                loss.backward()
        optimizer.step()


def adds_noise(model, optimizer, loss_fn, batches, accumulation_steps):
    """Noise on the finished mean, as differential privacy asks for: the loop's own choice."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for parameter in model.parameters():
            parameter.grad += torch.randn_like(parameter.grad)
        optimizer.step()


def penalises(model, optimizer, loss_fn, batches, accumulation_steps):
    """A penalty on the weights in every micro-batch's loss: how strong it is meant to be, the doctor cannot know."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            penalty = sum((p**2).sum() for p in model.parameters())
            (loss_fn(model(x), y) / len(window) + penalty).backward()
        optimizer.step()


def moves_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """The weights are nudged between two micro-batches."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
        optimizer.step()


def rate_over_k(model, optimizer, loss_fn, batches, accumulation_steps):
    """Divides the learning rate in place of the loss."""
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / accumulation_steps
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()


def normalises_each(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is normalised after each backward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad /= norm
        optimizer.step()


def keeps_losses(model, optimizer, loss_fn, batches, accumulation_steps):
    """A list of losses with their graphs."""
    history = []
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            history.append(loss)
        optimizer.step()
    return history


def undivided_sum(model, optimizer, loss_fn, batches, accumulation_steps):
    """A summed loss that nothing divides."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            F.mse_loss(model(x), y, reduction="sum").backward()
        optimizer.step()


def half_an_optimizer(model, optimizer, loss_fn, batches, accumulation_steps):
    """An optimizer of its own for the last layer only."""
    own = torch.optim.SGD(model[2].parameters(), lr=0.05)
    for window in windows(batches, accumulation_steps):
        own.zero_grad()
        model.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        own.step()


def clears_after_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears between the last backward and the step."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.zero_grad()
        optimizer.step()


def first_alone(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first micro-batch is not divided, the others are."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            loss = loss_fn(model(x), y)
            (loss if i == 0 else loss / len(window)).backward()
        optimizer.step()


def same_batch_again(model, optimizer, loss_fn, batches, accumulation_steps):
    """Every micro-batch of a window is its first one."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for _ in window:
            x, y = window[0]
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def detached_model(model, optimizer, loss_fn, batches, accumulation_steps):
    """The output is detached before the loss: torch refuses backward()."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x).detach(), y) / len(window)).backward()
        optimizer.step()


def first_layer_detached(model, optimizer, loss_fn, batches, accumulation_steps):
    """The hidden activations are detached: the first layer never learns."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            hidden = model[1](model[0](x)).detach()
            (loss_fn(model[2](hidden), y) / len(window)).backward()
        optimizer.step()


def clips_when_large(model, optimizer, loss_fn, batches, accumulation_steps):
    """Values are clamped by hand after each backward."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            for parameter in model.parameters():
                parameter.grad.clamp_(-0.05, 0.05)
        optimizer.step()


def trains_by_hand(model, optimizer, loss_fn, batches, accumulation_steps):
    """Moves the weights itself and never steps."""
    for window in windows(batches, accumulation_steps):
        model.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad


def stops_after_one(model, optimizer, loss_fn, batches, accumulation_steps):
    """`return` where `continue` was meant."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        return


CASES = (
    Case("more: steps twice", steps_inside_and_outside.__doc__, steps_inside_and_outside, ("wrong number of updates",),
         ("not cleared",)),
    Case("more: over all batches", over_all_batches.__doc__, over_all_batches, ("all scaled",)),
    Case("more: over rows again", over_the_rows_again.__doc__, over_the_rows_again, ("all scaled",), options={"sizes": [6] * 8}),
    Case("more: backward twice", backward_twice.__doc__, backward_twice, ("all scaled",)),
    Case("more: running total", of_the_running_total.__doc__, of_the_running_total, ("running total",), ("graph kept",)),
    Case("more: divides .grad each time", divides_grad_each_time.__doc__, divides_grad_each_time, ("repeated division",)),
    Case("more: clears per epoch", clears_per_epoch.__doc__, clears_per_epoch, ("not cleared",)),
    Case("more: remainder 1", modulo_slip.__doc__, modulo_slip, ("wrong window",), ("tail dropped",)),
    Case("more: K - 1", one_less.__doc__, one_less, ("wrong window",), ("tail dropped",)),
    Case("more: if i % K", truthy_remainder.__doc__, truthy_remainder, ("wrong window",)),
    Case("more: continue", continues_on_odd.__doc__, continues_on_odd, ("data skipped",)),
    Case("more: half without graph", half_without_graph.__doc__, half_without_graph, ("data skipped",)),
    Case("right: noise", adds_noise.__doc__, adds_noise),
    Case("right: penalty in the loss", penalises.__doc__, penalises),
    Case("more: moves inside", moves_inside.__doc__, moves_inside, ("weights moved in the window",)),
    Case("more: rate over K", rate_over_k.__doc__, rate_over_k, ("learning rate changed",), ("not divided",)),
    Case("more: normalises each", normalises_each.__doc__, normalises_each, ("clipped in the window",), ("not divided",)),
    Case("more: keeps losses", keeps_losses.__doc__, keeps_losses, ("graph kept",), ("logged loss divided",)),
    Case("more: undivided sum", undivided_sum.__doc__, undivided_sum, ("not divided",)),
    Case("more: half an optimizer", half_an_optimizer.__doc__, half_an_optimizer, ("parameters never updated",)),
    Case("more: clear before step", clears_after_backward.__doc__, clears_after_backward, ("cleared before the step",)),
    Case("more: first undivided", first_alone.__doc__, first_alone, ("wrong weights",)),
    Case("more: same batch again", same_batch_again.__doc__, same_batch_again, ("other micro-batches", "data skipped"),
         ("wrong window",)),
    Case("more: detached", detached_model.__doc__, detached_model, ("raised",)),
    Case("more: first layer detached", first_layer_detached.__doc__, first_layer_detached, ("no gradient",),
         ("not a weighted sum",)),
    Case("more: clamps each", clips_when_large.__doc__, clips_when_large, ("clipped in the window",)),
    Case("more: by hand", trains_by_hand.__doc__, trains_by_hand, ("steps by hand",)),
    Case("more: returns early", stops_after_one.__doc__, stops_after_one, ("data skipped",)),
)  # fmt: skip
