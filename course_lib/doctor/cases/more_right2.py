"""Right loops on other models, optimizers and numbers: the doctor must stay silent."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ..problems import Problem, drawn, network, regression
from .case import Case, called, told
from .wrapper import windows


def plain(model, optimizer, loss_fn, batches, accumulation_steps):
    """A right loop."""
    for window in windows(batches, accumulation_steps):
        rows = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * (len(x) / rows)).backward()
        optimizer.step()


def carries(model, optimizer, loss_fn, batches, accumulation_steps, epochs):
    """One count for all epochs: a window may hold the end of one and the start of the next."""
    count = 0
    optimizer.zero_grad()
    for _ in range(epochs):
        for x, y in batches:
            (loss_fn(model(x), y) / accumulation_steps).backward()
            count += 1
            if count % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def by_lbfgs(model, optimizer, loss_fn, batches, accumulation_steps):
    """LBFGS calls the closure as often as it likes."""
    for window in windows(batches, accumulation_steps):

        def closure(window=window):
            optimizer.zero_grad()
            total = 0.0
            for x, y in window:
                loss = loss_fn(model(x), y) / len(window)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(closure)


def logs_the_closure(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """The closure's loss is what optimizer.step returns."""
    for window in windows(batches, accumulation_steps):

        def closure(window=window):
            optimizer.zero_grad()
            losses = [loss_fn(model(x), y) / len(window) for x, y in window[:0]]
            for x, y in window:
                loss = loss_fn(model(x), y) / len(window)
                loss.backward()
                losses.append(loss.detach())
            return sum(losses)

        log(optimizer.step(closure))


def scaler_and_schedule(
    model, optimizer, loss_fn, batches, accumulation_steps, scaler, scheduler, ema, log, max_norm
):
    """Everything at once: scaler, clipping, schedule, averaged weights, log."""
    for window in windows(batches, accumulation_steps):
        total = 0.0
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if scaler.get_scale() >= before:
            scheduler.step()
            ema.update_parameters(model)
        log(total)


def keeps_detached(model, optimizer, loss_fn, batches, accumulation_steps):
    """Outputs and losses are kept, detached."""
    outputs, losses = [], []
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            out = model(x)
            loss = loss_fn(out, y)
            (loss / len(window)).backward()
            outputs.append(out.detach())
            losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses)


def logs_now_and_then(model, optimizer, loss_fn, batches, accumulation_steps, log):
    """Logs the mean loss of every second update."""
    shown = []
    for step, window in enumerate(windows(batches, accumulation_steps), 1):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            loss.backward()
            shown.append(loss.item())
        optimizer.step()
        if step % 2 == 0:
            log(sum(shown) / 2)
            shown = []


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.middle(self.middle(self.first(x).tanh()).tanh()).tanh())


class ByName(nn.Module):
    """Returns a dict and takes its input by name."""

    def __init__(self):
        super().__init__()
        self.inner = network(0, 16)

    def forward(self, *, features):
        return {"scores": self.inner(features), "note": "no tensor"}


def by_name(model, optimizer, loss_fn, batches, accumulation_steps):
    """A model that takes keywords and returns a dict."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(features=x)["scores"], y)
            (loss / len(window)).backward()
        optimizer.step()


class Dicts(nn.Module):
    """Takes a batch that is a dict and returns its loss."""

    def __init__(self):
        super().__init__()
        self.inner = network(0, 16)

    def forward(self, features=None, labels=None):
        return F.mse_loss(self.inner(features), labels)


def by_dicts(model, optimizer, loss_fn, batches, accumulation_steps):
    """Batches are dicts, the model returns its loss."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for batch in window:
            (model(**batch) / len(window)).backward()
        optimizer.step()


