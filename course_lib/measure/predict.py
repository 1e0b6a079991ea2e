"""The Trace of a training step that never runs: the same code, the same Meter, but tensors without data.

    trace = predict(step)                              # step() builds model, optimizer and data, and trains
    trace = predict(step, model=model, optimizer=opt)  # step(model, optimizer): your own, of which fake twins are used
    trace = predict(step, target="cuda")               # by the rules of a CUDA device (see `rules`)

PyTorch's FakeTensorMode computes shapes, dtypes and storages, and no numbers. So a step that needs terabytes can be
predicted on a laptop, and one that fits is predicted to the byte: the tests compare both under the same Meter.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
)
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode

from .meter import Meter
from .rules import ALLOCATOR_BLOCK, cuda_rules
from .trace import PREDICTED, Trace

TARGETS = ("cpu", "cuda")


class PredictError(RuntimeError):
    """The step cannot be predicted; the message says what to change."""


def predict(step, *, model=None, optimizer=None, target: str = "cpu") -> Trace:
    """The Trace that `step` would have, without allocating anything.

    step: a callable without arguments that makes everything it uses and trains; or one that returns (model, optimizer, run),
        where run() trains a step; or an object with a method build() that returns these three. With `model`, step takes
        (model) or (model, optimizer): fake twins of yours, which stay as they are.
    target: "cpu", or "cuda" for the rules of `rules.py`.

    Times in the trace mean nothing. Not to the byte: an LSTM on a CPU (oneDNN returns a workspace that fake tensors do not
    have), EmbeddingBag, sparse gradients. Raises PredictError for a step that looks at numbers (`.item()`, `if loss > 1:`, boolean
    masks), that mixes in tensors made outside, that trains nothing, or that raises; ValueError for an unknown target.
    """
    if target not in TARGETS:
        raise ValueError(f"The target is one of {', '.join(TARGETS)}, not {target!r}.")
    build = getattr(step, "build", step)
    if not callable(build):
        raise TypeError(f"predict needs a function that trains a step, or an object with build(), not {type(step).__name__}.")
    rounding = ALLOCATOR_BLOCK if target == "cuda" else None
    counters = _counters(optimizer)
    rules = cuda_rules if target == "cuda" else contextlib.nullcontext
    with without_data() as fake, rules():
        fake.__deepcopy__ = lambda memo: fake  # a copied model (an EMA's) stays in the same world
        if model is not None:
            model, optimizer = twins(fake, model, optimizer, counters)
            arguments = (model,) if optimizer is None else (model, optimizer)
            trace = _metered(lambda: build(*arguments), model, optimizer, rounding)
        else:
            trace, made = _metered_parts(build, rounding)
            if made is not None:
                trace = _metered(made[2], made[0], made[1], rounding)
    if not any(record.phase == "backward" for record in trace.records):
        raise PredictError("The step never ran backward, so there is no training to predict. Does it call loss.backward()?")
    return dataclasses.replace(trace, source=PREDICTED, device=target)


@contextlib.contextmanager
def without_data():
    """Tensors made in here have shapes and storages and no numbers. Gives the FakeTensorMode; errors come as PredictError."""
    # allow_fallback_kernels: an operator without a shape function is never run on real zeros of the same size
    with (
        FakeTensorMode(allow_fallback_kernels=False) as fake,
        _AsKernelsDo(),
        _explained(),
        _quiet(),
        _movable(),
        torch.random.fork_rng([]),
    ):
        yield fake


class _AsKernelsDo(TorchDispatchMode):
    """Where PyTorch's shape functions and its CPU kernels disagree, the kernels are right.

    Norms of a bf16 input: the kernels save mean and deviation in the dtype of the weights (or of the running statistics).
    And a fake tensor on a device that this PyTorch was not built for would end the process: it is never made.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if kwargs and kwargs.get("device") is not None and torch.device(kwargs["device"]).type not in ("cpu", "meta"):
            raise PredictError(
                f"The step asks for the device {kwargs['device']}. A prediction runs on none: leave the device out of the function, "
                "and pass target='cuda' for the rules of a GPU."
            )
        out = func(*args, **(kwargs or {}))
        if func in _NORMS:
            kept = next((t.dtype for t in args[1:5] if isinstance(t, torch.Tensor)), out[1].dtype)
            if kept != out[1].dtype:
                return (out[0], *(statistic.to(kept) for statistic in out[1:3]), *out[3:])
        return out


_NORMS = {
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_group_norm.default,
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
}


