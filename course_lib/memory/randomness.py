"""Random number generators that a region of code drew from, so that a recompute draws the same numbers again.

Which generators were used is found out afterwards: those whose state the region moved. Only their states are kept, and a
region that drew nothing keeps nothing. Watched are PyTorch's CPU and device generators, Python's `random`, NumPy's global
generator, and generator objects that the region was given.
"""

from __future__ import annotations

import random
import struct
import sys
import weakref
from ctypes import string_at

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Torch:
    """A torch.Generator: the CPU's, a device's, or one of the user's own."""

    def __init__(self, generator: torch.Generator):
        self.get, self.set = generator.get_state, generator.set_state

    @staticmethod
    def same(a, b) -> bool:
        # as bytes: torch.equal would be an operator, which meters see and fake tensors refuse
        return string_at(a.data_ptr(), a.nbytes) == string_at(b.data_ptr(), b.nbytes)


class Device:
    """The default generator of a CUDA, XPU, ... device."""

    def __init__(self, device: torch.device):
        module = torch.get_device_module(device.type)
        self.get = lambda: module.get_rng_state(device)
        self.set = lambda state: module.set_rng_state(state, device)

    same = Torch.same


class Python:
    """A random.Random of the user's own."""

    def __init__(self, generator):
        self.get, self.set = generator.getstate, generator.setstate

    @staticmethod
    def same(a, b) -> bool:
        return a == b


class Glimpsed:
    """A generator that any code can reach, so that each region asks for it; and whose state takes long to read.

    So a glance comes first: the bytes of its table, straight from memory. Only when they have changed is the state read.
    """

    glimpsed: object = None
    known: object = None

    def get(self):
        glance = self.glance()
        if glance is None or glance != self.glimpsed:
            self.glimpsed, self.known = glance, self.read()
        return self.known

    @staticmethod
    def same(a, b) -> bool:
        return a is b or str(a) == str(b)


class GlobalPython(Glimpsed):
    """The generator behind `random.random()` and its kind: 12 microseconds to read."""

    def __init__(self):
        self.read, self.set, self.generator = random.getstate, random.setstate, getattr(random, "_inst", None)
        # CPython keeps position and table behind the header of the object. We look whether it is so here.
        *table, position = random.getstate()[1]
        expected = struct.pack("=i624I", position, *table)
        self.place = id(self.generator) + object.__basicsize__
        self.trusted = sys.implementation.name == "cpython" and string_at(self.place, len(expected)) == expected

    def glance(self):
        return (string_at(self.place, 2500), self.generator.gauss_next) if self.trusted else None


class NumPy(Glimpsed):
    """NumPy's global generator: 50 microseconds to read.

    After an odd count of normal numbers a spare one waits in it, which the glance does not show: then it is read in full.
    """

    def __init__(self, numpy):
        self.random = numpy.random
        self.set = numpy.random.set_state

    def read(self):
        return self.random.get_state(legacy=False)

    def glance(self):
        generator = self.random.mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937" or self.known is not None and self.known["has_gauss"]:
            return None
        return string_at(generator.ctypes.state_address, 625 * 4)  # 624 words and the position


class Bit:
    """A numpy.random.Generator or RandomState of the user's own."""

    def __init__(self, generator):
        if hasattr(generator, "bit_generator"):
            bits = generator.bit_generator
            self.get, self.set = lambda: bits.state, lambda state: setattr(bits, "state", state)
        else:
            self.get, self.set = lambda: generator.get_state(legacy=False), generator.set_state

    @staticmethod
    def same(a, b) -> bool:
        return str(a) == str(b)


PYTHON, CPU, NUMPY = GlobalPython(), Torch(torch.default_generator), []


def always_watched() -> tuple:
    """The generators that any code can reach without being given them."""
    if not NUMPY and "numpy" in sys.modules:
        NUMPY.append(NumPy(sys.modules["numpy"]))
    return (CPU, PYTHON, *NUMPY)


def source_of(value):
    """The watched generator for a value that is one, else None."""
    if isinstance(value, torch.Generator):
        return Torch(value)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return Python(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
        return Bit(value)
    return None


class Note:
    """Where PyTorch's CPU generator stood, as bytes."""

    __slots__ = ("text", "__weakref__")

    def __init__(self, text: bytes):
        self.text = text

    def is_at(self, state: torch.Tensor) -> bool:
        return string_at(state.data_ptr(), state.nbytes) == self.text

    def tensor(self) -> torch.Tensor:
        with _disable_current_modes():  # a real tensor, among fake ones too
            return torch.frombuffer(bytearray(self.text), dtype=torch.uint8)


_last_note = None  # a weak reference to the latest note


def _note(state: torch.Tensor) -> Note:
    global _last_note
    note = _last_note() if _last_note else None
    if note is None or not note.is_at(state):
        note = Note(string_at(state.data_ptr(), state.nbytes))
        _last_note = weakref.ref(note)
    return note


class Draws:
    """The states of generators at one moment; later: those that have been drawn from since.

    devices: torch.devices whose generators are watched beside the CPU's. extra: sources from `source_of`.
    """

    __slots__ = ("states",)

    def __init__(self, devices=(), extra=()):
        sources = (*always_watched(), *map(Device, devices), *extra)
        self.states = [(source, source.get()) for source in sources]

    def keep_drawn(self) -> None:
        """Forget every generator that still stands where it stood.

        PyTorch's own may stand there because the region has put it back (torch.random.fork_rng): of those the place is kept,
        in one note for all regions in a row that left it there.
        """
        kept = []
        for source, state in self.states:
            if not source.same(state, source.get()):
                kept.append((source, state))
            elif source is CPU:
                kept.append((source, _note(state)))
        self.states = kept

    def rewind(self) -> list:
        """Put the kept generators back to where they stood. Returns what `forward` needs."""
        now = []
        for source, state in self.states:
            there = source.get()
            if isinstance(state, Note):
                if state.is_at(there):
                    continue
                state = state.tensor()
            now.append((source, there))
            source.set(state)
        return now

    @staticmethod
    def forward(now: list) -> None:
        """Put them to where they stood before `rewind`: a recompute moves no stream of random numbers."""
        for source, state in now:
            source.set(state)
