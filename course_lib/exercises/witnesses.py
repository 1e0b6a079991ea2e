"""Four witnesses for a checkpoint: outputs, every gradient, memory, and how often the segment ran.

`testify(run, kind)` runs a scene (scenes05.py) through a learner's checkpoint, and once without one. What
both left behind is compared in `cross_examine`, which raises the Fault that explains most.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.utils.checkpoint

from course_lib.experiments.gradients import compared, joined
from course_lib.measure import Meter
from course_lib.sandbox.explain import explain
from course_lib.sandbox.stop import TimeUp

from .faults import Fault, NotStarted
from .scenes05 import Scene
from .want import want_tensor, want_true

SLACK = 6000  # bytes: room for a random state or a flag, less than half an intermediate


@dataclass
class Seen:
    """What one run of a scene left behind."""

    scene: Scene
    outputs: list = field(default_factory=list)  # what each checkpoint returned
    alive: int = 0  # bytes after the forward pass, above the start
    names: list = field(default_factory=list)  # intermediates alive after the forward pass
    alive_after: int = 0  # bytes after the backward pass
    names_after: list = field(default_factory=list)
    stream: tuple = ()  # the random state after forward and after backward
    gradients: dict = field(default_factory=dict)
    error: BaseException | None = None  # what the backward pass raised

    def calls(self, phase):
        """{label: its calls in this phase}."""
        found = {}
        for call in self.scene.probe.calls:
            if call.phase == phase:
                found.setdefault(call.label, []).append(call)
        return found


def eager(function, *args, **kwargs):
    """No checkpoint at all."""
    return function(*args, **kwargs)


@cache
def expected(kind) -> tuple[Seen, int]:
    """The run of a scene without checkpoint, and the least bytes that can be alive after its forward pass."""
    right = observe(kind(), eager, collect=False)
    trained = any(tensor.requires_grad for output in right.outputs for tensor in tensors_in(output))

    def forgetful(function, *args, **kwargs):
        with torch.no_grad():
            output = function(*args, **kwargs)
        for tensor in tensors_in(output) if trained else ():
            tensor.requires_grad_()
        return output

    return right, observe(kind(), forgetful, backward=False, collect=False).alive


@cache
def with_gradient_one(kind) -> dict:
    """The gradients of a scene if the gradient that comes back into each segment were all ones."""

    def blind(function, *args, **kwargs):
        output = function(*args, **kwargs)
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(torch.ones_like)
        return output

    return observe(kind(), blind, collect=False).gradients


def testify(run, kind, *, stops_early: bool = False) -> Seen:
    """Run a scene through `run(function, *inputs, **keywords)` and raise the Fault that fits, if one does."""
    right, least = expected(kind)
    seen = observe(kind(), same_kind_of_output(run, right))
    cross_examine(seen, right, least, run, stops_early)
    return seen


def observe(scene: Scene, checkpoint, backward: bool = True, collect: bool = True) -> Seen:
    """Run a scene and note what happens. collect: let Python collect cycles before something counts as "
    "left."""
    seen, probe = Seen(scene), scene.probe

    def noted(function, *args, **kwargs):
        seen.outputs.append(checkpoint(function, *args, **kwargs))
        return seen.outputs[-1]

    noted.bare = getattr(checkpoint, "bare", checkpoint)
    torch.manual_seed(3)
    with Meter(device="cpu") as meter:
        start = meter.live_bytes
        with scene.around():
            loss = scene.forward(noted)
        seen.alive, seen.names = _settled(meter, probe, start, collect)
        streams, probe.phase = [torch.get_rng_state()], "backward"
        if backward and loss.requires_grad:
            try:
                with scene.behind():
                    scene.backward(loss)
            except (Fault, NotStarted, TimeUp, KeyboardInterrupt):
                raise
            except BaseException as error:
                seen.error = error
        seen.alive_after, seen.names_after = _settled(meter, probe, start, collect)
        seen.stream = (*streams, torch.get_rng_state())
    seen.gradients = {name: leaf.grad for name, leaf in scene.leaves.items() if leaf.requires_grad}
    return seen


def _settled(meter, probe, start, collect):
    """(bytes, names) alive now. Cycles are collected first, but only where something seems to be left: it "
    "is slow."""
    if collect and probe.alive():
        gc.collect()
    return meter.live_bytes - start, probe.alive()


