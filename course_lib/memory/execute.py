"""Run blocks as a tree of nested checkpoints says."""

from __future__ import annotations

import contextlib
import sys

from .checkpoint import checkpoint
from .trees import span

FRAMES = 4  # Python frames that one checkpoint inside another takes, and one to spare


def run(blocks, tree: tuple, x):
    """`x` through all blocks in order. The stretches of the tree are checkpointed, each inside the one around it.

    Trees of any depth: each level takes a few frames of Python's stack, and the recursion limit is raised for the moments
    in which a deep tree runs (here, and in backward when it runs again), never lowered.
    """
    return Stretch(blocks, tree, _depth(tree))([x])


class Stretch:
    """The parts of one stretch, as a function. Its input comes in a list, from which it is taken out.

    As a plain argument, every caller up the stack would own the input for as long as the stretch runs, and a deep tree
    would keep a state for each level. An empty list keeps nothing.
    """

    def __init__(self, blocks, parts: tuple, depth: int):
        self.blocks, self.parts, self.depth = blocks, parts, depth

    def __call__(self, holder: list):
        with _room_for(self.depth * FRAMES):
            for part in self.parts:
                if isinstance(part, tuple):
                    holder.append(checkpoint(Stretch(self.blocks, part, self.depth - 1), [holder.pop()]))
                else:
                    holder.append(self.blocks[part](holder.pop()))
            return holder.pop()


def _depth(tree: tuple) -> int:
    """How many checkpoints lie inside each other, by a loop."""
    deepest, level = 0, [tree]
    while level := [part for parts in level for part in parts if isinstance(part, tuple)]:
        deepest += 1
    return deepest


@contextlib.contextmanager
def _room_for(frames: int):
    """Let Python's stack grow by `frames` (and by what a block itself needs) beyond where it stands."""
    before = sys.getrecursionlimit()
    if frames <= 100:  # shallow: what is left of the limit will do
        yield
        return
    sys.setrecursionlimit(before + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
