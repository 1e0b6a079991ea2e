"""Find out which samples a model was called on: by the content of the rows, since a loop may slice, join and copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import torch

WIDTH = 64  # values of a row that are compared
PREFIX = 8  # values by which a trimmed row of tokens is known
DEEP = 4  # how far tensors are looked for inside of lists and dicts


class Rows:
    """The rows of all batches of a run. `find` tells which of them a call of the model was given."""

    def __init__(self):
        self.known: dict = {}  # a row's content -> [(batch, row), ...]
        self.whole: dict = {}  # a whole tensor's content -> [batch, ...]
        self.batches: list = []  # (epoch, batch), in the order of the loader
        self.sizes: list = []  # rows of each
        self.parts: dict = {}  # a row's content -> which tensor of its batch it is in
        self.part = 0  # ... of the latest call
        self.last = (-1, -1)  # (batch, row) where the training forward before ended

    def add(self, epoch: int, batches: list, inputs=None) -> None:
        """Learn the batches of one epoch. `inputs(batch)`: the tensors that the model itself is given for it."""
        for batch in batches:
            number, size = len(self.batches), rows_in(batch)
            self.batches.append((epoch, batch))
            self.sizes.append(size)
            given = inputs(batch) if inputs is not None else []
            for part, tensor in enumerate([*given, *tensors_in(batch)]):
                if tensor.dim() and tensor.shape[0] == size > 0:
                    self._learn(tensor, number, part)

    def _learn(self, tensor, number: int, part: int) -> None:
        keys = _keys(tensor)
        if _tells_little(tensor, keys):
            return
        self.whole.setdefault(tuple(keys), []).append(number)
        for key in keys:
            self.parts.setdefault(key, part)
        tokens = not tensor.dtype.is_floating_point and tensor.dim() > 1
        for row, key in enumerate(keys):
            for name in {key, *(key[:n] for n in range(2, PREFIX + 1) if tokens)}:
                places = self.known.setdefault(name, [])
                if (number, row) not in places:
                    places.append((number, row))

    def find(self, args, training: bool = True) -> tuple | None:
        """((batch, row), ...) for a call of the model, or None where none of its tensors holds known rows."""
        try:
            for tensor in tensors_in(args):
                found = self._find(tensor) if tensor.dim() and self.known else None
                if found is not None:
                    self.part = self.parts.get(_keys(tensor)[0], 0)
                    if training:
                        self.last = found[-1]
                    return found
        except Exception:
            pass  # a tensor that cannot be looked into, such as one inside of vmap
        return None

    def _find(self, tensor) -> tuple | None:
        keys = _keys(tensor)
        numbers = self.whole.get(tuple(keys))
        if numbers:
            number = next((n for n in numbers if (n, 0) > self.last), numbers[0])
            return tuple((number, row) for row in range(len(keys)))
        found, taken, here = [], set(), None
        for key in keys:
            places = self.known.get(key) or self.known.get(key[:PREFIX]) or ()
            places = [place for place in places if place not in taken]
            if places:
                # equal rows in several batches: stay in this batch, else go on to the next one
                place = next((p for p in places if p[0] == here), None) or next(
                    (p for p in places if p > self.last), places[0]
                )
                found.append(place)
                taken.add(place)
                here = place[0]
        return tuple(found) if found and len(found) * 2 >= tensor.shape[0] else None


def rows_in(batch) -> int:
    """How many samples a batch has: the length of its first tensor."""
    tensor = first_tensor(batch)
    return 1 if tensor is None or tensor.dim() == 0 else int(tensor.shape[0])


def first_tensor(thing):
    """The first tensor in a batch or in the arguments of a call."""
    return next(tensors_in(thing), None)


def tensors_in(thing, depth: int = 0):
    """All tensors in a batch or in the arguments of a call: in lists, dicts, dataclasses and arrays too."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif depth > DEEP or isinstance(thing, (str, bytes, torch.nn.Module)):
        return
    elif type(thing).__module__ == "numpy" and hasattr(thing, "__array_interface__"):
        try:
            yield torch.as_tensor(thing)
        except TypeError:
            return
    elif isinstance(thing, Mapping):
        for item in thing.values():
            yield from tensors_in(item, depth + 1)
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            yield from tensors_in(item, depth + 1)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for each in fields(thing):
            yield from tensors_in(getattr(thing, each.name), depth + 1)


def _tells_little(tensor, keys) -> bool:
    """One number per row: a label is no name for a row, unless it is a real number and they differ."""
    return tensor[0].numel() == 1 and (not tensor.dtype.is_floating_point or len(set(keys)) < min(2, len(keys)))


def _keys(tensor) -> list:
    if tensor.shape[0] == 0 or tensor.numel() == 0:
        return []
    flat = tensor.detach().reshape(tensor.shape[0], -1)[:, :WIDTH]
    if flat.layout != torch.strided:
        flat = flat.to_dense()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten(1)
    if flat.dtype.is_floating_point:
        # a loop may cast its inputs: compare what single precision keeps
        return [tuple(f"{value:.4g}" for value in row) for row in flat.to(torch.float32).tolist()]
    return [tuple(f"{value:.4g}" for value in row) for row in flat.to(torch.float64).tolist()]
