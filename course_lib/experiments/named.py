"""Models with a name, for predictions: each is a recipe for a training step that makes everything it uses.

    predict(named("gpt2-small", batch=8, length=1024))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.memory import checkpoint

from .models import GPT, mlp, next_token_loss

# name: (vocabulary, length, width, blocks, heads), as published (GPT-2: Radford et al. 2019; GPT-3: Brown et al. 2020, 2.1)
GPTS = {
    "gpt-tiny": (256, 64, 128, 4, 4),
    "gpt2-small": (50257, 1024, 768, 12, 12),
    "gpt2-medium": (50257, 1024, 1024, 24, 16),
    "gpt2-large": (50257, 1024, 1280, 36, 20),
    "gpt2-xl": (50257, 1024, 1600, 48, 25),
    "gpt3-6.7b": (50257, 2048, 4096, 32, 32),
    "gpt3-13b": (50257, 2048, 5120, 40, 40),
    "gpt3-175b": (50257, 2048, 12288, 96, 96),
}
OTHERS = ("mlp", "resnet18")
NAMES = (*GPTS, *OTHERS)

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused adamw": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


@dataclass(frozen=True)
class Step:
    """A training step of a named model. `build()` makes (model, optimizer, run); run() trains two updates.

    Two, because the second one has the optimizer's state, too. batch: samples of one micro-batch. length: tokens.
    """

    name: str
    batch: int = 8
    length: int | None = None
    optimizer: str = "adamw"
    precision: str = "fp32"
    checkpoint: str = "none"
    accumulation_steps: int = 1
    updates: int = 2

    def __post_init__(self):
        for what, value, known in (
            ("model", self.name, NAMES),
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("precision", self.precision, ("fp32", "bf16")),
            ("checkpoint", self.checkpoint, ("none", "per-block")),
        ):
            if value not in known:
                raise ValueError(f"There is no {what} {value!r}; known are {', '.join(known)}.")
        for what in ("batch", "accumulation_steps", "updates"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{what} is a whole number, 1 or more; got {value!r}.")
        if self.length is not None:
            if self.name in OTHERS:
                raise ValueError(f"{self.name} has no length: it takes no tokens.")
            if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
                raise ValueError(f"length is a whole number of tokens, 1 or more; got {self.length!r}.")
        if self.checkpoint != "none" and self.name == "mlp":
            raise ValueError("mlp has no blocks to checkpoint: its layers keep little besides their inputs.")

    def build(self):
        model, forward, batch = self._parts()
        optimizer = OPTIMIZERS[self.optimizer](model.parameters())

        def run():
            for _ in range(self.updates):
                for _ in range(self.accumulation_steps):
                    inputs, targets = batch()
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
                        loss = forward(inputs, targets) / self.accumulation_steps
                    loss.backward()
                    del inputs, targets, loss
                optimizer.step()
                optimizer.zero_grad()

        return model, optimizer, run

    def _parts(self):
        run_block = checkpoint if self.checkpoint == "per-block" else lambda block, x: block(x)
        if self.name in GPTS:
            vocabulary, longest, width, depth, heads = GPTS[self.name]
            length = self.length or longest
            model = GPT(vocabulary, max(length, longest), width, depth, heads)

            def forward(tokens, targets):
                x = model.tokens(tokens) + model.positions(torch.arange(length))
                for block in model.blocks:
                    x = run_block(block, x)
                return next_token_loss(model.head(model.norm(x)), targets)

            shape = (self.batch, length)
            return model, forward, lambda: tuple(torch.randint(0, vocabulary, shape) for _ in range(2))
        if self.name == "mlp":
            model = mlp()
            return model, lambda x, y: F.cross_entropy(model(x), y), lambda: _images(self.batch, (64,), 10)
        model = Resnet18()

        def classify(images, labels):
            x = model.stem(images)
            for block in model.blocks:
                x = run_block(block, x)
            return F.cross_entropy(model.head(x), labels)

        return model, classify, lambda: _images(self.batch, (3, 224, 224), 1000)


def named(name: str, **options) -> Step:
    """The training step of a named model (see `Step`). Raises ValueError for names and options that do not exist."""
    return Step(name, **options)


def _images(batch: int, shape: tuple, classes: int):
    return torch.randn(batch, *shape), torch.randint(0, classes, (batch,))


class _Residual(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm around which the input is added (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        shorter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else shorter

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class Resnet18(nn.Module):
    """ResNet-18 for 224 x 224 images and 1000 classes: 11.7 M parameters (He et al. 2015, table 1)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.ModuleList(
            block for a, b, stride in widths for block in (_Residual(a, b, stride), _Residual(b, b, 1))
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
