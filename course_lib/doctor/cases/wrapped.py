"""Loops around wrappers, further models, validations, rebuilt things: what stands around the window."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from .case import called, ratio, told
from .wrapper import Wrapper, windows


class CountingOptimizer:
    """Wraps an optimizer: only every K-th step is real, and clears."""

    def __init__(self, optimizer, steps):
        self.optimizer, self.steps, self.calls = optimizer, steps, 0

    def step(self):
        self.calls += 1
        if self.calls % self.steps == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def counting_optimizer(model, optimizer, loss_fn, batches, accumulation_steps):
    """The wrapper counts; the loop calls step every time: right."""
    counting = CountingOptimizer(optimizer, accumulation_steps)
    for x, y in batches:
        (loss_fn(model(x), y) / accumulation_steps).backward()
        counting.step()


def counted_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """Loop and wrapper both count to K: windows of K * K."""
    counting = CountingOptimizer(optimizer, accumulation_steps)
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            counting.step()


def past_the_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    """The wrapper's backward divides and gates, the loop steps its own optimizer each time."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.backward(loss_fn(model(x), y))
        optimizer.step()
        wrapper.zero_grad()


def clear_past_the_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    """The step is gated, the clear goes to the bare optimizer."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.backward(loss_fn(model(x), y))
        wrapper.step()
        optimizer.zero_grad()


def plain_backward_in_the_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    """Counts on the wrapper to divide, and calls loss.backward() itself."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        loss_fn(model(x), y).backward()
        wrapper.step()
        wrapper.zero_grad()


