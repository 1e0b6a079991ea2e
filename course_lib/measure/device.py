"""Which device this is, what it can tell us about its memory, and how to wait for it. The one place that knows kinds.

Everything is found by asking the device, never by comparing versions: an API that is missing or raises is not there.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch


def device(name: str | torch.device | None = None) -> torch.device:
    """The device to work on: `name`, else the environment variable COURSE_DEVICE, else an accelerator, else the CPU.

    Raises ValueError, with the cure, when a device is asked for that is not there.
    """
    name = name or os.environ.get("COURSE_DEVICE")
    if not name:
        return _accelerator() or torch.device("cpu")
    try:
        wanted = torch.device(name)
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"There is no usable device {str(name)!r} here. Unset COURSE_DEVICE, or set it to 'cpu'. "
            f"(torch says: {str(error).splitlines()[0]})"
        ) from None
    return wanted


def _accelerator() -> torch.device | None:
    try:
        if torch.accelerator.is_available():
            return torch.accelerator.current_accelerator()
    except (AttributeError, RuntimeError):
        pass
    for kind in ("cuda", "xpu", "mps"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_available", lambda: False)():
            return torch.device(kind)
    return None


def synchronize(on: torch.device) -> None:
    """Wait until the device has done everything it was given. On a CPU there is nothing to wait for."""
    module = getattr(torch, on.type, None)
    if on.type != "cpu" and hasattr(module, "synchronize"):
        module.synchronize()


class AllocatorCounters:
    """The device allocator's own counters, in bytes: allocated now, and the highest since the last reset."""

    def __init__(self, on: torch.device):
        self.device = on

    def current(self) -> int:
        synchronize(self.device)
        return torch.accelerator.memory_allocated(self.device)

    def peak(self) -> int:
        synchronize(self.device)
        return torch.accelerator.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self.device)

    def reserved(self) -> int:
        """Bytes that the allocator took from the driver, in use or kept for later."""
        return torch.accelerator.memory_reserved(self.device)


class CudaCounters(AllocatorCounters):
    """The same through torch.cuda, for builds whose torch.accelerator has no memory calls."""

    def current(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self.device)


def counters(on: torch.device) -> AllocatorCounters | None:
    """The allocator's counters, or None where the device keeps no peak (every CPU; MPS before torch 2.14)."""
    if on.type in ("cpu", "meta"):
        return None
    for kind in (AllocatorCounters, CudaCounters) if on.type == "cuda" else (AllocatorCounters,):
        found = kind(on)
        try:
            found.reset_peak()
            found.current(), found.peak(), found.reserved()
            return found
        except (AttributeError, RuntimeError, NotImplementedError, AssertionError):
            continue
    return None


def memory_limit(on: torch.device) -> int | None:
    """Total memory of the device in bytes: the card's for an accelerator, the machine's for a CPU; None if unknown."""
    if on.type == "cpu":
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return None
    try:
        return int(getattr(torch, on.type).get_device_properties(on).total_memory)
    except (AttributeError, RuntimeError, AssertionError):
        pass
    try:
        return int(torch.mps.recommended_max_memory())
    except (AttributeError, RuntimeError):
        return None


@dataclass(frozen=True)
class DeviceCard:
    """What was found, in words. `meter_sentence` says what the numbers of this course mean on this device."""

    name: str
    kind: str  # "cuda", "xpu", "mps", "cpu"
    memory_bytes: int | None
    torch: str
    threads: int
    gpu: bool
    meter_sentence: str

    def rows(self) -> list[tuple[str, str]]:
        from .trace import mib

        memory = "unknown" if self.memory_bytes is None else mib(self.memory_bytes)
        return [
            ("device", f"{self.kind}: {self.name}"),
            ("its memory", memory + ("" if self.gpu else " of main memory, shared with everything else")),
            ("torch", f"{self.torch}, {self.threads} CPU threads"),
            ("what is measured", self.meter_sentence),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{label:>17}  {text}" for label, text in self.rows())

    def _repr_html_(self) -> str:
        from html import escape

        cells = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(label)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for label, text in self.rows()
        )
        return f"<table><caption>This device</caption>{cells}</table>"


def describe(on: torch.device | None = None) -> DeviceCard:
    """A DeviceCard for a device, by default the one that `device()` chooses."""
    on = on or device()
    gpu = on.type != "cpu"
    if not gpu:
        sentence = (
            "the bytes of all tensors that are alive, counted exactly at every operator. No GPU is measured, so "
            "nothing here is called VRAM."
        )
    elif counters(on) is not None:
        sentence = "real device memory (显存), from the counters of PyTorch's allocator; tensors give the categories."
    else:
        sentence = "the bytes of all tensors alive on the device; this torch keeps no peak of its own for it."
    name = platform.processor() or platform.machine() or "CPU"
    if gpu:
        name = getattr(getattr(torch, on.type), "get_device_name", lambda *_: on.type)(on)
    return DeviceCard(name, on.type, memory_limit(on), torch.__version__, torch.get_num_threads(), gpu, sentence)
