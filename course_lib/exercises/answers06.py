"""Answers to 06.1 to 06.4, right, wrong and odd: segments, the executor of trees, nested halves."""

from __future__ import annotations

import functools
import math

import torch
import torch.utils.checkpoint

from course_lib.memory import checkpoint

# -- 06.1 ----------------------------------------------------------------------------


def segments_peak(blocks, segments, state_bytes, saved_bytes):
    size, longer = divmod(blocks, segments)
    lengths = [size + 1] * longer + [size] * (segments - longer)
    return max(j * state_bytes + length * saved_bytes for j, length in enumerate(lengths))


def peak_floor(blocks, segments, state_bytes, saved_bytes):
    return (segments - 1) * state_bytes + blocks // segments * saved_bytes


def peak_worst_of_both(blocks, segments, state_bytes, saved_bytes):
    return (segments - 1) * state_bytes + math.ceil(blocks / segments) * saved_bytes


def peak_textbook(blocks, segments, state_bytes, saved_bytes):
    return segments * state_bytes + math.ceil(blocks / segments) * saved_bytes


def peak_division(blocks, segments, state_bytes, saved_bytes):
    return (segments - 1) * state_bytes + blocks / segments * saved_bytes


def peak_all_segments(blocks, segments, state_bytes, saved_bytes):
    return (segments - 1) * state_bytes + blocks * saved_bytes


def peak_no_states(blocks, segments, state_bytes, saved_bytes):
    return math.ceil(blocks / segments) * saved_bytes


def peak_states_only(blocks, segments, state_bytes, saved_bytes):
    return segments * state_bytes


def peak_two_moments(blocks, segments, state_bytes, saved_bytes):
    last, longer = divmod(blocks, segments)
    moments = [(segments - 1) * state_bytes + last * saved_bytes]
    if longer:
        moments.append((longer - 1) * state_bytes + (last + 1) * saved_bytes)
    return max(moments)


def peak_tensor(blocks, segments, state_bytes, saved_bytes):
    edges = torch.tensor_split(torch.arange(blocks), segments)
    lengths = torch.tensor([len(edge) for edge in edges])
    return (torch.arange(segments) * state_bytes + lengths * saved_bytes).max()


# -- 06.2 ----------------------------------------------------------------------------


def best_segments(blocks, state_bytes, saved_bytes):
    return min(range(1, blocks + 1), key=lambda k: segments_peak(blocks, k, state_bytes, saved_bytes))


def best_root(blocks, state_bytes, saved_bytes):
    return max(1, round(math.sqrt(blocks)))


def best_smooth(blocks, state_bytes, saved_bytes):
    return min(blocks, max(1, round(math.sqrt(blocks * saved_bytes / state_bytes))))


def best_upside_down(blocks, state_bytes, saved_bytes):
    return min(blocks, max(1, round(math.sqrt(blocks * state_bytes / saved_bytes))))


def best_unbounded(blocks, state_bytes, saved_bytes):
    return round(math.sqrt(blocks * saved_bytes / state_bytes))


def best_peak(blocks, state_bytes, saved_bytes):
    return min(segments_peak(blocks, k, state_bytes, saved_bytes) for k in range(1, blocks + 1))


def best_most(blocks, state_bytes, saved_bytes):
    return blocks


