"""The state around a computation that changes what its operators do: autocast, the default device, the default dtype.

Backward often runs outside of it, and on another thread. A recompute must run inside it again.
"""

from __future__ import annotations

import contextlib

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def ambient(device_types: tuple = ("cpu",)) -> tuple:
    """What stands now, in a form that can be compared: (autocast of each device type, default device, default dtype)."""
    cache = torch.is_autocast_cache_enabled()
    autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), cache) for kind in device_types)
    # `with torch.device(...)` and torch.set_default_device are modes on a stack; the last one rules
    modes = [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return autocast, modes[-1] if modes else None, torch.get_default_dtype()


@contextlib.contextmanager
def restored(then: tuple, device_types: tuple = ("cpu",)):
    """Run a block under the state that `ambient` returned."""
    autocast, device, dtype = then
    with contextlib.ExitStack() as stack:
        for kind, enabled, low, cache in autocast:
            stack.enter_context(torch.autocast(kind, dtype=low, enabled=enabled, cache_enabled=cache))
        if device != ambient(device_types)[1]:
            stack.enter_context(torch.device("cpu" if device is None else device))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(dtype)
        yield
