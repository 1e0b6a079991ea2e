"""Live bytes against K: the same loop on a wider network, with windows of 2 and of 8."""

from __future__ import annotations


import torch
from torch import nn

from course_lib.measure import Meter

from .problems import Problem, drawn
from .run import Parts, call
from .observe import Watch
from .rows import Rows

WIDTH, ROWS, STEPS = 32, 128, (2, 8)


class _Deep(nn.Module):
    """Four layers, so that activations outweigh the parameters."""

    def __init__(self):
        super().__init__()
        layers = [nn.Linear(5, WIDTH)]
        for _ in range(4):
            layers += [nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
        self.layers = nn.Sequential(*layers, nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.layers(x)


def gradient_bytes() -> int:
    """One set of gradients of the wider network."""
    return sum(p.numel() * p.element_size() for p in _Deep().parameters())


def peaks(loop, problem: Problem) -> dict:
    """{K: bytes at the peak above what stood there before}, or {} where the loop cannot be run so."""
    found = {}
    for k in STEPS:
        draw = torch.Generator().manual_seed(k)
        batches = [
            (torch.randn(ROWS, 5, generator=draw), torch.randn(ROWS, 1, generator=draw)) for _ in range(8)
        ]
        model = drawn(_Deep())
        optimizer = problem.optimizer(model.parameters())
        watch = Watch(model, optimizer, Rows())
        parts = Parts(model, optimizer, problem.loss_fn, batches, k, watch, 1)
        try:
            with Meter(model, optimizer) as meter:
                call(loop, parts)
        except Exception:
            return {}
        found[k] = int(meter.peak_bytes - meter.baseline_bytes) if hasattr(meter, "baseline_bytes") else int(meter.peak_bytes)
    return found


