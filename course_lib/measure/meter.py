"""The Meter: live memory of a block of training code, by phase and by category.

    with Meter(model, optimizer) as meter:
        loss_fn(model(x), y).backward()
        optimizer.step()
    print(meter.trace)

On a CPU it counts the bytes of living tensors, exactly. On a device with an allocator (CUDA, XPU) the allocator's own
counters give the peak, and the tensors give the time line and the categories; the difference is the trace's
`hidden_bytes`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .device import counters as counters_of
from .device import device as default_device
from .oracle import AllocatorOracle
from .storages import PHASE_NAMES, Resize, StorageWatch
from .trace import ALLOCATOR, CATEGORIES, LIVE_TENSOR_BYTES, PHASES, Record, Trace


class MeterWarning(UserWarning):
    """Something happened that the Meter cannot see, so its numbers are too low."""


class Meter:
    """Measure the memory of a `with` block.

    model: an nn.Module or None; its parameters, buffers and existing gradients are counted from the start.
    optimizer: a torch optimizer or None; its existing state is counted from the start.
    device: what to count on; by default where the model's parameters are, else `measure.device()`.
    oracle: also run the block under torch's profiler and keep the allocator's exact peak (`trace.oracle_peak_bytes`).
    counters: the device allocator's counters; by default those of the device, None on a CPU.
    block_bytes: count every storage in multiples of this; by default what the device's allocator does (CUDA: 512).

    While the block runs, `live_bytes` and `peak_bytes` can be read at any time. After it, `trace` is the result; it is
    there, too, when the block ended with an exception. Meters nest. Each costs a few microseconds per operator.

    Not seen: scratch inside a kernel (on a CPU; use `oracle=True`), and work done on other Python threads, for which a
    MeterWarning is given. Activations are what the forward phase left alive when backward began: what autograd saved,
    and what your own variables still hold. What runs without gradients between backward and the update (clipping,
    unscaling) counts as the optimizer phase.
    """

    def __init__(
        self, model=None, optimizer=None, *, device=None, oracle=False, counters="of the device", block_bytes: int | None = None
    ):
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"Meter's first argument is a torch.nn.Module or None, not {type(model).__name__}.")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"Meter's second argument is a torch optimizer or None, not {type(optimizer).__name__}.")
        self._model, self._optimizer = model, optimizer
        first = next(model.parameters(), None) if model is not None else None
        self.device = torch.device(device) if device is not None else first.device if first is not None else default_device()
        self.counters = counters_of(self.device) if counters == "of the device" else counters
        self._block_bytes = block_bytes
        self._trace: Trace | None = None
        self._finish = None  # builds the trace when it is first read, so that nobody pays who does not look
        self._oracle = AllocatorOracle(self.device) if oracle else None
        self._watch: StorageWatch | None = None
        self._warnings: list[str] = []

    @property
    def trace(self) -> Trace | None:
        """The result, once the block has ended; None before."""
        if self._trace is None and self._finish is not None:
            self._trace, self._finish = self._finish(), None
        return self._trace

    # -- while it runs -------------------------------------------------------------------------------------------------

    @property
    def live_bytes(self) -> int:
        return self._watch.live if self._watch else self.trace.end_bytes if self.trace else 0

    @property
    def peak_bytes(self) -> int:
        return self._watch.peak if self._watch else self.trace.peak_bytes if self.trace else 0

    @contextlib.contextmanager
    def phase(self, name: str):
        """Name the phase of a stretch of code yourself: for updates written by hand, without a torch optimizer."""
        if name not in PHASES:
            raise ValueError(f"A phase is one of {', '.join(PHASES)}, not {name!r}.")
        if self._watch is None:
            raise RuntimeError("meter.phase(...) works inside the `with Meter(...)` block only.")
        watch, outer = self._watch, self._watch.forced
        watch.forced = PHASES.index(name)
        watch.enter_phase(watch.forced)
        try:
            yield
        finally:
            after = outer if outer is not None else 0
            watch.enter_phase(after)
            watch.forced = outer

    # -- enter and leave -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Meter:
        if self._watch is not None or self._finish is not None or self._trace is not None:
            raise RuntimeError("A Meter measures one block. Make a second Meter for another one, nested or later.")
        self._thread = threading.get_ident()
        self._stack = contextlib.ExitStack()
        self._warnings = []
        watch = StorageWatch(self.device, self._block_bytes)
        self._seed(watch)
        self._allocator_peaks: dict[str, int] = {}
        if self.counters is not None:
            watch.on_phase = self._read_allocator
            self._allocator_baseline = self.counters.current()
            self.counters.reset_peak()
        self._watch = watch
        self._hook(watch)
        if self._oracle is not None:
            self._stack.enter_context(self._oracle)
        self._stack.enter_context(watch)
        watch.started = time.perf_counter()
        watch.log.append((watch.started, 0, "start"))
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("A Meter must be left on the thread that entered it.")
        watch = self._watch
        watch.log.append((time.perf_counter(), watch.phase, "end"))
        self._stack.close()
        watch.enter_phase(0)  # settles what the last phase left alive
        watch.ended = True
        ended = f"{kind.__name__}: {error}" if kind is not None else None
        oracle, self._oracle = self._oracle, None
        self._finish = lambda: self._build(watch, oracle, ended)
        self._watch = self._model = self._optimizer = None  # a finished Meter keeps no tensor alive

    def _seed(self, watch: StorageWatch) -> None:
        if self._model is not None:
            for parameter in self._model.parameters():
                watch.seed(parameter, "parameters")
                if parameter.grad is not None:
                    watch.seed(parameter.grad, "gradients")
            for buffer in self._model.buffers():
                watch.seed(buffer, "buffers")
        if self._optimizer is not None:
            for parameter in (p for group in self._optimizer.param_groups for p in group["params"]):
                watch.seed(parameter, "parameters")
                if parameter.grad is not None:
                    watch.seed(parameter.grad, "gradients")
            _each_state_tensor(self._optimizer, lambda tensor: watch.seed(tensor, "optimizer state"))

    def _hook(self, watch: StorageWatch) -> None:
        """Few hooks, since each costs: they tag what a step leaves behind, and notice work on a thread we cannot see."""

        def before_step(optimizer, args, kwargs):
            if self._visible(watch, "optimizer.step"):
                _tag_gradients(watch, (p for group in optimizer.param_groups for p in group["params"]))
                watch.stepping = True

        def after_step(optimizer, args, kwargs):
            if watch.stepping:
                watch.stepping = False
                _each_state_tensor(optimizer, lambda tensor: watch.tag(tensor, "optimizer state"))
                watch.enter_phase(0)

        def before_forward(module, args):
            self._visible(watch, "forward")

        def in_backward(parameter):
            self._visible(watch, "backward")

        handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
        if self._model is not None:
            handles.append(self._model.register_forward_pre_hook(before_forward))
            trained = [p for p in self._model.parameters() if p.requires_grad and p.is_leaf]
            if trained:
                handles.append(trained[0].register_post_accumulate_grad_hook(in_backward))
        for handle in handles:
            self._stack.callback(handle.remove)

    def _visible(self, watch: StorageWatch, what: str) -> bool:
        if any(mode is watch for mode in _get_current_dispatch_mode_stack()):
            return True
        message = (
            f"{what} ran on a thread that this Meter does not see, so its tensors are not counted. "
            "Enter the Meter on the thread that does the work."
        )
        if message not in self._warnings:
            self._warnings.append(message)
            warnings.warn(message, MeterWarning, stacklevel=3)
        return False

    # -- results -------------------------------------------------------------------------------------------------------

    def _read_allocator(self, phase: int) -> None:
        name = PHASE_NAMES[phase]
        self._allocator_peaks[name] = max(self._allocator_peaks.get(name, 0), self.counters.peak())
        self.counters.reset_peak()

    def _build(self, watch: StorageWatch, oracle: AllocatorOracle | None, error: str | None) -> Trace:
        records = replay(watch)
        peak = max(record.live_bytes for record in records)
        fields = dict(device=str(self.device), source=LIVE_TENSOR_BYTES, baseline_bytes=records[0].live_bytes)
        if self.counters is not None:
            allocator_peak = max(self._allocator_peaks.values())
            fields.update(
                source=ALLOCATOR,
                baseline_bytes=self._allocator_baseline,
                allocator_peak_by_phase=self._allocator_peaks,
                hidden_bytes=allocator_peak - peak,
            )
            peak = allocator_peak
        if oracle is not None:
            fields["oracle_peak_bytes"] = records[0].live_bytes + oracle.peak_above_start()
        return Trace(peak_bytes=peak, records=records, error=error, warnings=tuple(self._warnings), **fields)


def replay(watch: StorageWatch) -> tuple:
    """The time line, from the log of a watch: one Record per operator, with what is now known about every storage."""
    first_size: dict = {}  # a storage's size when it was made: its last size, less how it grew
    for event in watch.log:
        if type(event) is Resize:
            first_size[id(event.held)] = first_size.get(id(event.held), event.held.nbytes) - event.grown
    totals, alive = dict.fromkeys(CATEGORIES, 0), {}
    for held in watch.before:
        alive[id(held)] = first_size.get(id(held), held.nbytes)
        totals[held.category] += alive[id(held)]
    peak, records = 0, []
    for event in watch.log:
        if type(event) is tuple:
            t, phase, func = event
            by_category = {category: nbytes for category, nbytes in totals.items() if nbytes}
            live = sum(by_category.values())
            peak = max(peak, live)
            op = func if isinstance(func, str) else str(getattr(func, "overloadpacket", func))
            records.append(Record(t - watch.started, PHASE_NAMES[phase], op, live, peak, by_category))
            continue
        held, change = event if type(event) is Resize else (event, 0)
        if change:
            alive[id(held)] += change
        elif id(held) in alive:
            change = -alive.pop(id(held))  # its second mention: it died
        else:
            change = alive[id(held)] = first_size.get(id(held), held.nbytes)
        totals[held.category or "temporary"] += change
    return tuple(records)


def _tag_gradients(watch: StorageWatch, parameters) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            watch.tag(parameter.grad, "gradients")


def _each_state_tensor(optimizer, visit) -> None:
    for state in optimizer.state.values():
        for value in state.values() if isinstance(state, dict) else ():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    visit(tensor)