def casts_inputs(model, optimizer, loss_fn, batches, accumulation_steps):
    """Inputs are copied, cast and moved on their way."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            x, y = x.clone().to("cpu", torch.float64).contiguous(), y.double()
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def dict_batches() -> Problem:
    """Batches as dicts."""
    base = regression([4] * 10, 4)
    made = lambda epoch: [{"features": x, "labels": y} for x, y in base.batches(epoch)]
    return Problem(model=Dicts, batches=made, loss_of=lambda model, batch: model(**batch))


def classes() -> Problem:
    """Classification with an embedding and a GroupNorm."""

    def batches(epoch):
        draw = torch.Generator().manual_seed(epoch)

        def some(limit, *shape):
            return torch.randint(0, limit, shape, generator=draw)

        return [(some(9, 4, 3), some(3, 4)) for _ in range(10)]

    def model():
        layers = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.GroupNorm(2, 12), nn.Linear(12, 3))
        return drawn(layers.double())

    return Problem(model=model, batches=batches, loss_fn=F.cross_entropy)


def penalised() -> Problem:
    """A loss with a penalty on the weights, which is part of every micro-batch's loss."""
    base = regression([4] * 10, 4)

    def loss_of(model, batch):
        return F.mse_loss(model(batch[0]), batch[1]) + 0.1 * sum((p**2).sum() for p in model.parameters())

    return Problem(model=base.model, batches=base.batches, loss_of=loss_of)


def with_penalty(model, optimizer, loss_fn, batches, accumulation_steps):
    """Loss and penalty, both divided."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = F.mse_loss(model(x), y) + 0.1 * sum((p**2).sum() for p in model.parameters())
            (loss / len(window)).backward()
        optimizer.step()


def penalty_once(model, optimizer, loss_fn, batches, accumulation_steps):
    """The penalty once per window, in a backward of its own."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        (0.1 * sum((p**2).sum() for p in model.parameters())).backward()
        optimizer.step()


def single() -> Problem:
    """Everything in float32."""
    base = regression([4] * 10, 4)
    batches = lambda epoch: [(x.float(), y.float()) for x, y in base.batches(epoch)]
    return Problem(model=lambda: network(0, 16, dtype=torch.float32), batches=batches)


def on(model) -> dict:
    """Options for a model of one's own."""
    return {"problem": Problem(model=model, batches=regression([4] * 10, 4).batches)}


def _sized(k, n):
    return {"accumulation_steps": k, "sizes": [3] * n}


CASES = (
    Case("right: K = 2", "two micro-batches", plain, options=_sized(2, 5)),
    Case("right: K = 3", "windows of three", plain, options=_sized(3, 7)),
    Case("right: K = 16", "a long window", plain, options=_sized(16, 40)),
    Case("right: K > N", "an epoch shorter than K, with its own count", plain, options=_sized(8, 3)),
    Case("right: no tail", "whole windows only", plain, options=_sized(4, 8)),
    Case("right: one row each", "micro-batches of one row", plain, options={"sizes": [1] * 9}),
    Case("right: one epoch", "called once", plain, options={"epochs": 1}),
    Case("right: three epochs", "called three times", plain, options={"epochs": 3}),
    Case("right: unequal tail", "a short last micro-batch", plain, options={"sizes": [4] * 9 + [1]}),
    told("right: carries over epochs", carries, options={"sizes": [4] * 10},
         check=called(step=5)),
    told("right: logs the closure", logs_the_closure),
    told("right: keeps detached", keeps_detached),
    told("right: logs now and then", logs_now_and_then),
    told("right: everything", scaler_and_schedule),
    told("right: casts inputs", casts_inputs),
    Case("right: a layer used twice", "a layer that is used twice", plain,
         options=on(lambda: drawn(Twice().double()))),
    Case("right: classes", "an embedding, GroupNorm, cross-entropy", plain, options={"problem": classes()}),
    told("right: penalty", with_penalty, options={"problem": penalised()}),
    told("right: penalty once", penalty_once, options={"problem": penalised()}),
    Case("right: Adam", "Adam", plain, options={"optimizer": partial(torch.optim.Adam, lr=1e-3)}),
    Case("right: RMSprop", "RMSprop", plain, options={"optimizer": torch.optim.RMSprop}),
    Case("right: float32", "single precision", plain, options={"problem": single()}),
    told("right: LBFGS", by_lbfgs, options={"optimizer": partial(torch.optim.LBFGS, lr=0.1, max_iter=3)}),
    told("right: by name", by_name, options={"problem": Problem(
        model=ByName, batches=regression([4] * 10, 4).batches,
        loss_of=lambda model, batch: F.mse_loss(model(features=batch[0])["scores"], batch[1]))}),
    told("right: dicts", by_dicts, options={"problem": dict_batches()}),
)  # fmt: skip
