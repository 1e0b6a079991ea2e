"""The planner for a module of your own: it must hold a row of blocks, each from one tensor to one tensor.

Peaks are predicted operator by operator (`course_lib.measure.predict`): nothing is allocated, and the module stays as it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import nn

from course_lib.measure.predict import predict, twins, without_data
from course_lib.measure.trace import mib
from course_lib.memory import schedule
from course_lib.memory.run import run as run_tree

from .anatomy import Work

SEARCHES = 6  # corrections of the blocks' budget until the whole step keeps its own


class _Planned(nn.Module):
    """All blocks of a row as one module, run by a schedule. What a block gets besides its input, each block gets."""

    def __init__(self, blocks, tree: tuple):
        super().__init__()
        self.blocks, self.tree = nn.ModuleList(blocks), tree

    def forward(self, x, *args, **kwargs):
        run = [lambda x, block=block: block(x, *args, **kwargs) for block in self.blocks]
        return run_tree(self.tree, run, x)


@contextlib.contextmanager
def scheduled(model: nn.Module, row: str, tree: tuple):
    """While the context lasts, the blocks of model.<row> run by the tree. The module's own forward is not changed."""
    owner, _, name = row.rpartition(".")
    owner = model.get_submodule(owner)
    blocks = getattr(owner, name) if name else model
    if blocks is model:  # the model itself is the row
        run = _Planned(list(model), tree)
        model.forward = lambda x: run(x)
        try:
            yield
        finally:
            del model.forward
        return
    setattr(owner, name, type(blocks)(_Planned(list(blocks), tree)) if isinstance(blocks, nn.Sequential)
            else nn.ModuleList([_Planned(list(blocks), tree)]))  # fmt: skip
    try:
        yield
    finally:
        setattr(owner, name, blocks)


def row_of(model: nn.Module) -> str:
    """The name of the row of blocks: the nn.Sequential or nn.ModuleList with the most children of one class. "" is the model.

    Raises ValueError where there is none.
    """
    best, name = 1, None
    for path, module in model.named_modules():
        if type(module) in (nn.Sequential, nn.ModuleList):
            kinds = [type(child) for child in module]
            alike = max(map(kinds.count, kinds), default=0)
            if alike > best:
                best, name = alike, path
    if name is None:
        raise ValueError(
            "This module holds no row of blocks: an nn.Sequential or nn.ModuleList with two children of one class or more. "
            "Put its repeated layers into one, or name it with blocks=..."
        )
    return name


@dataclass(frozen=True)
class ModulePlan:
    """What to do with your module. `with plan.applied(model): ...` trains by it; the module is as before afterwards.

    schedule: of the row of blocks named `blocks`, None where nothing is recomputed. flops: of one update.
    """

    micro_batch: int
    accumulation_steps: int
    blocks: str
    schedule: schedule.Schedule | None
    budget_bytes: int
    peak_bytes: int
    flops: int
    fits: bool
    needed_bytes: int | None = None

    @property
    def policy(self) -> str:
        return "none" if self.schedule is None else "budgeted"

    def applied(self, model: nn.Module):
        """A context in which the blocks of `model` run by the schedule."""
        return contextlib.nullcontext() if self.schedule is None else scheduled(model, self.blocks, self.schedule.tree)

    def __repr__(self) -> str:
        again = "" if self.schedule is None else f" ({self.schedule.recomputations} block forwards again)"
        chosen = (
            f"micro-batch {self.micro_batch} x {self.accumulation_steps} steps, {self.policy}{again}: "
            f"peak {mib(self.peak_bytes)}, {self.flops / 1e9:.3g} GFLOP an update"
        )
        if self.fits:
            return f"Plan within {mib(self.budget_bytes)}: {chosen}"
        return f"Nothing fits into {mib(self.budget_bytes)}. The leanest step needs {mib(self.needed_bytes)}: {chosen}"


def plan_module(model, budget_bytes, effective_batch, *, batch, loss_fn, optimizer=None, blocks: str | None = None,
                slack: float = 0.05) -> ModulePlan:  # fmt: skip
    """The ModulePlan for an update of `effective_batch` samples like those in `batch`.

    batch: (inputs, targets), tensors with samples along the first dimension, of any number. loss_fn(outputs, targets): a mean.
    optimizer: yours; without one, the weights are counted with AdamW's states. blocks: the name of the row of blocks
    ("encoder.layers"); found by itself where there is only one. Raises ValueError where there is none, PredictError for a
    module that cannot be predicted.
    """
    from .planner import divisors

    row = row_of(model) if blocks is None else blocks
    optimizer = torch.optim.AdamW(model.parameters()) if optimizer is None else optimizer
    search = _Search(model, optimizer, batch, loss_fn, row, effective_batch, budget_bytes)
    keep_all, fewest = [], None
    for micro_batch in divisors(effective_batch):
        keep_all.append(search.plain(micro_batch))
        if keep_all[-1].peak_bytes <= budget_bytes:
            fewest = keep_all.pop()  # smaller micro-batches need the same FLOPs and more operators
            break
    guesses = [search.guess(plan, budget_bytes) for plan in keep_all]  # larger micro-batches, if some blocks are run again
    limit = (1 + slack) * min([fewest.flops] if fewest else [flops for flops, _ in guesses if flops] or [0])
    found = []
    for (flops, chain), plan in zip(guesses, keep_all):
        if flops is not None and (flops <= limit or not fewest):
            found += search.best(plan, chain, budget_bytes)
            if found and found[-1].flops <= limit:
                break  # the largest micro-batch of all that are fast enough
    found += [fewest] if fewest else []
    if not found:
        return min((search.leanest(plan, chain) for plan, (_, chain) in zip(keep_all, guesses)), key=lambda plan: plan.peak_bytes)
    lowest = min(plan.flops for plan in found)
    return next(plan for plan in found if plan.flops <= (1 + slack) * lowest)


