"""What is right: every micro-batch's own gradient, and the weight that it needs in its window."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .problems import Problem, joined

RANDOM_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class MicroBatch:
    """Rows that a loop sends through the model in one go: a loader batch, a part of one, or parts of several."""

    number: int
    batch: int  # which batch of the loader, counted over all epochs (the first, of several)
    epoch: int
    rows: tuple  # (batch, row) of each
    whole: bool  # all rows of one loader batch


class Known:
    """Gradients at the model's first weights, computed when they are asked for.

    micro: the micro-batches of the run, in the loader's order. A loader batch that the loop slices becomes several.
    """

    def __init__(self, problem: Problem, model: nn.Module, rows, log):
        self.problem, self.rows, self.log = problem, rows, log
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.micro = _split(rows, log)
        self.of_row = {place: m.number for m in self.micro for place in m.rows}
        self._gradients: dict = {}
        self._windows: dict = {}
        self._losses: dict = {}
        self.coupled_by = None

    def number_of(self, rows) -> tuple:
        """The micro-batches that a call on these rows belongs to, in order."""
        return tuple(dict.fromkeys(self.of_row[place] for place in rows if place in self.of_row))

    def size(self, number: int) -> int:
        """Rows of a micro-batch."""
        return len(self.micro[number].rows)

    def data(self, number: int):
        """The rows themselves, as a batch."""
        micro = self.micro[number]
        if micro.whole:
            return self.rows.batches[micro.batch][1]
        parts: dict = {}
        for batch, row in micro.rows:
            parts.setdefault(batch, []).append(row)
        made = [taken(self.rows.batches[b][1], rows, self.rows.sizes[b]) for b, rows in parts.items()]
        return made[0] if len(made) == 1 else joined(made)

    def gradient(self, number: int, visit=None) -> torch.Tensor:
        """The gradient of a micro-batch's mean loss, as one float64 vector. `visit`: replay its random numbers."""
        random = visit is not None and visit.info.get("rng") is not None
        key = (number, id(visit) if random else None)
        if key not in self._gradients:
            loss = lambda: self.problem.micro_loss(self.model, self.data(number))  # noqa: E731
            self._gradients[key] = self._differentiate(loss, visit)
        return self._gradients[key]

    def loss(self, number: int) -> float:
        """The mean loss of a micro-batch."""
        if number not in self._losses:
            with _without_randomness(self.model), _buffers_kept(self.model):
                self._losses[number] = float(self.problem.micro_loss(self.model, self.data(number)).detach())
        return self._losses[number]

    def window_gradient(self, numbers: tuple) -> torch.Tensor | None:
        """The gradient that an update with these micro-batches should use; None where they cannot be joined."""
        if self.random:
            return None  # every forward draws other numbers: no large batch to compare with
        if numbers not in self._windows:
            batches = [self.data(number) for number in numbers]
            try:
                with _without_randomness(self.model):
                    loss = lambda: self.problem.loss_of_window(self.model, batches)  # noqa: E731
                    right = self._differentiate(loss, None)
                self._windows[numbers] = right if len(batches) == 1 or self._joins(batches) else None
            except Exception:
                self._windows[numbers] = None
        return self._windows[numbers]

    @functools.cached_property
    def random(self) -> bool:
        """Does the model draw random numbers in other ways than by dropout layers?"""
        if not self.micro or not any(event.info.get("rng") is not None for event in self.log.of("forward")):
            return False
        found = []
        with _without_randomness(self.model):
            for seed in (0, 1):
                state = torch.get_rng_state()
                torch.manual_seed(seed)
                try:
                    loss = lambda: self.problem.micro_loss(self.model, self.data(0))  # noqa: E731
                    found.append(self._differentiate(loss, None))
                finally:
                    torch.set_rng_state(state)
        return not torch.equal(*found)

    def _joins(self, batches) -> bool:
        """Is the large batch really these batches side by side? (Indices that point into a batch break it.)"""
        problem = self.problem
        if problem.loss_of is not None or problem.window_loss is not None:
            return True
        modes = [(part, part.training) for part in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                large = self.model(joined(batches)[0])
                small = [self.model(batch[0]) for batch in batches]
            if not isinstance(large, torch.Tensor) or large.dim() == 0:
                return True
            beside = torch.cat(small)
            return beside.shape == large.shape and bool(torch.allclose(beside, large, rtol=1e-2, atol=1e-3))
        finally:
            for part, training in modes:
                part.training = training

    def _differentiate(self, loss, visit) -> torch.Tensor:
        autocast = visit is not None and visit.info.get("autocast")
        state = torch.get_rng_state()
        try:
            if visit is not None and visit.info.get("rng") is not None:
                torch.set_rng_state(visit.info["rng"])
            with _buffers_kept(self.model), torch.enable_grad():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(autocast)):
                    found = torch.autograd.grad(loss(), self.parameters, allow_unused=True)
        finally:
            torch.set_rng_state(state)
        return flat(found, self.parameters)

    # -- the weights that are needed -------------------------------------------------------------------------------

    def needed(self, numbers: tuple) -> list:
        """The weight of each micro-batch in its window: its share of the rows, or what the window's loss asks for."""
        if not numbers:
            return []
        sizes = [self.size(number) for number in numbers]
        shares = [size / sum(sizes) for size in sizes]
        right = self.window_gradient(numbers)
        if right is None or not self.parameters:
            return shares
        with _without_randomness(self.model):
            columns = torch.stack([self._plain_gradient(number) for number in numbers], dim=1)
        if relative(columns @ tensor_of(shares, columns) - right, right) < 1e-6:
            return shares
        if columns.shape[1] > columns.shape[0] or not bool(torch.isfinite(columns).all()):
            return shares
        solved = torch.linalg.lstsq(columns, right.unsqueeze(1)).solution.squeeze(1)
        if relative(columns @ solved - right, right) < self.tolerance:
            return [float(weight.real) for weight in solved]
        return shares

    def couples(self, numbers: tuple) -> float:
        """How far the window's gradient is from every weighted sum of its micro-batches' gradients (relative)."""
        right = self.window_gradient(numbers)
        if right is None or len(numbers) < 2:
            return 0.0
        with _without_randomness(self.model):
            columns = torch.stack([self._plain_gradient(number) for number in numbers], dim=1)
        weights = tensor_of(self.needed(numbers), columns)
        return relative(columns @ weights - right, right)

    def _plain_gradient(self, number: int) -> torch.Tensor:
        key = (number, "plain")
        if key not in self._gradients:
            loss = lambda: self.problem.micro_loss(self.model, self.data(number))  # noqa: E731
            self._gradients[key] = self._differentiate(loss, None)
        return self._gradients[key]

    @property
    def tolerance(self) -> float:
        """How exactly gradients of this model's precision can be compared."""
        kinds = {p.dtype for p in self.parameters}
        if kinds & {torch.bfloat16, torch.float16}:
            return 0.05
        if kinds & {torch.float32, torch.complex64}:
            return 1e-3
        return 1e-6

    @property
    def batch_statistics(self) -> list:
        """Names of the layers that normalise over the batch in training."""
        return [n for n, m in self.model.named_modules() if isinstance(m, _BatchNorm) and m.training]