def same_kind_of_output(run, right):
    """`run`, with each output held against the one it should be, before the model goes on with it."""
    number, hooks = -1, _hooks()

    def checked(function, *args, **kwargs):
        nonlocal number
        number += 1
        got = run(function, *args, **kwargs)
        want_true(_hooks() is hooks, "hooks left on", "Your saved-tensor hooks are still switched on after "
                  "the forward pass, so that they catch what *later* code saves. Use `with "
                  "saved_tensors_hooks(...):` around the segment alone.")  # fmt: skip
        if number < len(right.outputs):
            _want_like(got, right.outputs[number], "What your checkpoint returns")
        return got

    # without the guard: an exception may have to pass through an inner checkpoint
    checked.bare = getattr(run, "_function", run)
    return checked


def _hooks():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _want_like(got, needed, what):
    if isinstance(needed, torch.Tensor):
        want_tensor(got, what, shape=needed.shape, dtype=needed.dtype)
    elif isinstance(needed, (dict, list, tuple)):
        want_true(type(got) is type(needed) and len(got) == len(needed), "wrong output", f"{what} should be "
                  f"what the segment returns, a {type(needed).__name__} of {len(needed)}.")  # fmt: skip
        keys = needed if isinstance(needed, dict) else range(len(needed))
        want_true(all(k in got for k in keys) if isinstance(needed, dict) else True, "wrong output",
                  f"{what} lacks a key that the segment's dict has.")  # fmt: skip
        for key in keys:
            _want_like(got[key], needed[key], f"{what}, at [{key!r}],")
    else:
        want_true(got is needed or got == needed, "wrong output", f"{what} should be {needed!r}, as it came "
                  "from the segment.")  # fmt: skip


def tensors_in(thing) -> list:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def cross_examine(seen: Seen, right: Seen, least: int, run, stops_early: bool = False) -> None:
    """Raise the Fault that explains best what is wrong, if anything is."""
    from . import verdicts05 as rules

    scene = seen.scene
    case = rules.Case(seen, right, least, f"With {scene.words},", stops_early)
    for rule in rules.RULES:
        rule(case)
    if seen.error is not None:
        raise_own(seen.error, run, case.told)


def raise_own(error, run, told):
    """The Fault for an exception out of a backward pass, with the learner's own line where there is one."""
    answer = getattr(run, "answer", run)
    function, name = getattr(answer, "_function", answer), getattr(answer, "name", "your checkpoint")
    fault = explain(error, function, name, ((None,), {}))
    raise Fault("raised", f"{told} the backward pass fails. {fault.message}") from None


# -- gradients in numbers ----------------------------------------------------------------------------------


def close(got, needed, rel) -> bool:
    """Two tensors that agree relative to the largest entry of the right one."""
    if got.shape != needed.shape:
        return False
    scale = float(needed.detach().abs().max()) or 1.0
    return bool(((got.detach() - needed.detach()).abs() <= rel * scale).all())


def apart(got: dict, needed: dict) -> str:
    """How all gradients together differ, in words."""
    names = [name for name in needed if got.get(name) is not None and needed[name] is not None]
    off = compared(joined(got[name] for name in names), joined(needed[name] for name in names))
    return f"all together they have {off.ratio:.3f} times the right length and cosine {off.cosine:.3f}"


# -- built by torch ----------------------------------------------------------------------------------------


class _Used(list):
    def __init__(self):
        super().__init__()
        self.functions = set()


@contextmanager
def watch_for_ready_made():
    """A list that fills with the names of ready-made checkpoints that are called in the block."""
    files = {torch.utils.checkpoint.__file__: "torch.utils.checkpoint"}
    for name, module in list(sys.modules.items()):
        if name.startswith("course_lib.memory.") and getattr(module, "__file__", None):
            files[module.__file__] = name
    used, before = _Used(), sys.getprofile()

    def look(frame, event, argument):
        if event == "call" and frame.f_code.co_filename in files:
            used.append(files[frame.f_code.co_filename])
            used.functions.add(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        yield used
    finally:
        sys.setprofile(before)


def want_own_work(run, kind) -> None:
    """Raise a Fault if the answer only calls a ready-made checkpoint. The scene is run once more for that."""
    with watch_for_ready_made() as used:
        try:
            observe(kind(), run)
        except Fault:
            used.clear()
            raise
    if used:
        raise Fault("built by torch", f"This works, but it is `{used[0]}` that does it. Here you build it "
                    "yourself; further down yours runs beside the ready-made ones.")  # fmt: skip
