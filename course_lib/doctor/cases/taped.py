"""Loops of the other modules once more, as scripts that make their own model, data and optimizer."""

import inspect
from functools import partial

import torch
from torch.utils.data import DataLoader

from ..problems import regression
from ..run import EXTRAS, Parts, call
from . import (
    clears,
    elsewhere,
    more_right,
    more_weights,
    more_windows,
    scales,
    slices,
    styles,
    windows,
    wrapped,
)
from .case import Case

# What a script does not show: its data is what it looks at, its loss is its own, it runs once.
HIDDEN = {
    "B35", "B09a", "B51", "unseen: each batch K times", "unseen: whole windows only", "unseen: outputs divided",
    "unseen: frozen on odd", "unseen: other targets", "unseen: first slice again", "unseen: always the first batch",
    "unseen: strided windows", "unseen: rest of the rows dropped", "unseen: growing slices", "unseen: sharpness aware",
    "found: islice of the loader", "unseen: one layer divided",
}  # fmt: skip

# the doctor does not say this yet
NOT_YET = {
    "unseen: skips large losses", "unseen: only the last goes backward", "unseen: buffers live on",
    "unseen: overwrites .grad", "unseen: fewer chunks",
}  # fmt: skip


class _Quiet:
    """Takes what a loop logs."""

    def note(self, *_, **__):
        pass


def script(loop, sizes):
    """Two epochs over loaders of its own, with float64 rows."""
    problem = regression(sizes)
    model = problem.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = Parts(model, optimizer, problem.loss_fn, [], 4, _Quiet(), 2)
    for epoch in range(2):
        parts.batches = list(DataLoader(problem.batches(epoch), batch_size=None))
        call(loop, parts)


def _taped(case: Case) -> Case:
    sizes = tuple(case.options.get("sizes") or [4] * 10)
    loop = partial(script, case.loop, sizes)
    return Case(f"taped {case.id}", case.title, loop, case.names, case.also, {"accumulation_steps": 4}, case.check)


def _fits(case: Case) -> bool:
    """Loops on the doctor's own problem that do not run their epochs themselves."""
    own = inspect.signature(case.loop).parameters
    return bool(own) and not set(case.options) - {"sizes"} and not set(own) & {"epochs", "max_steps", *EXTRAS}


MODULES = (clears, scales, windows, styles, more_right, more_windows, more_weights, slices, wrapped, elsewhere)
FITTING = tuple(case for module in MODULES for case in module.CASES if _fits(case) and case.id not in HIDDEN)
CASES = tuple(_taped(case) for case in FITTING if case.id not in NOT_YET)
OPEN = tuple(_taped(case) for case in FITTING if case.id in NOT_YET)