def schedule_in_the_wrapper(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """Step and clear are gated, the scheduler is not."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        wrapper.begin()
        wrapper.backward(loss_fn(model(x), y))
        wrapper.step()
        scheduler.step()
        wrapper.zero_grad()


def validates_inside_and_clears(model, optimizer, loss_fn, batches, accumulation_steps):
    """A validation every third micro-batch clears the gradients when it is done."""

    def validate():
        model.eval()
        with torch.no_grad():
            shown = loss_fn(model(batches[0][0]), batches[0][1]).item()
        model.zero_grad()
        model.train()
        return shown

    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            (loss_fn(model(x), y) / len(window)).backward()
            if i == 1:
                validate()
        optimizer.step()


def validates_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """A validation in the middle of each window that touches nothing: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            (loss_fn(model(x), y) / len(window)).backward()
            if i == 1:
                model.eval()
                with torch.no_grad():
                    sum(loss_fn(model(a), b).item() for a, b in batches)
                model.train()
        optimizer.step()


def validates_with_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """The validation shares the train step's code, and calls backward, too."""

    def run(x, y, share):
        loss = loss_fn(model(x), y) * share
        loss.backward()
        return loss.item()

    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            run(x, y, 1 / len(window))
        run(*batches[0], 1.0)
        optimizer.step()


def with_a_teacher(model, optimizer, loss_fn, batches, accumulation_steps):
    """A second network looks at the same rows, without a gradient: right."""
    teacher = copy.deepcopy(model).eval()
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            with torch.no_grad():
                teacher(x)
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def with_a_second_network(model, optimizer, loss_fn, batches, accumulation_steps):
    """A second network is trained on the same rows by an optimizer of its own: right."""
    other = nn.Linear(5, 1, dtype=torch.float64)
    own = torch.optim.SGD(other.parameters(), lr=0.01)
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        own.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            (loss_fn(other(x), y) / len(window)).backward()
        optimizer.step()
        own.step()


def in_a_shell(model, optimizer, loss_fn, batches, accumulation_steps):
    """The model is called through a module around it: right."""

    class Shell(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, targets=None):
            out = self.inner(x)
            return out if targets is None else (out, F.mse_loss(out, targets))

    shell = Shell(model)
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            _, loss = shell(x, targets=y)
            (loss / len(window)).backward()
        optimizer.step()


def by_forward(model, optimizer, loss_fn, batches, accumulation_steps):
    """Calls model.forward: right, if not nice."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model.forward(x), y) / len(window)).backward()
        optimizer.step()


def layer_by_layer(model, optimizer, loss_fn, batches, accumulation_steps):
    """Calls the layers one after another: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            for layer in model:
                x = layer(x)
            (loss_fn(x, y) / len(window)).backward()
        optimizer.step()


def new_optimizer_each_window(model, optimizer, loss_fn, batches, accumulation_steps):
    """Momentum would be lost: a new optimizer for each window. The gradients are right."""
    for window in windows(batches, accumulation_steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def new_optimizer_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """A new optimizer, with a clear, for each micro-batch."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer.zero_grad()
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def evaluation_mode_stays(model, optimizer, loss_fn, batches, accumulation_steps):
    """Right for a model without dropout and BatchNorm: eval() is never undone."""
    model.eval()
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def sharpness_aware(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two passes with a step up in between, inside every micro-batch: not the window's gradient."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            taken = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), taken):
                    parameter.add_(gradient, alpha=0.05)
            (loss_fn(model(x), y) / len(window)).backward()
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), taken):
                    parameter.sub_(gradient, alpha=0.05)
        optimizer.step()


def decays_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    """Weight decay by hand after every micro-batch."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.999)
        optimizer.step()


def scaler_skips_and_keeps(model, optimizer, loss_fn, batches, accumulation_steps, scaler):
    """The clear depends on the scale: after an overflow it is left out."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            optimizer.zero_grad()


def breaks_on_bad_loss(model, optimizer, loss_fn, batches, accumulation_steps):
    """A loss that is not finite is skipped before backward, the window goes on: right."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            if not torch.isfinite(loss):
                continue
            (loss / len(window)).backward()
        optimizer.step()


EIGHT = {"sizes": [4] * 8}

CASES = (
    told("right: optimizer that counts", counting_optimizer, options=EIGHT),
    told("unseen: counted twice", counted_twice, ("wrong window",),
         ("not divided", "all scaled", "tail dropped"),
         options={"sizes": [4] * 32}, check=called(step=4)),
    told("unseen: counted twice, few batches", counted_twice, ("no update",)),
    told("unseen: step past the wrapper", past_the_wrapper, ("update every micro-batch",), ("not cleared",),
         options=EIGHT),
    told("unseen: clear past the wrapper", clear_past_the_wrapper, ("cleared too early",), options=EIGHT),
    told("unseen: backward past the wrapper", plain_backward_in_the_wrapper, ("not divided",), options=EIGHT,
         check=ratio(4.0)),
    told("unseen: schedule past the wrapper", schedule_in_the_wrapper, ("schedule per micro-batch",),
         options=EIGHT,
         check=called(scheduler=16, step=4)),
    told("unseen: validation clears", validates_inside_and_clears, ("cleared too early",),
         ("cleared before the step",)),
    told("right: validates inside", validates_inside),
    told("unseen: validation goes backward", validates_with_backward, ("wrong weights",),
         ("other micro-batches", "not cleared", "wrong window", "data skipped")),
    told("right: with a teacher", with_a_teacher),
    told("right: in a shell", in_a_shell),
    told("right: by forward", by_forward),
    told("right: layer by layer", layer_by_layer),
    told("right: a new optimizer each window", new_optimizer_each_window),
    told("unseen: a new optimizer inside", new_optimizer_inside, ("cleared too early",)),
    told("right: evaluation mode stays", evaluation_mode_stays),
    told("unseen: sharpness aware", sharpness_aware, ("weights moved in the window",),
         ("not a weighted sum",)),
    told("unseen: decays inside", decays_inside, ("weights moved in the window",)),
    told("unseen: no clear after an overflow", scaler_skips_and_keeps, ("NaN never cleared",)),
    told("right: skips bad losses", breaks_on_bad_loss),
    told("right: with a second network", with_a_second_network),
)  # fmt: skip
