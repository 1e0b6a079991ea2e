"""Random number generators that a region of code drew from, so that a recompute draws the same numbers again.

Which generators were used is found out afterwards: those whose state the region moved. Only their states are kept, and a
region that drew nothing keeps nothing. Watched are PyTorch's CPU and device generators, Python's `random`, NumPy's global
generator, and generator objects that the region was given.
"""

from __future__ import annotations

import random
import sys
from ctypes import string_at

import torch


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
    """A random.Random; by default the one behind `random.random()` and its kind."""

    def __init__(self, generator=random):
        self.get, self.set = generator.getstate, generator.setstate

    @staticmethod
    def same(a, b) -> bool:
        """Any draw moves the position in the table (its last entry); after a whole round the table itself is new."""
        return a[1][-1] == b[1][-1] and a[1][0] == b[1][0] and a[2] == b[2] if len(a) == 3 else a == b


class NumPy:
    """NumPy's global generator. Its full state takes 50 microseconds to read, so a glance comes first.

    After an odd count of normal numbers a spare one waits in it, which the glance does not show: then it is read in full.
    """

    def __init__(self, numpy):
        self.numpy = numpy
        self.set = numpy.random.set_state
        self.glimpsed, self.known = b"", None

    def _glance(self) -> bytes:
        """The table of the generator as bytes, straight from its memory; empty for a kind that we do not know."""
        generator = self.numpy.random.mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return b""
        return string_at(generator.ctypes.state_address, 625 * 4)  # 624 words and the position

    def get(self):
        glance = self._glance()
        # A spare normal number may be consumed without moving the table: only without one is a glance enough.
        if not glance or glance != self.glimpsed or self.known["has_gauss"]:
            self.glimpsed, self.known = glance, self.numpy.random.get_state(legacy=False)
        return self.known

    def same(self, a, b) -> bool:
        return a is b or (a["has_gauss"] == b["has_gauss"] and str(a["state"]) == str(b["state"]))


class Bit:
    """A numpy.random.Generator of the user's own."""

    def __init__(self, generator):
        self.bits = generator.bit_generator

    def get(self):
        return self.bits.state

    def set(self, state) -> None:
        self.bits.state = state

    @staticmethod
    def same(a, b) -> bool:
        return str(a) == str(b)


PYTHON, CPU, NUMPY = Python(), Torch(torch.default_generator), []


def always_watched() -> tuple:
    """The generators that any code can reach without being given them."""
    if not NUMPY and "numpy" in sys.modules:
        NUMPY.append(NumPy(sys.modules["numpy"]))
    return (CPU, PYTHON, *NUMPY)


def source_of(value):
    """The watched generator for a value that is one, else None."""
    if isinstance(value, torch.Generator):
        return Torch(value)
    if isinstance(value, random.Random):
        return Python(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return Bit(value)
    return None


class Draws:
    """The states of generators at one moment; later: those that have been drawn from since.

    devices: torch.devices whose generators are watched beside the CPU's. extra: sources from `source_of`.
    """

    __slots__ = ("states",)

    def __init__(self, devices=(), extra=()):
        sources = (*always_watched(), *map(Device, devices), *extra)
        self.states = [(source, source.get()) for source in sources]

    def keep_drawn(self) -> None:
        """Forget every generator that still stands where it stood."""
        self.states = [(source, state) for source, state in self.states if not source.same(state, source.get())]

    def rewind(self) -> list:
        """Put the kept generators back to where they stood. Returns what `forward` needs."""
        now = [(source, source.get()) for source, _ in self.states]
        for source, state in self.states:
            source.set(state)
        return now

    @staticmethod
    def forward(now: list) -> None:
        """Put them to where they stood before `rewind`: a recompute moves no stream of random numbers."""
        for source, state in now:
            source.set(state)