def flat(gradients, parameters) -> torch.Tensor:
    """Gradients as one vector in double precision, zeros for None."""
    parts = []
    for gradient, parameter in zip(gradients, parameters):
        wide = torch.complex128 if parameter.is_complex() else torch.float64
        if gradient is None:
            parts.append(torch.zeros(parameter.numel(), dtype=wide))
        else:
            dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
            parts.append(dense.detach().to(wide).reshape(-1).cpu())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def relative(difference: torch.Tensor, right: torch.Tensor) -> float:
    """|difference| / |right|."""
    return float(difference.norm() / right.norm().clamp_min(1e-300)) if difference.numel() else 0.0


def tensor_of(weights, like: torch.Tensor) -> torch.Tensor:
    """Weights as a vector of the same dtype."""
    return torch.tensor(list(weights), dtype=torch.float64).to(like.dtype)


def taken(batch, rows: list, size: int):
    """Some rows of a batch: of every tensor in it that has as many rows as the batch."""
    if isinstance(batch, torch.Tensor):
        return batch[rows] if batch.dim() and batch.shape[0] == size else batch
    if isinstance(batch, dict):
        return type(batch)((key, taken(value, rows, size)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)):
        parts = [taken(part, rows, size) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _split(rows, log) -> list:
    """The loader's batches; those that the loop slices, slice by slice; rows that it mixes anew, forward by forward."""
    calls = [event.info["rows"] for event in log.of("forward") if event.info["rows"] and event.info["training"]]
    mixed = _mixed(rows, calls)
    if mixed:
        return mixed
    slices: dict = {}
    for call in calls:
        by_batch: dict = {}
        for batch, row in call:
            by_batch.setdefault(batch, set()).add(row)
        for batch, part in by_batch.items():
            if len(part) < rows.sizes[batch]:
                slices.setdefault(batch, []).append(frozenset(part))
    made = []
    for number, (epoch, _) in enumerate(rows.batches):
        everything, parts, left = tuple(range(rows.sizes[number])), [], set(range(rows.sizes[number]))
        for part in dict.fromkeys(slices.get(number, ())):
            if part <= left:
                parts.append(tuple(sorted(part)))
                left -= part
        if left and parts:
            parts.append(tuple(sorted(left)))
        for part in parts or [everything]:
            places = tuple((number, row) for row in part)
            made.append(MicroBatch(len(made), number, epoch, places, part == everything))
    return made


def _mixed(rows, calls) -> list:
    """One micro-batch for each forward, where forwards take parts of several loader batches; else nothing."""
    torn = False
    for call in calls:
        held: dict = {}
        for batch, _ in call:
            held[batch] = held.get(batch, 0) + 1
        torn |= len(held) > 1 and any(count < rows.sizes[batch] for batch, count in held.items())
    if not torn:
        return []
    made, seen = [], set()
    for call in calls:
        new = tuple(place for place in dict.fromkeys(call) if place not in seen)
        if not new:
            continue
        if len(new) < len(set(call)):
            return []  # overlapping forwards are no partition
        seen.update(new)
        made.append(MicroBatch(len(made), new[0][0], rows.batches[new[0][0]][0], new, False))
    for number, (epoch, _) in enumerate(rows.batches):
        left = tuple((number, row) for row in range(rows.sizes[number]) if (number, row) not in seen)
        if left:
            made.append(MicroBatch(len(made), number, epoch, left, False))
    return made


@contextmanager
def _buffers_kept(model):
    """Running statistics stay as they were."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before):
                buffer.copy_(value)


class _without_randomness:
    """Dropout layers in evaluation mode while the block runs: their masks are no part of what is compared."""

    def __init__(self, model):
        self.layers = [m for m in model.modules() if isinstance(m, RANDOM_LAYERS) and m.training]

    def __enter__(self):
        for layer in self.layers:
            layer.training = False

    def __exit__(self, *_):
        for layer in self.layers:
            layer.training = True


