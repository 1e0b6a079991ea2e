"""Run a checkpoint schedule on real blocks: a tree becomes nested calls of `checkpoint`."""

from __future__ import annotations

import contextlib
import sys

from .checkpoint import checkpoint

FRAMES_PER_LEVEL = 8  # Python frames that one region inside another takes, with some to spare
SHALLOW = 20  # so many levels fit into what Python allows anyway


def run(tree: tuple, blocks: list, x):
    """The output of the last block, on the autograd graph."""
    return _region(tree, blocks)([x])


def _region(parts: tuple, blocks: list):
    deep = depth(parts)

    def region(box):
        # The input comes in a box and is taken out of it, so that no frame of Python keeps it alive while the rest runs.
        with _room_for(deep):
            x = box.pop()
            for part in parts:
                if isinstance(part, tuple):
                    box, x = [x], None
                    x = checkpoint(_region(part, blocks), box)
                else:
                    x = blocks[part](x)
            return x

    return region


def depth(tree: tuple) -> int:
    """How many regions lie inside each other, the tree itself counted."""
    levels, parts = 0, [tree]
    while parts:
        levels, parts = levels + 1, [inner for part in parts for inner in part if isinstance(inner, tuple)]
    return levels


@contextlib.contextmanager
def _room_for(levels: int):
    """One state for a long chain means a region in a region in a region ...: Python's limit must let that through.

    It is asked in forward and again in each rerun, which may begin anywhere.
    """
    before = sys.getrecursionlimit()
    if levels > SHALLOW:
        sys.setrecursionlimit(before + levels * FRAMES_PER_LEVEL)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
