"""Stand in front of the torch functions that a training loop calls, as long as it runs, and tell the watch.

torch has hooks for a module's forward and an optimizer's step. For the rest (backward, clearing, clipping, loss
scaler, scheduler, averaged weights, collectives) the function itself is replaced for the time of a run.
"""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


def stand_in(watch, later) -> None:
    """Replace the functions, and tell `later` how to put each back. `watch` gets `around(kind, **info)` and `note(...)`."""
    for owner, name, make in _places():
        before = vars(owner)[name] if name in vars(owner) else None
        later(functools.partial(_put_back, owner, name, before))
        setattr(owner, name, make(watch, getattr(owner, name)))
    names, held = watch.user_globals, {}
    for name, value in list(names.items()):
        # `from torch.nn.utils import clip_grad_norm_` in the user's file holds the function itself
        if getattr(value, "__name__", None) in CLIPS and callable(value):
            held[name] = value
            names[name] = _clip(watch, value)
    later(functools.partial(names.update, held))


def _put_back(owner, name, before):
    if before is not None:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def _places():
    yield torch.autograd, "backward", _backward
    yield torch.autograd, "grad", _taken
    yield torch.optim.Optimizer, "zero_grad", _clear
    yield nn.Module, "zero_grad", _clear
    for owner in (nn.utils, nn.utils.clip_grad):
        for name in CLIPS:
            if hasattr(owner, name):
                yield owner, name, _clip
    scaler = torch.amp.GradScaler
    yield scaler, "scale", _scale
    yield scaler, "unscale_", _unscale
    yield scaler, "step", _scaler_step
    yield scaler, "update", _scaler_update
    yield AveragedModel, "update_parameters", _ema
    for kind in _all_subclasses(LRScheduler):
        if "step" in vars(kind):
            yield kind, "step", _scheduler


def _all_subclasses(kind) -> list:
    found = [kind]
    for child in kind.__subclasses__():
        found += [c for c in _all_subclasses(child) if c not in found]
    return found


def _wrapped(make):
    """A maker of stand-ins that only tells of the watched thread, and of calls that are not part of another one."""

    def maker(watch, original):
        @functools.wraps(original)
        def stand(*args, **kwargs):
            if not watch.listens():
                return original(*args, **kwargs)
            return make(watch, original, args, kwargs)

        return stand

    return maker


@_wrapped
def _backward(watch, original, args, kwargs):
    loss = args[0] if args else kwargs.get("tensors")
    weight = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    hooked = any(getattr(p, "_backward_hooks", None) for p in watch.parameters)
    with watch.around("backward", factor=factor_of(loss, weight), loss=_value(loss), hooked=hooked):
        return original(*args, **kwargs)


def factor_of(loss, weight=None) -> float | None:
    """The constant between a loss and the mean that it is made of: 1/4 for `mse_loss(...) / 4`.

    A summed loss counts as its mean times the number of its terms. `weight`: what was given to backward() for it.
    """
    node, factor = getattr(loss, "grad_fn", None), 1.0
    if isinstance(weight, torch.Tensor) and weight.numel() == 1:
        factor = float(weight)
    while node is not None and node.name() in ("DivBackward0", "MulBackward0"):
        below = [child for child, _ in node.next_functions if child is not None]
        other = getattr(node, "_saved_other", None)
        if other is None and node.name() == "MulBackward0":
            other = getattr(node, "_saved_self", None)
        if len(below) != 1 or other is None:
            break
        try:
            other = float(other)
        except Exception:
            break
        if other == 0.0:
            break
        factor = factor / other if node.name() == "DivBackward0" else factor * other
        node = below[0]
    return factor * _terms(node)


def _terms(node) -> float:
    """How many terms a summed loss has; 1 for a mean, and for what cannot be told."""
    try:
        if node is None or getattr(node, "_saved_reduction", None) != 2:  # torch's number for "sum"
            return 1.0
        target = node._saved_target
        ignored = getattr(node, "_saved_ignore_index", None)
        return float(target.numel() if ignored is None else (target != ignored).sum())
    except Exception:
        return 1.0


def _value(loss):
    try:
        return float(loss.detach())
    except Exception:
        return None


@_wrapped
def _taken(watch, original, args, kwargs):
    inputs = args[1] if len(args) > 1 else kwargs.get("inputs", ())
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    result = original(args[0], inputs, *args[2:], **kwargs) if len(args) > 1 else original(
        *args, **{**kwargs, "inputs": inputs}
    )
    if any(id(tensor) in watch.identity for tensor in inputs):
        watch.catch_up()
        watch.note("taken")
    return result


@_wrapped
def _clear(watch, original, args, kwargs):
    with watch.around("clear", by="zero_grad"):
        return original(*args, **kwargs)


@_wrapped
def _clip(watch, original, args, kwargs):
    limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
    with watch.around("clip", limit=limit):
        return original(*args, **kwargs)


@_wrapped
def _scale(watch, original, args, kwargs):
    result = original(*args, **kwargs)
    watch.note("scale", scale=_scale_of(args[0]))
    return result


@_wrapped
def _unscale(watch, original, args, kwargs):
    with watch.around("unscale", scale=_scale_of(args[0]), inside=watch.in_scaler_step, optimizer=_second(args, kwargs)):
        return original(*args, **kwargs)


@_wrapped
def _scaler_step(watch, original, args, kwargs):
    steps = len(watch.log.of("step"))
    watch.in_scaler_step = True
    try:
        result = original(*args, **kwargs)
    finally:
        watch.in_scaler_step = False
    watch.catch_up()
    watch.note("scaler step", stepped=len(watch.log.of("step")) > steps, optimizer=_second(args, kwargs))
    return result


@_wrapped
def _scaler_update(watch, original, args, kwargs):
    watch.note("scaler update", scale=_scale_of(args[0]))
    return original(*args, **kwargs)


@_wrapped
def _ema(watch, original, args, kwargs):
    watch.note("ema")
    return original(*args, **kwargs)


@_wrapped
def _scheduler(watch, original, args, kwargs):
    born = hasattr(args[0], "_last_lr")  # a scheduler makes a first step of its own when it is built
    depth, watch.in_scheduler = watch.in_scheduler, True
    try:
        result = original(*args, **kwargs)
    finally:
        watch.in_scheduler = depth
    if born and not depth:
        watch.note("scheduler", scheduler=id(args[0]), lr=[group.get("lr") for group in args[0].optimizer.param_groups])
    return result


def _second(args, kwargs):
    return id(args[1] if len(args) > 1 else kwargs.get("optimizer"))


def _scale_of(scaler):
    try:
        return float(scaler.get_scale())
    except Exception:
        return None
