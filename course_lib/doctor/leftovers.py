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
        frame = frame.f_back
    return sizes


def _count(name, value, sizes) -> None:
    nodes = nodes_of(value)
    if nodes:
        sizes[name] = max(nodes, sizes.get(name, 0))
    elif name == "self" and not isinstance(value, torch.nn.Module):
        for key, item in list(getattr(value, "__dict__", {}).items()):
            nodes = nodes_of(item)
            if nodes:
                sizes[f"self.{key}"] = nodes


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
