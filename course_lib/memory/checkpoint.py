"""Gradient checkpointing: keep the input of a region, not its activations, and run the region again in backward.

    y = checkpoint(block, x)            # y = block(x), but what block's backward needs is not kept

Autograd lets us decide what a saved tensor is stored as. In forward every saved tensor becomes an empty `Slot`. When
backward opens the first slot of a region, the region is run once more under a second pair of hooks, which put the tensors
that autograd saves this time, one by one, into the slots of the first run. Backward opens each slot and empties it.

The graph that the rerun builds is thrown away; gradients flow through the graph of the first run. That is why keyword
arguments, nested containers, inputs without gradient, autograd.grad, higher-order gradients and checkpoints inside
checkpoints need no code of their own here. The contract is that of torch.utils.checkpoint with use_reentrant=False; it is
stricter where a wrong gradient would go unnoticed. `outside`, `randomness`, `ambient` and `once` next door hold what a
rerun must find as it was.
"""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError as _TorchCheckpointError
from torch.utils.checkpoint import checkpoint as _torch_checkpoint

from .ambient import ambient, restored
from .fingerprint import CHECKS, OperatorLog, describe_difference, saved_where
from .once import SecondRun, has_norms, recomputing
from .outside import Outside, leaves_in, names_of, rebuilt, version_of
from .randomness import Draws, source_of

__all__ = [
    "CheckpointError",
    "checkpoint",
    "checkpoint_sequential",
    "recomputing",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
]


class CheckpointError(_TorchCheckpointError):
    """A region did not do the same again, so its gradients would be wrong. A RuntimeError, and a kind of torch's own."""


class _Enough(BaseException):
    """Ends a rerun: all is there. A BaseException, so that no `except Exception` of the region swallows it."""


class Slot:
    """Stands in the graph for one saved tensor. Dies when autograd lets go of it. `filled`: {backward call: tensor}."""

    __slots__ = ("filled", "__weakref__")

    def __init__(self):
        self.filled: dict = {}


_settings = {"early_stop": None, "debug": None}  # what the two context managers below have set; None: nothing


@contextlib.contextmanager
def _setting(name: str, value):
    before, _settings[name] = _settings[name], value
    try:
        yield
    finally:
        _settings[name] = before


def set_checkpoint_early_stop(enable: bool):
    """A context: regions whose *forward* runs inside it stop early or not, whatever their argument says."""
    return _setting("early_stop", enable)


def set_checkpoint_debug_enabled(enabled: bool | None):
    """A context: `debug` for all regions inside it; None leaves it to the argument."""
    return _setting("debug", enabled)


def noop_context_fn():
    """Two contexts that do nothing: one for forward, one for the recompute."""
    return contextlib.nullcontext(), contextlib.nullcontext()


