"""Which storages are alive, and how many bytes they hold: the bookkeeping under the Meter.

A tensor is a view on a *storage*; the storage owns the bytes. So we count storages, each once. PyTorch shows every
operator call to a `TorchDispatchMode`; an unknown storage in an operator's output was just allocated. A weak reference
with a callback tells us the moment it dies. Nothing here keeps a storage alive.

What this cannot see: scratch memory that a kernel allocates and frees inside one call; tensors made by C++ without an
operator call (the RNG state); operators on another Python thread (modes are thread-local; the Meter warns).
"""

from __future__ import annotations

import weakref
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from .trace import PHASES

FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER = range(len(PHASES))
DIFFERENTIABLE_BACKWARD = len(PHASES)  # backward with create_graph: what it leaves alive waits for a second backward
PHASE_NAMES = (*PHASES, "backward")

graph_task, grad_enabled = torch._C._current_graph_task_id, torch.is_grad_enabled
STRIDED = torch.strided
DENSE = frozenset({torch.Tensor, torch.nn.Parameter})
PLAIN_VALUES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})

# CUDA hands out blocks in multiples of 512 bytes, so a 4-byte loss takes 512 (c10/cuda/CUDACachingAllocator).
ROUNDING = {"cuda": 512}


class Held(weakref.ref):
    """A weak reference to one storage, with what we know of it. `key` is None once the storage has died."""

    __slots__ = ("key", "raw", "nbytes", "category", "born")


class Resize(NamedTuple):
    held: Held
    grown: int  # bytes, negative when it shrank


