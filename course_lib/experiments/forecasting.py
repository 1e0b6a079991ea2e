"""The forecast of a setting: its peak, its time line and its work, by arithmetic on the measured parts of its model.

Exact where `predict` is exact (a test compares the two, and both with real runs), and fast enough for a slider. A bytes
count by CPU rules; for a CUDA card's own, ask `predict(setting, target="cuda")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from course_lib.measure.trace import PREDICTED, Record, Trace
from course_lib.memory import schedule
from course_lib.memory.ticks import ticks
from course_lib.memory.trees import blocks_of, reruns

from .anatomy import Anatomy, anatomy, sketch
from .setting import Setting


class DoesNotFit(ValueError):
    """No schedule keeps the budget. `needed_bytes` is the smallest budget that one could keep."""

    def __init__(self, setting: Setting, needed_bytes: int):
        super().__init__(
            f"No schedule keeps a step peak of {setting.budget_bytes:,} bytes: with these micro-batches the step needs at least "
            f"{needed_bytes:,} bytes."
        )
        self.needed_bytes = needed_bytes


def tree_of(setting: Setting, body: Anatomy | None = None) -> tuple:
    """The schedule's tree over all parts: 0 is the stem, 1 ... depth the blocks, depth + 1 the head.

    Policies with a name cut between blocks; "budgeted" may cut anywhere. Raises DoesNotFit for a budget below the minimum.
    """
    depth, body = setting.depth, body or anatomy(setting)
    if setting.policy == "budgeted":
        return _budgeted(setting, body)
    if setting.policy in ("none", "selective", "offload"):
        return tuple(range(depth + 2))
    if setting.policy == "every k":
        cuts = list(range(1, depth + 1, setting.k)) + [depth + 1]
        return (0, *(tuple(range(a, b)) for a, b in zip(cuts, cuts[1:])), depth + 1)
    chain = body.chain(depth)
    inner = schedule.Chain(chain.blocks[1:-1], chain.boundary(depth + 1))
    if setting.policy == "binomial":
        plan = schedule.binomial(inner, setting.slots)
    elif setting.policy == "per block":
        return (0, *((i,) for i in range(1, depth + 1)), depth + 1)
    else:
        plan = {"sqrt": schedule.sqrt, "nested": schedule.nested}[setting.policy](inner)
    return (0, *_moved(plan.tree, 1), depth + 1)


def _moved(tree, by: int):
    return tuple(_moved(part, by) if isinstance(part, tuple) else part + by for part in tree)


def _budgeted(setting: Setting, body: Anatomy) -> tuple:
    room = setting.budget_bytes - _constant(setting, body)
    chain = body.chain(setting.depth, later=setting.accumulation_steps > 1)
    gradients = sum(part.parameter_bytes for part in body.row(setting.depth))
    room -= gradients if setting.accumulation_steps > 1 else 0
    least = max(schedule.minimum(chain), body.update_peak_bytes + (0 if setting.accumulation_steps > 1 else gradients))
    if room < least:
        raise DoesNotFit(setting, setting.budget_bytes - room + least)
    return schedule.budgeted(chain, room).tree


def _constant(setting: Setting, body: Anatomy) -> int:
    """Bytes that are alive from the first to the last moment of a step: parameters, optimizer state, the batch."""
    return sum(part.parameter_bytes + part.state_bytes for part in body.row(setting.depth)) + input_bytes(setting)


def input_bytes(setting: Setting) -> int:
    """Inputs and targets of one update: int64 tokens and targets, or fp32 pixels and int64 labels."""
    sample = 2 * 8 * setting.length if setting.model == "gpt" else 4 * setting.length**2 + 8
    return setting.effective_batch * sample


@dataclass(frozen=True)
class Forecast:
    """What a step of `setting` will need. The step is one update in the middle of training: optimizer states exist,
    gradients do not (yet)."""

    setting: Setting
    anatomy: Anatomy
    tree: tuple

    @cached_property
    def ticks(self) -> tuple:
        """(ticks of the first micro-batch, ticks of each later one); the latter empty for one micro-batch."""
        body, depth = self.anatomy, self.setting.depth
        later = ticks(body.chain(depth, later=True), self.tree) if self.setting.accumulation_steps > 1 else ()
        return ticks(body.chain(depth), self.tree), later

    @property
    def gradient_bytes(self) -> int:
        return sum(part.parameter_bytes for part in self.anatomy.row(self.setting.depth))

    @property
    def peak_bytes(self) -> int:
        return max(self.peak_by_phase.values())

    @cached_property
    def peak_by_phase(self) -> dict:
        base, peaks = _constant(self.setting, self.anatomy), {}
        for held, row in zip((base, base + self.gradient_bytes), self.ticks):
            for tick in row:
                peaks[tick.action] = max(peaks.get(tick.action, 0), held + tick.peak_bytes)
        peaks["optimizer"] = base + self.gradient_bytes + self.anatomy.update_peak_bytes
        return peaks

    @cached_property
    def work(self) -> tuple:
        """(FLOPs, operators) of one update, recomputing included. A rerun stops after the last tensor that it must save;
        the operators that it saves that way are not taken off."""
        row, steps = self.anatomy.row(self.setting.depth), self.setting.accumulation_steps
        chain = self.anatomy.chain(self.setting.depth)
        flops = sum(part.forward[0] + part.backward[0] for part in row)
        operators = sum(part.forward[1] + part.backward[1] for part in row)
        for again, ends_kept in reruns(self.tree):
            flops += sum(row[i].forward[0] for i in again) - (chain.blocks[again[-1]].tail_cost if ends_kept else 0)
            operators += sum(row[i].forward[1] for i in again)
        return steps * flops, steps * operators + sum(part.update_operators for part in row)

    @property
    def flops(self) -> int:
        return self.work[0]

    @cached_property
    def trace(self) -> Trace:
        """The time line, two records for each run of a part: its highest moment, and after it. Times mean nothing."""
        records = _records(self)
        base = _constant(self.setting, self.anatomy)
        return Trace("cpu", PREDICTED, base, self.peak_bytes, tuple(records))


def _records(cast: Forecast) -> list:
    body, setting, out = cast.anatomy, cast.setting, []
    row = body.row(setting.depth)
    fixed = {
        "parameters": sum(part.parameter_bytes for part in row),
        "optimizer state": sum(part.state_bytes for part in row),
        "inputs": input_bytes(setting),
    }
    base, top = sum(fixed.values()), 0

    def note(phase, op, live, gradients, kept, again):
        nonlocal top
        top = max(top, live)
        rest = live - base - gradients - kept - again
        parts = {**fixed, "gradients": gradients, "activations": kept + min(rest, 0), "recomputed": again, "temporary": max(rest, 0)}
        out.append(Record(len(out) / 1e3, phase, op, live, top, {name: n for name, n in parts.items() if n > 0}))

    for step in range(setting.accumulation_steps):
        chain = body.chain(setting.depth, later=step > 0)
        before, again = cast.gradient_bytes if step else 0, set()
        for tick in cast.ticks[step > 0]:
            if tick.action == "recompute" and tick.kept:
                again.add(tick.block)
            taped = {i: chain.blocks[i].own_bytes for i in tick.taped}
            rerun = sum(n for i, n in taped.items() if i in again)
            kept = sum(taped.values()) - rerun + sum(chain.boundary(i) for i in tick.states)
            made = before + (chain.weight_gradients_after(tick.block - 1) if tick.action == "backward" else 0)
            if tick.action == "recompute":
                made += chain.weight_gradients_after(max(blocks_of((tick.block, *tick.taped))))
            op = f"{tick.action} part {tick.block}"
            for live in (tick.peak_bytes, tick.live_bytes) * (2 if tick.action == "backward" else 1):
                note(tick.action, op, base + before + live, made, kept, rerun)
    for live in (body.update_peak_bytes, 0):
        note("optimizer", "update", base + cast.gradient_bytes + live, cast.gradient_bytes, 0, 0)
    return out


def forecast(setting: Setting, quick: bool = False) -> Forecast:
    """The Forecast of a setting. Raises DoesNotFit for a budgeted setting whose budget no schedule keeps.

    quick: by a sketch of the model's parts where they were not measured with this micro-batch yet.
    """
    return _forecast(setting, sketch(setting) if quick else anatomy(setting))


@lru_cache(maxsize=1024)
def _forecast(setting: Setting, body: Anatomy) -> Forecast:
    return Forecast(setting, body, tree_of(setting, body))
