"""Is a recomputed tensor the one that forward saved? By its kind (always), or by its value (on request)."""

from __future__ import annotations

import traceback

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


def kind(tensor: torch.Tensor) -> tuple:
    """Shape, dtype and device: costs nothing and keeps nothing."""
    return tensor.shape, tensor.dtype, tensor.device


def value(tensor: torch.Tensor) -> tuple:
    """The kind, and a hash of all bits in their order: keeps one number, costs a pass over the tensor.

    Two different tensors have the same hash with a chance of about 2**-64.
    """
    if tensor.layout is not torch.strided or isinstance(tensor, FakeTensor):
        return kind(tensor)  # sparse, nested, without data: there are no plain bits to read
    with torch.no_grad(), _disable_current_modes():  # its operators are no part of the region
        dense = tensor.detach().resolve_conj().resolve_neg()
        dense = torch.view_as_real(dense) if dense.is_complex() else dense
        bits = dense.contiguous().flatten().view(torch.uint8)
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).view(torch.int64)
        mixed = bits * -7046029254386353131 + torch.arange(bits.numel(), device=bits.device) * 2862933555777941757
        mixed = (mixed ^ (mixed >> 31)) * -4658895280553007687  # int64 wraps around, as a hash should
        return *kind(tensor), int((mixed ^ (mixed >> 29)).sum())


CHECKS = {"default": kind, "none": lambda tensor: None, "values": value}


def saved_where() -> str:
    """The line of the user's code that is running: "file.py:12: y = x.exp()"."""
    for frame in reversed(traceback.extract_stack()):
        path = frame.filename.replace("\\", "/")
        if "/torch/" not in path and "course_lib/memory/" not in path:
            return f"{path.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line}"
    return "unknown"


def describe_difference(differing: list, count: int) -> str:
    """The text of the error for [(index, print of forward, print of now, line), ...] of `count` saved tensors."""
    index, then, now, where = differing[0]
    if then[:3] == now[:3]:
        return (
            f"Recomputed values differ from those of forward: the first is saved tensor {index} of {count}, shape "
            f"{tuple(now[0])}, {now[1]}, saved at {where}. Something that the region reads is not as it was: a number, a weight, "
            "a random choice, an operation that is not deterministic."
        )
    lines = [
        f"tensor at position {i}:\nsaved metadata: {_words(old)}\nrecomputed metadata: {_words(new)}\nsaved at {line}"
        for i, old, new, line in differing
    ]
    hint = ""
    grown = [j for j, (a, b) in enumerate(zip(then[0], now[0])) if b == 2 * a] if len(then[0]) == len(now[0]) else []
    if grown and then[1:3] == now[1:3]:
        hint = f"\nDimension {grown[0]} has doubled: is there a cache that the region fills, and now fills again?"
    return "Recomputed values for the following tensors have different metadata than during the forward pass.\n" + "\n".join(lines) + hint


def _words(print_: tuple) -> str:
    return f"{{'shape': {print_[0]}, 'dtype': {print_[1]}, 'device': {print_[2]!r}}}"


class _Log(TorchDispatchMode):
    """Writes down every operator: its name, and the kinds of its tensors."""

    def __init__(self, lines: list):
        super().__init__()
        self.lines = lines

    def __enter__(self):
        self.lines.clear()  # each rerun anew
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.detach.default:  # the checkpoint's own
            return out
        shapes = ", ".join(f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in args if isinstance(a, torch.Tensor))
        self.lines.append(f"{func}({shapes})   {saved_where()}")
        return out


class OperatorLog:
    """`debug=True`: the operators of both runs, side by side in the error. Two contexts, one for each run."""

    def __init__(self):
        self.forward: list = []
        self.recompute: list = []

    def contexts(self):
        return _Log(self.forward), _Log(self.recompute)

    def explained(self, error: Exception) -> Exception:
        """The same kind of error, with the first operator that differs and both logs."""
        pairs = list(zip(self.forward, self.recompute))
        first = next((i for i, (then, now) in enumerate(pairs) if then != now), min(len(self.forward), len(self.recompute)))

        def listed(lines, what):
            return f"Operations executed during {what}:\n" + "\n".join(f"{i:4} {line}" for i, line in enumerate(lines))

        return type(error)(
            f"{error}\n\nYou are seeing this error because you passed `debug=True` to checkpoint: the runs differ from operation "
            f"{first} on (a recompute that stops early is shorter).\n{listed(self.forward, 'the original forward')}\n"
            f"{listed(self.recompute, 'recomputation')}"
        )
