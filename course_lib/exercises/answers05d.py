"""Wrong and unusual answers for version 4 of notebook 05."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from .answers05 import my_checkpoint, my_sequential


def _run(blocks):
    def segment(x):
        for block in blocks:
            x = block(x)
        return x

    return segment


def _possible(blocks, segments):
    if not 1 <= segments <= len(blocks):
        raise ValueError(f"{segments} segments of {len(blocks)} blocks are not possible")


def late_bound(blocks, segments, x):
    blocks = list(blocks)
    _possible(blocks, segments)
    size, longer = divmod(len(blocks), segments)
    start = 0
    for number in range(segments - 1):
        part = blocks[start : start + size + (number < longer)]

        def segment(x):
            for block in part:
                x = block(x)
            return x

        x = my_checkpoint(segment, x)
        start += len(part)
    part = blocks[start:]
    return segment(x) if segments > 1 else _run(part)(x)


def remainder_last(blocks, segments, x):
    blocks = list(blocks)
    _possible(blocks, segments)
    size = len(blocks) // segments
    for number in range(segments - 1):
        x = my_checkpoint(_run(blocks[number * size : (number + 1) * size]), x)
    return _run(blocks[(segments - 1) * size :])(x)


def _parts(blocks, segments):
    bounds = [round(i * len(blocks) / segments) for i in range(segments + 1)]
    return [blocks[start:end] for start, end in zip(bounds, bounds[1:])]


def last_too(blocks, segments, x):
    blocks = list(blocks)
    _possible(blocks, segments)
    for part in _parts(blocks, segments):
        x = my_checkpoint(_run(part), x)
    return x


def first_one_free(blocks, segments, x):
    _possible(list(blocks), segments)
    first, *rest = _parts(list(blocks), segments)
    x = _run(first)(x)
    for part in rest:
        x = my_checkpoint(_run(part), x)
    return x


def block_by_block(blocks, segments, x):
    *first, last = blocks
    for block in first:
        x = my_checkpoint(block, x)
    return last(x)


def one_around_all(blocks, segments, x):
    return my_checkpoint(_run(list(blocks)), x)


def none_at_all(blocks, segments, x):
    return _run(list(blocks))(x)


def drops_remainder(blocks, segments, x):
    blocks = list(blocks)
    size = len(blocks) // segments
    for number in range(segments - 1):
        x = my_checkpoint(_run(blocks[number * size : (number + 1) * size]), x)
    return _run(blocks[(segments - 1) * size : segments * size])(x)


def overlapping(blocks, segments, x):
    blocks = list(blocks)
    size = len(blocks) // segments
    for number in range(segments - 1):
        x = my_checkpoint(_run(blocks[number * size : (number + 1) * size + 1]), x)
    return _run(blocks[(segments - 1) * size :])(x)


def takes_anything(blocks, segments, x):
    blocks = list(blocks)
    return my_sequential(blocks, min(max(segments, 1), len(blocks)), x)


def divides_by_zero(blocks, segments, x):
    blocks = list(blocks)
    size, longer = divmod(len(blocks), segments)
    return my_sequential(blocks, segments, x) if size else x


def by_torch(blocks, segments, x):
    blocks = list(blocks)
    _possible(blocks, segments)
    if len(blocks) % segments:
        return my_sequential(blocks, segments, x)
    return checkpoint_sequential(blocks, segments, x, use_reentrant=False)


# -- unusual -----------------------------------------------------------------------------------------------


def defaults_bind(blocks, segments, x):
    blocks = list(blocks)
    _possible(blocks, segments)
    parts = _parts(blocks, segments)
    for part in parts[:-1]:

        def segment(x, part=part):
            for block in part:
                x = block(x)
            return x

        x = my_checkpoint(segment, x)
    for block in parts[-1]:
        x = block(x)
    return x


def recursively(blocks, segments, x):
    blocks = tuple(blocks)
    _possible(blocks, segments)
    if segments == 1:
        return _run(blocks)(x)
    size = len(blocks) // segments
    return recursively(blocks[size:], segments - 1, my_checkpoint(_run(blocks[:size]), x))


def modules(blocks, segments, x):
    _possible(list(blocks), segments)
    parts = [nn.Sequential(*part) for part in _parts(list(blocks), segments)]
    for i, part in enumerate(parts, 1):
        x = part(x) if i == len(parts) or not torch.is_grad_enabled() else my_checkpoint(part, x)
    return x
