"""A chain of blocks, as a planner sees it: what each block costs in bytes and in work.

Block i turns boundary i (its input) into boundary i + 1. All sizes are bytes, all costs are in one unit of your choice
(FLOPs, seconds, or 1 for each block).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """One block of a chain.

    state_bytes: its input, which a checkpoint of this block keeps. own_bytes: what its backward needs besides the input
    and the parameters. gradient_bytes: the gradient of its output, while it waits for the block's backward.
    weight_gradient_bytes: gradients of its parameters that its backward allocates; 0 where they exist already.
    tail_cost: the part of forward_cost that a rerun saves when it may stop after this block's last saved tensor.

    keeps_input: False if its backward does not need its input (a ReLU needs its output only). saves_output: True if its
    backward needs its output; then the next block's input lives longer than that block asks for.

    saves: False if its backward needs no tensor at all, not even a weight (Flatten): it is never run again for its own sake.

    Peaks while it runs, its input counted; None where nothing but the parts above is alive:
    plain_peak: a forward that keeps nothing. taped_peak: a forward that keeps everything. last_peak: a rerun that stops
    after its last saved tensor. backward_peak: its backward, its own weight gradients counted. rerun_backward_peak: the same
    after a rerun (a recomputed tensor goes a little earlier than a kept one). Both once more, with _held: somebody else (a
    region, the block before) keeps its input to the end.
    """

    state_bytes: int
    own_bytes: int
    gradient_bytes: int
    forward_cost: float = 1
    weight_gradient_bytes: int = 0
    plain_peak: int | None = None
    taped_peak: int | None = None
    last_peak: int | None = None
    backward_peak: int | None = None
    backward_peak_held: int | None = None
    rerun_backward_peak: int | None = None
    rerun_backward_peak_held: int | None = None
    keeps_input: bool = True
    saves_output: bool = False
    tail_cost: float = 0
    saves: bool = True

    @property
    def saved_bytes(self) -> int:
        """What its backward needs, its own input among it, parameters not."""
        return self.own_bytes + (self.state_bytes if self.keeps_input else 0)

    @property
    def held_bytes(self) -> int:
        """The same when somebody else keeps the input, whether the block needs it or not."""
        return self.own_bytes + self.state_bytes


@dataclass(frozen=True)
class Chain:
    """Blocks in order, the bytes of the last output, and of the gradient of the first input (0 if it needs none).

    loss_bytes: what the loss keeps alive during all of backward.
    """

    blocks: tuple
    output_bytes: int
    input_gradient_bytes: int = 0
    loss_bytes: int = 0

    def __post_init__(self):
        if not self.blocks:
            raise ValueError("A chain has at least one block.")
        for i, block in enumerate(self.blocks):
            for name, value in vars(block).items():
                if value is None and "_peak" in name or name in ("keeps_input", "saves_output", "saves"):
                    continue
                if value < 0:
                    raise ValueError(f"Block {i}: {name} is {value}; sizes and costs are 0 or more.")
                if not name.endswith("_cost") and (isinstance(value, bool) or not isinstance(value, int)):
                    raise TypeError(f"Block {i}: {name} is a whole number of bytes, not {value!r}.")
        for name in ("output_bytes", "input_gradient_bytes", "loss_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; sizes are 0 or more.")

    def __len__(self) -> int:
        return len(self.blocks)

    @classmethod
    def uniform(cls, n: int, state_bytes: int = 1, saved_bytes: int = 16, gradient_bytes: int = 1, forward_cost: float = 1):
        """n equal blocks. saved_bytes counts the block's own input. Raises ValueError for n < 1 or saved < state."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"A chain has at least one block; got {n!r}.")
        if saved_bytes < state_bytes:
            raise ValueError(f"saved_bytes ({saved_bytes}) counts the input, so it is at least state_bytes ({state_bytes}).")
        block = Block(state_bytes, saved_bytes - state_bytes, gradient_bytes, forward_cost)
        return cls((block,) * n, output_bytes=state_bytes, input_gradient_bytes=gradient_bytes)

    # -- what the ticks and the planner ask ----------------------------------------------------------------------------

    def boundary(self, i: int) -> int:
        """Bytes of boundary i: the input of block i, or the last output."""
        return self.blocks[i].state_bytes if i < len(self.blocks) else self.output_bytes

    def gradient(self, i: int) -> int:
        """Bytes of the gradient of boundary i."""
        return self.blocks[i - 1].gradient_bytes if i else self.input_gradient_bytes

    def weight_gradients_after(self, i: int) -> int:
        """Bytes of parameter gradients that exist when only the blocks after i have run backward."""
        return sum(block.weight_gradient_bytes for block in self.blocks[i + 1 :])

    # -- peaks, above what other parts of the schedule hold --------------------------------------------------------------

    def plain_forward(self, start: int, i: int) -> int:
        """Block i run inside a region that began at boundary `start`, keeping nothing."""
        block, held = self.blocks[i], self.boundary(start) if i != start else 0
        peak = block.state_bytes + self.boundary(i + 1) if block.plain_peak is None else block.plain_peak
        return held + peak

    def taped_forward(self, i: int, last_of_rerun: bool) -> int:
        """Block i run with its activations kept; the last block of a rerun ends early. Its input is alive meanwhile."""
        block = self.blocks[i]
        if last_of_rerun:
            return block.held_bytes if block.last_peak is None else block.last_peak
        return block.held_bytes + self.boundary(i + 1) if block.taped_peak is None else block.taped_peak

    def backward(self, i: int, rerun: bool, held: bool) -> int:
        """The backward of block i, after a rerun or not; held: somebody else keeps its input meanwhile."""
        block = self.blocks[i]
        peak = getattr(block, ("rerun_" if rerun else "") + "backward_peak" + ("_held" if held else ""))
        if peak is None:
            gradients = self.gradient(i + 1) + self.gradient(i)
            saved = block.held_bytes if held else block.saved_bytes
            peak = max(saved + gradients, self.gradient(i) + block.weight_gradient_bytes)
        return peak + self.weight_gradients_after(i) + self.loss_bytes

    def waiting(self, end: int) -> int:
        """What is alive while a region that ends with block `end` is run again: gradients of all that comes after it."""
        if end == len(self.blocks) - 1:  # the first run: backward has not begun
            return 0
        return self.gradient(end + 1) + self.weight_gradients_after(end) + self.loss_bytes
