"""Token sequences of unequal length: synthetic ones, and real sentences that come with Python itself."""

from __future__ import annotations

import re
from functools import lru_cache

import torch
from torch.nn import functional as F

PADDING = -100  # the target value that cross_entropy leaves out


def token_loss(logits: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy over all targets that are not padding.

    logits (rows, length, vocabulary), targets (rows, length). A mean over nothing is NaN.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction=reduction)


def count_tokens(targets: torch.Tensor) -> int:
    """How many targets are no padding: the number that a token mean divides by."""
    return int((targets != PADDING).sum())


def padded(rows) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) for next-token prediction, both (rows, longest - 1), from 1-dim tensors of numbers.

    Targets behind the end of a row are PADDING. Raises ValueError for a row with nothing to predict.
    """
    rows = [torch.as_tensor(row) for row in rows]
    if not rows or min(len(row) for row in rows) < 2:
        raise ValueError("Every row needs at least two tokens: one to read and one to predict.")
    longest = max(len(row) for row in rows)
    inputs = torch.zeros(len(rows), longest - 1, dtype=torch.int64)
    targets = torch.full((len(rows), longest - 1), PADDING)
    for i, row in enumerate(rows):
        inputs[i, : len(row) - 1] = row[:-1]
        targets[i, : len(row) - 1] = row[1:]
    return inputs, targets


def random_rows(lengths, vocabulary: int = 11, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic tokens, drawn evenly: a padded batch in which row i has lengths[i] targets."""
    draw = torch.Generator().manual_seed(seed)
    return padded(torch.randint(vocabulary, (length + 1,), generator=draw) for length in lengths)


@lru_cache(maxsize=1)
def _documentation() -> tuple[str, ...]:
    """Sentences of the language reference that Python ships for its `help()`, shortest first."""
    from pydoc_data.topics import topics

    text = " ".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").decode()
    sentences = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"(?<=[.?!])\s+(?=[A-Z])", text))
    plain = {part for part in sentences if re.fullmatch(r"[A-Z][A-Za-z ,;'()\-]{1,248}\.", part)}
    return tuple(sorted(plain, key=lambda part: (len(part), part)))


def sentences(shortest: int, longest: int) -> tuple[tuple, tuple]:
    """Two padded batches of real English: the `shortest` shortest sentences, and the `longest` longest ones.

    Characters are tokens (ASCII, 128 of them). Source: the language reference inside the running Python, so
    the sentences differ a little between versions of Python.
    """
    found = _documentation()
    if shortest < 1 or longest < 1 or shortest + longest > len(found):
        raise ValueError(f"There are {len(found)} sentences; ask for at least 1 of each kind, and no more "
                         "than that.")
    rows = [torch.tensor(list(text.encode())) for text in (*found[:shortest], *found[len(found) - longest :])]
    return padded(rows[:shortest]), padded(rows[shortest:])
