"""Watch a training loop at work: what it calls, and what stands in `.grad` before and after each call.

Nothing here judges. The result is a `Log`: a list of events in the order in which they happened. Where torch has a
public hook (forward, optimizer step) the watch uses it, elsewhere it stands in front of the function while the
loop runs. Between two events a loop may also write `.grad` itself: that shows as an event "hand".
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_lib.sandbox.undo import undoing

from .leftovers import averages, graph_sizes
from .rows import Rows
from .standins import stand_in


LOOKED_AT = 200  # forwards at which the loop's own variables are looked through


@dataclass
class Event:
    """One thing that happened. `before` and `after`: the gradient of all parameters as one vector, None for no change.

    kind: forward, backward, clear, hand, clip, unscale, step, scheduler, scaler step, scaler update, scale, ema, log,
    moved, replaced, epoch. `info` holds what belongs to the kind.
    """

    kind: str
    before: torch.Tensor | None = None
    after: torch.Tensor | None = None
    info: dict = field(default_factory=dict)


@dataclass
class Log:
    """All events of a run, and what stood there when it ended."""

    events: list = field(default_factory=list)
    base: list = field(default_factory=list)  # the parameters' values at the start
    names: list = field(default_factory=list)
    returned: list = field(default_factory=list)  # one value per epoch
    error: object = None  # the Fault or exception that ended the run
    generator: bool = False
    tracked: int = 0  # batches that a BatchNorm layer counted in the run
    cut: bool = False  # it was ended because it had shown enough
    first_lr: list = field(default_factory=list)
    optimizer: int = 0  # id of the one that the loop was given

    def of(self, *kinds) -> list:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]


class Watch:
    """Watches one model. `with watch.on(): ...` around each call of the loop; `watch.log` is what it saw.

    hold: undo every step at once, so that all micro-batches see the same weights and have one known gradient each.
    """

    def __init__(self, model: nn.Module, optimizer, rows: Rows, hold: bool = True, user_globals=None):
        self.log, self.rows, self.hold, self.optimizer = Log(), rows, hold, optimizer
        self.user_globals = user_globals or {}
        self.log.names = [n for n, p in model.named_parameters() if p.requires_grad]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.module = model
        self.log.base = [p.detach().clone() for p in self.parameters]
        self.identity = {id(p): i for i, p in enumerate(self.parameters)}
        self.dtypes = [p.dtype for p in self.parameters]
        self.log.optimizer = id(optimizer)
        self.log.first_lr = [group.get("lr") for group in optimizer.param_groups]
        self.last = self.gradient()
        self.depth = self.quiet = 0
        self.forwards = 0
        self.others = False  # another network was trained beside this one
        self.within: list = []  # steps that were made inside of another call
        self.in_scaler_step = self.in_scheduler = False
        self.thread = None
        self.last_rng = None
        self.clean_up = lambda: None

    # -- what stands in .grad --------------------------------------------------------------------------------------

    def gradient(self) -> torch.Tensor:
        """The gradients of all parameters as one vector in float64; NaN-free zeros where there is none."""
        parts = []
        for parameter, base in zip(self.parameters, self.log.base):
            grad = parameter.grad
            if grad is None or not isinstance(grad, torch.Tensor) or grad.shape != base.shape:
                parts.append(torch.zeros(base.numel(), dtype=_wide(base)))
                continue
            grad = grad.detach()
            parts.append((grad.to_dense() if grad.layout != torch.strided else grad).to(_wide(base)).reshape(-1).cpu())
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def missing(self) -> list:
        """Names of the parameters whose gradient is None."""
        return [name for name, parameter in zip(self.log.names, self.parameters) if parameter.grad is None]

    def note(self, kind, before=None, after=None, **info) -> Event:
        """Write an event down."""
        event = Event(kind, before, after, info)
        self.log.events.append(event)
        return event

    def catch_up(self) -> None:
        """Note what the loop did to `.grad` by itself since the last event."""
        now = self.gradient()
        if not _equal(now, self.last):
            cleared = not bool(now.any())
            self.note("clear" if cleared else "hand", self.last, now, by="hand")
            self.last = now

    @contextmanager
    def around(self, kind, **info):
        """An event with the gradients before and after. Calls inside of it are not noted again."""
        self.catch_up()
        before = self.last
        if kind == "backward":
            info["live"] = self._live()
        event = self.note(kind, before, None, **info)
        self.quiet += 1
        try:
            yield event
        finally:
            self.quiet -= 1
            self.last = event.after = self.gradient()
            if self.within:
                self._steps_within(event)

    def _live(self):
        """Which parameters can get a gradient now; None for all."""
        live = [p.requires_grad for p in self.parameters]
        return None if all(live) else live

    # -- forward ---------------------------------------------------------------------------------------------------

    def _mine(self) -> bool:
        mine = threading.get_ident() == self.thread
        if not mine and self.thread is not None and not self.log.of("other thread"):
            self.note("other thread")
        return mine

    def listens(self) -> bool:
        """True for a call of the watched thread that is no part of another noted call."""
        return self._mine() and not self.quiet

    def _forward_begins(self, module, args):
        if not self._mine():
            return
        self.depth += 1
        if self.depth == 1:
            self.last_rng = torch.get_rng_state()
            if not self.quiet:
                # before the forward: a graph must not see the weights move
                self._check_weights(inside=module.training and torch.is_grad_enabled())

    def _forward_ends(self, module, args, *rest):
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])  # torch leaves kwargs out where forward raised
        if not self._mine() or self.depth == 0:
            return
        self.depth -= 1
        if self.depth or self.quiet:
            return
        if torch.is_grad_enabled() and _has_graph(output):
            self._adopt(module)
        theirs = list(module.parameters())
        if not theirs and module is not self.module:
            return  # a loss such as nn.MSELoss, or a layer without weights
        if theirs and module is not self.module and not any(id(p) in self.identity for p in theirs):
            self.others |= any(p.requires_grad for p in theirs)
            return  # another network, perhaps on the same data
        found = self.rows.find((args, kwargs), module.training and torch.is_grad_enabled())
        if found is None and not self._same_model(module):
            return  # a part of the model on something that is no data
        self.catch_up()
        self.forwards += 1
        early = self.forwards <= LOOKED_AT
        random = not torch.equal(self.last_rng, torch.get_rng_state())
        self.note(
            "forward",
            rows=found,
            part=self.rows.part,
            lr=[group.get("lr") for group in self.optimizer.param_groups],
            training=module.training,
            grad=torch.is_grad_enabled() and _has_graph(output),
            autocast=torch.is_autocast_enabled("cpu"),
            rng=self.last_rng if random else None,
            graphs=graph_sizes() if early else {},
            averages=averages(self.log.base, self.identity) if early else {},
            modes=None if self.log.of("forward") else {name: part.training for name, part in module.named_modules()},
        )

    def _same_model(self, module) -> bool:
        if module is self.module:
            return True
        shapes = [p.shape for p in module.parameters() if p.requires_grad]
        return bool(shapes) and shapes == [b.shape for b in self.log.base]

    def _adopt(self, module) -> None:
        """A copy of the model with the same weights takes over: the loop has built it again."""
        theirs = [p for p in module.parameters() if p.requires_grad]
        if not theirs or any(id(p) in self.identity for p in theirs) or not self._same_model(module):
            return
        if all(torch.equal(p.detach(), base) for p, base in zip(theirs, self.log.base)):
            self.catch_up()
            self.note("replaced")
            self._take(theirs)

    def _take(self, parameters) -> None:
        self.parameters = parameters
        self.identity = {id(p): i for i, p in enumerate(parameters)}
        self.last = self.gradient()

    def _check_weights(self, inside: bool = False) -> None:
        """Did somebody other than the optimizer move the weights?"""
        if not self.hold:
            return
        for name, parameter, base in zip(self.log.names, self.parameters, self.log.base):
            if parameter.dtype != base.dtype or parameter.device != base.device:
                self.note("changed", name=name, dtype=str(parameter.dtype), device=str(parameter.device))
                self._restore()
                return
            if not torch.equal(parameter.detach(), base):
                self.note("moved", name=name, inside=inside)
                self._restore()
                return

    def _restore(self) -> None:
        with torch.no_grad():
            for parameter, base in zip(self.parameters, self.log.base):
                if parameter.dtype == base.dtype and parameter.shape == base.shape:
                    parameter.copy_(base)

    # -- the optimizer's step --------------------------------------------------------------------------------------

    def _any_step_begins(self, optimizer, args, kwargs):
        """Runs before the loop's own hooks: put ours behind them, so that it sees what they leave in .grad."""
        if not self._mine():
            return None
        self.step_depth += 1
        if self.step_depth > 1:
            return None  # an optimizer that holds another one: one update
        handle = getattr(optimizer, "_doctor_hook", None)
        if handle is not None:
            handle.remove()
        optimizer._doctor_hook = optimizer.register_step_pre_hook(self._step_begins)
        return None

    def _step_begins(self, optimizer, args, kwargs):
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._note_step(optimizer)
            return None

        first = [True]

        def watched():
            if first:
                result = closure()
                first.clear()
                self._note_step(optimizer)
                return result
            self.quiet += 1  # a line search: further looks on the way to the same update
            try:
                return closure()
            finally:
                self.quiet -= 1
                self.last = self.gradient()

        if len(args) > 1:  # torch hands the optimizer itself to the hook, as the first of the arguments
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _steps_within(self, event) -> None:
        """Optimizers that step inside backward(), parameter by parameter: as if they stepped right after it."""
        parts, self.within = self.within, []
        seen, stepped = event.after.clone(), torch.zeros_like(event.after, dtype=torch.bool)
        start = 0
        for i, base in enumerate(self.log.base):
            block = slice(start, start + base.numel())
            start = block.stop
            for known, gradient, *_ in parts:
                if i in known:
                    seen[block], stepped[block] = gradient[block], True
        left = event.after
        event.after = seen
        known = frozenset().union(*(part[0] for part in parts))
        self.note("step", seen, seen, parameters=known, missing=[], lr=parts[0][2], optimizer=parts[0][3])
        if not torch.equal(left, seen):
            self.note("clear", seen, left, by="hand")

    def _note_step(self, optimizer) -> None:
        known = self._follow(optimizer)
        if not known:
            return
        if self.quiet:
            rates = [group.get("lr") for group in optimizer.param_groups]
            self.within.append((known, self.gradient(), rates, id(optimizer)))
            return
        self.catch_up()
        self._check_weights()
        self.note(
            "step",
            self.last,
            self.last,
            parameters=known,
            live=self._live(),
            missing=self.missing(),
            lr=[group.get("lr") for group in optimizer.param_groups],
            optimizer=id(optimizer),
        )

    def _follow(self, optimizer) -> frozenset:
        """Which of the watched parameters this optimizer moves. A rebuilt model is followed by its shapes."""
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        known = frozenset(self.identity[id(p)] for p in mine if id(p) in self.identity)
        if known or not mine:
            return known
        trainable = [p for p in mine if p.requires_grad]
        if [p.shape for p in trainable] != [b.shape for b in self.log.base]:
            return frozenset()
        if any(p.grad is not None for p in self.parameters) and all(p.grad is None for p in trainable):
            self.note("foreign step")  # these tensors only look like the model's: nothing ever reaches them
            return frozenset()
        self.note("replaced")
        self._take(trainable)
        self.log.base = [p.detach().clone() for p in trainable]
        return frozenset(range(len(trainable)))

    def _any_step_ends(self, optimizer, args, kwargs):
        if not self._mine():
            return
        self.step_depth = max(0, self.step_depth - 1)
        if self.step_depth:
            return
        handle = getattr(optimizer, "_doctor_hook", None)
        if handle is not None:
            handle.remove()
            optimizer._doctor_hook = None
        if self.hold:
            self._restore()

    # -- the whole ----------------------------------------------------------------------------------------------

    @contextmanager
    def on(self):
        """Watch what the calling thread does."""
        self.thread = threading.get_ident()
        self.last = self.gradient()
        self.depth = self.quiet = self.step_depth = 0
        with undoing() as later:
            for hook in (
                register_module_forward_pre_hook(self._forward_begins),
                register_module_forward_hook(self._forward_ends, with_kwargs=True, always_call=True),
                register_optimizer_step_pre_hook(self._any_step_begins),
                register_optimizer_step_post_hook(self._any_step_ends),
            ):
                later(hook.remove)
            stand_in(self, later)
            try:
                yield self
            finally:
                self.clean_up()  # before torch is used again: the loop may have replaced parts of it
                self.quiet = 0
                self.catch_up()
                self._check_weights()
                self.thread = None


def _wide(tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _equal(a, b) -> bool:
    same = (a == b) | (a.isnan() & b.isnan()) if a.shape == b.shape else torch.tensor(False)
    return bool(same.all())


def _has_graph(output) -> bool:
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    if isinstance(output, dict):
        return any(_has_graph(value) for value in output.values())
    if isinstance(output, (list, tuple)):
        return any(_has_graph(value) for value in output)
    return any(_has_graph(value) for value in getattr(output, "__dict__", {}).values())