_exec_group = getattr(torch._C, "_get_graph_exec_group", lambda: None)
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class Region:
    """One call of `checkpoint`: what the rerun needs, and the slots of the first run (weakly: the graph owns them)."""

    def __init__(self, function, names, args, kwargs, recompute_context, fingerprint, early_stop, draws, device_types, log):
        self.function, self.recompute_context, self.fingerprint = function, recompute_context, fingerprint
        self.early_stop, self.draws, self.device_types, self.log = early_stop, draws, device_types, log
        self.ambient = ambient(device_types)
        self.outside = Outside(function, args, kwargs, names)
        # Inside another checkpoint (or an offload) our inputs are saved tensors of that one: they rest where it lays them.
        hooks = _top_hooks(True)
        self.inputs = rebuilt((args, kwargs), (lambda tensor: _Packed(tensor, hooks)) if hooks else (lambda tensor: tensor))
        self.slots: list = []
        self.prints: list = []  # a fingerprint of each saved tensor
        self.reruns: dict = {}  # {backward call: how many tensors its rerun has saved}
        self.forward_done = self.backward_inside = self.saw_statistics = False

    # -- the first run -------------------------------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Slot:
        """Autograd saves a tensor: remember its kind, keep an empty slot."""
        slot = Slot()
        self.slots.append(weakref.ref(slot))
        self.prints.append(self.fingerprint(tensor))
        owner = tensor._base if tensor._is_view() else tensor
        if owner.is_leaf:
            if owner.requires_grad:  # a weight: the rerun must find it as it is
                self.outside.watch_weight(owner)
            elif tensor.dim() == 1:  # perhaps a BatchNorm's mean
                self.saw_statistics = True
        return slot

    def forward_ended(self) -> None:
        self.forward_done = True
        self.outside.forward_ended()
        if self.draws is not None:
            self.draws.keep_drawn()

    # -- backward ------------------------------------------------------------------------------------------------------

    def unpack(self, slot: Slot) -> torch.Tensor:
        """Backward wants a saved tensor: the first one of a backward call has the region run again."""
        call = _backward_call()
        if call not in self.reruns:
            try:
                self.run_again(call)
            except CheckpointError as error:
                raise self.log.explained(error) if self.log else error
        tensor, version = slot.filled.get(call, (None, None))
        if tensor is None:
            raise CheckpointError(
                "Unpack is being triggered for a tensor that was already unpacked once: a recomputed tensor is freed when "
                "backward has read it. Read ctx.saved_tensors once and keep the result."
                + (" Performing two backward calls that overlap is not allowed in one group." if _exec_group() else "")
            )
        slot.filled[call] = (None, None)
        if version_of(tensor) != version:
            raise CheckpointError(
                f"A tensor that backward needs (shape {tuple(tensor.shape)}) has been modified by an inplace operation of the "
                "region after it was saved. Use the operation that returns a new tensor."
            )
        return tensor

    def run_again(self, call) -> None:
        changed = self.outside.changes()
        if changed:
            raise CheckpointError(f"A checkpointed region cannot be run again as it was: {changed}")
        args, kwargs = rebuilt(self.inputs, _Packed.opened, leaf=_Packed)
        differing: list = []
        self.reruns[call] = 0
        try:
            norms = self.saw_statistics or has_norms(self.function)
            with SecondRun(norms) as second, contextlib.ExitStack() as around:
                if self.draws is not None and self.draws.states:
                    around.callback(Draws.forward, self.draws.rewind())
                if self.ambient != ambient(self.device_types):
                    around.enter_context(restored(self.ambient, self.device_types))
                around.enter_context(self.recompute_context)
                refill = self.refill(call, differing, second)
                with saved_tensors_hooks(refill, lambda tensor: tensor), torch.enable_grad():
                    self.function(*args, **kwargs)
        except _Enough:
            pass
        except BaseException as error:
            del self.reruns[call]  # a second try begins anew
            if isinstance(error, Exception) and not isinstance(error, CheckpointError):
                error.add_note("Raised while a checkpointed region was run again in backward; its forward had gone well.")
            raise
        self.compare(call, differing)

    def refill(self, call, differing: list, second: SecondRun):
        """The pack hook of a rerun: the i-th tensor that autograd saves goes into the i-th slot."""

        def pack(tensor):
            tensor = tensor.detach() if tensor.requires_grad else tensor  # else it would keep the rerun's graph alive
            i = self.reruns[call]
            self.reruns[call] = i + 1
            if i >= len(self.slots):
                if not self.forward_done:  # a backward inside the region, early stop off: forward is not there yet
                    self.backward_inside = True
                    return tensor
                raise CheckpointError(
                    "The region was trying to save more tensors during recomputation than during the original forward pass. "
                    "Its operations depend on something that has changed: a mode (train, eval), a flag, a cache."
                )
            slot = self.slots[i]()
            if slot is not None:  # it may be gone: then a part of the graph was freed before, and nobody asks any more
                slot.filled[call] = (tensor, version_of(tensor))
                if self.prints[i] != (now := self.fingerprint(tensor)) and not (
                    second.moves(tensor) and self.prints[i][:3] == now[:3]
                ):
                    differing.append((i, self.prints[i], now, saved_where()))
            if self.early_stop and i + 1 == len(self.slots):
                raise _Enough
            return tensor  # not a slot: somebody may call backward on the rerun's own graph

        return pack

    def compare(self, call, differing: list) -> None:
        """Did the rerun save what the first run saved? Raises CheckpointError if not."""
        if self.backward_inside:
            return
        if self.reruns[call] != len(self.slots):
            raise CheckpointError(
                "A different number of tensors was saved during the original forward and recomputation: "
                f"{len(self.slots)} then, {self.reruns[call]} now. The region took another path: look for a mode (train, "
                "eval), a flag, a cache or a random choice that is not the same any more."
            )
        if differing:
            raise CheckpointError(describe_difference(differing, len(self.slots)))


class _Packed:
    """An input of a region, stored by somebody else's hooks."""

    __slots__ = ("value", "requires_grad", "unpack")

    def __init__(self, tensor, hooks):
        (pack, self.unpack), self.requires_grad = hooks, tensor.requires_grad
        with torch.no_grad():
            self.value = pack(tensor)

    def opened(self):
        tensor = self.unpack(self.value)
        return tensor.detach().requires_grad_() if self.requires_grad and not tensor.requires_grad else tensor


def _backward_call():
    """Which backward is asking. Outside of any, each question counts as one of its own."""
    group = _exec_group()
    if group is not None:
        return group
    task = torch._C._current_graph_task_id()
    return task if task != -1 else object()


