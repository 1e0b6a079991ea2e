"""Whole scripts: functions without parameters that make their model, data and optimizer themselves."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from .case import called, ratio, told

K = 4


def _data(rows=40, classes=None, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=draw)
    if classes:
        return TensorDataset(x, torch.randint(0, classes, (rows,), generator=draw))
    return TensorDataset(x, torch.randn(rows, 1, generator=draw))


def _net(out=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, out))


class TinyGPT(nn.Module):
    """Embedding, one mixing layer, logits; the loss where targets are given."""

    def __init__(self, vocabulary=13, width=8):
        super().__init__()
        self.embed, self.mix = nn.Embedding(vocabulary, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, targets=None):
        logits = self.head(torch.tanh(self.mix(self.embed(ids))))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def _gpt_script(divide=True, clip=False, same_batch=False, clear_inside=False):
    torch.manual_seed(1)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 13, (500,))

    def get_batch():
        rows = torch.stack([text[start : start + 9] for start in torch.randint(0, 480, (4,))])
        return rows[:, :-1], rows[:, 1:]

    ids, targets = get_batch()
    for iteration in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (iteration + 1) / 3
        for micro_step in range(K):
            with nullcontext():
                _, loss = model(ids, targets)
                loss = loss / K if divide else loss
            if not same_batch or micro_step == K - 1:
                ids, targets = get_batch()
            if clear_inside:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if not clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def gpt_right():
    """A small language model, random batches, a prefetch, clipping, the rate set by hand: right."""
    _gpt_script()


def gpt_undivided():
    """The same without the division."""
    _gpt_script(divide=False)


def gpt_clips_each():
    """The same with the clip in the inner loop."""
    _gpt_script(clip=True)


def gpt_same_batch():
    """The same with the prefetch after the inner loop: K times one batch."""
    _gpt_script(same_batch=True)


def gpt_clears_inside():
    """The same with a clear in the inner loop."""
    _gpt_script(clear_inside=True)


def _classifier(boundary, divide=K, clear=True, schedule=None, epochs=2, rows=40, log=None):
    """One usual script: a loader, cross-entropy, a boundary test."""
    model, loader = _net(3), DataLoader(_data(rows, classes=3), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    optimizer.zero_grad()
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            (loss / divide).backward()
            if schedule == "each":
                scheduler.step()
            if boundary(i, len(loader)):
                optimizer.step()
                if schedule == "update":
                    scheduler.step()
                if clear:
                    optimizer.zero_grad()


def classifier_right():
    """Shuffled loader, whole windows, schedule per update: right."""
    _classifier(lambda i, n: (i + 1) % K == 0, schedule="update", rows=48)


def classifier_off_by_one():
    """`i % K == 0` on a count from zero."""
    _classifier(lambda i, n: i % K == 0)


def classifier_tail():
    """The tail is stepped and divided by K."""
    _classifier(lambda i, n: (i + 1) % K == 0 or i + 1 == n)


def classifier_leaks():
    """The count restarts with each epoch, the gradients stay."""
    _classifier(lambda i, n: (i + 1) % K == 0, epochs=3)


def classifier_uncleared():
    """Never cleared."""
    _classifier(lambda i, n: (i + 1) % K == 0, clear=False, rows=48)


def classifier_schedules():
    """The schedule advances with each micro-batch."""
    _classifier(lambda i, n: (i + 1) % K == 0, schedule="each", rows=48)


def classifier_steps_each():
    """K divides the loss, and nothing else knows of it."""
    _classifier(lambda i, n: True, rows=48)


def classifier_over_loader():
    """The loss is divided by the length of the loader."""
    _classifier(lambda i, n: (i + 1) % K == 0, divide=12, rows=48)


def with_validation():
    """Trains, validates after each epoch under no_grad: right."""
    model, optimizer = _net(), None
    optimizer = torch.optim.Adam(model.parameters())
    train, valid = DataLoader(_data(32), batch_size=4), DataLoader(_data(16, seed=1), batch_size=8)
    for _ in range(2):
        model.train()
        for i, (x, y) in enumerate(train, 1):
            (F.mse_loss(model(x), y) / K).backward()
            if i % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            sum(F.mse_loss(model(x), y).item() for x, y in valid)


def with_scaler():
    """Scaler, unscale, clip, step, update: right."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i, (x, y) in enumerate(DataLoader(_data(32), batch_size=4), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y) / K
        scaler.scale(loss).backward()
        if i % K == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def clips_scaled():
    """The same without the unscale: the clip meets scaled gradients."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i, (x, y) in enumerate(DataLoader(_data(32), batch_size=4), 1):
        scaler.scale(F.mse_loss(model(x), y) / K).backward()
        if i % K == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def adversarial():
    """Generator and discriminator accumulate, each cleared where it must be: right."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    reals = [x for x, _ in DataLoader(_data(32), batch_size=4)]
    for start in range(0, len(reals), K):
        judge.zero_grad()
        for real in reals[start : start + K]:
            fake = maker(torch.randn(4, 3)).detach()
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()
            (loss / K).backward()
        judges.step()
        judge.requires_grad_(False)
        maker.zero_grad()
        for _ in range(K):
            (F.softplus(-judge(maker(torch.randn(4, 3)))).mean() / K).backward()
        makes.step()
        judge.requires_grad_(True)


