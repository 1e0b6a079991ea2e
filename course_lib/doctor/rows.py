"""Find out which samples a model was called on: by the content of the rows, since a loop may slice, join and copy."""

from __future__ import annotations

import torch

WIDTH = 64  # values of a row that are compared


class Rows:
    """The rows of all batches of a run. `find` tells which of them a call of the model was given."""

    def __init__(self):
        self.known: dict = {}
        self.batches: list = []  # (epoch, batch), in the order of the loader
        self.sizes: list = []  # rows of each
        self.last = -1  # the batch of the call before

    def add(self, epoch: int, batches: list) -> None:
        """Learn the batches of one epoch."""
        for batch in batches:
            number, tensor = len(self.batches), first_tensor(batch)
            self.batches.append((epoch, batch))
            self.sizes.append(rows_in(batch))
            if tensor is None or tensor.dim() == 0:
                continue
            for row, key in enumerate(_keys(tensor)):
                self.known.setdefault(key, []).append((number, row))

    def find(self, args) -> tuple | None:
        """((batch, row), ...) for a call of the model, or None where its first tensor holds no known row."""
        tensor = first_tensor(args)
        if tensor is None or tensor.dim() == 0 or not self.known:
            return None
        found, taken, here = [], set(), None
        for key in _keys(tensor):
            places = [place for place in self.known.get(key, ()) if place not in taken]
            if places:
                # equal rows in several batches: stay in this batch, else go on to the next one
                place = next((p for p in places if p[0] == here), None) or next(
                    (p for p in places if p[0] > self.last), places[0]
                )
                found.append(place)
                taken.add(place)
                here = place[0]
        if not found or len(found) * 2 < tensor.shape[0]:
            return None
        self.last = here
        return tuple(found)


def rows_in(batch) -> int:
    """How many samples a batch has: the length of its first tensor."""
    tensor = first_tensor(batch)
    return 1 if tensor is None or tensor.dim() == 0 else int(tensor.shape[0])


def first_tensor(thing, depth: int = 0):
    """The first tensor in a batch or in the arguments of a call."""
    if isinstance(thing, torch.Tensor):
        return thing
    if depth > 4:
        return None
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        for item in thing:
            found = first_tensor(item, depth + 1)
            if found is not None:
                return found
    return None


def _keys(tensor) -> list:
    flat = tensor.detach().reshape(tensor.shape[0], -1)[:, :WIDTH]
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten(1)
    if flat.dtype.is_floating_point:
        # a loop may cast its inputs: compare what single precision keeps
        return [tuple(f"{value:.4g}" for value in row) for row in flat.to(torch.float32).tolist()]
    return [tuple(row) for row in flat.tolist()]