class StorageWatch(TorchDispatchMode):
    """Sees every operator on this thread. Keeps `live`, `peak`, and a log from which the time line is replayed.

    The log is one list, in order of events: a `Held` when its storage was made and the same `Held` again when it died, a
    `Resize`, and a tuple (time, phase, operator) after each operator. Storages get their category after the fact, so no
    operator waits for a classification.
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device, block_bytes: int | None = None):
        super().__init__()
        self.live = self.peak = 0
        self.held: dict[int, Held] = {}
        self.before: list[Held] = []  # existed before the block was entered
        self.log: list = []
        self.ended = False  # what dies after the block is no longer noted
        self.phase = FORWARD
        self.stepping, self.forced = False, None
        self.on_phase = lambda old: None  # the Meter reads allocator peaks here
        self._span = 0  # where in the log the oldest storage without a category may stand
        self._callback = self._died  # bound once, not at every storage
        self._on_device = attrgetter(f"is_{device.type}")
        self._unit = block_bytes or ROUNDING.get(device.type, 1)
        self.started = perf_counter()

    # -- storages ----------------------------------------------------------------------------------------------------

    def _hold(self, storage, category) -> Held:
        held = Held(storage, self._callback)
        held.key, held.raw, held.category, held.born = storage._cdata, storage.nbytes(), category, self.phase
        held.nbytes = nbytes = held.raw if self._unit == 1 else self._round(held.raw)
        self.held[held.key] = held
        self.live += nbytes
        return held

    def _resized(self, held: Held, storage) -> None:
        held.raw = storage.nbytes()
        grown = self._round(held.raw) - held.nbytes
        held.nbytes += grown
        self.live += grown
        self.log.append(Resize(held, grown))

    def _round(self, nbytes: int) -> int:
        return -(-nbytes // self._unit) * self._unit

    def _died(self, held: Held) -> None:
        if self.ended:
            return
        self.live -= held.nbytes
        self.log.append(held)
        self.held.pop(held.key, None)
        held.key = None

    def seed(self, tensor, category: str) -> None:
        """Count a tensor that was there before the block. The first category given to a storage stays."""
        for storage in _storages(tensor, self._on_device):
            if storage._cdata not in self.held:
                held = self._hold(storage, category)
                self.before.append(held)
                self.peak += held.nbytes  # it was there all the time, so every earlier total was this much higher

    def tag(self, tensor, category: str) -> None:
        """Say what a tensor is for. Unknown storages are ignored."""
        for storage in _storages(tensor, self._on_device):
            held = self.held.get(storage._cdata)
            if held is not None:
                held.category = category

    def _made(self, tensor) -> None:
        """An operator returned this: new storage, or a known one that may have been resized. Lists are looked into."""
        if isinstance(tensor, (list, tuple)):
            for part in tensor:
                self._made(part)
            return
        for storage in _storages(tensor, self._on_device):
            held = self.held.get(storage._cdata)
            if held is None:
                self.log.append(self._hold(storage, None))
            elif held.raw != storage.nbytes():
                self._resized(held, storage)

    def _met(self, argument) -> None:
        """An operator was given this. A storage that we never saw made was there before the block."""
        if isinstance(argument, (list, tuple)):
            for part in argument:
                self._met(part)
        elif isinstance(argument, torch.Tensor):
            for storage in _storages(argument, self._on_device):
                if storage._cdata in self.held:
                    continue
                if not storage.resizable() or storage.is_shared():
                    # Memory that NumPy or a DataLoader worker owns: it comes with every batch, so it was not there from
                    # the start. It counts from the moment it is first used.
                    self._made(argument)
                    self.tag(argument, "inputs")
                else:
                    self.seed(argument, "parameters" if isinstance(argument, torch.nn.Parameter) else "inputs")

    # -- operators -----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # The fast path of this function is the cost of the Meter: it is written out, not factored.
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # let DTensor and its kind unwrap first; we then see the tensors inside
        kind = KINDS.get(id(func))  # by id: an operator's own hash is a Python call
        if kind is None:
            kind = KINDS[id(func)] = _kind(func)
            OPERATORS.append(func)  # so that the id stays taken
        if kind is NOTHING:
            return func(*args, **kwargs) if kwargs else func(*args)
        if self.forced is None and graph_task() == -1 and grad_enabled():
            phase = FORWARD
        else:
            phase = self._current_phase()
        if phase != self.phase:
            self.enter_phase(phase)
        if kind is not FRESH:
            held = self.held
            for argument in args:
                cls = type(argument)
                if cls in DENSE:
                    if argument.layout is not STRIDED or argument.untyped_storage()._cdata not in held:
                        self._met(argument)
                elif cls not in PLAIN_VALUES:
                    self._met(argument)
            for argument in kwargs.values() if kwargs else ():
                if type(argument) not in PLAIN_VALUES:
                    self._met(argument)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if type(out) in DENSE and out.layout is STRIDED and self._on_device(out):
            storage = out.untyped_storage()
            known = self.held.get(storage._cdata)
            if known is None:
                self.log.append(self._hold(storage, None))
            elif known.raw != storage.nbytes():
                self._resized(known, storage)
        else:
            self._made(out)
        if self.live > self.peak:
            self.peak = self.live
        self.log.append((perf_counter(), phase, func))
        return out

    # -- phases --------------------------------------------------------------------------------------------------------

    def _current_phase(self) -> int:
        if self.forced is not None:
            return self.forced
        recording = grad_enabled()
        if graph_task() == -1:  # the autograd engine is not running
            # The update itself, or what comes between backward and update: clipping, unscaling.
            updating = not recording and (self.stepping or self.phase != FORWARD)
            return OPTIMIZER if updating else FORWARD
        if not recording:
            return BACKWARD
        # Operations are being recorded inside backward. Either a checkpoint runs its region again, or the user asked for
        # create_graph, which keeps the graph; then only a recompute has hooks on the tensors it saves.
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            return RECOMPUTE
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        return RECOMPUTE if hooked else DIFFERENTIABLE_BACKWARD

    def enter_phase(self, new: int) -> None:
        """Close the current phase: what it made and left alive now shows what it was for."""
        old = self.phase
        if old == FORWARD and new != OPTIMIZER:
            self._take_back_root_gradient()
            self._settle(FORWARD, "activations")
        elif old == RECOMPUTE:
            self._settle(RECOMPUTE, "recomputed")
        elif old == OPTIMIZER and self.forced is not None:
            self._settle(OPTIMIZER, "optimizer state")
        if new in (FORWARD, OPTIMIZER):
            self._settle(BACKWARD, "gradients")
            self._settle(DIFFERENTIABLE_BACKWARD, "activations")
            self._span = len(self.log)
        self.phase = new
        self.on_phase(old)

    def _settle(self, born: int, category: str) -> None:
        for event in self.log[self._span :]:
            if type(event) is Held and event.born == born and event.key is not None and event.category is None:
                event.category = category

    def _take_back_root_gradient(self) -> None:
        """`loss.backward()` makes its first gradient, ones_like(loss), before the engine runs: it belongs to backward."""
        if type(self.log[-1]) is tuple and self.log[-1][2] is torch.ops.aten.ones_like.default:
            made, (t, _, func) = self.log[-2], self.log[-1]
            self.log[-1] = (t, BACKWARD, func)
            if type(made) is Held:
                made.born = BACKWARD


NOTHING, FRESH, PLAIN = "nothing", "fresh", "plain"
KINDS: dict[int, str] = {}
OPERATORS: list = []


def _kind(func) -> str:
    """What an operator does to memory.

    NOTHING: returns views of its arguments, or touches no tensor's bytes at all (questions about a device, marks for the
    profiler). FRESH: wraps a tensor that was made a moment ago, in C++. PLAIN: anything else.
    """
    name = str(func)
    if name.startswith("aten.lift_fresh"):
        return FRESH
    if name.startswith(("prim.", "profiler.")):
        return NOTHING
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.returns:
        return PLAIN
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return PLAIN  # reshape, contiguous, to: a view or a copy, as it turns out (seen only in inference mode)
    views = all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return NOTHING if views else PLAIN


def _storages(tensor, on_device):
    """The storages that hold a tensor's bytes on this device: one for a dense tensor, several for a sparse one."""
    if type(tensor) not in DENSE and not isinstance(tensor, torch.Tensor) or not on_device(tensor):
        return ()
    if tensor.layout is STRIDED:
        return (tensor.untyped_storage(),)
    if tensor.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in (tensor._indices(), tensor._values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return [part.untyped_storage() for part in parts]
    return []  # opaque layouts (mkldnn) own no storage that can be asked
