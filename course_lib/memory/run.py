"""Run a checkpoint schedule on real blocks: a tree becomes nested calls of `checkpoint`."""

from __future__ import annotations

import contextlib
import sys

from .checkpoint import checkpoint

FRAMES_PER_LEVEL = 16  # Python frames that one region inside another takes, with room for a block's own


def run(tree: tuple, blocks: list, x):
    """The output of the last block, on the autograd graph."""
    with _deep_enough(depth(tree)):
        return _run(tree, blocks, [x])


def _run(parts: tuple, blocks: list, box: list):
    # The input comes in a box and is taken out of it, so that no frame of Python keeps it alive while the rest runs.
    x = box.pop()
    for part in parts:
        if isinstance(part, tuple):
            box, x = [x], None
            x = checkpoint(_region(part, blocks), box)
        else:
            x = blocks[part](x)
    return x


def _region(part: tuple, blocks: list):
    def region(box):
        return _run(part, blocks, box)

    return region


def depth(tree: tuple) -> int:
    return 1 + max((depth(part) for part in tree if isinstance(part, tuple)), default=0)


@contextlib.contextmanager
def _deep_enough(levels: int):
    """One state for a long chain means a region in a region in a region ...: Python's limit must let that through."""
    before, needed = sys.getrecursionlimit(), levels * FRAMES_PER_LEVEL + 500
    if needed > before:
        sys.setrecursionlimit(needed)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
