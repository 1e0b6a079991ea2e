"""What the parts of a setting's model need: each measured alone, without data, and put together for any depth.

A model of 24 blocks has one kind of block. So the stem, one block and the head are measured (half a second), and the
chain of any depth, and the forecast of any policy, is arithmetic after that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.measure.predict import without_data
from course_lib.measure.storages import StorageWatch
from course_lib.memory import schedule
from course_lib.memory.schedule import Chain

from . import parts
from .cutting import _flops_of
from .setting import Setting

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.001),
}


class Work(TorchDispatchMode):
    """Counts operators, and the FLOPs of matrix products, convolutions and attention."""

    def __init__(self):
        super().__init__()
        self.flops = self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        self.flops += _flops_of(func, args, kwargs or {}, out)
        return out


@dataclass(frozen=True)
class Part:
    """One part's cost. Bytes, FLOPs and numbers of operators."""

    parameter_bytes: int
    state_bytes: int  # of the optimizer
    forward: tuple  # (FLOPs, operators)
    backward: tuple
    update_operators: int


@dataclass(frozen=True)
class Anatomy:
    """Stem, one block, head. `first`: the chain while no gradient exists; `later`: when all do (from the second micro-batch)."""

    parts: tuple
    first: Chain
    later: Chain
    update_peak_bytes: int  # what the optimizer needs for a moment
    exact: bool = True  # False: a sketch, see there

    def row(self, depth: int) -> tuple:
        """The Parts of a model with `depth` blocks."""
        stem, block, head = self.parts
        return (stem, *[block] * depth, head)

    def chain(self, depth: int, later: bool = False) -> Chain:
        """The chain of all parts of a model with `depth` blocks: stem, blocks, head."""
        chain = self.later if later else self.first
        stem, block, head = chain.blocks
        return replace(chain, blocks=(stem, *[block] * depth, head))


ANCHORS = (4, 8)  # micro-batches between and beyond which a sketch is a straight line


def anatomy(setting: Setting) -> Anatomy:
    """The Anatomy of a setting's model. Policies that cut between blocks share one; settings that differ in depth do, too."""
    return _anatomy(_alone(setting))


def sketch(setting: Setting) -> Anatomy:
    """The same for any micro-batch from two that were measured: no new measurement, so it is there at once.

    Bytes and FLOPs grow in a straight line with the micro-batch, but for peaks where another operator takes over: exact for
    most settings from 3 samples on, and within a few per cent of a step's peak below.
    """
    alone = _alone(setting)
    if alone in _known:
        return _known[alone]
    low, high = (_anatomy(alone.but(micro_batch=n)) for n in ANCHORS)
    return replace(_line(low, high, setting.micro_batch), exact=False)


def _alone(setting: Setting) -> Setting:
    wrapped = setting.policy if setting.policy in ("selective", "offload") else "none"
    return setting.but(depth=1, accumulation_steps=1, policy=wrapped)


def _line(low, high, at: int):
    """The value at a micro-batch of `at`, on the line through low and high."""
    if isinstance(low, bool) or low is None:
        return low
    if isinstance(low, (int, float)):
        return max(0, low + (high - low) * (at - ANCHORS[0]) // (ANCHORS[1] - ANCHORS[0]))
    if isinstance(low, tuple):
        return tuple(_line(a, b, at) for a, b in zip(low, high))
    assert is_dataclass(low)
    return replace(low, **{f.name: _line(getattr(low, f.name), getattr(high, f.name), at) for f in fields(low)})


_known: dict = {}  # {setting of one block: its Anatomy}
_lock = threading.RLock()  # tensors without data belong to one thread at a time


def _anatomy(setting: Setting) -> Anatomy:
    with _lock:
        if setting not in _known:
            _known[setting] = _measured(setting)
        return _known[setting]


def _measured(setting: Setting) -> Anatomy:
    with without_data():
        net = parts.net(setting)
        inputs, targets = parts.batch(setting)
        parts.head_of(net).targets = targets
        first = schedule.measure(net, inputs)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        later = schedule.measure(net, inputs)
        work = _work(net, inputs)
        states, update, peak = _updates(setting, net)
    rows = tuple(
        Part(sum(p.nbytes for p in part.parameters()), state, *costs, count)
        for part, costs, state, count in zip(net, work, states, update)
    )
    if setting.policy != "none":
        # `measure` takes its numbers for a region from a rerun of its own, which a block that reruns itself confuses
        plain = _anatomy(setting.but(policy="none"))
        first, later = (_waiting_as(*pair) for pair in ((first, plain.first), (later, plain.later)))
    return Anatomy(rows, first, later, peak)


def _waiting_as(chain: Chain, plain: Chain) -> Chain:
    pairs = zip(chain.blocks, plain.blocks)
    return replace(chain, blocks=tuple(replace(a, gradient_bytes=b.gradient_bytes) for a, b in pairs))


def _work(net, x) -> list:
    """[(forward, backward)] for each part, each (FLOPs, operators)."""
    found = []
    for part in net:
        x = x.detach().requires_grad_(x.is_floating_point() and part is not net[0])
        with Work() as forward:
            out = part(x)
        with Work() as backward:
            out.backward(torch.ones_like(out))
        found.append(((forward.flops, forward.operators), (backward.flops, backward.operators)))
        x = out
    return found


def _updates(setting: Setting, net) -> tuple:
    """For each part: bytes of optimizer state, and operators of its update. Then the bytes that an update needs for a moment."""
    states, operators, peak = [], [], 0
    for part in net:
        optimizer = OPTIMIZERS[setting.optimizer](part.parameters())
        optimizer.step()  # the first one makes the states
        watch = StorageWatch(torch.device("cpu"))
        tensors = [*part.parameters(), *(p.grad for p in part.parameters())]
        tensors += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        for tensor in tensors:
            watch.seed(tensor, "inputs")
        with watch:
            before = watch.peak = watch.live
            with Work() as work:
                optimizer.step()
        states.append(sum(tensor.nbytes for tensor in tensors[2 * len(list(part.parameters())) :]))
        operators.append(work.operators)
        peak = max(peak, watch.peak - before)
    return states, operators, peak
