"""Predicted against measured bytes: the same steps under fake tensors and for real, under the same Meter.

    python -m course_lib.experiments.bench_predict          # a table; then GPT-2 small and GPT-3 175B, which nothing runs
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.measure import Meter, mib, predict
from course_lib.memory import checkpoint, checkpoint_sequential

from .models import GPT, cnn, mlp, next_token_loss
from .named import OPTIMIZERS, named


class Small:
    """A small training step with `build()`: kind "mlp", "cnn" or "gpt"."""

    def __init__(self, kind, optimizer="adam", regions=None, bf16=False, k=1, clip=False, **model):
        self.kind, self.optimizer, self.regions, self.bf16, self.k, self.clip = kind, optimizer, regions, bf16, k, clip
        self.options = model

    def build(self):
        if self.kind == "gpt":
            model = GPT(64, 16, 32, 3, 4, **self.options)
            batch = lambda: (torch.randint(0, 64, (4, 16)), torch.randint(0, 64, (4, 16)))  # noqa: E731
        else:
            model = mlp() if self.kind == "mlp" else cnn()
            shape = (16, 64) if self.kind == "mlp" else (8, 1, 8, 8)
            batch = lambda: (torch.randn(shape), torch.randint(0, 10, shape[:1]))  # noqa: E731
        loss_fn = next_token_loss if self.kind == "gpt" else F.cross_entropy
        optimizer = OPTIMIZERS[self.optimizer](model.parameters())

        def forward(x):
            if not self.regions:
                return model(x)
            if self.kind != "gpt":
                return checkpoint_sequential(model, self.regions, x)
            x = model.tokens(x) + model.positions(torch.arange(x.shape[1]))
            for block in model.blocks:
                x = checkpoint(block, x)
            return model.head(model.norm(x))

        def run():
            for _ in range(2):
                for _ in range(self.k):
                    x, y = batch()
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                        loss = loss_fn(forward(x), y) / self.k
                    loss.backward()
                if self.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

        return model, optimizer, run

    def measured(self):
        """The Trace of a real run."""
        model, optimizer, run = self.build()
        with Meter(model, optimizer, device="cpu") as meter:
            run()
        return meter.trace


SETTINGS = {
    "MLP, SGD": Small("mlp", "sgd"),
    "MLP, Adam": Small("mlp"),
    "MLP, Adam, 3 segments": Small("mlp", regions=3),
    "MLP, momentum, bf16 autocast": Small("mlp", "momentum", bf16=True),
    "MLP, AdamW, 2 micro-batches, clipping": Small("mlp", "adamw", k=2, clip=True),
    "CNN, SGD": Small("cnn", "sgd"),
    "CNN, AdamW": Small("cnn", "adamw"),
    "CNN, Adam, 3 segments": Small("cnn", regions=3),
    "CNN, Adam, bf16 autocast": Small("cnn", bf16=True),
    "CNN, Adam, 3 segments, bf16 autocast": Small("cnn", regions=3, bf16=True),
    "GPT, SGD": Small("gpt", "sgd"),
    "GPT, Adam": Small("gpt"),
    "GPT, AdamW, per block": Small("gpt", "adamw", regions=True),
    "GPT, Adam, bf16 autocast": Small("gpt", bf16=True),
    "GPT, Adam, per block, bf16 autocast": Small("gpt", regions=True, bf16=True),
    "GPT, Adam, dropout, attention by hand": Small("gpt", dropout=0.1, fused=False),
    "GPT, AdamW, per block, dropout": Small("gpt", "adamw", regions=True, dropout=0.1),
    "GPT, momentum, 2 micro-batches": Small("gpt", "momentum", k=2),
    "GPT, fused AdamW": Small("gpt", "fused adamw"),
}


def main(argv=None) -> int:
    torch.set_num_threads(1)
    print(f"{'setting':<40} {'predicted':>12} {'measured':>12}  phases  categories")
    off = 0
    for name, step in SETTINGS.items():
        predicted, measured = predict(step), step.measured()
        same = predicted.peak_by_phase == measured.peak_by_phase, predicted.peak_by_category == measured.peak_by_category
        off += predicted.peak_bytes != measured.peak_bytes or not all(same)
        print(f"{name:<40} {predicted.peak_bytes:>12} {measured.peak_bytes:>12}  {same[0]!s:<6}  {same[1]}")
    print(f"{len(SETTINGS) - off} of {len(SETTINGS)} to the byte\n")
    for name, options in (
        ("gpt2-small", {}),
        ("gpt2-small", {"checkpoint": "per-block"}),
        ("gpt2-small", {"precision": "bf16"}),
        ("gpt3-175b", {"batch": 1, "length": 2048}),
    ):
        start = time.process_time()
        trace = predict(named(name, **options))
        print(f"{name} {options or ''}: {mib(trace.peak_bytes)} in {time.process_time() - start:.1f} CPU seconds")
    return int(off > 0)


if __name__ == "__main__":
    raise SystemExit(main())
