"""One update of the weights, and all that led to it: what the replay fills in and the rules read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

ZERO = 1e-9  # a weight that is none


@dataclass
class Change:
    """Something that happened to `.grad` inside a window. `at`: backward calls of the window before it."""

    kind: str  # clear, scale, clip, unscale, other, replaced
    at: int
    scale: float = 1.0
    by: str = ""
    before: float = 0.0  # norms
    after: float = 0.0
    wiped: bool = False  # a clear that found something


@dataclass
class Update:
    """One update of the weights, and all that led to it since the one before."""

    number: int
    epoch: int
    weights: dict = field(default_factory=dict)  # micro-batch -> weight, a clip at the end left out
    clean: dict = field(default_factory=dict)  # the same with no clip at all
    added: dict = field(default_factory=dict)  # micro-batch -> what backward added, before anything changed it
    visits: list = field(default_factory=list)  # (micro-batch, its forward event), in order
    backwards: int = 0
    strange: list = field(default_factory=list)  # backward calls that no micro-batch explains: (which, relative rest)
    foreign: int = 0  # ... with no forward on the data before them
    again: int = 0  # gradients of a micro-batch that an earlier backward had added already
    unclear: bool = False  # a strange one with a forward before it: its weights say nothing
    changes: list = field(default_factory=list)
    residual: float = 0.0
    gradient: torch.Tensor | None = None  # before a clip at the end
    parts: list = field(default_factory=list)  # (micro-batch, gradient) of backward calls with something more in them
    half: float = 1.0  # how many times longer the share of a second optimizer is
    common: float = 0.0  # the part of the gradient that is the same in all micro-batches and was taken out
    mask: torch.Tensor | None = None  # which numbers of the gradient are judged
    frozen: frozenset = frozenset()  # parameters that need no gradient at the step
    missing: list = field(default_factory=list)
    lr: list = field(default_factory=list)
    parameters: frozenset = frozenset()
    scheduler: int = 0  # steps of a scheduler since the update before
    moved: bool = False
    finite: bool = True
    scale: float | None = None  # of a loss scaler, where one was used

    @property
    def own(self) -> list:
        """The micro-batches that came since the update before, each once."""
        return list(dict.fromkeys(number for number, _ in self.visits))
