"""Variables of a loop that still hold a graph: the tensors with a `grad_fn`, and how many nodes hang on them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

MOST = 4000  # nodes that are counted
_HERE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


def graph_sizes() -> dict:
    """{variable: nodes} for the frames of the loop that is running above this call."""
    sizes: dict = {}
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_locals.get("_doctor_stops_here"):
            break
        own = not file.startswith(_TORCH) and (Path(file).parent != Path(_HERE))
        if own:
            for name, value in list(frame.f_locals.items()):
                _count(name, value, sizes)
            for name in frame.f_code.co_names:  # a list outside of the loop
                if name in frame.f_globals and name not in frame.f_locals:
                    _count(name, frame.f_globals[name], sizes)
        frame = frame.f_back
    return sizes


def averages(base, own) -> dict:
    """{variable: fingerprint} of copies of the weights that a loop holds: it changes whenever they are written.

    base: the weights, which stand still. own: ids of the model's own parameters. Averaged weights (EMA) are such copies.
    """
    shapes, found = [b.shape for b in base], {}
    frame = sys._getframe(2)
    while frame is not None and not frame.f_locals.get("_doctor_stops_here"):
        file = frame.f_code.co_filename
        if not file.startswith(_TORCH) and Path(file).parent != Path(_HERE):
            for name, value in list(frame.f_locals.items()):
                for held in (value, *_attributes(value)):
                    tensors = _tensors(held)
                    if [t.shape for t in tensors] == shapes and not any(id(t) in own for t in tensors):
                        if all(t.dtype == b.dtype and torch.allclose(t.detach(), b, rtol=1e-3) for t, b in zip(tensors, base)):
                            found[name] = tuple((id(t), t._version) for t in tensors)
        frame = frame.f_back
    return found


def _attributes(value) -> list:
    if isinstance(value, torch.nn.Module) or isinstance(value, type) or callable(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _tensors(value) -> list:
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [item for item in items if isinstance(item, torch.Tensor)]


def _count(name, value, sizes) -> None:
    nodes = nodes_of(value)
    if nodes:
        sizes[name] = max(nodes, sizes.get(name, 0))
    elif not isinstance(value, (torch.nn.Module, torch.optim.Optimizer, type)) and not callable(value):
        # a meter, a namespace, the trainer itself: one level into what a loop holds
        for key, item in list(getattr(value, "__dict__", {}).items()):
            nodes = nodes_of(item)
            if nodes:
                sizes[f"{name}.{key}"] = nodes


def nodes_of(value) -> int:
    """Nodes of the graphs that a tensor, or a list, tuple or dict of tensors, keeps alive."""
    starts, open_ = [], [value]
    for _ in range(2000):
        if not open_:
            break
        item = open_.pop()
        if isinstance(item, torch.Tensor):
            if item.grad_fn is not None:
                starts.append(item.grad_fn)
        elif type(item) is dict:
            open_.extend(item.values())
        elif type(item) in (list, tuple, set):
            open_.extend(item)
    seen, todo = set(), starts
    while todo and len(seen) < MOST:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo.extend(child for child, _ in node.next_functions if child is not None)
    return len(seen)
