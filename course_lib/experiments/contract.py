"""The contract of activation checkpointing, as runnable rows: what every implementation must do, and what ours does on top.

    python -m course_lib.experiments.contract          # the table: row, ours, torch's

A row is a function of one argument, the implementation under test. It raises AssertionError where the implementation does
something else. Rows of the first part hold for torch, too; rows of the second part are those where torch stays silent.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.utils.checkpoint as theirs

from course_lib.memory import checkpoint as our_function
from course_lib.memory.selective import keep_outputs_of


@dataclass(frozen=True)
class Row:
    name: str  # what is promised
    run: object
    strict: bool = False  # True: torch is known to fail it


def implementations() -> dict:
    """{"ours": ..., "torch": ...}: the same names in both."""
    import importlib

    ours = importlib.import_module("course_lib.memory.checkpoint")
    return {
        "ours": SimpleNamespace(
            checkpoint=our_function,
            sequential=ours.checkpoint_sequential,
            early_stop=ours.set_checkpoint_early_stop,
            debug=ours.set_checkpoint_debug_enabled,
            Error=ours.CheckpointError,
            keep=keep_outputs_of,
        ),
        "torch": SimpleNamespace(
            checkpoint=functools.partial(theirs.checkpoint, use_reentrant=False),
            sequential=functools.partial(theirs.checkpoint_sequential, use_reentrant=False),
            early_stop=theirs.set_checkpoint_early_stop,
            debug=theirs.set_checkpoint_debug_enabled,
            Error=theirs.CheckpointError,
            keep=_their_selective,
        ),
    }


def _their_selective(*chosen):
    if len(chosen) == 1 and not isinstance(chosen[0], torch._ops.OpOverload):
        policy = chosen[0]

        def asked(context, op, *args, **kwargs):
            wanted = policy(op, args, kwargs)
            return theirs.CheckpointPolicy.MUST_SAVE if wanted else theirs.CheckpointPolicy.PREFER_RECOMPUTE

        return functools.partial(theirs.create_selective_checkpoint_contexts, asked)
    return functools.partial(theirs.create_selective_checkpoint_contexts, list(chosen))


def rows() -> list[Row]:
    """All rows, in the order of the table."""
    from . import contract_graph, contract_rows, contract_strict

    common = [Row(words(f), f) for f in (*contract_rows.ROWS, *contract_graph.ROWS)]
    return common + [Row(words(f), f, strict=True) for f in contract_strict.ROWS]


def words(function) -> str:
    return function.__name__.replace("_", " ")


def outcome(row: Row, implementation) -> str:
    """Either "yes", or the first line of what went wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row.run(implementation)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        return f"no: {line or type(error).__name__}"[:72]
    return "yes"


def main(argv=None) -> int:
    """Print the table. Returns 1 if ours fails a row."""
    both, table = implementations(), rows()
    bad = 0
    for strict, title in ((False, "The contract"), (True, "Stricter than torch")):
        print(f"\n{title}\n{'':56} ours  torch")
        for row in table:
            if row.strict is strict:
                ours, other = outcome(row, both["ours"]), outcome(row, both["torch"])
                bad += ours != "yes"
                print(f"{row.name:<56.56} {ours:<5.40} {other}")
    held = [sum(outcome(row, both[who]) == "yes" for row in table) for who in both]
    print(f"\nrows held: ours {held[0]} of {len(table)}, torch {held[1]} of {len(table)}")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
