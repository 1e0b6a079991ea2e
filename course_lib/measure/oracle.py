"""The allocator's exact peak, from torch's profiler: the second opinion that the Meter is tested against.

The profiler notes every allocation and free that PyTorch's allocator makes, scratch inside kernels included. It tells
its story only afterwards, and without categories, so it is a check and not a meter.
"""

from __future__ import annotations

import os

import torch


class AllocatorOracle:
    """A context manager; afterwards `peak_above_start()` is in bytes, above what was allocated at the start."""

    def __init__(self, device: torch.device):
        self.kind = device.type
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.kind == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=True)

    def __enter__(self) -> AllocatorOracle:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes its own log lines into the notebook
        self._profiler.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._profiler.__exit__(*error)

    def changes(self) -> list[int]:
        """Bytes of every allocation (positive) and free (negative), in the order in which they happened."""
        kind = {"cpu": torch.profiler.DeviceType.CPU, "cuda": torch.profiler.DeviceType.CUDA}.get(self.kind)
        events = [
            (event.start_ns(), event.nbytes())
            for event in self._profiler.profiler.kineto_results.events()
            if event.name() == "[memory]" and event.device_type() == kind
        ]
        return [nbytes for _, nbytes in sorted(events, key=lambda event: event[0])]

    def peak_above_start(self) -> int:
        live = peak = 0
        for change in self.changes():
            live += change
            peak = max(peak, live)
        return peak