def best_divisors(blocks, state_bytes, saved_bytes):
    whole = [k for k in range(1, blocks + 1) if blocks % k == 0]
    return min(whole, key=lambda k: (k - 1) * state_bytes + blocks // k * saved_bytes)


def best_largest_of_ties(blocks, state_bytes, saved_bytes):
    peaks = [segments_peak(blocks, k, state_bytes, saved_bytes) for k in range(1, blocks + 1)]
    return blocks - peaks[::-1].index(min(peaks))


def best_by_length(blocks, state_bytes, saved_bytes):
    """Tries the lengths of the longest segment, not the numbers of segments."""
    found = []
    for length in range(1, blocks + 1):
        for k in range(math.ceil(blocks / length), math.ceil(blocks / max(1, length - 1)) + 1):
            found.append((peak_two_moments(blocks, min(k, blocks), state_bytes, saved_bytes), min(k, blocks)))
    return min(found)[1]


# -- 06.3 ----------------------------------------------------------------------------


def run_tree(tree, blocks, x):
    for part in tree:
        if isinstance(part, int):
            x = blocks[part](x)
        else:
            x = checkpoint(run_tree, part, blocks, x)
    return x


def run_late_bound(tree, blocks, x):
    for part in tree:
        if isinstance(part, int):
            x = blocks[part](x)
        else:
            x = checkpoint(lambda x: run_late_bound(part, blocks, x), x)
    return x


def run_late_bound_torch(tree, blocks, x):
    for part in tree:
        if isinstance(part, int):
            x = blocks[part](x)
        else:
            x = torch.utils.checkpoint.checkpoint(
                lambda x: run_late_bound_torch(part, blocks, x), x, use_reentrant=False
            )
    return x


def _numbers(part):
    return [part] if isinstance(part, int) else [number for inner in part for number in _numbers(inner)]


def run_flat(tree, blocks, x):
    def stretch(numbers, x):
        for number in numbers:
            x = blocks[number](x)
        return x

    for part in tree:
        x = blocks[part](x) if isinstance(part, int) else checkpoint(stretch, _numbers(part), x)
    return x


def run_every_block(tree, blocks, x):
    for part in tree:
        if isinstance(part, int):
            x = checkpoint(blocks[part], x)
        else:
            x = checkpoint(run_every_block, part, blocks, x)
    return x


def run_nothing(tree, blocks, x):
    for part in tree:
        x = blocks[part](x) if isinstance(part, int) else run_nothing(part, blocks, x)
    return x


def run_no_grad(tree, blocks, x):
    for part in tree:
        if isinstance(part, int):
            x = blocks[part](x)
        else:
            with torch.no_grad():
                x = run_no_grad(part, blocks, x)
    return x


def run_whole(tree, blocks, x):
    return checkpoint(run_tree, tree, blocks, x)


def run_same_input(tree, blocks, x):
    for part in tree:
        y = blocks[part](x) if isinstance(part, int) else checkpoint(run_same_input, part, blocks, x)
    return y


def run_leaves(tree, blocks, x):
    """Checkpoints the innermost stretches only, and just walks through the outer ones."""
    for part in tree:
        if isinstance(part, int):
            x = blocks[part](x)
        elif all(isinstance(inner, int) for inner in part):
            x = checkpoint(run_leaves, part, blocks, x)
        else:
            x = run_leaves(part, blocks, x)
    return x


def run_partial(tree, blocks, x):
    def one(x, part):
        if isinstance(part, int):
            return blocks[part](x)
        return torch.utils.checkpoint.checkpoint(
            functools.partial(run_partial, part, blocks), x, use_reentrant=False, preserve_rng_state=False
        )

    return functools.reduce(one, tree, x)


def run_bound(tree, blocks, x):
    for part in tree:
        if type(part) is tuple:
            x = checkpoint(lambda x, part=part: run_bound(part, blocks, x), x)
        else:
            x = blocks[part].forward(x)
    return x


# -- 06.4 ----------------------------------------------------------------------------


def nested(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (nested(first, half), *nested(first + half, blocks - half))


def nested_flat(first, blocks):
    return tuple(range(first, first + blocks))


def nested_per_block(first, blocks):
    return (*((i,) for i in range(first, first + blocks - 1)), first + blocks - 1)


def nested_both(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (nested_both(first, half), nested_both(first + half, blocks - half))


def nested_forgets_first(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (nested_forgets_first(first, half), *nested_forgets_first(half, blocks - half))


def nested_right_only(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (tuple(range(first, first + half)), *nested_right_only(first + half, blocks - half))


def nested_left_only(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (nested_left_only(first, half), *range(first + half, first + blocks))


def nested_wrapped(first, blocks):
    return (nested(first, blocks),)


def nested_root(first, blocks):
    """Segments of about sqrt(n): one level."""
    size = max(1, math.isqrt(blocks))
    starts = range(first, first + blocks, size)
    parts = [tuple(range(start, min(start + size, first + blocks))) for start in starts]
    return (*parts[:-1], *parts[-1])


def nested_one_by_one(first, blocks):
    """Halves of one block and the rest: holds only one state, and runs everything again and again."""
    if blocks == 1:
        return (first,)
    return (nested_one_by_one(first, blocks - 1), first + blocks - 1)


def nested_reversed(first, blocks):
    if blocks == 1:
        return (first,)
    half = blocks // 2
    return (*nested_reversed(first + half, blocks - half), nested_reversed(first, half))


def nested_larger_left(first, blocks):
    left = (blocks + 1) // 2
    return (
        [first]
        if blocks == 1
        else [nested_larger_left(first, left)] + nested_larger_left(first + left, blocks - left)
    )


def nested_loop(first, blocks):
    """No recursion to the right: peel off halves until one block is left."""
    parts = []
    while blocks > 1:
        half = blocks // 2
        parts.append(nested_loop(first, half))
        first, blocks = first + half, blocks - half
    return (*parts, first)


def nested_list(first, blocks):
    def split(numbers):
        if len(numbers) == 1:
            return numbers
        middle = len(numbers) // 2
        return [split(numbers[:middle]), *split(numbers[middle:])]

    return split(list(range(first, first + blocks)))
