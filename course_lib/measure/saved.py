"""What autograd keeps for the backward pass, node by node: read off the graph that hangs on an output."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Saved(NamedTuple):
    """One tensor that a backward node holds."""

    node: str  # for example "AddmmBackward0"
    name: str  # what the node calls it, for example "mat1"
    shape: tuple
    dtype: torch.dtype
    nbytes: int  # of the whole storage that it keeps alive
    storage: int  # equal numbers are one storage, kept once
    is_parameter: bool  # alive anyway


def saved_tensors(output: torch.Tensor, model: torch.nn.Module | None = None) -> list[Saved]:
    """All tensors saved for backward under `output`, from the loss down. Parameters of `model` are marked.

    A storage may appear several times: two nodes often save the same tensor, and it is kept once. Use
    `saved_bytes(saved)` for the sum. Raises ValueError when `output` has no graph.
    """
    if not isinstance(output, torch.Tensor) or output.grad_fn is None:
        raise ValueError("saved_tensors() needs a tensor with a graph: an output computed with gradients switched on.")
    parameters = {p.untyped_storage()._cdata for p in model.parameters()} if model is not None else set()
    found, seen, queue = [], set(), [output.grad_fn]
    while queue:
        node = queue.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        for name, tensor in _held_by(node):
            storage = tensor.untyped_storage()
            is_parameter = isinstance(tensor, torch.nn.Parameter) or storage._cdata in parameters
            found.append(
                Saved(type(node).__name__, name, tuple(tensor.shape), tensor.dtype, storage.nbytes(), storage._cdata, is_parameter)
            )
        queue.extend(parent for parent, _ in node.next_functions)
    return found


def saved_bytes(saved: list[Saved]) -> int:
    """Bytes that the saved tensors keep alive, each storage once, parameters left out (they are alive anyway)."""
    return sum({entry.storage: entry.nbytes for entry in saved if not entry.is_parameter}.values())


def _held_by(node):
    for attribute in dir(node):
        if not attribute.startswith("_saved_"):
            continue
        try:
            value = getattr(node, attribute)
        except RuntimeError:  # already freed by a backward
            continue
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                yield attribute.removeprefix("_saved_"), tensor
    if not any(attribute.startswith("_saved_") for attribute in dir(node)):
        for i, tensor in enumerate(getattr(node, "saved_tensors", ())):  # a torch.autograd.Function
            if isinstance(tensor, torch.Tensor):
                yield f"saved_tensors[{i}]", tensor
