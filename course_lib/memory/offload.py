"""Activation offload: saved tensors rest somewhere else between forward and backward.

    with offload_to_cpu():              # a GPU's activations wait in the CPU's memory
        loss = loss_fn(model(x), y)
    loss.backward()

What is bought is device memory; what is paid is traffic: each saved byte travels twice. Compare: a checkpoint pays with a
second forward.
"""

from __future__ import annotations

import os
import tempfile
import weakref

import torch
from torch.autograd.graph import saved_tensors_hooks


class _Offload(saved_tensors_hooks):
    """Saved-tensor hooks that store each tensor once, however often autograd saves it, and no parameters."""

    def __init__(self, store, load, min_bytes: int):
        if isinstance(min_bytes, bool) or not isinstance(min_bytes, int) or min_bytes < 0:
            raise ValueError(f"min_bytes is a number of bytes, 0 or more; got {min_bytes!r}.")
        self.moved_bytes = self.kept_bytes = 0  # what travelled, and what stayed where it was
        stored: dict = {}  # one copy for a tensor that several operators save: {id: (weak tensor, version, weak copy)}

        def pack(tensor):
            # A parameter is alive anyway: moving it frees nothing. A Linear saves a transposed view of its weight.
            owner = tensor._base if tensor._is_view() else tensor
            weight = owner.is_leaf and owner.requires_grad
            if weight or tensor.nbytes < min_bytes or tensor.layout is not torch.strided:
                self.kept_bytes += tensor.nbytes
                return tensor
            ref, version, copy = stored.get(id(tensor), (lambda: None, None, lambda: None))
            if ref() is tensor and version == tensor._version and copy() is not None:
                return copy()
            copied = _Copy(store(tensor.detach()), tensor.device)
            self.moved_bytes += tensor.nbytes
            stored[id(tensor)] = weakref.ref(tensor), tensor._version, weakref.ref(copied)
            return copied

        def unpack(packed):
            if not isinstance(packed, _Copy):
                return packed
            if packed.back is None or packed.back() is None:
                tensor = load(packed.value, packed.device)
                packed.back = weakref.ref(tensor)
                return tensor
            return packed.back()

        super().__init__(pack, unpack)

    def __enter__(self):
        super().__enter__()
        return self


class _Copy:
    __slots__ = ("value", "device", "back", "__weakref__")

    def __init__(self, value, device):
        self.value, self.device, self.back = value, device, None


def offload_to_cpu(min_bytes: int = 0, pin_memory: bool | None = None):
    """A context: tensors that autograd saves inside it wait in the CPU's memory until backward asks for them.

    min_bytes: smaller tensors stay where they are (a copy of a few bytes costs more than it frees). pin_memory: page-locked
    memory, so that the copies run beside the computation; by default where there is an accelerator. Tensors that are on
    the CPU already stay: nothing is gained there. Afterwards `.moved_bytes` and `.kept_bytes` tell what happened.
    """
    pin = torch.accelerator.is_available() if pin_memory is None else pin_memory

    def store(tensor):
        if tensor.device.type == "cpu":
            return tensor
        rest = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin)
        return rest.copy_(tensor, non_blocking=pin)

    def load(tensor, device):
        return tensor.to(device, non_blocking=pin)

    return _Offload(store, load, min_bytes)


def offload_to_disk(folder: str | None = None, min_bytes: int = 2**16):
    """A context like `offload_to_cpu`, but the tensors wait in files: frees memory on a machine without a GPU, too.

    folder: where the files go; a temporary folder by default. Each file is deleted when its graph is.
    """
    where = tempfile.TemporaryDirectory(prefix="activations-", dir=folder)
    number = iter(range(2**62))

    def store(tensor):
        path = os.path.join(where.name, f"{next(number)}.pt")
        torch.save(tensor.cpu().clone(), path)  # a clone: of a view, else the whole storage would be written
        return _File(path)

    def load(file, device):
        return torch.load(file.path, weights_only=True).to(device)

    offload = _Offload(store, load, min_bytes)
    offload.folder = where  # lives as long as somebody holds the context or its tensors
    return offload


class _File:
    def __init__(self, path: str):
        self.path = path
        weakref.finalize(self, _remove, path)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass
