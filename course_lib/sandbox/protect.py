"""Put back what an answer must not change: names in modules, methods of torch's classes, torch's settings.

A learner's `del torch.add` or `torch.equal = ...` is undone as soon as their function returns, before the
checker compares anything; so the checkers may use torch as they like.
"""

import builtins
import contextlib
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
_OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_LAYERS = tuple({cls for cls in vars(torch.nn).values() if isinstance(cls, type)})
_CLASSES = (torch.Tensor, torch.autograd.Function, torch.optim.Optimizer, *_OPTIMIZERS, *_LAYERS)
_MISSING = object()
# our own references: the names in these modules are what an answer may have replaced
_is, _all, _map, _repeat = operator.is_, builtins.all, builtins.map, itertools.repeat
_setattr, _delattr = type.__setattr__, type.__delattr__


class World:
    """The state before an answer runs: `restore()` after each call of it, `close()` at the end."""

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
        self._open = True

    def restore(self, modes=None):
        """Undo replaced and deleted names and changed settings. Names that were added to a module stay.

        `modes`: what `thread_modes` gave in this thread before the call.
        """
        if not self._open:
            return  # a thread that could not be stopped came back: the notebook has moved on
        for space in self._spaces:
            space.restore()
        for (read, write), before in zip(_MODES, self._modes):
            if read() != before:
                write(before)
        if modes is not None and modes != thread_modes():
            for (_, write), before in zip(_THREAD_MODES, modes):
                write(before)

    def close(self):
        """Restore for the last time, the random state too: torch (and CUDA once in use), random, NumPy."""
        self.restore()
        self._open = False
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


_MODES = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (sys.getrecursionlimit, sys.setrecursionlimit),
)
# each thread has its own of these; they are read and written in the thread of the answer
_THREAD_MODES = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    (torch.get_default_device, torch.set_default_device),
)


@contextlib.contextmanager
def one_thread():
    """One torch thread: on tiny operations several only wait for each other (30 times slower on a busy machine)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_modes():
    """Gradients, autocast and default device of this thread."""
    return [read() for read, _ in _THREAD_MODES]


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
    """torch wraps `step` of an optimizer class when its first instance is made: let it, before we look."""
    for cls in _OPTIMIZERS:
        if not getattr(cls.step, "hooked", False):
            cls([torch.nn.Parameter(torch.zeros(()))], lr=0.1)
