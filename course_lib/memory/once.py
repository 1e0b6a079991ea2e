"""Effects that must happen in forward only, not again when a region is recomputed."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_running = threading.local()


def recomputing() -> bool:
    """True while a checkpointed region is being run again in backward, on this thread.

    A module that counts its calls, fills a cache or logs can ask this and keep quiet the second time.
    """
    return getattr(_running, "depth", 0) > 0


@contextlib.contextmanager
def second_run():
    """A recompute: `recomputing()` is True, and the running statistics of BatchNorm and its kin do not move.

    They have seen this batch. After each call of such a layer its buffers are put back to what they were; in training its
    output does not depend on them. Functional calls (`F.batch_norm` with buffers of your own) are not seen.
    """
    before: dict = {}
    mine = threading.get_ident()  # the hooks are seen by all threads, and each has its own recomputes

    def remember(module, inputs):
        if isinstance(module, _NormBase) and module.training and module.track_running_stats and threading.get_ident() == mine:
            with torch.no_grad():
                before[module] = [(buffer, buffer.clone()) for buffer in module.buffers(recurse=False)]

    def put_back(module, inputs=None, output=None):
        for buffer, value in before.pop(module, ()):
            buffer.data.copy_(value)  # through .data: nobody's graph shall think that they were changed

    hooks = register_module_forward_pre_hook(remember), register_module_forward_hook(put_back)
    _running.depth = getattr(_running, "depth", 0) + 1
    try:
        yield
    finally:
        _running.depth -= 1
        for hook in hooks:
            hook.remove()
        for module in list(before):  # the rerun was stopped inside this layer
            put_back(module)
