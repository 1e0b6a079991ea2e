"""Effects that must happen in forward only, not again when a region is recomputed."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

_running = threading.local()


def recomputing() -> bool:
    """True while a checkpointed region is being run again in backward, on this thread.

    A module that counts its calls, fills a cache or logs can ask this and keep quiet the second time.
    """
    return getattr(_running, "depth", 0) > 0


@contextlib.contextmanager
def second_run():
    """A recompute: `recomputing()` is True, and the running statistics of BatchNorm and its kin do not move.

    They have seen this batch. The layers work on copies of their buffers for as long as the block runs; in training their
    output does not depend on them. Functional calls (`F.batch_norm` with buffers of your own) are not seen.
    """
    swapped: list = []
    mine = threading.get_ident()

    def on_copies(module, inputs):
        if threading.get_ident() != mine:  # the hook is seen by all threads, and each has its own recomputes
            return
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            own = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
            swapped.append((module, own))
            with torch.no_grad():
                module._buffers.update({name: buffer.clone() for name, buffer in own.items()})

    hook = register_module_forward_pre_hook(on_copies)
    _running.depth = getattr(_running, "depth", 0) + 1
    try:
        yield
    finally:
        _running.depth -= 1
        hook.remove()
        for module, own in reversed(swapped):  # a layer used twice: its first entry holds the true buffers
            module._buffers.update(own)