class _Search:
    def __init__(self, model, optimizer, batch, loss_fn, row, effective_batch, budget):
        self.model, self.optimizer, self.loss_fn, self.row, self.total = model, optimizer, loss_fn, row, effective_batch
        self.like, self.budget = batch, budget

    def made(self, rows: int):
        return tuple(torch.empty((rows, *t.shape[1:]), dtype=t.dtype) for t in self.like)

    def predicted(self, micro_batch: int, tree) -> tuple:
        """(peak bytes, FLOPs) of two updates; the second has the optimizer's states. Two micro-batches stand for all."""
        steps = self.total // micro_batch
        seen = Work()

        def step(model, optimizer):
            inputs, targets = self.made(self.total)
            with contextlib.nullcontext() if tree is None else scheduled(model, self.row, tree):
                for _ in range(2):
                    optimizer.zero_grad()
                    logged = 0.0
                    for i in range(min(2, steps)):
                        part = slice(i * micro_batch, (i + 1) * micro_batch)
                        with seen:
                            loss = self.loss_fn(model(inputs[part]), targets[part]) * (1 / steps)
                            loss.backward()
                        logged = logged + loss.detach()  # as `accumulate` does: four bytes
                    optimizer.step()

        trace = predict(step, model=self.model, optimizer=self.optimizer)
        return trace.peak_bytes, seen.flops // (2 * min(2, steps)) * steps

    def chain(self, micro_batch: int) -> schedule.Chain:
        """The row of blocks, measured with the input that the module gives it. Gradients exist from the second micro-batch on."""
        with without_data() as fake:
            model, _ = twins(fake, self.model, None, {})
            blocks = list(model.get_submodule(self.row) if self.row else model)
            given: list = []
            hook = blocks[0].register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)
            model(self.made(micro_batch)[0])
            hook.remove()
            (x, *args), kwargs = given[0]
            if micro_batch < self.total:
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            run = [_Alone(block, args, kwargs) for block in blocks]
            return schedule.measure(run, x.detach().requires_grad_(x.requires_grad))

    def plan(self, micro_batch: int, plan) -> ModulePlan:
        """The ModulePlan of a schedule, predicted operator by operator."""
        peak, flops = self.predicted(micro_batch, None if plan is None else plan.tree)
        fits = peak <= self.budget
        steps = self.total // micro_batch
        return ModulePlan(micro_batch, steps, self.row, plan, self.budget, peak, flops, fits, None if fits else peak)

    def plain(self, micro_batch: int) -> ModulePlan:
        return self.plan(micro_batch, None)

    def guess(self, plain: ModulePlan, budget: int):
        """(FLOPs of an update that keeps the budget, or None; the chain). By the chain alone: the rest needs what it always needs."""
        chain = self.chain(plain.micro_batch)
        room = budget - plain.peak_bytes + schedule.none(chain).peak_bytes
        if room < schedule.minimum(chain):
            return None, chain
        again = schedule.budgeted(chain, room).recompute_cost
        return plain.flops + int(again) * plain.accumulation_steps, chain

    def best(self, plain: ModulePlan, chain, budget: int) -> list:
        """[the ModulePlan with the fewest FLOPs that keeps the budget], or [] where none does."""
        low, found = schedule.minimum(chain), []
        room = max(low, budget - plain.peak_bytes + schedule.none(chain).peak_bytes)
        for _ in range(SEARCHES):
            made = self.plan(plain.micro_batch, schedule.budgeted(chain, max(low, room)))
            spare = budget - made.peak_bytes
            if spare >= 0:
                found.append(made)
                if spare < budget // 50:
                    break
                room = max(room, made.schedule.peak_bytes) + spare
            elif room <= low:
                break
            else:
                room = min(room, made.schedule.peak_bytes) + spare
        return sorted(found, key=lambda plan: plan.flops)[:1]

    def leanest(self, plain: ModulePlan, chain) -> ModulePlan:
        return self.plan(plain.micro_batch, schedule.budgeted(chain, schedule.minimum(chain)))


class _Alone(nn.Module):
    """A block with the other arguments that it gets in its module."""

    def __init__(self, block, args, kwargs):
        super().__init__()
        self.block, self.args, self.kwargs = block, args, kwargs

    def forward(self, x):
        return self.block(x, *self.args, **self.kwargs)
