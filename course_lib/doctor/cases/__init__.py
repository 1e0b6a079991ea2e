"""The corpus that the doctor is tried on: public bug reports told as small loops, right loops, pairs, and more.

B-numbers are reports of real bugs (each module's loops retell them in our own code). N-numbers are reports in which the
loop was right. B47 (memory of sharded gradients) needs a sharded model on several devices and is not here.
"""

from __future__ import annotations

from importlib import import_module

from .case import Case

MODULES = ("clears", "scales", "windows", "couples", "amp", "beside", "right", "styles", "pairs", "more", "ranks",
           "more_windows", "more_weights", "more_beside", "more_right", "more_right2",
           "more_pairs", "slices", "wrapped", "scripts", "elsewhere", "more_ranks",
           "taped")  # fmt: skip


def cases() -> tuple:
    """All cases, in the order of the modules."""
    return tuple(case for name in MODULES for case in import_module(f"{__name__}.{name}").CASES)


def judge(case: Case):
    """(report, None) where the doctor said what it must; else (report, what was wrong)."""
    from ..examine import examine
    from ..ranks import examine_ranks

    report = examine_ranks(case.loop, **case.options) if case.ranks > 1 else examine(case.loop, **case.options)
    missing = [name for name in case.names if name not in report.names]
    extra = [name for name in report.names if name not in (*case.names, *case.also)]
    if missing:
        return report, f"misses {', '.join(missing)}"
    if extra:
        return report, f"also says {', '.join(extra)}"
    if case.check is not None:
        try:
            case.check(report)
        except AssertionError as error:
            return report, f"other numbers: {error}"
    return report, None
