"""What a loop is tried on: a fresh model, an optimizer, a loss and batches whose gradients can be known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

LEARNING_RATE = 0.05


def sgd(parameters) -> torch.optim.Optimizer:
    """Plain SGD: what reaches it is what moves the weights."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


@dataclass(frozen=True)
class Problem:
    """A training problem that can be made afresh as often as it is needed.

    model: makes a module, the same one at each call. batches: makes the list of batches of an epoch (0, 1, ...);
    a batch is (inputs, targets) unless `loss_of` says otherwise. loss_fn(outputs, targets) is a mean.
    loss_of(model, batch): the mean loss of one micro-batch. window_loss(model, [batch, ...]): the loss that one
    update should use; without it: `loss_of` on the batches joined along their first dimension.
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int], list]
    loss_fn: Callable = F.mse_loss
    accumulation_steps: int = 4
    optimizer: Callable = sgd
    loss_of: Callable | None = None
    window_loss: Callable | None = None
    words: str = "a small tanh network in float64"
    owned: bool = field(default=False)  # the model is the loop's own, not a fresh one at each call
    plain: bool = field(default=False)  # made here, so that the doctor may make variants of it

    def micro_loss(self, model: nn.Module, batch) -> torch.Tensor:
        """The mean loss of one micro-batch, with its graph."""
        if self.loss_of is not None:
            return self.loss_of(model, batch)
        inputs, targets = batch[:2]
        return self.loss_fn(model(inputs), targets)

    def loss_of_window(self, model: nn.Module, batches: list) -> torch.Tensor:
        """The loss of one large batch. Raises what torch raises where batches cannot be joined."""
        if self.window_loss is not None:
            return self.window_loss(model, batches)
        return self.micro_loss(model, joined(batches))


@dataclass(frozen=True)
class Owned:
    """A loop that owns its model: `run()` trains one epoch over `batches` with this model and optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable
    batches: list
    run: Callable


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, also of one that keeps activations of its last call (those are copied without their graphs)."""
    memo: dict = {}
    for module in model.modules():
        for value in vars(module).values():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                    memo[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(model, memo)


def cloned(batch):
    """A batch with its own tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone().requires_grad_(batch.requires_grad)
    if type(batch) is dict:
        return {key: cloned(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(cloned(item) for item in batch)
    return batch


def joined(batches: list):
    """Batches as one: tensors are joined along their first dimension, in tuples, lists and dicts too."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return type(first)({key: joined([batch[key] for batch in batches]) for key in first})
    if is_dataclass(first):
        return replace(first, **{f.name: joined([getattr(batch, f.name) for batch in batches]) for f in fields(first)})
    if type(first).__module__ == "numpy":
        return type(first)(0) if first.shape == () else __import__("numpy").concatenate(batches)
    if isinstance(first, (tuple, list)):
        parts = [joined(list(part)) for part in zip(*batches)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if all(batch == first for batch in batches):
        return first
    raise TypeError(f"a batch holds a {type(first).__name__}, which cannot be joined")


def network(seed: int = 0, width: int = 8, features: int = 5, dtype=torch.float64) -> nn.Module:
    """A tanh network with one output, drawn from its own generator."""
    model = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1)).to(dtype)
    return drawn(model, seed)


def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with its parameters drawn afresh, whatever torch's own generator does."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.5)
    return model


def regression(sizes, accumulation_steps: int = 4, seed: int = 0, features: int = 5) -> Problem:
    """Mean squared error on random rows; micro-batch i has sizes[i] of them. Each epoch has its own rows."""
    sizes = tuple(int(n) for n in sizes)

    def batches(epoch):
        draw = torch.Generator().manual_seed(1000 * seed + epoch + 1)

        def rows(n, wide):
            return torch.randn(n, wide, generator=draw, dtype=torch.float64)

        return [(rows(n, features), rows(n, 1) * 3) for n in sizes]

    return Problem(
        # more weights than micro-batches, so that the weights of an update can be told apart
        model=lambda: network(seed, width=max(8, len(sizes))),
        batches=batches,
        accumulation_steps=accumulation_steps,
        plain=True,
    )


class TinyLM(nn.Module):
    """Next-token logits from an embedding and a linear layer: (rows, length) -> (rows, length, vocabulary)."""

    def __init__(self, vocabulary: int = 11, width: int = 6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def token_mean(logits, targets):
    """Cross-entropy, the mean over all targets that are not padding (-100)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def tokens(lengths, accumulation_steps: int = 2, seed: int = 0, vocabulary: int = 11) -> Problem:
    """A tiny language model; lengths[i] lists the lengths of the rows of micro-batch i, padded to the longest."""
    longest = max(max(rows) for rows in lengths)

    def batches(epoch):
        draw = torch.Generator().manual_seed(1000 * seed + epoch + 1)
        made = []
        for rows in lengths:
            inputs = torch.randint(0, vocabulary, (len(rows), longest), generator=draw)
            targets = torch.randint(0, vocabulary, (len(rows), longest), generator=draw)
            for row, length in enumerate(rows):
                targets[row, length:] = -100
            made.append((inputs, targets))
        return made

    return Problem(
        model=lambda: drawn(TinyLM(vocabulary).double(), seed),
        batches=batches,
        loss_fn=token_mean,
        accumulation_steps=accumulation_steps,
        words="a tiny language model",
    )


def contrastive(chunks: int = 4, size: int = 2, accumulation_steps: int = 4, seed: int = 0) -> Problem:
    """Pairs of views and a loss over their similarity matrix: every sample is the others' negative."""

    def batches(epoch):
        draw = torch.Generator().manual_seed(1000 * seed + epoch + 1)
        made = []
        for _ in range(chunks):
            first = torch.randn(size, 5, generator=draw, dtype=torch.float64)
            made.append((first, first + 0.1 * torch.randn(size, 5, generator=draw, dtype=torch.float64)))
        return made

    def pair_loss(first, second):
        first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))

    def loss_of(model, batch):
        return pair_loss(model(batch[0]), model(batch[1]))

    return Problem(
        model=lambda: drawn(nn.Linear(5, 4, dtype=torch.float64), seed),
        batches=batches,
        loss_fn=pair_loss,
        accumulation_steps=accumulation_steps,
        loss_of=loss_of,
        words="a linear encoder with a contrastive loss",
    )


def batchnorm(sizes=(4, 4, 4, 4), accumulation_steps: int = 4, seed: int = 0) -> Problem:
    """The network with a BatchNorm layer in training mode: a row's output depends on the rows beside it."""
    base = regression(sizes, accumulation_steps, seed)

    def model():
        layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
        return drawn(layers, seed)

    return Problem(
        model=model,
        batches=base.batches,
        accumulation_steps=accumulation_steps,
        words="a network with BatchNorm",
    )
