"""Measure a chain of real blocks: each block is run alone, so that no more than one block's activations ever exist.

Every number is a count of living bytes, taken at moments that matter: before and after forward, at the highest point in
between, when a rerun begins, when it stops, and until the gradient of the block's input is there.
"""

from __future__ import annotations

import contextlib

import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib.measure.storages import StorageWatch

from .chain import Block, Chain
from .checkpoint import checkpoint
from .once import recomputing
from .randomness import Draws


def measure(blocks, x: torch.Tensor) -> Chain:
    """The Chain of these blocks for inputs like x. Costs are FLOPs (1 for each forward where there are none at all).

    blocks: modules or functions, each from one tensor to one tensor, in the order in which they run. Parameters, buffers,
    gradients and random states are afterwards what they were. Sizes are those of a step that ends in `.sum().backward()`,
    with .grad as it is now: gradients that exist already cost nothing. x belongs to the caller: boundary 0 counts no bytes.
    Raises TypeError for a block that does not return a tensor, ValueError for no blocks.
    """
    blocks = list(blocks)
    if not blocks:
        raise ValueError("A chain has at least one block.")
    sizes, costs, entry = [], [], 0
    if x.requires_grad and x.grad is None:
        entry = x.untyped_storage().nbytes()
    with _untouched(blocks, x):
        for i, block in enumerate(blocks):
            later = {p for other in blocks[i + 1 :] for p in _parameters(other)}
            if any(p.requires_grad and p in later for p in _parameters(block)):
                # the engine keeps the first gradient until the last one has come: no block of its own accounts for that
                raise ValueError(f"Block {i} shares a trainable parameter with a later one; a chain is measured block by block.")
            one = _One(block, x, i == 0, i == len(blocks) - 1)
            tail = one.tail_flops()
            sizes.append(dict(one.sizes(), saves=one.saves))
            costs.append((one.flops, tail))
            x = one.out
    costs = costs if any(forward for forward, _ in costs) else [(1, 0)] * len(blocks)
    chain = tuple(Block(forward_cost=cost, tail_cost=tail, **size) for (cost, tail), size in zip(costs, sizes))
    return Chain(chain, x.untyped_storage().nbytes(), entry, loss_bytes=2 * x.element_size())