def distilling():
    """A teacher's outputs are the targets: right."""
    teacher, student = _net(), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for i, (x, _) in enumerate(DataLoader(_data(32), batch_size=4), 1):
        (F.mse_loss(student(x), teacher(x)) / K).backward()
        if i % K == 0:
            optimizer.step()
            optimizer.zero_grad()


def reinforcing():
    """A policy gradient over K episodes: right."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(K):
            states = torch.randn(10, 4)
            chosen = torch.distributions.Categorical(logits=policy(states))
            actions = chosen.sample()
            advantage = torch.randn(10)
            loss = -(chosen.log_prob(actions) * advantage).mean()
            (loss / K).backward()
        optimizer.step()


def config_trainer():
    """A trainer class with a config, its own state and a divided loss: right."""
    config = SimpleNamespace(accumulate=K, epochs=2, lr=0.01)

    class Trainer:
        def __init__(self):
            self.model, self.pending = _net(), 0
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)

        def micro_step(self, batch):
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.div(config.accumulate).backward()
            self.pending += 1
            if self.pending == config.accumulate:
                self.update()
            return loss.item()

        def update(self):
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.pending = 0

    trainer = Trainer()
    for _ in range(config.epochs):
        for batch in DataLoader(_data(32), batch_size=4, shuffle=True):
            trainer.micro_step(batch)


def config_trainer_forgets():
    """The same, but the count of pending micro-batches is not set back."""
    model, pending = _net(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        for x, y in DataLoader(_data(32), batch_size=4, shuffle=True):
            (F.mse_loss(model(x), y) / K).backward()
            pending += 1
            if pending >= K:
                optimizer.step()
                optimizer.zero_grad()


def keeps_graphs():
    """An epoch's loss is added up with its graphs."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epoch_loss = 0
    for i, (x, y) in enumerate(DataLoader(_data(48), batch_size=4), 1):
        loss = F.mse_loss(model(x), y) / K
        loss.backward()
        epoch_loss += loss
        if i % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    return epoch_loss.item()


KNOWN = {"accumulation_steps": K}

CASES = (
    told("right: script, language model", gpt_right),
    told("script: undivided", gpt_undivided, ("not divided",), options=KNOWN, check=ratio(4.0)),
    told("script: undivided, K unknown", gpt_undivided, ("not divided",), check=ratio(4.0)),
    told("script: clips each", gpt_clips_each, ("clipped in the window",)),
    told("script: clears inside", gpt_clears_inside, ("cleared too early",)),
    told("right: script, classifier", classifier_right),
    told("script: off by one", classifier_off_by_one, ("wrong window",), ("tail dropped", "tail leaks"),
         options=KNOWN),
    told("script: tail over K", classifier_tail, ("tail too small",), options=KNOWN),
    told("script: tail leaks", classifier_leaks, ("tail leaks",), ("tail dropped",), options=KNOWN),
    told("script: never cleared", classifier_uncleared, ("not cleared",), options=KNOWN),
    told("script: schedule each", classifier_schedules, ("schedule per micro-batch",),
         check=called(scheduler=24, step=6)),
    told("script: steps each", classifier_steps_each, ("update every micro-batch",),
         ("all scaled", "divided twice")),
    told("script: over the loader", classifier_over_loader, ("all scaled",), check=ratio(1 / 3)),
    told("right: script, validation", with_validation),
    told("right: script, scaler", with_scaler),
    told("script: clips scaled", clips_scaled, ("clipped before unscale",)),
    told("right: script, policy gradient", reinforcing),
    told("right: script, trainer", config_trainer),
    told("script: count not set back", config_trainer_forgets, ("wrong window",), options=KNOWN),
    told("script: graphs kept", keeps_graphs, ("graph kept",)),
    told("script: same batch", gpt_same_batch, ("other micro-batches",), ("update every micro-batch",),
         options=KNOWN),
    told("right: script, adversarial", adversarial),
    told("right: script, distilling", distilling),
)  # fmt: skip
