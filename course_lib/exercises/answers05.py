"""The references of notebook 05: checkpointing, four times, each better."""

from contextlib import ExitStack, suppress

import torch
from torch.autograd.graph import saved_tensors_hooks

# -- 05.2 version 1 ----------------------------------------------------------------------------------------


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.segment = segment
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return segment(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)  # parameters get their .grad here
        return None, *(x.grad for x in inputs)


# -- 05.4 version 2 ----------------------------------------------------------------------------------------


def replayed(segment, *inputs):
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"}
    kinds = {"cpu", *(device.type for device in devices)}
    casts = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]

    def draw_states():
        on_devices = [torch.get_device_module(d).get_rng_state(d) for d in devices]
        return [torch.get_rng_state(), *on_devices]

    def set_states(states):
        torch.set_rng_state(states[0])
        for device, state in zip(devices, states[1:]):
            torch.get_device_module(device).set_rng_state(state, device)

    before, calls = draw_states(), 0

    def run(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 1:
            return segment(*args, **kwargs)
        outside = draw_states()
        try:
            set_states(before)
            with ExitStack() as stack:
                for kind, dtype, enabled in casts:
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
                return segment(*args, **kwargs)
        finally:
            set_states(outside)

    return run


# -- 05.5 version 3 ----------------------------------------------------------------------------------------


class Enough(BaseException):
    """Ends a second run when every saved tensor is there. No `except Exception` of a segment swallows it."""


def tensors_in(thing):
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def my_checkpoint(function, *args, **kwargs):
    inputs = tensors_in([args, kwargs])
    run = replayed(function, *inputs)
    versions = [x._version for x in inputs]  # goes up with each change in place
    saved, found = 0, {}  # how many tensors the first run saved; what a second run found, by place

    def pack(tensor):
        nonlocal saved
        saved += 1
        return saved - 1  # autograd keeps this number in the tensor's place

    def keep(tensor):
        found[len(found)] = tensor.detach()
        if len(found) == saved:
            raise Enough

    def unpack(place):
        if place not in found:
            if versions != [x._version for x in inputs]:
                raise RuntimeError("an input of the segment was changed in place after the forward pass")
            found.clear()
            with suppress(Enough), torch.enable_grad(), saved_tensors_hooks(keep, lambda nothing: None):
                run(*args, **kwargs)
        return found.pop(place)

    with saved_tensors_hooks(pack, unpack):
        return run(*args, **kwargs)


# -- 05.6 version 4 ----------------------------------------------------------------------------------------


def my_sequential(blocks, segments, x):
    blocks = list(blocks)
    if not 1 <= segments <= len(blocks):
        raise ValueError(f"{len(blocks)} blocks can make 1 to {len(blocks)} segments, not {segments}.")
    size, longer = divmod(len(blocks), segments)

    def run(start, end):
        def segment(x):
            for block in blocks[start:end]:
                x = block(x)
            return x

        return segment

    start = 0
    for number in range(segments - 1):
        end = start + size + (number < longer)
        x = my_checkpoint(run(start, end), x)
        start = end
    return run(start, len(blocks))(x)