class _One:
    """One block, run in the two ways in which a schedule runs it. `out` is its output, cut off from the graph."""

    def __init__(self, block, x, first: bool, last: bool):
        self.block, self.x, self.first, self.last = block, x, first, last
        self.parameters = [p for p in _parameters(block) if p.requires_grad]
        self.there = {p for p in self.parameters if p.grad is not None}
        given = _copy(x)
        version = given._version
        with FlopCounterMode(display=False) as counter:
            out = block(given)
        if given._version != version:
            raise ValueError(
                f"{type(block).__name__} changes its input in place, so no checkpoint can begin with it. "
                "Put it into one block with the layer before it."
            )
        self.flops = counter.get_total_flops()
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"A block of a chain returns one tensor; {type(block).__name__} returned {type(out).__name__}.")
        self.out = out.detach().requires_grad_(out.requires_grad)
        self.size = 0 if first else x.untyped_storage().nbytes()
        self.output = out.untyped_storage().nbytes()
        self.seed = None if last else torch.ones_like(self.out)  # the gradient that reaches the block from behind
        self.loss_bytes = 2 * out.element_size() if last else 0  # the loss and its own gradient, a number each

    def sizes(self) -> dict:
        if not self.out.requires_grad:
            return self.frozen()
        for _ in range(2):  # the first time brings in what is made once: tensors never met, caches
            found = {**self.taped(held=True), **self.region()}
            if self.first:  # its input is the caller's
                found.update(backward_peak=found["backward_peak_held"], rerun_backward_peak=found["rerun_backward_peak_held"])
            else:
                found.update(self.taped(held=False), rerun_backward_peak=self.inside())
        return found

    def tail_flops(self) -> int:
        """FLOPs of the operators that a rerun does not reach: those of a plain step, less what a checkpoint adds to it."""
        self.saves = False
        if not self.out.requires_grad:
            return 0

        def block(x):
            self.saves = self.saves or recomputing()  # somebody has asked for a saved tensor
            return self.block(x)

        counts = []
        for call in (self.block, lambda x: checkpoint(block, x)):
            with FlopCounterMode(display=False) as counter:
                call(self.x).sum().backward()
            counts.append(counter.get_total_flops())
        return self.flops - (counts[1] - counts[0])

    def frozen(self) -> dict:
        """Nothing in front of it or in it is trained: a forward, and no backward."""
        watch = self.begin()
        with watch:
            empty = watch.live
            x = self.x if self.first else _copy(self.x)
            watch.peak = watch.live
            self.block(x)
            top = watch.peak - empty
        sizes = dict(state_bytes=self.size, own_bytes=0, gradient_bytes=0, keeps_input=False)
        return dict(sizes, plain_peak=top, taped_peak=top, last_peak=top)

    def begin(self):
        """A watch that knows all tensors from before; the block's input, made inside; the live bytes without it."""
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p in self.there else None
        watch = StorageWatch(self.x.device)
        for tensor in (*_tensors(self.block), self.x, self.seed):
            if tensor is not None:
                watch.seed(tensor, "inputs")
                if tensor.grad_fn is None and tensor.grad is not None:
                    watch.seed(tensor.grad, "gradients")
        return watch

    def root(self, out, watch):
        """What backward starts from, and the bytes that it holds: the loss, or a product that passes a gradient on."""
        before = watch.live
        root = out.sum() if self.last else out * 1
        return root, self.loss_bytes if self.last else watch.live - before

    def taped(self, held: bool) -> dict:
        """Forward with everything kept, then backward; held: we keep the input to the end, too."""
        watch, ends = self.begin(), []
        with watch:
            empty = watch.live
            x = self.x if self.first else _copy(self.x)
            if x.requires_grad:
                x.register_hook(lambda gradient: ends.append(watch.peak))
            watch.peak = watch.live
            out = self.block(x)
            own, top = watch.live - empty - self.size - self.output, watch.peak
            root, extra = self.root(out, watch)
            top = max(top, watch.live) if self.last else top  # the loss is made while the output is there
            before = watch.live
            del out
            saves = watch.live == before
            before = watch.live
            x = x if held else None
            keeps = self.first or watch.live == before
            watch.peak = watch.live
            torch.autograd.backward(root, self.seed)
            peak = ends[0] if ends else watch.peak
        found = {"backward_peak_held" if held else "backward_peak": peak - empty - extra}
        if held and not self.first:
            return found
        made = [p.grad for p in self.parameters if p not in self.there and p.grad is not None]
        return dict(
            found,
            state_bytes=self.size,
            own_bytes=max(0, own),  # a block that returns a view of its input adds nothing
            keeps_input=keeps,
            saves_output=saves,
            taped_peak=top - empty,
            weight_gradient_bytes=sum(gradient.untyped_storage().nbytes() for gradient in made),
        )

    def region(self) -> dict:
        """The block as a region of its own: a forward that keeps nothing, a rerun, a backward with the input held."""
        watch, moments, ends = self.begin(), {}, []

        def block(x):
            if not recomputing():
                return self.block(x)
            moments["waiting"] = watch.peak = watch.live
            try:
                return self.block(x)
            finally:
                moments["rerun"], watch.peak = watch.peak, 0  # from here on the highest point is backward's

        with watch:
            empty = watch.live
            x = self.x if self.first else _copy(self.x)
            if x.requires_grad:
                x.register_hook(lambda gradient: ends.append(watch.peak))
            watch.peak = watch.live
            out = checkpoint(block, x)
            top = watch.peak
            root, extra = self.root(out, watch)
            del out
            torch.autograd.backward(root, self.seed)
            peak = ends[0] if ends else watch.peak
        waiting = moments.get("waiting", empty + self.size + extra + self.output) - empty - self.size - extra
        return dict(
            plain_peak=top - empty,
            gradient_bytes=waiting,
            last_peak=moments["rerun"] - empty - extra - waiting if moments else self.size,
            rerun_backward_peak_held=peak - empty - extra,
        )

    def inside(self) -> int:
        """The highest point of the block's backward after a rerun in which it was not the first block."""
        watch, ends = self.begin(), []

        def block(source):
            x = _copy(source)
            if not recomputing():
                if x.requires_grad:
                    x.register_hook(lambda gradient: ends.append(watch.peak))
                return self.block(x)
            try:
                return self.block(x)
            finally:
                watch.peak = 0

        with watch:
            empty = watch.live
            root, extra = self.root(checkpoint(block, self.x), watch)
            torch.autograd.backward(root, self.seed)
            peak = ends[0] if ends else watch.peak
        return peak - empty - extra


def _copy(x):
    """The same numbers in a storage of their own that is as large as x's: a state may be a part of something larger."""
    if x.untyped_storage().nbytes() == x.nbytes:
        return x * 1
    whole = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).requires_grad_(x.requires_grad)
    return (whole * 1).as_strided(x.size(), x.stride(), x.storage_offset())


def _parameters(block) -> list:
    return list(block.parameters()) if isinstance(block, torch.nn.Module) else []


def _tensors(block) -> list:
    return [*block.parameters(), *block.buffers()] if isinstance(block, torch.nn.Module) else []


@contextlib.contextmanager
def _untouched(blocks: list, x: torch.Tensor):
    """Gradients, buffers and random states are afterwards what they were."""
    modules = [m for block in blocks if isinstance(block, torch.nn.Module) for m in block.modules()]
    buffers = [(m, dict(m._buffers)) for m in modules]
    gradients = [(p, p.grad) for p in {x, *(p for block in blocks for p in _parameters(block))}]
    draws = Draws([x.device] if x.device.type not in ("cpu", "meta") else [])
    for module, own in buffers:
        module._buffers.update({name: b.clone() for name, b in own.items() if b is not None})
    for tensor, gradient in gradients:
        tensor.grad = None if gradient is None else gradient.clone()  # backward adds to it in place
    try:
        yield
    finally:
        for module, own in buffers:
            module._buffers.update(own)
        for tensor, gradient in gradients:
            tensor.grad = gradient
        draws.rewind()
