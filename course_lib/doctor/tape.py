"""Examine a loop that makes its own model, data and optimizer: nothing about it is known before it runs.

What can be read off is enough for most faults. Each backward() starts at a loss; the factors between that loss and
the reduction that made it (the mean, the cross-entropy, ...) are constants in autograd's graph. So the micro-batch's
own gradient is what backward() added, divided by that factor, and the factor is the weight. What a loss of its own
weights inside (tokens) cannot be seen, nor whether it compares samples.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils import data

from course_lib.sandbox.undo import undoing

from .facts import Facts
from .known import MicroBatch
from .observe import Watch
from .replay import Replay
from .rows import Rows, first_tensor, rows_in

ENOUGH = 300  # forwards that are looked at
NOTE = (
    "This loop owns its model and data: each micro-batch is taken to need its share of the rows. Weights inside of its loss, "
    "such as tokens, are not seen."
)


class Enough(BaseException):
    """Raised in the loop when it has shown enough. No `except Exception` stops it."""


class SeenRows(Rows):
    """Rows learned as they come: a call of the model on new data is a new micro-batch."""

    def __init__(self):
        super().__init__()
        self.iterator = 0  # which pass of a DataLoader the latest batch came from

    def find(self, args, training: bool = True):
        """The rows of this call, numbered on first sight; the same tensor again is the same micro-batch."""
        tensor = first_tensor(args)
        if tensor is None or tensor.dim() == 0:
            return None
        if not self.iterator:
            found = super().find(args, training)
            if found is not None and len({batch for batch, _ in found}) == 1:
                return found
        number = len(self.batches)
        self.add(self.iterator, [(tensor.detach(),)])
        return tuple((number, row) for row in range(rows_in(tensor)))


class LateWatch(Watch):
    """A watch that gets to know the model when it first goes forward with something to train in it."""

    def __init__(self, rows: SeenRows, user_globals=None):
        nothing = torch.nn.Module()
        nothing.register_parameter("unused", torch.nn.Parameter(torch.zeros(1)))
        super().__init__(nothing, torch.optim.SGD(nothing.parameters(), lr=1.0), rows, user_globals=user_globals)
        self.met = self.partial = False

    def _forward_ends(self, module, args, *rest):
        if self._mine() and self.depth == 1 and not self.met and torch.is_grad_enabled():
            trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            if trainable:
                self._meet(module, trainable)
        if self._mine() and self.depth == 1 and not torch.is_grad_enabled():
            self.depth = 0  # a look without a graph: on which data cannot be known
            return
        super()._forward_ends(module, args, *rest)
        if self._mine() and self.depth == 0 and len(self.rows.batches) > ENOUGH and len(self.log.of("step")) > 2:
            raise Enough

    def _meet(self, module, trainable):
        self.met, self.module = True, module
        self.log.names = [name for name, _ in trainable]
        self.log.base = [p.detach().clone() for _, p in trainable]
        self._take([p for _, p in trainable])

    def _note_step(self, optimizer):
        if not self.log.of("step"):
            self.log.optimizer = id(optimizer)
            self.log.first_lr = [group.get("lr") for group in optimizer.param_groups]
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        mine = [p for p in held if id(p) in self.identity]
        self.partial |= bool(mine) and len(mine) < len(held)  # the model is called part by part
        super()._note_step(optimizer)


class TapeKnown:
    """What `Known` is to a problem: the micro-batches and their gradients, as read off the run itself."""

    coupled_by = None

    def __init__(self, watch: LateWatch):
        rows = watch.rows
        self.parameters, self.model = watch.parameters, watch.module
        self.micro = [
            MicroBatch(n, n, epoch, tuple((n, row) for row in range(rows.sizes[n])), True)
            for n, (epoch, _) in enumerate(rows.batches)
        ]
        self.loose = watch.others  # a forward may serve another network: one that no backward reaches is no finding
        backwards = watch.log.of("backward")
        # gradients that do not come out of backward(), or that hooks change on the way: their weights cannot be read
        self.blind = watch.partial or bool(watch.log.of("taken")) or not backwards
        self.blind |= bool(watch.log.of("hand")) and not any(event.before.any() for event in watch.log.of("step"))
        self.blind |= any(event.info.get("hooked") for event in backwards)
        self._gradients: dict = {}
        self._losses: dict = {}
        self._read(watch.log)
        self._none = torch.zeros_like(watch.last)

    def _read(self, log):
        since: list = []
        for event in log.events:
            if event.kind == "forward" and event.info["grad"] and event.info["rows"]:
                since.append(event.info["rows"][0][0])
            elif event.kind == "backward":
                factor = event.info.get("factor") or 1.0
                change = (event.after - event.before) / factor
                if self.loose and not bool(change.any()):
                    since = []
                    continue
                for number in since:
                    if bool(change.any()):
                        self._gradients.setdefault(number, change / len(since))
                    if event.info.get("loss") is not None:
                        self._losses.setdefault(number, event.info["loss"] / factor)
                since = []

    def number_of(self, rows) -> tuple:
        """The micro-batch of a call."""
        return tuple(dict.fromkeys(batch for batch, _ in rows))

    def size(self, number: int) -> int:
        """Rows of a micro-batch."""
        return len(self.micro[number].rows)

    def gradient(self, number: int, visit=None) -> torch.Tensor:
        """Its own gradient: zeros where no backward ever reached it."""
        return self._gradients.get(number, self._none)

    def window_gradient(self, numbers):
        """Not known for a loop that owns its loss."""
        return None

    def loss(self, number: int) -> float:
        """Its loss before any division."""
        return self._losses.get(number, float("nan"))

    def needed(self, numbers) -> list:
        """Shares of the rows."""
        sizes = [self.size(number) for number in numbers]
        return [size / sum(sizes) for size in sizes]

    def couples(self, numbers) -> float:
        """Not known."""
        return 0.0

    taped = True
    tolerance = 1e-3
    batch_statistics: list = []


def facts_of_tape(run, accumulation_steps: int | None, user_globals=None, clean_up=None):
    """(Facts or None where no model with parameters went forward, what the loop returned)."""
    rows = SeenRows()
    watch = LateWatch(rows, user_globals)
    if clean_up is not None:
        watch.clean_up = clean_up
    returned, cut = None, False
    watch.note("epoch", number=0)
    _doctor_stops_here = True
    with undoing() as later:
        _watch_loaders(rows, later)
        try:
            with watch.on():
                returned = run()
        except Enough:
            cut = True
        except Exception as error:
            watch.log.error = error
    watch.log.returned.append(returned)
    watch.log.cut = cut
    if not watch.met:
        return None, returned, watch.log.error
    known = TapeKnown(watch)
    replay = Replay(watch.log, known)
    return Facts(watch.log, known, replay, accumulation_steps or _steps(watch.log, replay)), returned, watch.log.error


def _steps(log, replay) -> int:
    """The accumulation steps that the loop seems to mean: what its windows hold, or, where it steps each time, what it divides by."""
    counted = [{n for n, event in update.visits if event.info.get("counts")} for update in replay.updates]
    held = [len(numbers) for numbers in counted if numbers]
    usual = Counter(held).most_common(1)[0][0] if held else 1
    divisors = [round(1 / f) for f in (e.info.get("factor") for e in log.of("backward")) if f and 0 < f < 0.75]
    return usual if usual > 1 or not divisors else Counter(divisors).most_common(1)[0][0]


def _watch_loaders(rows: SeenRows, later) -> None:
    """Note from which pass of which DataLoader a batch comes: a shuffled loader never gives the same batch again."""
    kind = data.dataloader._BaseDataLoaderIter
    before, passes = kind.__next__, {}

    def watched(self):
        batch = before(self)
        passes.setdefault(id(self), (len(passes) + 1, self))
        rows.iterator = passes[id(self)][0]
        return batch

    later(lambda: setattr(kind, "__next__", before))
    kind.__next__ = watched
