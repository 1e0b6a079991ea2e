"""Effects that must happen in forward only, not again when a region is recomputed."""

from __future__ import annotations

import threading

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

_running = threading.local()


def recomputing() -> bool:
    """True while a checkpointed region is being run again in backward, on this thread.

    A module that counts its calls, fills a cache or logs can ask this and keep quiet the second time.
    """
    return getattr(_running, "depth", 0) > 0


class SecondRun:
    """A recompute: `recomputing()` is True, and the running statistics of BatchNorm and its kin do not move.

    They have seen this batch. After each call of such a layer its buffers are put back to what they were; in training its
    output does not depend on them. Functional calls (`F.batch_norm` with buffers of your own) and compiled layers are not
    seen. norms: False where no such layer can be there; then no module is slowed down by a hook.
    """

    def __init__(self, norms: bool):
        self.norms, self.before, self.buffers = norms, {}, set()
        self.thread = threading.get_ident()  # the hooks are seen by all threads, and each has its own recomputes

    def __enter__(self):
        _running.depth = getattr(_running, "depth", 0) + 1
        self.hooks = ()
        if self.norms:
            self.hooks = register_module_forward_pre_hook(self.remember), register_module_forward_hook(self.put_back)
        return self

    def __exit__(self, *error):
        _running.depth -= 1
        for hook in self.hooks:
            hook.remove()
        for module in list(self.before):  # the rerun was stopped inside this layer
            self.put_back(module)

    def remember(self, module, inputs):
        if isinstance(module, _NormBase) and module.training and module.track_running_stats and self.mine():
            own = list(module.buffers(recurse=False))
            self.buffers.update(buffer.untyped_storage()._cdata for buffer in own)
            # the copies are none of a meter's business, nor of a selective rerun's
            with torch.no_grad(), _disable_current_modes():
                self.before[module] = [(buffer, buffer.clone()) for buffer in own]

    def put_back(self, module, inputs=None, output=None):
        if self.mine() and module in self.before:
            with _disable_current_modes():
                for buffer, value in self.before.pop(module):
                    buffer.data.copy_(value)  # through .data: nobody's graph shall think that they were changed

    def mine(self) -> bool:
        return threading.get_ident() == self.thread

    def moves(self, tensor) -> bool:
        """Is this a statistic that a layer of the rerun has moved on, to be put back in a moment?"""
        return bool(self.buffers) and tensor.untyped_storage()._cdata in self.buffers


def has_norms(module) -> bool:
    """True for a module with a BatchNorm or its kin inside."""
    return isinstance(module, torch.nn.Module) and any(isinstance(part, _NormBase) for part in module.modules())