def _counters(optimizer) -> dict:
    """{id: number} of the step counters in an optimizer's state: the only numbers that a step of it reads."""
    states = optimizer.state.values() if optimizer is not None else ()
    values = [value for state in states for value in state.values()]
    return {id(v): v.item() for v in values if isinstance(v, torch.Tensor) and v.numel() == 1 and v.device.type == "cpu"}


def twins(fake: FakeTensorMode, model, optimizer, counters: dict):
    """Copies of model and optimizer whose tensors have no data. Weights that are shared stay shared; .grad and state come too."""
    memo: dict = {}

    def twin(tensor):
        if id(tensor) not in memo:
            memo[id(tensor)] = fake.from_tensor(tensor)
            if tensor.is_leaf and tensor.grad is not None:
                memo[id(tensor)].grad = fake.from_tensor(tensor.grad)

    for module in model.modules():
        for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
            if isinstance(value, torch.Tensor):
                twin(value)
    for state in optimizer.state.values() if optimizer is not None else ():
        for value in state.values():
            if id(value) in counters:
                memo[id(value)] = torch.tensor(counters[id(value)], dtype=value.dtype)  # a constant: its number is known
            elif isinstance(value, torch.Tensor):
                twin(value)
    return copy.deepcopy((model, optimizer), memo)


def _metered(run, model, optimizer, rounding) -> Trace:
    with Meter(model, optimizer, device="cpu", block_bytes=rounding) as meter, _named_by_modules(meter):
        run()
    return meter.trace


def _metered_parts(build, rounding):
    """The trace of build(), and the (model, optimizer, run) that it returned, if it did."""
    with Meter(device="cpu", block_bytes=rounding) as meter, _named_by_modules(meter):
        made = build()
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], torch.nn.Module) and callable(made[2]):
        return meter.trace, made
    return meter.trace, None


@contextlib.contextmanager
def _named_by_modules(meter: Meter):
    """Tensors that become parameters or buffers of a module made inside the block are counted as such."""
    watch = meter._watch

    def parameter(module, name, value):
        if value is not None:
            watch.tag(value, "parameters")

    def buffer(module, name, value):
        if value is not None:
            watch.tag(value, "buffers")

    hooks = register_module_parameter_registration_hook(parameter), register_module_buffer_registration_hook(buffer)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _explained():
    """Errors of fake tensors, in one sentence each."""
    try:
        yield
    except PredictError:
        raise
    except DataDependentOutputException as error:
        raise PredictError(
            f"The step looks at the numbers in a tensor ({error.func}): in a prediction there are none. Leave out .item(), float(), "
            "print and `if` on tensors, or keep them out of the function that you predict."
        ) from error
    except DynamicOutputShapeException as error:
        raise PredictError(
            f"The shape of a result depends on the numbers ({error.func}): boolean masks, nonzero and unique cannot be predicted. "
            "Predict with a shape of your choice instead."
        ) from error
    except UnsupportedFakeTensorException as error:
        raise PredictError(f"The step uses something that has no shape function: {error}") from error
    except Exception as error:
        text = str(error)
        if "convert all Tensors to FakeTensors" in text or "non_fake_inputs" in text:
            raise PredictError(
                "The step uses a tensor that was made outside of it. Make model and data inside the function, or pass your model "
                "as predict(step, model=model, optimizer=optimizer)."
            ) from error
        if "not linked with support for" in text or "not compiled with CUDA" in text:
            raise PredictError("The step asks for a GPU. Leave the device out, and pass target='cuda' for its rules.") from error
        if isinstance(error, RuntimeError) and "numpy" in text.lower():
            raise PredictError("The step turns a tensor into NumPy: in a prediction there are no numbers. Leave it out.") from error
        raise PredictError(f"The step raised {type(error).__name__}: {text.splitlines()[0] if text else ''}") from error


@contextlib.contextmanager
def _movable():
    """`model.double()`, `.to(...)`: a module swaps fake parameters, which fails, where it gives real ones new data."""
    swap = torch.utils.swap_tensors

    def give_data(old, new):
        if isinstance(old, FakeTensor):
            old.data = new.data
        else:
            swap(old, new)

    torch.utils.swap_tensors = give_data
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


@contextlib.contextmanager
def _quiet():
    """Fake tensors log every error with its traceback; ours says it in one sentence."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def is_fake(tensor) -> bool:
    """True for a tensor without data: a step can leave out its logging then."""
    return isinstance(tensor, FakeTensor)
