"""Activation offload: saved tensors rest somewhere else between forward and backward.

    with offload_to_cpu():              # a GPU's activations wait in the CPU's memory
        loss = loss_fn(model(x), y)
    loss.backward()

What is bought is device memory; what is paid is traffic: each saved byte travels twice. Compare: a checkpoint pays with a
second forward.
"""

from __future__ import annotations

import contextlib
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
        stored: dict = {}  # one copy for a tensor that several operators save: {its place and version: weak copy}

        def pack(tensor):
            # A parameter is alive anyway: moving it frees nothing. A Linear saves a transposed view of its weight.
            owner = tensor._base if tensor._is_view() else tensor
            weight = owner.is_leaf and owner.requires_grad
            if weight or tensor.nbytes < min_bytes or tensor.layout is not torch.strided or not store(None, tensor.device):
                self.kept_bytes += tensor.nbytes
                return _Stays(tensor)
            place = (id(tensor), tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor._version, tensor.shape)
            ref, copy = stored.get(place, (lambda: None, lambda: None))
            if ref() is tensor and copy() is not None:
                return copy()
            copied = _Copy(store(tensor.detach(), tensor.device), tensor.device)
            self.moved_bytes += tensor.nbytes
            stored[place] = weakref.ref(tensor, lambda _: stored.pop(place, None)), weakref.ref(copied)
            return copied

        def unpack(packed):
            if isinstance(packed, _Stays):
                return packed.checked()
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


class _Stays:
    """A tensor that stays. Detached: an operator that saves its own result would else be kept alive by its own graph."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor):
        self.tensor, self.version = tensor.detach(), 0 if tensor.is_inference() else tensor._version

    def checked(self):
        if not self.tensor.is_inference() and self.tensor._version != self.version:
            raise RuntimeError(
                f"A tensor that backward needs (shape {tuple(self.tensor.shape)}) has been modified by an inplace operation since it "
                "was saved. Change a copy, or call backward first."
            )
        return self.tensor


def offload_to_cpu(min_bytes: int = 0, pin_memory: bool | None = None):
    """A context: tensors that autograd saves inside it wait in the CPU's memory until backward asks for them.

    min_bytes: smaller tensors stay where they are (a copy of a few bytes costs more than it frees). pin_memory: page-locked
    memory, so that the copies run beside the computation; by default where there is an accelerator. Tensors that are on
    the CPU already stay: nothing is gained there. Afterwards `.moved_bytes` and `.kept_bytes` tell what happened.
    """
    pin = torch.accelerator.is_available() if pin_memory is None else pin_memory

    def store(tensor, device):
        if tensor is None:
            return device.type != "cpu"
        rest = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin)
        return rest.copy_(tensor, non_blocking=pin)

    def load(tensor, device):
        return tensor.to(device, non_blocking=pin)

    return _Offload(store, load, min_bytes)


def offload_to_disk(folder: str | None = None, min_bytes: int = 2**16):
    """A context like `offload_to_cpu`, but the tensors wait in files: frees memory on a machine without a GPU, too.

    folder: where the files go; a temporary folder by default. Each file is deleted when its graph is.
    """
    where = tempfile.mkdtemp(prefix="activations-", dir=folder)
    number = iter(range(2**62))

    def store(tensor, device):
        if tensor is None:
            return True
        path = os.path.join(where, f"{next(number)}.pt")
        torch.save(tensor.cpu().clone(), path)  # a clone: of a view, else the whole storage would be written
        return _File(path, place)

    def load(file, device):
        return torch.load(file.path, weights_only=True).to(device)

    place = _Folder(where)
    return _Offload(store, load, min_bytes)


def offload_to_nowhere(min_bytes: int = 0):
    """The same for a prediction, where tensors have no data: what is stored costs nothing, what comes back is new."""

    def store(tensor, device):
        if tensor is None:
            return True
        copy = tensor.clone()  # what is written is a copy of the view, alive for a moment
        return copy.shape, copy.dtype

    def load(stored, device):
        return torch.empty(stored[0], dtype=stored[1], device=device)

    return _Offload(store, load, min_bytes)


class _Folder:
    """Lives as long as somebody can still write into it or read from it."""

    def __init__(self, path: str):
        weakref.finalize(self, _remove, path, os.rmdir, os.getpid())


class _File:
    def __init__(self, path: str, folder: _Folder):
        self.path, self.folder = path, folder
        weakref.finalize(self, _remove, path, os.remove, os.getpid())


def _remove(path: str, how, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves its parent's files alone
        with contextlib.suppress(OSError):
            how(path)
