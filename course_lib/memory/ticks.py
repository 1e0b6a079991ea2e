"""A training step on a chain, tick by tick: which states and activations are alive, and how many bytes.

`simulate` does on paper what nested checkpoints do when they run. Forward runs every block once; the parts of the tree that
are block numbers keep their activations. Backward takes the blocks from the last to the first. When it wants a saved tensor
of a block whose activations are not there, the stretch around it is run again, one level deep: inner stretches again only
keep their inputs.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .trees import span


class Tick(NamedTuple):
    """One block runs. Bytes above what was there before the step."""

    action: str  # "forward", "recompute" or "backward"
    block: int
    states: tuple  # alive after it: i is the input of block i, n the output
    taped: tuple  # blocks whose activations are alive after it
    live_bytes: int  # alive after it
    peak_bytes: int  # the most alive at once during it
    kept: bool  # the activations of this run were kept


class _Memory:
    """Bytes alive. A state counts once, while it has owners; everything else is a sum that `play` moves."""

    def __init__(self, chain):
        self.chain, self.bytes = chain, chain.states
        self.owners: Counter = Counter()  # of each state
        self.sharing: Counter = Counter()  # of each storage
        self.live = self.peak = 0
        if not chain.input_counts:
            self.own(0)
            self.live = self.peak = 0

    def own(self, state: int) -> None:
        root = self.chain.root[state]
        if not self.sharing[root]:
            self.live += self.bytes[root]
            self.peak = max(self.peak, self.live)
        self.owners[state] += 1
        self.sharing[root] += 1

    def let_go(self, state: int) -> None:
        root = self.chain.root[state]
        self.owners[state] -= 1
        self.sharing[root] -= 1
        if not self.sharing[root]:
            self.live -= self.bytes[root]

    def play(self, steps, on=None) -> None:
        for rise, change, event in steps:
            self.peak = max(self.peak, self.live + rise)
            self.live += change
            if event is not None:
                on[event]()

    def states(self) -> tuple:
        return tuple(sorted(state for state, owners in self.owners.items() if owners))


def simulate(chain, tree) -> tuple:
    """All ticks of a training step on `chain` with the checkpoints of `tree`, in order."""
    step = _Step(chain, tree)
    step.forward()
    step.loss()
    step.backward()
    return tuple(step.ticks)


class _Step:
    """One training step: forward by a tree, loss, backward."""

    def __init__(self, chain, tree):
        self.chain, self.tree = chain, tree
        self.memory, self.ticks = _Memory(chain), []
        self.taped: set = set()
        self.outermost = {id(part) for part in tree if isinstance(part, tuple)}
        self.next_saving: list = []  # for each block the first one from it on that saves something
        following = len(chain)
        for i in reversed(range(len(chain))):
            following = i if chain.blocks[i].saves else following
            self.next_saving.insert(0, following)
        self.inputs_kept: dict = {}  # {block whose backward ends their life: states that outermost checkpoints keep}

    def tick(self, action: str, block: int, kept: bool) -> None:
        memory = self.memory
        alive = (memory.states(), tuple(sorted(self.taped)), memory.live, memory.peak)
        self.ticks.append(Tick(action, block, *alive, kept))
        memory.peak = memory.live

    def saves(self, part) -> bool:
        """Does any block of this part save something? If not, nobody will ask for it again."""
        first, last = span(part)
        return self.next_saving[first] <= last

    # -- forward, for the first time and again -------------------------------------------------------------------------

    def forward(self) -> None:
        self.memory.own(0)
        for part in self.tree:
            first, last = span(part)
            if not isinstance(part, tuple):
                self.run(part, "forward", "taped")
                continue
            if self.saves(part):
                self.memory.own(first)
                self.inputs_kept.setdefault(self.next_saving[first], []).append(first)
            for block in range(first, last + 1):
                self.run(block, "forward", "dropped")

    def run(self, block: int, action: str, mode: str) -> None:
        """Run a block. The run loop owns the state before it, and then the state after it."""
        memory, data, made = self.memory, self.chain.blocks[block], []
        kept = not mode.startswith("dropped")

        def output():
            memory.own(block + 1)
            made.append(block + 1)

        memory.play(getattr(data.modes, mode), {"output": output})
        if kept:
            self.taped.add(block)
            if data.owns_input:
                memory.own(block)
            if data.owns_output:
                memory.own(block + 1)
        memory.let_go(block)
        if made and mode == "stopped":  # nobody runs on from there
            memory.let_go(block + 1)
        self.tick(action, block, kept)

    def run_again(self, parts) -> None:
        """Run a stretch from its input to the last tensor that it saves."""
        memory, blocks, lingering = self.memory, self.chain.blocks, 0
        last_saving = max(i for i, part in enumerate(parts) if isinstance(part, tuple) or blocks[part].saves)
        if id(parts) in self.outermost:
            memory.own(span(parts)[0])  # the checkpoint keeps it, too; an inner one hands it over
        for place, part in enumerate(parts[: last_saving + 1]):
            first, last = span(part)
            if not isinstance(part, tuple):
                self.run(part, "recompute", "stopped" if place == last_saving else "taped_again")
                lingering += blocks[part].lingering_bytes
            elif place == last_saving:  # all that was still missing is this stretch's input
                if not self.saves(part):
                    memory.let_go(first)
            else:
                if self.saves(part):
                    memory.own(first)
                for block in range(first, last + 1):
                    self.run(block, "recompute", "dropped_again")
                    lingering += blocks[block].lingering_bytes
        memory.live -= lingering
        memory.peak = memory.live

    # -- loss and backward ---------------------------------------------------------------------------------------------

    def loss(self) -> None:
        memory, n = self.memory, len(self.chain)
        if self.chain.loss is None:
            memory.let_go(n)
            gradient = self.chain.output_gradient_bytes
            memory.play([(gradient, gradient, None)])
            return
        forward, backward, owns_output = self.chain.loss
        memory.play(forward)
        if not owns_output:
            memory.let_go(n)
        memory.play(backward, {"input": lambda: memory.let_go(n)})

    def backward(self) -> None:
        memory, pending = self.memory, list(self.tree)  # pending: the parts whose backward is still to come
        for block in reversed(range(len(self.chain))):
            data = self.chain.blocks[block]
            on = {
                "unpack": lambda block=block: self.find(block, pending),
                "input": lambda block=block: memory.let_go(block),
                "output": lambda block=block: memory.let_go(block + 1),
                "done": lambda block=block: [memory.let_go(i) for i in self.inputs_kept.pop(block, ())],
            }
            memory.play(data.modes.backward if block in self.tree else data.modes.backward_again, on)
            self.taped.discard(block)
            self.tick("backward", block, False)

    def find(self, block: int, pending: list) -> None:
        """Backward reads a saved tensor of this block: run stretches again until it is there."""
        memory, before = self.memory, self.memory.peak
        memory.peak = memory.live
        while pending[-1] != block:
            part = pending.pop()
            if isinstance(part, tuple) and span(part)[0] <= block:
                self.run_again(part)
                pending.extend(part)
        memory.peak = max(before, memory.live)
