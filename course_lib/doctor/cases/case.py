"""A loop, and what the doctor must say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """id: the public report ("B01"), or "right: ...", "pair: ...", "more: ...". names: what must be named; none: silence.

    also: names that may stand beside them. options: keyword arguments of `examine` (of `examine_ranks` where ranks > 1).
    check(report): asserts the exact numbers. title: what the loop does, in a few words.
    """

    id: str
    title: str
    loop: Callable
    names: tuple = ()
    also: tuple = ()
    options: dict = field(default_factory=dict)
    check: Callable | None = None
    ranks: int = 1


def told(id: str, loop: Callable, names: tuple = (), also: tuple = (), **more) -> Case:
    """A Case whose title is the loop's docstring."""
    return Case(id, loop.__doc__, loop, names, also, **more)


def close(a: float, b: float, near: float = 1e-6) -> bool:
    """Equal up to rounding."""
    return abs(a - b) <= near * max(1.0, abs(b))


def first_used(*weights):
    """A check: the first update used exactly these weights."""

    def check(report):
        used = report.windows[0].used
        assert len(used) == len(weights) and all(close(a, b) for a, b in zip(used, weights)), used

    return check


def ratio(value: float, update: int = 1):
    """A check: every micro-batch of this update counts `value` times what it needs."""

    def check(report):
        window = report.windows[update - 1]
        assert all(close(u, value * n) for u, n in zip(window.used, window.needed)), (window.used, window.needed)

    return check


def sizes(*counts):
    """A check: the updates cover so many micro-batches each."""

    def check(report):
        assert [len(window.micro_batches) for window in report.windows][: len(counts)] == list(counts)

    return check


def called(**counts):
    """A check: the loop called these things so often (`_` stands for a space)."""

    def check(report):
        for name, count in counts.items():
            assert report.counts[name.replace("_", " ")] == count, (name, report.counts)

    return check
