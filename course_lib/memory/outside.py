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


def leaves_in(value) -> list:
    """Everything inside a value that is no container: lists, tuples, dicts and dataclasses are looked into, each once."""
    found, seen, todo = [], set(), [value]
    while todo:
        value = todo.pop()
        if isinstance(value, (list, tuple)):
            parts = value
        elif isinstance(value, dict):
            parts = value.values()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        else:
            found.append(value)
            continue
        if id(value) not in seen:
            seen.add(id(value))
            todo.extend(parts)
    return found


def tensors_in(value) -> list:
    """Every tensor inside a value."""
    return [leaf for leaf in leaves_in(value) if isinstance(leaf, torch.Tensor)]


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place. Tensors of inference mode do not count; they cannot be saved either."""
    return 0 if tensor.is_inference() else tensor._version


def rebuilt(value, change, leaf=torch.Tensor, made=None):
    """The same structure with `change(part)` in place of every `leaf` in lists, tuples and dicts.

    The containers are new ones: what is later appended to the caller's list does not show in them. What was one object in
    several places is one object again.
    """
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    kind = type(value)
    if isinstance(value, leaf):
        new = change(value)
    elif kind is list:
        new = made[id(value)] = []  # before its parts: a list may hold itself
        new.extend([rebuilt(part, change, leaf, made) for part in value])
    elif kind is dict:
        new = made[id(value)] = {}
        new.update({key: rebuilt(part, change, leaf, made) for key, part in value.items()})
    elif kind is tuple:
        new = tuple([rebuilt(part, change, leaf, made) for part in value])
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        new = kind(*(rebuilt(part, change, leaf, made) for part in value))
    else:
        return value
    made[id(value)] = new
    return new


@functools.lru_cache(maxsize=4096)
def _globals_read(code: types.CodeType) -> tuple:
    """Names that a function reads from its module. In a notebook those are the variables of other cells."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:  # lambdas and comprehensions inside it
        if isinstance(inner, types.CodeType):
            found.update(_globals_read(inner))
    return tuple(sorted(found))


_PLAIN = (int, float, str, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_WATCHED = (torch.Tensor, torch.nn.Module, *_PLAIN)


def names_of(function) -> dict:
    """{name: the object behind it} for what a function reaches by name: closure, globals, defaults, bound arguments.

    Containers are not looked into, nor is the code of the functions that it calls.
    """
    found: dict = {}
    while isinstance(function, functools.partial):
        found.update({f"argument {i} of the partial": value for i, value in enumerate(function.args)})
        found.update(function.keywords)
        function = function.func
    function = getattr(function, "__func__", function)  # a method's function
    code = getattr(function, "__code__", None)
    if code is None:
        return found
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a name without a value yet
            continue
    known = function.__globals__
    found.update({name: known[name] for name in _globals_read(code) if name in known})
    found.update({f"default {i}": value for i, value in enumerate(function.__defaults__ or ())})
    found.update(function.__kwdefaults__ or {})
    return found


class Outside:
    """The versions of all tensors that go into a region, and what its names stand for. `changes()` says what moved.

    Everything is held weakly: an input that an outer region recomputes must not be kept alive by the inner one, nor a
    variable of the caller by a graph that is waiting for its backward.
    """

    __slots__ = ("function", "tensors", "names", "plain")

    def __init__(self, function, args, kwargs, names: dict):
        self.function, self.tensors = function, []  # (weak tensor, version, requires_grad, what it is)
        for place, values in (*enumerate(args), *kwargs.items()):
            for tensor in (values,) if isinstance(values, torch.Tensor) else tensors_in(values):
                self._watch(tensor, place)
        names = {name: value for name, value in names.items() if isinstance(value, _WATCHED)}
        self.plain = {name: value for name, value in names.items() if isinstance(value, _PLAIN)}
        self.names = {
            name: (weakref.ref(value), version_of(value) if isinstance(value, torch.Tensor) else 0)
            for name, value in names.items()
            if name not in self.plain
        }

    def _watch(self, tensor, what) -> None:
        self.tensors.append((weakref.ref(tensor), version_of(tensor), tensor.requires_grad, what))

    def watch_weight(self, weight: torch.Tensor) -> None:
        """A leaf that autograd saved. An optimizer's step between forward and backward would change it."""
        self._watch(weight, None)

    def forward_ended(self) -> None:
        """What the region itself moved (a counter, a running sum) is not held against it: its own doing is repeated."""
        if not self.names and not self.plain:
            return
        after = names_of(self.function)
        self.plain = {name: value for name, value in self.plain.items() if after.get(name) is value}
        for name, (ref, version) in list(self.names.items()):
            value = after.get(name)
            if value is None or value is not ref():
                del self.names[name]
            elif isinstance(value, torch.Tensor) and version_of(value) == version:
                self._watch(value, f"{name!r}, which the function reads from outside,")

    def changes(self) -> str | None:
        """One sentence about the first thing that is not as it was, or None."""
        for ref, version, needed_grad, what in self.tensors:
            tensor = ref()
            if tensor is None or version_of(tensor) == version and tensor.requires_grad == needed_grad:
                continue
            what = "a weight" if what is None else what if str(what).startswith("'") else f"argument {what!r}"
            if tensor.requires_grad != needed_grad:
                return f"{what} (shape {tuple(tensor.shape)}) had requires_grad={needed_grad} in forward, and has not now."
            return (
                f"{what} (shape {tuple(tensor.shape)}) has been modified by an inplace operation: it was at version {version} and "
                f"is at {tensor._version} now (views of one storage count together). Change a copy, or call backward first."
            )
        if not self.names and not self.plain:
            return None
        now = names_of(self.function)
        moved = [name for name, (ref, _) in self.names.items() if ref() is None or now.get(name) is not ref()]
        moved += [name for name, value in self.plain.items() if now.get(name) is not value and now.get(name) != value]
        for name in moved:
            if isinstance(now.get(name), _WATCHED):
                return (
                    f"the name {name!r} stood for something else in forward, and the function looks it up again. Pass it as an "
                    "argument, or bind it (functools.partial, a default value)."
                )
        return None
