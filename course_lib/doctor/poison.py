"""A second run with one bad micro-batch: its loss is not finite. What does the loop leave behind?"""

from __future__ import annotations

import torch

from .names import cure_of, kind_of
from .report import Diagnosis
from .rows import first_tensor
from .run import watched


def poisoned(loop, problem, adapter, facts, clean_up=None) -> list:
    """Diagnoses that only a bad micro-batch shows. Nothing for a loop that does nothing about it: it asked for none."""
    if not problem.plain or facts.log.error is not None or not facts.updates:
        return []

    def spoil(epoch, batches):
        if epoch == 0:
            place = min(problem.accumulation_steps, len(batches) - 1)  # the first of the second window
            inputs, targets = batches[place]
            targets = targets.clone()
            first_tensor(targets)[0] = float("inf")
            batches = [*batches[:place], (inputs, targets), *batches[place + 1 :]]
        return batches

    log, _, _ = watched(problem, loop, adapter, 2, change=spoil, clean_up=clean_up)
    found = []
    steps = log.of("step")
    skipped = len(steps) < len(facts.log.of("step"))
    if not skipped:
        return []
    bad = False
    later = 0
    for event in log.events:
        if event.kind == "clear":
            bad = False
        if event.kind == "backward" and event.after is not None:
            finite = bool(torch.isfinite(event.after).all())
            later = later + 1 if bad else 0
            bad = not finite
            if later > 2 * problem.accumulation_steps:
                found.append(_diagnosis(
                    "NaN never cleared", f"After one micro-batch without a finite loss .grad stays so for {later} more backward "
                    f"calls: {len(steps)} updates are left of {len(facts.log.of('step'))}."
                ))  # fmt: skip
                break
    schedule = len(log.of("scheduler"))
    if schedule and log.of("scaler step") and schedule == len(facts.log.of("scheduler")) == len(facts.log.of("step")):
        found.append(_diagnosis(
            "schedule on a skipped update", f"The scaler skipped an update ({len(steps)} of {len(facts.log.of('step'))} were "
            f"made), and the scheduler stepped {schedule} times all the same."
        ))  # fmt: skip
    return found


def _diagnosis(name, evidence) -> Diagnosis:
    return Diagnosis(name, evidence, cure_of(name), kind_of(name))
