"""Stacks of blocks to cut, and what one step through them needs: the laboratory of notebook 06."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from course_lib.experiments.models import Block
from course_lib.measure import Meter, device
from course_lib.memory import schedule


def stack(
    depth: int = 24, width: int = 64, batch: int = 4, length: int = 64, heads: int = 2, fused: bool = True
):
    """(blocks, x): transformer blocks in a row, and an input (batch, length, width) that needs a gradient.

    All gradients exist already (zeros), as in every step but the first.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = nn.Sequential(*(Block(width, heads, fused=fused) for _ in range(depth)))
        x = torch.randn(batch, length, width, requires_grad=True)
    return _with_gradients(blocks, x)


def narrowing(batch: int = 512):
    """(blocks, x): twelve blocks of Linear, GELU, Linear that narrow like the stages of an image network."""
    widths = [256, 256, 256, 256, 128, 128, 128, 64, 64, 64, 32, 32, 32]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = nn.Sequential(*(
            nn.Sequential(nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, out))
            for wide, out in zip(widths, widths[1:])
        ))  # fmt: skip
        x = torch.randn(batch, widths[0], requires_grad=True)
    return _with_gradients(blocks, x)


class Slim(nn.Module):
    """x + Linear(GELU(Linear(LayerNorm(x)))), all of one width: its backward needs four times its input."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def alive_recording(depth: int = 12, width: int = 64, batch: int = 4096) -> dict:
    """Five schedules of one real chain, tick by tick, each with its predicted and its measured peak."""
    on = device()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = nn.Sequential(*(Slim(width) for _ in range(depth))).to(on)
        x = torch.randn(batch, width).to(on).requires_grad_()
    blocks, x = _with_gradients(blocks, x)
    chain = schedule.measure(blocks, x)
    plans = [schedule.none(chain), schedule.sqrt(chain), schedule.nested(chain), schedule.binomial(chain, 3)]
    plans.append(schedule.budgeted(chain, plans[0].peak_bytes // 4))
    rows = []
    for plan in plans:
        measured = step(plan.run, blocks, x)
        rows.append({
            "name": plan.name,
            "ticks": [list(tick) for tick in plan.ticks],
            "predicted_bytes": plan.peak_bytes,
            "measured_bytes": measured.peak_bytes,
            "again": len(measured.again),
        })  # fmt: skip
    return {
        "blocks": depth,
        "model": f"{depth} residual MLP blocks, width {width}, batch {batch}",
        "rows": rows,
    }


def _with_gradients(blocks, x):
    for tensor in (x, *blocks.parameters()):
        tensor.grad = torch.zeros_like(tensor)
    return blocks, x


class _Flops(TorchDispatchMode):
    """FLOPs of matrix products and attention; lighter than torch's counter, which tells modules apart."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.total += _flops_of(func, args, kwargs or {}, out)
        return out


def _flops_of(func, args, kwargs, out) -> int:
    count = flop_registry.get(func._overloadpacket)
    return count(*args, **kwargs, out_val=out) if count else 0


class Step(NamedTuple):
    """What one forward and backward took. Bytes are above what was alive before: weights, gradients, x."""

    peak_bytes: int
    after_forward: int
    again: tuple  # the blocks that ran in backward, in order
    flops: int  # of matrix products and attention
    gradient: torch.Tensor  # of all parameters and x, as one vector


@contextlib.contextmanager
def _noting(blocks, ran: list):
    """Every run of a block goes into `ran`, however it is called: hooks would miss `block.forward(x)`."""

    def noted(number, forward):
        def run(*args):
            ran.append(number)
            return forward(*args)

        return run

    for i, block in enumerate(blocks):
        block.forward = noted(i, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # the class's own is there again


def step(run, blocks, x) -> Step:
    """`run(blocks, x).sum().backward()` under a Meter, and which blocks ran when. Gradients start at zero."""
    ran: list = []
    with _noting(blocks, ran):
        with Meter(blocks, device=x.device) as meter:
            for tensor in (x, *blocks.parameters()):  # seen from now on, so that differences are exact
                tensor.grad.zero_()
            x.grad.copy_(x.detach()).zero_()
            start = meter.live_bytes
            with _Flops() as work:
                loss = run(blocks, x).sum()
                after, first = meter.live_bytes, len(ran)
                loss.backward()
            peak = meter.peak_bytes
    vector = torch.cat([tensor.grad.flatten() for tensor in (x, *blocks.parameters())])
    return Step(peak - start, after - start, tuple(ran[first:]), work.total, vector)


# -- operators ----------------------------------------------------------------------------


class Operator(NamedTuple):
    """All calls of one operator in a forward pass: bytes of its new outputs, FLOPs (matrix products only)."""

    name: str
    bytes: int
    flops: int


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found: dict = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        made = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, torch.Tensor)]
        nbytes = sum(
            t.untyped_storage().nbytes() for t in made if t.untyped_storage().data_ptr() not in given
        )
        if nbytes:
            flops = _flops_of(func, args, kwargs or {}, out)
            before = self.found.get(func, (0, 0))
            self.found[func] = (before[0] + nbytes, before[1] + flops)
        return out


def operators(block, x) -> dict:
    """{operator: Operator} for a forward pass of `block` on `x`: what has an output of its own, no views."""
    with torch.no_grad(), _Watch() as watch:
        block(x)
    return {
        func: Operator(func.name().removeprefix("aten::"), nbytes, flops)
        for func, (nbytes, flops) in watch.found.items()
    }
