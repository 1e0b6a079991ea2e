"""What the rows of the checkpoint contract are made of: little models, gradients, functions that count or change."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def raises(kind, text: str = ""):
    try:
        yield
    except kind as error:
        assert text in str(error), f"the error does not say {text!r}: {error}"
        return
    raise AssertionError(f"no {kind.__name__}: silent")


def block(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 12), nn.GELU(), nn.Dropout(dropout), nn.Linear(12, 6), nn.Tanh()]
    return nn.Sequential(*layers).double()


def point(*shape, grad: bool = True) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*(shape or (4, 6)), dtype=torch.double, requires_grad=grad)


def gradients(function, *inputs) -> list:
    """Gradients of sum(function(*inputs) ** 2) for every tensor in `inputs` and every parameter of modules there."""
    leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += [p for m in inputs if isinstance(m, nn.Module) for p in m.parameters()]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(11)
    function(*inputs).square().sum().backward()
    return [leaf.grad.clone() if leaf.grad is not None else None for leaf in leaves]


def same(got, want) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a is not None, f"gradient {i} is None"
        assert torch.equal(a, b), f"gradient {i} is wrong"


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


class Doubled(torch.autograd.Function):
    """x * 2 by hand; saves its input and reads it once, or twice, in backward."""

    forwards, reads = 0, 1

    @staticmethod
    def forward(ctx, x):
        Doubled.forwards += 1
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        for _ in range(Doubled.reads):
            ctx.saved_tensors
        return grad * 2


def point_on_cpu():
    return torch.ones(3, device="cpu", requires_grad=True)


class Changing:
    """First call: one thing. Second call: another."""

    def __init__(self, first, second):
        self.both = [first, second]

    def __call__(self, x):
        return (self.both.pop(0) if len(self.both) > 1 else self.both[0])(x)
