"""Put back what an answer must not change: names in modules, methods of torch's classes, torch's settings.

A learner's `del torch.add` or `torch.equal = ...` is undone as soon as their function returns, before the
checker compares anything; so the checkers may use torch as they like.
"""

import builtins
import itertools
import operator
import random
import sys

import torch

_MODULES = (
    "torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.optim torch.autograd torch.linalg "
    "torch.random torch.testing torch.utils.checkpoint builtins math random copy time operator itertools"
).split()
# Methods that torch's C base class has cannot be replaced there, only hidden by a new one on Tensor
_CLASSES = (
    torch.Tensor,
    torch.nn.Parameter,
    torch.nn.Module,
    torch.nn.Linear,
    torch.nn.Sequential,
    torch.optim.Optimizer,
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.autograd.Function,
)
_MISSING = object()
# our own references: the names in these modules are what an answer may have replaced
_is, _all, _map, _repeat = operator.is_, builtins.all, builtins.map, itertools.repeat
_setattr, _delattr = type.__setattr__, type.__delattr__


class World:
    """The state before an answer runs. `restore()` after each call of it, `restore_random()` once at the end."""

    def __init__(self, answer_globals=None):
        _wrap_steps()
        self._spaces = [_Module(vars(sys.modules[name])) for name in _MODULES if name in sys.modules]
        self._spaces += [_Class(cls) for cls in _CLASSES]
        for name, module in list(sys.modules.items()):
            names = getattr(module, "__dict__", None) if name.partition(".")[0] == "course_lib" else None
            if names is not None and names is not answer_globals:
                self._spaces.append(_Module(names, keep=_public))
        self._spaces.append(_Module(sys.modules, keep=lambda name, _: name in _MODULES))
        if answer_globals is not None:
            self._spaces.append(_Module(answer_globals))
        self._modes = _modes()
        self._random = _random_state()

    def restore(self):
        """Undo replaced and deleted names and changed settings. Names that were added to a module stay."""
        for space in self._spaces:
            space.restore()
        for (read, write), before in zip(_MODES, self._modes):
            if read() != before:
                write(before)

    def restore_random(self):
        """Put the random state back: torch (and CUDA once it is in use), random, NumPy."""
        torch.set_rng_state(self._random["torch"])
        random.setstate(self._random["random"])
        if "cuda" in self._random:
            torch.cuda.set_rng_state_all(self._random["cuda"])
        if "numpy" in self._random:
            sys.modules["numpy"].random.set_state(self._random["numpy"])


class _Module:
    """The names of a module or of a notebook; `live` is the dict itself."""

    def __init__(self, live, keep=None):
        self.live = live
        kept = {name: value for name, value in live.items() if keep is None or keep(name, value)}
        self.names, self.values = tuple(kept), tuple(kept.values())

    def restore(self):
        # all in C: some 0.3 ms for every protected name together, at each call of an answer
        if _all(_map(_is, _map(self.live.get, self.names, _repeat(_MISSING)), self.values)):
            return
        for name, value in zip(self.names, self.values):
            if self.live.get(name, _MISSING) is not value:
                self.live[name] = value


class _Class:
    """The attributes of a class. A new one that hides an inherited one goes, others that are new stay."""

    def __init__(self, cls):
        self.cls = cls
        self.before = dict(vars(cls))
        self.size = len(self.before)

    def restore(self):
        live = vars(self.cls)
        if len(live) == self.size and _all(_map(_is, _map(live.get, self.before), self.before.values())):
            return
        for name in set(live) - set(self.before):
            if any(name in vars(base) for base in self.cls.__mro__[1:]):
                _delattr(self.cls, name)
        for name, value in self.before.items():
            if live.get(name, _MISSING) is not value:
                _setattr(self.cls, name, value)
        self.size = len(vars(self.cls))


def _public(name, value):
    """What to protect in course_lib: its functions, classes and constants, not its private caches."""
    return callable(value) or not name.startswith("_")


def _set_threads(count):
    torch.set_num_threads(count)


_MODES = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, _set_threads),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (sys.getrecursionlimit, sys.setrecursionlimit),
)


def _modes():
    return [read() for read, _ in _MODES]


def _random_state():
    state = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def _wrap_steps():
    """torch wraps the `step` of an optimizer class when its first instance is made. Let it, before we look."""
    for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        if not getattr(cls.step, "hooked", False):
            cls([torch.nn.Parameter(torch.zeros(()))], lr=0.1)


def held(thing):
    """What `changed` needs to know about a tensor, module, optimizer, array or container of such, before a call."""
    if isinstance(thing, torch.Tensor):
        return thing, (thing.requires_grad, thing.detach().clone())
    if isinstance(thing, torch.nn.Module):
        tensors = dict(itertools.chain(thing.named_parameters(), thing.named_buffers()))
        training = [module.training for module in thing.modules()]
        return thing, (training, {name: held(tensor) for name, tensor in tensors.items()})
    if isinstance(thing, torch.optim.Optimizer):
        return thing, held(thing.state_dict())
    if isinstance(thing, dict):
        return thing, {key: held(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return thing, [held(value) for value in thing]
    if type(thing).__module__ == "numpy" and hasattr(thing, "tobytes"):
        return thing, (thing.shape, thing.tobytes())
    return thing, None


def changed(record):
    """True if the thing that `held` recorded is no longer what it was, bit for bit. Gradients do not count."""
    thing, before = record
    if isinstance(thing, torch.Tensor):
        grad, values = before
        return thing.requires_grad != grad or not _same_bits(thing.detach(), values)
    if isinstance(thing, torch.nn.Module):
        training, tensors = before
        now = dict(itertools.chain(thing.named_parameters(), thing.named_buffers()))
        if training != [module.training for module in thing.modules()] or list(now) != list(tensors):
            return True
        return any(now[name] is not tensors[name][0] or changed(tensors[name]) for name in now)
    if isinstance(thing, torch.optim.Optimizer):
        return _differs(thing.state_dict(), before)
    if isinstance(thing, (dict, list, tuple)):
        return _differs(thing, record)
    if before is not None:
        return (thing.shape, thing.tobytes()) != before
    return False


def _differs(now, record):
    """True if a container no longer holds the same items, or one of them changed."""
    thing, before = record
    if isinstance(now, dict):
        if list(now) != list(before):
            return True
        pairs = [(now[key], before[key]) for key in before]
    else:
        if len(now) != len(before):
            return True
        pairs = list(zip(now, before))
    for value, old in pairs:
        if isinstance(value, (dict, list, tuple)) and type(value) is type(old[0]):
            if _differs(value, old):
                return True
        elif old[1] is None:
            if value is not old[0] and (type(value) not in (int, float, str, bool) or value != old[0]):
                return True
        elif value is not old[0] or changed(old):
            return True
    return False


def _same_bits(a, b):
    """NaN equals NaN here: what counts is whether somebody wrote into it."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.numel() == 0:
        return True
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*flat)
