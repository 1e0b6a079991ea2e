"""Further right loops, in the styles of trainers, scripts and libraries: the doctor must stay silent."""

import copy
import queue
import threading
from collections import deque
from contextlib import contextmanager
from itertools import islice, zip_longest

import torch
from torch import nn

from .case import told
from .wrapper import windows


class Trainer:
    """A trainer with hooks, in the style of the large libraries."""

    def __init__(self, model, optimizer, loss_fn, accumulation_steps):
        self.model, self.optimizer, self.loss_fn, self.steps = model, optimizer, loss_fn, accumulation_steps
        self.history, self.global_step = [], 0

    def training_step(self, batch, items):
        inputs, targets = batch
        loss = self.loss_fn(self.model(inputs), targets) * len(targets) / items
        loss.backward()
        return loss.detach()

    def train(self, batches):
        stream = iter(batches)
        for _ in range(-(-len(batches) // self.steps)):
            window = list(islice(stream, self.steps))
            items = sum(len(targets) for _, targets in window)
            total = sum(self.training_step(batch, items) for batch in window)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_step += 1
            self.history.append(float(total))


def in_a_trainer(model, optimizer, loss_fn, batches, accumulation_steps):
    """A trainer object, windows fetched ahead, losses weighed by items."""
    trainer = Trainer(model, optimizer, loss_fn, accumulation_steps)
    trainer.train(batches)
    return trainer.history


def in_a_context(model, optimizer, loss_fn, batches, accumulation_steps):
    """The window is a context manager that clears before and steps after."""

    @contextmanager
    def update():
        optimizer.zero_grad()
        yield
        optimizer.step()

    for window in windows(batches, accumulation_steps):
        with update():
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()


def padded_windows(model, optimizer, loss_fn, batches, accumulation_steps):
    """zip_longest of one iterator K times."""
    for window in zip_longest(*[iter(batches)] * accumulation_steps):
        window = [batch for batch in window if batch is not None]
        optimizer.zero_grad()
        for x, y in window:
            loss_fn(model(x), y).div(len(window)).backward()
        optimizer.step()


def from_a_deque(model, optimizer, loss_fn, batches, accumulation_steps):
    """Micro-batches wait in a deque."""
    waiting = deque(batches)
    while waiting:
        count = min(accumulation_steps, len(waiting))
        optimizer.zero_grad()
        for _ in range(count):
            x, y = waiting.popleft()
            (loss_fn(model(x), y) / count).backward()
        optimizer.step()


def loaded_by_a_thread(model, optimizer, loss_fn, batches, accumulation_steps):
    """A thread of the loop's own fetches the data ahead."""
    ready = queue.Queue(2)

    def fetch():
        for batch in [*batches, None]:
            ready.put(batch)

    loader = threading.Thread(target=fetch, daemon=True)
    loader.start()
    for window in windows(iter(ready.get, None), accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
    loader.join()


def counts_first(model, optimizer, loss_fn, batches, accumulation_steps):
    """A first pass over the window's data only counts its rows."""
    for window in windows(batches, accumulation_steps):
        rows = torch.tensor([float(len(x)) for x, _ in window])
        for parameter in model.parameters():
            parameter.grad = None
        for (x, y), share in zip(window, rows / rows.sum()):
            loss_fn(model(x), y).mul(share).backward()
        optimizer.step()


def gradient_of_a_share(model, optimizer, loss_fn, batches, accumulation_steps):
    """backward() is given the share as its gradient argument."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            loss.backward(gradient=torch.full_like(loss, 1 / len(window)), inputs=list(model.parameters()))
        optimizer.step()


def divides_foreach(model, optimizer, loss_fn, batches, accumulation_steps):
    """All gradients are divided in one fused call at the step."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            torch.autograd.backward(loss_fn(model(x), y))
        torch._foreach_div_([p.grad for p in model.parameters()], len(window))
        optimizer.step()


def by_functional_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    """torch.func.grad of a functional call."""
    parameters = dict(model.named_parameters())
    plain = {name: p.detach() for name, p in parameters.items()}

    def loss(values, x, y):
        return loss_fn(torch.func.functional_call(model, values, (x,)), y)

    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            for name, gradient in torch.func.grad(loss)(plain, x, y).items():
                old = parameters[name].grad
                parameters[name].grad = gradient / len(window) + (0 if old is None else old)
        optimizer.step()


def flat_buffer(model, optimizer, loss_fn, batches, accumulation_steps):
    """All gradients are views into one flat buffer."""
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    place = 0
    for parameter in model.parameters():
        parameter.grad = flat[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    for window in windows(batches, accumulation_steps):
        flat.zero_()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def moves_grad_to_main(model, optimizer, loss_fn, batches, accumulation_steps):
    """.grad is moved into a main buffer by a hook after each accumulation, and put back for the step."""
    main = {p: torch.zeros_like(p) for p in model.parameters()}

    def move(parameter):
        main[parameter] += parameter.grad
        parameter.grad = None

    handles = [p.register_post_accumulate_grad_hook(move) for p in model.parameters()]
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        for parameter, gradient in main.items():
            parameter.grad = gradient.clone()
            gradient.zero_()
        optimizer.step()
        optimizer.zero_grad()
    for handle in handles:
        handle.remove()


def two_halves_of_a_loss(model, optimizer, loss_fn, batches, accumulation_steps):
    """Two backward calls for each micro-batch, half a loss each."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            half = loss_fn(model(x), y) / (2 * len(window))
            half.backward(retain_graph=True)
            half.backward()
        optimizer.step()


def row_by_row(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each micro-batch goes row by row."""
    for window in windows(batches, accumulation_steps):
        rows = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            for i in range(len(x)):
                (loss_fn(model(x[i : i + 1]), y[i : i + 1]) / rows).backward()
        optimizer.step()


def big_batch(model, optimizer, loss_fn, batches, accumulation_steps):
    """Pairs of micro-batches are joined and go together: half as many backward calls."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for pair in windows(window, 2):
            x, y = (torch.cat(part) for part in zip(*pair))
            (loss_fn(model(x), y) * len(pair) / len(window)).backward()
        optimizer.step()


def looks_at_gradients(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The norm of the gradient is computed at each micro-batch, for a look only."""
    norms = []
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        optimizer.step()


def skips_bad_norms(model, optimizer, loss_fn, batches, accumulation_steps):
    """A window without a finite norm is left out, and cleared all the same."""
    for window in windows(batches, accumulation_steps):
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
        optimizer.zero_grad()


def clears_twice(model, optimizer, loss_fn, batches, accumulation_steps):
    """Clears before and after, to be sure."""
    model.zero_grad()
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()


def warm_up_by_hand(model, optimizer, loss_fn, batches, accumulation_steps):
    """The learning rate is set by hand at each update: a warm-up."""
    for step, window in enumerate(windows(batches, accumulation_steps), 1):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, step / 10)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def schedule_per_epoch(model, optimizer, loss_fn, batches, accumulation_steps, scheduler):
    """The scheduler counts epochs."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
    scheduler.step()


def own_average(model, optimizer, loss_fn, batches, accumulation_steps):
    """Averaged weights by hand, once per update, in a copy of the model."""
    average = copy.deepcopy(model).requires_grad_(False)
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        for mine, theirs in zip(average.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.001)


def saves_between_windows(model, optimizer, loss_fn, batches, accumulation_steps):
    """Saves and loads at a window's edge."""
    for number, window in enumerate(windows(batches, accumulation_steps)):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()
        if number == 1:
            saved, states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            model.load_state_dict(saved)
            optimizer.load_state_dict(states)


def all_epochs(model, optimizer, loss_fn, batches, accumulation_steps, epochs):
    """The loop runs all epochs itself."""
    for _ in range(epochs):
        for window in windows(batches, accumulation_steps):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
            optimizer.step()


def until_max_steps(model, optimizer, loss_fn, batches, accumulation_steps, max_steps):
    """Updates are counted, epochs come as they are needed."""
    done = 0
    while done < max_steps:
        for window in windows(batches, accumulation_steps):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
            optimizer.step()
            done += 1
            if done == max_steps:
                break


LOOPS = (
    in_a_trainer, in_a_context, padded_windows, from_a_deque, loaded_by_a_thread, counts_first,
    gradient_of_a_share, divides_foreach, by_functional_grad, flat_buffer, moves_grad_to_main, two_halves_of_a_loss,
    row_by_row, big_batch, looks_at_gradients, skips_bad_norms, clears_twice, warm_up_by_hand, schedule_per_epoch,
    own_average, saves_between_windows, all_epochs, until_max_steps,
)  # fmt: skip

CASES = tuple(told(f"right: {loop.__name__.replace('_', ' ')}", loop) for loop in LOOPS)
