"""Little models around a checkpointed segment, for the witnesses of notebook 05. Those of version 3: "
"scenes05b.py.

A Scene builds its tensors from a fixed seed, and its segment notes in a Probe how it is run.
`forward(checkpoint)` runs the whole model, the segment through `checkpoint(function, *inputs, **keywords)`,
and gives the loss.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = 256, 8  # one float64 activation is 16 KiB


@dataclass
class Call:
    """One run of a segment."""

    label: str
    phase: str  # "forward" or "backward"
    grad: bool  # was recording switched on
    autocast: object  # the dtype of autocast, or None where it is off
    graph: bool  # an input came with a graph behind it
    needs: tuple  # which of its tensors required a gradient
    random: bytes  # the random state at its start
    given: tuple  # which inputs it got: their names, and the numbers among them
    finished: bool = False


class Probe:
    """What the segment of a scene notes about itself: its calls, and its intermediates by weak reference."""

    def __init__(self):
        self.calls: list[Call] = []
        self.phase = "forward"
        self._marks: list = []

    @contextmanager
    def called(self, label, *tensors, given=()):
        cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
        graph, needs = any(t.grad_fn is not None for t in tensors), tuple(t.requires_grad for t in tensors)
        state = torch.get_rng_state().numpy().tobytes()
        call = Call(label, self.phase, torch.is_grad_enabled(), cast, graph, needs, state, given)
        self.calls.append(call)
        yield
        call.finished = True

    def mark(self, name, tensor):
        """Follow an intermediate: is its memory still there?"""
        self._marks.append((name, weakref.ref(tensor.untyped_storage())))
        return tensor

    def alive(self) -> list[str]:
        """The names of the intermediates whose memory is still there, each once."""
        return list(dict.fromkeys(name for name, storage in self._marks if storage() is not None))


class Scene:
    """A model around a segment. `words` finishes the sentence "With ...,"."""

    words = "a segment"
    dtype = torch.float64
    random = False  # the segment draws random numbers
    last_op_saves_only_inputs = True  # so that a recompute can stop before it
    runs: dict = {}  # runs of a segment in forward and backward together, where it is not 2
    counts_memory = True
    asks_twice = False  # backward needs the saved tensors a second time
    late = None  # intermediates alive when backward is nearly through the segment

    def __init__(self):
        self.draw = torch.Generator().manual_seed(5)
        self.leaves, self.probe = {}, Probe()
        self.target = torch.randn(ROWS, WIDTH, generator=self.draw, dtype=self.dtype)
        self.build()

    def leaf(self, name, *shape, grad=True):
        """A tensor whose gradient counts, by name."""
        tensor = torch.randn(shape, generator=self.draw, dtype=self.dtype) / WIDTH ** (len(shape) - 1.5)
        self.leaves[name] = tensor.requires_grad_(grad)
        return self.leaves[name]

    def build(self):
        self.x = self.leaf("x", ROWS, WIDTH)
        self.before, self.after = (self.leaf(f"{name}.weight", WIDTH, WIDTH) for name in ("before", "after"))
        self.w1, self.w2 = (self.leaf(f"segment.w{i}", WIDTH, WIDTH) for i in (1, 2))

    def hidden(self):
        """What goes into the segment. The scene holds it, so that it is no part of what a segment keeps."""
        self.held = self.x @ self.before
        return self.held

    def loss(self, y):
        return (y * self.target).sum()

    def forward(self, checkpoint):
        return self.loss(checkpoint(self.segment, self.hidden()) @ self.after)

    def backward(self, loss):
        loss.backward()

    def around(self):
        """A context for the forward pass."""
        return nullcontext()

    def behind(self):
        """A context for the backward pass."""
        return nullcontext()

    def segment(self, x):
        with self.probe.called("segment", x):
            h = self.probe.mark("x @ w1", x @ self.w1)
            h = self.probe.mark("tanh(x @ w1)", h.tanh())
            return h @ self.w2


class Functional(Scene):
    words = "a plain function as the segment, whose weights come from outside"


class _Noting(nn.Module):
    """A module as the segment."""

    def __init__(self, probe, w1, w2):
        super().__init__()
        self.probe, self.linear1, self.linear2 = probe, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.double()
        for layer, weight in ((self.linear1, w1), (self.linear2, w2)):
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(weight[0] / 9)

    def forward(self, x):
        with self.probe.called("segment", x):
            h = self.probe.mark("linear1's output", self.linear1(x))
            return self.linear2(self.probe.mark("gelu's output", F.gelu(h)))


class Module(Scene):
    words = "a module as the segment, on the raw input x"

    def build(self):
        super().build()
        self.layer = _Noting(self.probe, self.leaves.pop("segment.w1").detach(), self.leaves.pop(
                  "segment.w2").detach())
        self.leaves |= {f"segment.{name}": p for name, p in self.layer.named_parameters()}
        del self.leaves["before.weight"]

    def forward(self, checkpoint):
        return self.loss(checkpoint(self.layer, self.x) @ self.after)


class TwoInputs(Scene):
    words = "two inputs"

    def build(self):
        super().build()
        self.scale = self.leaf("scale", ROWS, WIDTH)

    def forward(self, checkpoint):
        self.half = self.scale * 0.5
        return self.loss(checkpoint(self.segment, self.hidden(), self.half) @ self.after)

    def segment(self, x, scale):
        with self.probe.called("segment", x, scale):
            h = self.probe.mark("x @ w1", x @ self.w1)
            h = self.probe.mark("its product with the scale", h * scale)
            return self.probe.mark("its sine", h.sin()) @ self.w2


class Mask(Scene):
    words = "a second input that needs no gradient (a mask of bools)"

    def build(self):
        super().build()
        self.mask = torch.rand(ROWS, WIDTH, generator=self.draw) > 0.3

    def forward(self, checkpoint):
        return self.loss(checkpoint(self.segment, self.hidden(), self.mask) @ self.after)

    def segment(self, x, mask):
        with self.probe.called("segment", x):
            h = self.probe.mark("x @ w1", x @ self.w1)
            return self.probe.mark("its exp, masked", h.exp() * mask) @ self.w2


class Residual(Scene):
    words = "a residual connection around the segment, and a weight that is used again after it"

    def build(self):
        super().build()
        del self.leaves["after.weight"]

    def forward(self, checkpoint):
        hidden = self.hidden()
        return self.loss((hidden + checkpoint(self.segment, hidden)) @ self.w1)


class InARow(Scene):
    words = "three segments in a row"

    def forward(self, checkpoint):
        x = self.hidden()
        self.between = []
        for i in range(3):
            x = checkpoint(self.segment_of(i), x)
            self.between.append(x)
        return self.loss(x @ self.after)

    def segment_of(self, i):
        def segment(x):
            with self.probe.called(f"segment {i + 1}", x):
                h = self.probe.mark("x @ w1", x @ self.w1)
                return self.probe.mark("its tanh", h.tanh()) @ self.w2 * (i + 1)

        return segment


FIRST = (Functional, Module, TwoInputs, Mask, Residual, InARow)


# -- version 2: randomness and autocast --------------------------------------------------------------------


class Dropout(Scene):
    words = "dropout in the segment"
    random = True

    def forward(self, checkpoint):
        self.dropped = F.dropout(self.hidden(), 0.1)
        y = checkpoint(self.segment, self.dropped)
        return self.loss(F.dropout(y, 0.1) @ self.after)  # from the stream that the segment leaves

    def segment(self, x):
        with self.probe.called("segment", x):
            h = self.probe.mark("x @ w1", x @ self.w1)
            h = self.probe.mark("dropout's output", F.dropout(h.tanh(), 0.4))
            return h @ self.w2


class TwoDropouts(InARow):
    words = "three segments with dropout in a row"
    random = True

    def segment_of(self, i):
        def segment(x):
            with self.probe.called(f"segment {i + 1}", x):
                h = self.probe.mark("x @ w1", x @ self.w1)
                return F.dropout(self.probe.mark("its tanh", h.tanh()), 0.5) @ self.w2

        return segment


class Autocast(Scene):
    words = "a forward under autocast to bfloat16, and the backward outside of it"
    dtype = torch.float32
    counts_memory = False
    low = torch.bfloat16

    def around(self):
        return torch.autocast("cpu", dtype=self.low)


class AutocastHalf(Autocast):
    words = "a forward under autocast to float16, and the backward outside of it"
    low = torch.float16


class AutocastBehind(Scene):
    words = "a forward without autocast, and a backward that is called under it"
    dtype = torch.float32
    counts_memory = False

    def behind(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)


SURROUNDED = (Dropout, TwoDropouts, Autocast, AutocastHalf, AutocastBehind)
