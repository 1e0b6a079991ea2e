"""How much of a graph is alive at once: what an answer saves for backward, watched while it runs."""

import weakref
from contextlib import contextmanager

import torch


class _Saved:
    """One tensor that autograd keeps. When autograd lets go of it, so does the count."""

    def __init__(self, tensor):
        self.tensor = tensor


class Alive:
    """Numbers that autograd keeps for backward: `now`, and the `most` there ever were."""

    def __init__(self, without=()):
        self.now = self.most = 0
        self._without = {tensor.data_ptr() for tensor in without}

    def _pack(self, tensor):
        saved = _Saved(tensor.detach())
        if tensor.data_ptr() not in self._without:
            self.now += tensor.numel()
            self.most = max(self.most, self.now)
            weakref.finalize(saved, self._gone, tensor.numel())
        return saved

    def _gone(self, numbers):
        self.now -= numbers

    @contextmanager
    def watching(self):
        """Count everything that is saved in this block, in this thread."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor):
            yield self
