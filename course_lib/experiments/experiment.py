"""Setting in, Run out: one real training step, measured."""

from __future__ import annotations

import gc
import json
import statistics
import time
from dataclasses import dataclass, field

import torch

from course_lib.measure import Meter, device
from course_lib.measure.device import synchronize
from course_lib.measure.timing import Timing, quiet_malloc
from course_lib.measure.trace import Trace
from course_lib.memory.run import run as run_tree

from . import parts
from .anatomy import OPTIMIZERS, Work
from .forecasting import tree_of
from .origin import origin
from .setting import Setting

DONE, OUT_OF_MEMORY = "done", "out of memory"
FORMAT = 1  # of the JSON


class _Prepared:
    """A model, its optimizer, its data, and `update()`: one training step as the setting says."""

    def __init__(self, setting: Setting, on):
        self.setting, self.on = setting, torch.device(on)
        self.tree = tree_of(setting)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = parts.net(setting).to(self.on)
        self.optimizer = OPTIMIZERS[setting.optimizer](self.net.parameters())
        self.inputs, self.targets = (tensor.to(self.on) for tensor in parts.batch(setting))

    def backward(self, at=lambda micro_batch: None) -> None:
        """Forward and backward of all micro-batches; `at` is called before each."""
        head, size = parts.head_of(self.net), self.setting.micro_batch
        head.share = 1 / self.setting.accumulation_steps
        for i in range(self.setting.accumulation_steps):
            at(i)
            rows = slice(i * size, (i + 1) * size)
            head.targets = self.targets[rows]
            run_tree(self.tree, list(self.net), self.inputs[rows]).sum().backward()
        head.targets = None

    def update(self, at=lambda micro_batch: None) -> None:
        self.backward(at)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.detach().double().flatten().cpu() for p in self.net.parameters()])


def prepared(setting: Setting, on=None) -> _Prepared:
    return _Prepared(setting, device() if on is None else on)