def checkpoint(
    function,
    *args,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn=noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs,
):
    """Call `function(*args, **kwargs)` without keeping its activations; backward runs it again to get them.

    function: any callable; whatever it returns is returned. Tensors may sit in lists, tuples, dicts and keyword arguments.
    preserve_rng_state: the rerun draws the same random numbers (PyTorch, Python, NumPy); states are kept only for
        generators that the region drew from.
    context_fn: returns two contexts, for forward and for the rerun. `selective.keep_outputs_of` makes such a function.
    determinism_check: "default" compares shape, dtype and device of each saved tensor with those of forward; "values"
        compares the bits, too, and names the first tensor that differs; "none" compares nothing.
    debug: put the operators of both runs into the error.
    early_stop: end the rerun at the last saved tensor, before the operator that saves it is run.
    use_reentrant: None and False mean this function. True hands the call to torch's older variant.

    Memory: the inputs of the region (bytes of its tensors) stay until its backward is done; its activations live during
    forward, and again from the rerun until backward has read them. Time: one more forward, less the last operator.

    Raises CheckpointError in backward when the rerun cannot be, or was not, what forward was: an argument or a tensor
    that the function reaches by name was changed in place, a name stands for another object, another number of tensors or
    other kinds of tensors were saved. Raises ValueError for an unknown determinism_check, and for debug with a context_fn.
    """
    if use_reentrant or torch.compiler.is_compiling():  # the compiler knows torch's function, and makes its own plan
        passed = dict(preserve_rng_state=preserve_rng_state)
        if not use_reentrant:
            check = "default" if determinism_check == "values" else determinism_check  # compiled code knows no values
            passed.update(determinism_check=check, debug=debug, early_stop=early_stop)
        if context_fn is not noop_context_fn:
            passed.update(context_fn=context_fn)
        return _torch_checkpoint(function, *args, use_reentrant=bool(use_reentrant), **passed, **kwargs)
    if not callable(function):
        raise TypeError(f"checkpoint needs a function or a module to call, not {type(function).__name__}.")
    if determinism_check not in CHECKS:
        raise ValueError(f"determinism_check should be one of {list(CHECKS)}, but got {determinism_check!r}.")
    debug = debug if _settings["debug"] is None else _settings["debug"]
    if debug and context_fn is not noop_context_fn:
        raise ValueError("debug=True is incompatible with non-default context_fn: the log is a context of its own.")
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    log = OperatorLog() if debug else None
    forward_context, recompute_context = log.contexts() if log else context_fn()
    given = leaves_in((args, kwargs))
    devices = {leaf.device for leaf in given if isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta")}
    cuda_before = torch.cuda.is_initialized()
    if cuda_before:
        devices.add(torch.device("cuda", torch.cuda.current_device()))
    names = names_of(function)
    draws = Draws(devices, filter(None, map(source_of, (*given, *names.values())))) if preserve_rng_state else None
    del given  # this frame must not keep the inputs of a region inside a region alive
    region = Region(
        function,
        names,
        args,
        kwargs,
        recompute_context=recompute_context,
        fingerprint=CHECKS[determinism_check],
        early_stop=early_stop if _settings["early_stop"] is None else _settings["early_stop"],
        draws=draws,
        device_types=("cpu", *sorted({device.type for device in devices})),
        log=log,
    )
    done = False
    with saved_tensors_hooks(region.pack, region.unpack), forward_context:
        out = function(*args, **kwargs)
        done = True
    if not done:
        raise RuntimeError("The forward context of context_fn suppressed an exception, so there is no result to return.")
    if preserve_rng_state and torch.cuda.is_initialized() and not cuda_before:
        raise RuntimeError("CUDA was first used inside a checkpointed region, so its random state is unknown. Use it before.")
    region.forward_ended()
    return out


def checkpoint_sequential(functions, segments: int, input, use_reentrant: bool | None = None, **kwargs):
    """Run `functions` one after the other in `segments` stretches; all stretches but the last are checkpointed.

    functions: an nn.Sequential or a list of modules or functions of one argument each. The stretches differ by at most one
    in length, the longer ones first: the last one keeps its activations while all other inputs are alive. One segment
    means no checkpointing. Keyword arguments are those of `checkpoint`. Raises ValueError unless 1 <= segments <= number
    of functions.
    """
    layers = list(functions.children()) if isinstance(functions, torch.nn.Sequential) else list(functions)
    if isinstance(segments, bool) or not isinstance(segments, int):
        raise TypeError(f"segments is a whole number, not {type(segments).__name__}.")
    if not layers:
        raise ValueError("checkpoint_sequential got no functions: there is nothing to run.")
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be from 1 to {len(layers)}, the number of functions; got {segments}.")
    unknown = set(kwargs) - {"preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
    if unknown:
        raise ValueError(f"Unexpected keyword arguments: {', '.join(sorted(unknown))}")
    size, longer = divmod(len(layers), segments)
    ends = [size * (i + 1) + min(i + 1, longer) for i in range(segments)]
    start = 0
    for end in ends[:-1]:
        input = checkpoint(_stretch(layers[start:end]), input, use_reentrant=use_reentrant, **kwargs)
        start = end
    return _stretch(layers[start:])(input)


def _stretch(layers: list):
    def forward(input):
        for layer in layers:
            input = layer(input)
        return input

    return forward
