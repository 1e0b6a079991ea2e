"""Scenes for version 3 of notebook 05: what an autograd.Function cannot do."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from .scenes05 import ROWS, WIDTH, Scene


class RawInput(Scene):
    words = "an input that needs no gradient, as in a first layer, and weights that do"

    def build(self):
        super().build()
        self.leaves["x"].requires_grad_(False)
        del self.leaves["before.weight"]

    def forward(self, checkpoint):
        return self.loss(checkpoint(self.segment, self.x) @ self.after)


class Frozen(RawInput):
    words = "a segment in which nothing needs a gradient"
    runs = {"segment": 1}

    def build(self):
        super().build()
        for weight in (self.w1, self.w2):
            weight.requires_grad_(False)


class Keywords(Scene):
    words = "keyword arguments, one of them a tensor that needs a gradient"

    def build(self):
        super().build()
        self.shift = self.leaf("shift", ROWS, WIDTH)

    def forward(self, checkpoint):
        self.half = self.shift * 0.5
        return self.loss(checkpoint(self.segment, self.hidden(), power=2, shift=self.half) @ self.after)

    def segment(self, x, power=1, shift=None):
        names = ("x", f"power={power}", "no shift" if shift is None else "a shift")
        with self.probe.called("segment", x, shift, given=names):
            h = x @ self.w1 if shift is None else x @ self.w1 + shift
            h = self.probe.mark("x @ w1 + shift", h)
            return self.probe.mark("its tanh, squared", h.tanh() ** power) @ self.w2


class Nested(Scene):
    words = "tensors in a list and in a dict, a None and a number among the inputs"

    def build(self):
        super().build()
        self.parts = [self.leaf(f"part{i}", ROWS, WIDTH) for i in (1, 2)]

    def forward(self, checkpoint):
        self.batch = {"x": self.hidden(), "name": "digits", "more": [part * 0.5 for part in self.parts]}
        return self.loss(checkpoint(self.segment, self.batch, None, 3) @ self.after)

    def segment(self, batch, nothing, times):
        names = (*(batch if isinstance(batch, dict) else ()), repr(nothing), repr(times))
        with self.probe.called("segment", *batch["more"], given=names):
            h = self.probe.mark("x @ w1", batch["x"] @ self.w1)
            h = self.probe.mark("its product with the parts", h * batch["more"][0] * batch["more"][1])
            return (h * times) @ self.w2


class ManyOutputs(Scene):
    words = "a dict of outputs, one of them unused and one no tensor"

    def forward(self, checkpoint):
        self.output = checkpoint(self.segment, self.hidden())
        return self.loss(self.output["y"] @ self.after + self.output["more"][0])

    def segment(self, x):
        with self.probe.called("segment", x):
            h = self.probe.mark("x @ w1", x @ self.w1)
            h = self.probe.mark("its tanh", h.tanh())
            return {"unused": h.mean(), "more": (h * 2, None), "count": 7, "y": h @ self.w2}


class Asked(Scene):
    """The gradients through torch.autograd.grad, put where the witnesses look."""

    words = "gradients from torch.autograd.grad instead of backward()"

    def backward(self, loss):
        leaves = list(self.leaves.values())
        for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves)):
            leaf.grad = gradient


class OnlyOne(Scene):
    words = "backward(inputs=...) for one weight of the segment"

    def build(self):
        super().build()
        for name in ("x", "before.weight", "after.weight", "segment.w2"):
            del self.leaves[name]

    def backward(self, loss):
        loss.backward(inputs=[self.w1])


class Twice(Scene):
    words = "backward called twice (retain_graph=True)"
    runs = {"segment": 3}
    asks_twice = True

    def backward(self, loss):
        loss.backward(retain_graph=True)
        loss.backward()


class Penalty(Scene):
    words = "a gradient penalty (the gradient of a gradient)"
    runs = {"segment": 3}
    counts_memory = False
    asks_twice = True

    def backward(self, loss):
        (gradient,) = torch.autograd.grad(loss, self.x, create_graph=True)
        gradient.square().sum().backward()


class Inside(Scene):
    words = "a checkpoint inside the checkpointed segment"
    runs = {"inner segment": 3}
    counts_memory = False  # what the inner one keeps is a matter of taste here

    def forward(self, checkpoint):
        self.checkpoint = getattr(checkpoint, "bare", checkpoint)
        return super().forward(checkpoint)

    def segment(self, x):
        with self.probe.called("segment", x):
            return self.checkpoint(self.inner, (x @ self.w1).tanh()) @ self.w2

    def inner(self, x):
        with self.probe.called("inner segment", x):
            return (x @ self.w2).sin()


class Long(Scene):
    words = "a segment of six layers"

    def build(self):
        super().build()
        self.middle = [self.leaf(f"segment.middle{i}", WIDTH, WIDTH) for i in range(4)]
        # not at the first weight: by then the graph of the segment is gone, and all that hung on it
        self.middle[0].register_post_accumulate_grad_hook(self.look)

    def look(self, _):
        self.late = self.probe.alive()

    def segment(self, x):
        with self.probe.called("segment", x):
            h = x @ self.w1
            for i, weight in enumerate(self.middle, 1):
                h = self.probe.mark(f"layer {i}'s tanh", h.tanh()) @ weight
            return self.probe.mark("the last tanh", h.tanh()) @ self.w2


SECOND = (RawInput, Frozen, Keywords, Nested, ManyOutputs, Asked, OnlyOne, Twice, Penalty, Inside, Long)


# -- version 4: a chain of blocks --------------------------------------------------------------------------


class _Block(nn.Module):
    def __init__(self, probe, number, weight):
        super().__init__()
        self.probe, self.number, self.weight = probe, number, weight

    def forward(self, x):
        with self.probe.called(f"block {self.number}", x):
            return self.probe.mark(f"block {self.number}'s sine", (x @ self.weight).sin()) + x


@cache
def chain(blocks, segments):
    """The kind of scene in which `blocks` blocks run in `segments` segments, the last one plainly."""
    class Chain(Scene):
        words = f"{blocks} blocks in {segments} segments"
        runs = {f"block {number}": 2 for number in range(1, blocks + 1)}  # at most

        def build(self):
            super().build()
            del self.leaves["segment.w1"], self.leaves["segment.w2"]
            self.segments = segments
            weights = [self.leaf(f"block {i}.weight", WIDTH, WIDTH) for i in range(1, blocks + 1)]
            self.blocks = [_Block(self.probe, i, weight) for i, weight in enumerate(weights, 1)]

        def forward(self, checkpoint):
            return self.loss(checkpoint(self.all_blocks, self.hidden()) @ self.after)

        def all_blocks(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    return Chain