@dataclass(frozen=True)
class Run:
    """What one setting took, on one device. A step that ran out of memory is a Run, too: `outcome` says so.

    trace: the step in the middle of training (optimizer states exist), under the Meter. step_seconds: the same step without
    the Meter, several times. flops: matrix products, convolutions and attention of one step, recomputing included.
    gradient_distance: |g - g0| / |g0| against the whole batch at once, nothing recomputed, in float64; None without a check.
    limit_bytes: where memory was taken to end, None for the device's own end.
    """

    setting: Setting
    outcome: str
    trace: Trace | None
    step_seconds: tuple = ()
    flops: int | None = None
    gradient_distance: float | None = None
    limit_bytes: int | None = None
    environment: dict = field(default_factory=dict)
    message: str = ""

    @property
    def done(self) -> bool:
        return self.outcome == DONE

    @property
    def peak_bytes(self) -> int:
        """The step's peak; for a step that ran out of memory, how far it came."""
        return self.trace.peak_bytes if self.trace is not None else 0

    @property
    def peak_by_phase(self) -> dict:
        return self.trace.peak_by_phase

    @property
    def peak_by_category(self) -> dict:
        return self.trace.peak_by_category

    @property
    def seconds(self) -> float | None:
        """Median step time."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def spread(self) -> tuple:
        """Quartiles of the step time, in seconds."""
        return Timing(self.step_seconds).spread

    def to_json(self) -> str:
        """One JSON object; `Run.from_json` reads it back unchanged."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["setting"] = self.setting.to_dict()
        values["trace"] = None if self.trace is None else json.loads(self.trace.to_json())
        return json.dumps({"format": FORMAT, **values})

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Raises ValueError for a text that is no Run, or one of a newer version of the course."""
        try:
            values = json.loads(text)
            version = values.pop("format")
            if version > FORMAT:
                raise ValueError(f"This run was written by a newer version of the course (format {version}); update the course.")
            trace = values.pop("trace")
            return cls(
                setting=Setting.from_dict(values.pop("setting")),
                trace=None if trace is None else Trace.from_json(json.dumps(trace)),
                step_seconds=tuple(values.pop("step_seconds")),
                **values,
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"This is no run of the course ({type(error).__name__}: {error}).") from None

    def __repr__(self) -> str:
        from course_lib.measure.trace import mib

        time_ = f", {self.seconds * 1e3:.1f} ms a step" if self.seconds else ""
        return f"Run({self.setting.words()}: {self.outcome}, peak {mib(self.peak_bytes)}{time_})"


class _Limit(Work):
    """Counts work, and ends the step as a full device would once more than `limit` bytes are alive."""

    def __init__(self, meter: Meter, limit: int | None):
        super().__init__()
        self.meter, self.limit = meter, limit

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.limit is not None and self.meter.peak_bytes > self.limit:
            raise torch.OutOfMemoryError(
                f"{func} brought the living bytes to {self.meter.peak_bytes:,}, and the limit is {self.limit:,} (a simulated end)."
            )
        return out


def run(setting: Setting, *, repeats: int = 5, limit_bytes: int | None = None, oracle: bool = True, on=None,
        progress=lambda done, total, words: None) -> Run:  # fmt: skip
    """Train with the setting and measure one step: a Run.

    repeats: timed steps, 0 for none. limit_bytes: end the step with "out of memory" once more is alive; on a CPU this plays the
    part of a card. oracle: compare the gradients with those of the whole batch at once in float64 (CPU, no checkpointing).
    progress(done, total, words) is called between the steps and before each micro-batch; what it raises ends the run.
    Raises DoesNotFit for a budget that no schedule keeps.
    """
    total, where = 3 + repeats, {}
    made = meter = None
    try:
        progress(0, total, "building the model")
        made = prepared(setting, on)
        where = origin(made.on)
        quiet_malloc()
        meter = Meter(made.net, made.optimizer)
        with meter, _Limit(meter, limit_bytes):  # the first step makes the states; it may be the one that does not fit
            made.update(lambda i: progress(1, total, f"first step, micro-batch {i + 1}"))
        meter = Meter(made.net, made.optimizer)
        with meter:
            with _Limit(meter, limit_bytes) as work:
                made.update(lambda i: progress(2, total, f"measured step, micro-batch {i + 1}, {meter.live_bytes:,} bytes alive"))
        distance = _distance(made) if oracle else None
        times = []
        for i in range(repeats):
            progress(3 + i, total, f"timed step {i + 1} of {repeats}")
            synchronize(made.on)
            start = time.perf_counter()
            made.update()
            synchronize(made.on)
            times.append(time.perf_counter() - start)
        return Run(setting, DONE, meter.trace, tuple(times), work.flops, distance, limit_bytes, where)
    except torch.OutOfMemoryError as error:
        trace = meter.trace if meter is not None else None
        return Run(setting, OUT_OF_MEMORY, trace, limit_bytes=limit_bytes, environment=where, message=str(error).split("\n")[0])
    finally:
        made = meter = None
        _give_back()


def _distance(made: _Prepared) -> float:
    """Relative distance of the gradients from those of the whole batch at once, nothing recomputed, in float64."""
    made.backward()
    got = made.gradient()
    made.optimizer.zero_grad()
    whole = made.setting.but(micro_batch=made.setting.effective_batch, accumulation_steps=1, policy="none", precision="fp32")
    exact = prepared(whole, on="cpu")
    exact.net.double()
    if exact.inputs.is_floating_point():
        exact.inputs = exact.inputs.double()
    for parameter, value in zip(exact.net.parameters(), made.net.parameters()):
        parameter.data.copy_(value.detach().cpu())
    exact.backward()
    right = exact.gradient()
    return float((got - right).norm() / right.norm())


def _give_back() -> None:
    """After a step that ended early, frames and cycles may still hold tensors: free them, and the allocator's cache."""
    gc.collect()
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available() and hasattr(torch, accelerator.current_accelerator().type):
        getattr(getattr(torch, accelerator.current_accelerator().type), "empty_cache", lambda: None)()
