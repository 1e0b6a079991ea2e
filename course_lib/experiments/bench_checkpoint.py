"""Our checkpoint against torch's on a stack of transformer blocks: peak memory, FLOPs, and Python time per region.

    python -m course_lib.experiments.bench_checkpoint          # prints the tables; about a minute on two cores
"""

from __future__ import annotations

import functools
import statistics
import time

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential as torch_sequential
from torch.utils.flop_counter import FlopCounterMode

from course_lib.measure import Meter, mib
from course_lib.memory import checkpoint, checkpoint_sequential

from .models import Block

BLOCKS, BATCH, LENGTH, WIDTH, HEADS = 32, 8, 128, 256, 4

theirs = functools.partial(torch_checkpoint, use_reentrant=False)
their_sequential = functools.partial(torch_sequential, use_reentrant=False)


def each(call, blocks, x):
    """Every block a region of its own, by `call`."""
    for block in blocks:
        x = call(block, x)
    return x


VARIANTS = {
    "no checkpointing": lambda blocks, x: blocks(x),
    "per block, ours": functools.partial(each, checkpoint),
    "per block, torch": functools.partial(each, theirs),
    "per block, torch reentrant": functools.partial(each, functools.partial(torch_checkpoint, use_reentrant=True)),
    "6 segments, ours": lambda blocks, x: checkpoint_sequential(blocks, 6, x),
    "6 segments, torch": lambda blocks, x: their_sequential(blocks, 6, x),
    "23 segments, ours": lambda blocks, x: checkpoint_sequential(blocks, 23, x),
    "23 segments, torch": lambda blocks, x: their_sequential(blocks, 23, x),
}


def costs(forward, blocks: int = BLOCKS, fake: bool = True, dropout: float = 0.0) -> dict:
    """Bytes and FLOPs of one forward and backward through a stack of blocks, gradients allocated before.

    fake: with fake tensors, which give the same numbers and allocate nothing. Returns {"peak": bytes above parameters,
    gradients and input; "kept": the same after forward, the output among it; "flops": of the whole step}.
    """
    with FakeTensorMode() if fake else torch.random.fork_rng():
        stack = nn.Sequential(*(Block(WIDTH, HEADS, dropout) for _ in range(blocks)))
        for parameter in stack.parameters():
            parameter.grad = torch.zeros_like(parameter)
        x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
        x.grad = torch.zeros_like(x)
        with Meter(stack) as meter:
            (x + x.grad).sum()  # so that the Meter has met both
            before = meter.live_bytes
            out = forward(stack, x)
            kept = meter.live_bytes
            out.sum().backward()
        # apart from the Meter: the counter's own hooks keep activations alive for a while
        with FlopCounterMode(display=False) as flops:
            forward(stack, x).sum().backward()
        return {"peak": meter.peak_bytes - before, "kept": kept - before, "flops": flops.get_total_flops()}


def microseconds(calls: dict, repeats: int = 40, inner: int = 25) -> dict:
    """{name: median microseconds of one call}, the variants taken in turn."""
    times: dict = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - start) / inner * 1e6)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def overhead(repeats: int = 40) -> dict:
    """Python time that a region adds to forward and backward, in microseconds: {region: {"ours": ..., "torch": ...}}."""
    x = torch.ones(4, 16, requires_grad=True)
    net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
    drop = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 16))
    found = {}
    for name, function in (("one operator", torch.sin), ("Linear, GELU, Linear", net), ("the same with dropout", drop)):
        steps = {
            "plain": lambda function=function: function(x).sum().backward(),
            "ours": lambda function=function: checkpoint(function, x).sum().backward(),
            "torch": lambda function=function: theirs(function, x).sum().backward(),
        }
        medians = microseconds(steps, repeats)
        found[name] = {who: medians[who] - medians["plain"] for who in ("ours", "torch")}
    return found


def main(argv=None) -> int:
    torch.set_num_threads(1)
    print(f"{BLOCKS} pre-norm blocks, batch {BATCH}, length {LENGTH}, width {WIDTH}, fp32; bytes above parameters, gradients, input")
    base = costs(VARIANTS["no checkpointing"])["flops"]
    print(f"{'variant':<28} {'peak':>11} {'after forward':>14} {'FLOP ratio':>11}")
    for name, forward in VARIANTS.items():
        row = costs(forward)
        print(f"{name:<28} {mib(row['peak']):>11} {mib(row['kept']):>14} {row['flops'] / base:>11.4f}")
    print("\nPython time that a region adds, forward and backward, microseconds (medians, taken in turn)")
    for name, row in overhead().items():
        print(f"{name:<28} ours {row['ours']:7.1f}   torch {row['torch']:7.1f}   ratio {row['ours'] / row['torch']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
