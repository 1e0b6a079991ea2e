"""From facts to names: ask every rule, drop what another finding explains, worst first."""

from __future__ import annotations

from . import rules_other, rules_weights, rules_windows
from .facts import Facts
from .names import ORDER, cure_of, kind_of
from .report import Diagnosis

RULES = (*rules_windows.RULES, *rules_weights.RULES, *rules_other.RULES)

# a finding that follows from another one: it is not named beside it
EXPLAINED = {
    "raised": ("unscaled twice", "scaler updated in the window"),
    "no update": ("steps by hand",),
    "cleared too early": ("steps by hand",),
    "wrong window": ("update every micro-batch",),
    "no gradient": ("no backward", "cleared before the step"),
    "not a weighted sum": ("no gradient", "weights moved in the window", "scaler updated in the window"),
    "wrong weights": ("clipped before unscale", "scaler updated in the window", "running total"),
    "all scaled": ("clipped before unscale", "scaler updated in the window"),
    "not unscaled": ("scaler updated in the window",),
    "weights moved in the window": ("steps by hand",),
}


def diagnose(facts: Facts) -> tuple:
    """The diagnoses of a run, as a tuple of Diagnosis, worst first."""
    found: dict = {}
    for rule in RULES:
        for name, evidence in rule(facts):
            found.setdefault(name, evidence)
    for name, causes in EXPLAINED.items():
        if any(cause in found for cause in causes):
            found.pop(name, None)
    names = sorted(found, key=lambda name: ORDER.get(name, 1))
    return tuple(Diagnosis(name, found[name], cure_of(name), kind_of(name)) for name in names)
