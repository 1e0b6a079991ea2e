"""A stand-in for the wrappers that hide accumulation: backward divides, step and clear work only on some micro-batches."""

from __future__ import annotations


class Wrapper:
    """Counts micro-batches. `divides`: backward divides by the steps. `forces_end`: the loader's last batch always syncs."""

    def __init__(self, optimizer, steps, divides=True, forces_end=True):
        self.optimizer, self.steps, self.divides, self.forces_end = optimizer, steps, divides, forces_end
        self.count, self.sync, self.last = 0, False, False

    def loader(self, batches):
        """Iterate and know which batch is the last."""
        batches = list(batches)
        for i, batch in enumerate(batches, 1):
            self.last = i == len(batches)
            yield batch

    def begin(self):
        """Start of a micro-batch."""
        self.count += 1
        self.sync = self.count % self.steps == 0 or (self.forces_end and self.last)
        if self.sync:
            self.count = 0 if self.last else self.count

    def backward(self, loss):
        """backward() of the loss, divided if this wrapper divides."""
        (loss / self.steps if self.divides else loss).backward()

    def step(self):
        """The optimizer's step, on a micro-batch that syncs."""
        if self.sync:
            self.optimizer.step()

    def zero_grad(self):
        """Clear, on a micro-batch that syncs."""
        if self.sync:
            self.optimizer.zero_grad()


def windows(batches, steps):
    """Lists of up to `steps` batches."""
    batches = list(batches)
    for start in range(0, len(batches), steps):
        yield batches[start : start + steps]
