"""What a region of code depends on besides its own operations: its arguments, and what its function reaches by name.

A recompute is right only if it meets the same things again. So we note the version counter of every tensor that goes in
(PyTorch raises it at each in-place change), and which object each name of the function stood for. A loop variable in a
lambda, for example, stands for the last layer by the time the lambda is run again.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import types
import weakref

import torch

from .randomness import source_of


DEEP = 12  # containers inside containers: a structure that holds itself ends here


def tensors_in(value, depth: int = DEEP) -> list:
    """Every tensor inside a value: lists, tuples, dicts and dataclasses are looked into."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return []
    return [tensor for part in parts for tensor in tensors_in(part, depth - 1)] if depth else []


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place. Tensors of inference mode do not count; they cannot be saved either."""
    return 0 if tensor.is_inference() else tensor._version


def rebuilt(value, change, leaf=torch.Tensor, depth: int = DEEP):
    """The same structure with `change(part)` in place of every `leaf` in lists, tuples and dicts.

    The containers are new ones: what is later appended to the caller's list does not show in them.
    """
    kind = type(value)
    if isinstance(value, leaf):
        return change(value)
    if not depth:
        return value
    if kind is list or kind is tuple:
        return kind([rebuilt(part, change, leaf, depth - 1) for part in value])
    if kind is dict:
        return {key: rebuilt(part, change, leaf, depth - 1) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(rebuilt(part, change, leaf, depth - 1) for part in value))
    return value


@functools.lru_cache(maxsize=4096)
def _globals_read(code: types.CodeType) -> tuple:
    """Names that a function reads from its module. In a notebook those are the variables of other cells."""
    return tuple(sorted({i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}))


def names_of(function) -> dict:
    """{name: the object behind it} for tensors, modules, generators and containers of tensors that a function reaches.

    Looked at are closures, globals that its code reads, defaults, and what functools.partial has bound. Not looked at is
    the code of the functions that it calls.
    """
    found: dict = {}
    while isinstance(function, functools.partial):
        for i, value in enumerate(function.args):
            _note(found, f"argument {i} of the partial", value)
        for name, value in function.keywords.items():
            _note(found, name, value)
        function = function.func
    function = getattr(function, "__func__", function)  # a method's function
    code = getattr(function, "__code__", None)
    if code is None:
        return found
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            _note(found, name, cell.cell_contents)
        except ValueError:  # a name without a value yet
            continue
    known = function.__globals__
    for name in _globals_read(code):
        if name in known:
            _note(found, name, known[name])
    for value in function.__defaults__ or ():
        _note(found, "a default value", value)
    return found


def _note(found: dict, name: str, value) -> None:
    if isinstance(value, (torch.Tensor, torch.nn.Module, torch.Generator)) or source_of(value) is not None:
        found[name] = value
    elif type(value) in (list, tuple, dict) and len(value) < 64 and tensors_in(value):
        found[name] = value


class Outside:
    """The versions of all tensors that go into a region, and what its names stand for. `changes()` says what moved."""

    __slots__ = ("function", "arguments", "names", "versions")

    def __init__(self, function, args, kwargs, names: dict):
        self.function, self.names, self.versions = function, names, []
        # Weakly: an input that an outer region recomputes must not be kept alive by the inner one.
        self.arguments = []
        for place, values in enumerate(args):
            self._watch(place, values)
        for place, values in kwargs.items():
            self._watch(place, values)

    def _watch(self, place, values) -> None:
        for tensor in (values,) if isinstance(values, torch.Tensor) else tensors_in(values):
            self.arguments.append((weakref.ref(tensor), version_of(tensor), place))

    def watch_weight(self, weight: torch.Tensor) -> None:
        """A leaf that autograd saved. An optimizer's step between forward and backward would change it."""
        self.versions.append((weakref.ref(weight), version_of(weight), None))

    def forward_ended(self) -> None:
        """What the region itself moved (a counter, a running sum) is not held against it: its own doing is repeated."""
        if not self.names:
            return
        after = names_of(self.function)
        self.names = {name: value for name, value in self.names.items() if after.get(name) is value}
        for name, value in self.names.items():
            for tensor in tensors_in(value):
                self.versions.append((weakref.ref(tensor), version_of(tensor), name))

    def changes(self) -> str | None:
        """One sentence about the first thing that is not as it was, or None."""
        for place, (ref, version, name) in enumerate((*self.arguments, *self.versions)):
            tensor = ref()
            if tensor is not None and version_of(tensor) != version:
                what = "a weight" if name is None else f"{name!r}, which the function reads from outside,"
                what = f"argument {name!r}" if place < len(self.arguments) else what
                return (
                    f"{what} (shape {tuple(tensor.shape)}) has been modified by an inplace operation: it was at version "
                    f"{version} and is at {tensor._version} now. Change a copy, or call backward first."
                )
        if self.names:
            now = names_of(self.function)
            for name, value in self.names.items():
                if now.get(name) is not value and isinstance(value, (torch.nn.Module, torch.Tensor)):
                    return (
                        f"the name {name!r} stood for another object in forward, and the function looks it up again. Pass the "
                        f"{type(value).__name__} as an argument, or bind it (functools.partial, a default value)."
                    )
        return None
