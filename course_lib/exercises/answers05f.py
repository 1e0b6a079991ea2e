"""Answers to the traps of notebook 05: BatchNorm under a recompute, a review, and the repair of a tower."""

import random
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.memory import checkpoint as course_checkpoint

# -- 05.7 --------------------------------------------------------------------------------------------------


@contextmanager
def frozen_statistics(model):
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = [[buffer.clone() for buffer in norm.buffers()] for norm in norms]
    try:
        yield
    finally:
        for norm, noted in zip(norms, before):
            for buffer, value in zip(norm.buffers(), noted):
                buffer.copy_(value)


def _norms(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def in_eval_mode(model):
    model.eval()
    try:
        yield
    finally:
        model.train()


@contextmanager
def no_tracking(model):
    """Right on its own; but then a BatchNorm saves two tensors less than in the first run."""
    norms = [norm for norm in _norms(model) if norm.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def _put_back(buffers):
    for buffer, value in buffers:
        buffer.copy_(value)


@contextmanager
def no_finally(model):
    buffers = [(buffer, buffer.clone()) for norm in _norms(model) for buffer in norm.buffers()]
    yield
    _put_back(buffers)


@contextmanager
def momentum_zero(model):
    before = [norm.momentum for norm in _norms(model)]
    for norm in _norms(model):
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(_norms(model), before):
            norm.momentum = momentum


@contextmanager
def momentum_left(model):
    buffers = [(buffer, buffer.clone()) for norm in _norms(model) for buffer in norm.buffers()]
    for norm in _norms(model):
        norm.momentum = 0.0
    try:
        yield
    finally:
        _put_back(buffers)


@contextmanager
def nothing(model):
    yield


@contextmanager
def only_top_level(model):
    buffers = [(b, b.clone()) for m in model.children() if isinstance(m, nn.BatchNorm1d) for b in m.buffers()]
    try:
        yield
    finally:
        _put_back(buffers)


@contextmanager
def no_copies(model):
    buffers = [(buffer, buffer) for norm in _norms(model) for buffer in norm.buffers()]
    try:
        yield
    finally:
        _put_back(buffers)


def a_value(model):
    for norm in _norms(model):
        norm.track_running_stats = False


class FrozenStatistics:
    """Puts copies of the statistics into the layers for the time being."""

    def __init__(self, model):
        self.norms = _norms(model)

    def __enter__(self):
        self.before = [dict(norm._buffers) for norm in self.norms]
        for norm in self.norms:
            for name, buffer in norm._buffers.items():
                norm._buffers[name] = None if buffer is None else buffer.clone()

    def __exit__(self, *error):
        for norm, buffers in zip(self.norms, self.before):
            norm._buffers.update(buffers)


@contextmanager
def by_hooks(model):
    """A hook before each forward notes the statistics, one after it puts them back."""
    handles, noted = [], {}

    def before(norm, inputs):
        noted[norm] = [buffer.clone() for buffer in norm.buffers()]

    def after(norm, inputs, output):
        _put_back(zip(norm.buffers(), noted.pop(norm, ())))

    for norm in _norms(model):
        handles.append(norm.register_forward_pre_hook(before))
        handles.append(norm.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm, values in noted.items():
            _put_back(zip(norm.buffers(), values))


# -- 05.8 and 05.9 -----------------------------------------------------------------------------------------


class PlainTower(nn.Module):
    """What the tower should compute: residual blocks, some of them skipped at random."""

    def __init__(self, width=16, depth=4, drop=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh()) for _ in range(depth)
        )
        self.drop, self.scale = drop, 1.0

    def forward(self, x):
        for block in self.blocks:
            if random.random() >= self.drop:
                x = x + block(self.scale * x)
        return x


class TowerInReview(PlainTower):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        for block in self.blocks:

            def segment(x):
                if random.random() < self.drop:
                    return x
                z = self.scale * x
                return x + block(z)

            x = checkpoint(segment, x, use_reentrant=False)
        return x


review = {
    "eval gate": "A",
    "foreign randomness": "C",
    "late-bound closure": "E",
    "state read late": "D",
    "statistics twice": "F",
    "input changed in place": None,
    "no input requires grad": None,
}
REVIEW_SOURCE = """{
    "eval gate": "A",
    "foreign randomness": "C",
    "late-bound closure": "E",
    "state read late": "D",
    "statistics twice": "F",
    "input changed in place": None,
    "no input requires grad": None,
}"""


class Tower(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < self.drop:  # drawn once, outside of the segment
                continue

            def segment(x, block, scale):  # reads nothing but what it is given
                return x + block(scale * x)

            def contexts(block=block):  # for the first run, and for the recompute
                return nullcontext(), frozen_statistics(block)

            x = checkpoint(segment, x, block, self.scale, use_reentrant=False, context_fn=contexts)
        return x


# each of these repairs all but one fault, or breaks something else


def recomputed(segment, *inputs, block):
    """torch's checkpoint, with the statistics of a block frozen in the recompute."""
    contexts = nullcontext(), frozen_statistics(block)
    return checkpoint(segment, *inputs, use_reentrant=False, context_fn=lambda: contexts)


class GateLeft(Tower):
    def forward(self, x):
        return super().forward(x) if self.training else PlainTower.forward(self, x)


class RandomLeft(PlainTower):
    def forward(self, x):
        def segment(x, block, scale):
            return x if random.random() < self.drop else x + block(scale * x)

        for block in self.blocks:
            x = recomputed(segment, x, block, self.scale, block=block)
        return x


class LateLeft(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < self.drop:
                continue
            segment = lambda x, scale: x + block(scale * x)  # noqa: B023, E731
            x = recomputed(segment, x, self.scale, block=block)
        return x


class StateLeft(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < self.drop:
                continue
            segment = lambda x, block: x + block(self.scale * x)  # noqa: E731
            x = recomputed(segment, x, block, block=block)
        return x


class StatisticsLeft(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() >= self.drop:
                segment = lambda x, block, scale: x + block(scale * x)  # noqa: E731
                x = checkpoint(segment, x, block, self.scale, use_reentrant=False)
        return x


class StatisticsLost(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() >= self.drop:
                with frozen_statistics(block):
                    segment = lambda x, block, scale: x + block(scale * x)  # noqa: E731
                    x = recomputed(segment, x, block, self.scale, block=block)
        return x


class ReentrantTower(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            if random.random() >= self.drop:
                segment = lambda x, block, scale: x + block(scale * x)  # noqa: E731
                x = checkpoint(segment, x, block, self.scale, use_reentrant=True)
        return x


class DecidesLate(PlainTower):
    """Draws outside, but each segment looks up what was drawn last."""

    def forward(self, x):
        for block in self.blocks:
            skip = random.random() < self.drop
            segment = lambda x, block, scale: x if skip else x + block(scale * x)  # noqa: B023, E731
            x = recomputed(segment, x, block, self.scale, block=block)
        return x


class NoCheckpoint(PlainTower):
    pass


class NeverSkips(PlainTower):
    def forward(self, x):
        for block in self.blocks:
            segment = lambda x, block, scale: x + block(scale * x)  # noqa: E731
            x = recomputed(segment, x, block, self.scale, block=block)
        return x


class OneForAll(PlainTower):
    """One segment around all blocks, with everything drawn and read before."""

    def forward(self, x):
        kept = [block for block in self.blocks if random.random() >= self.drop]

        def segment(x, scale):
            for block in kept:
                x = x + block(scale * x)
            return x

        def contexts():
            return nullcontext(), frozen_statistics(self)

        return checkpoint(segment, x, self.scale, use_reentrant=False, context_fn=contexts)


class ByTheCourse(PlainTower):
    """The course's own checkpoint replays Python's random numbers and counts BatchNorm once."""

    def forward(self, x):
        for block in self.blocks:
            x = course_checkpoint(self.residual, x, block, self.scale)
        return x

    def residual(self, x, block, scale):
        return x if random.random() < self.drop else x + block(scale * x)
