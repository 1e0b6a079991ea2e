"""Which micro-batch, how many accumulation steps, which policy, which precision: the fastest step that keeps a budget.

    plan(Setting(depth=12), budget_bytes=24 * 2**20, effective_batch=64)
    plan(model, budget_bytes=2**30, effective_batch=64, batch=(inputs, targets), loss_fn=loss_fn)      # your own module

Time is predicted in FLOPs: matrix products, convolutions and attention, recomputing included. They are the same however a
batch is split, so among plans within `slack` of the fewest the one with the fewest operators is taken: large micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from course_lib.measure.trace import mib

from .forecasting import DoesNotFit, Forecast, forecast, tree_of
from .setting import Setting

SLACK = 0.05
SEARCHED = ("none", "selective", "budgeted")  # every schedule that cuts between blocks is a case of "budgeted"


@dataclass(frozen=True)
class Plan:
    """What to do, and what it will need. `fits` is False where nothing keeps the budget: then this is the leanest step.

    needed_bytes: the smallest budget that can be kept. advice: what else would make it fit, [(change, bytes it needs)].
    considered: [(micro-batch, policy, precision, peak bytes, FLOPs)] of the candidates that keep the budget.
    """

    setting: Setting
    budget_bytes: int
    peak_bytes: int
    flops: int
    fits: bool
    needed_bytes: int | None = None
    advice: tuple = ()
    considered: tuple = ()

    def run(self, **options):
        """Execute the step: a Run (see `run`)."""
        from .experiment import run

        return run(self.setting, **options)

    def __repr__(self) -> str:
        chosen = (
            f"micro-batch {self.setting.micro_batch} x {self.setting.accumulation_steps} steps, {self.setting.policy_words}, "
            f"{self.setting.precision}: peak {mib(self.peak_bytes)}, {self.flops / 1e9:.3g} GFLOP an update"
        )
        if self.fits:
            return f"Plan within {mib(self.budget_bytes)}: {chosen}"
        lines = [f"Nothing fits into {mib(self.budget_bytes)}. The leanest step needs {mib(self.needed_bytes)}: {chosen}"]
        return "\n".join([*lines, *(f"  {change}: {mib(n)}" for change, n in self.advice)])


def plan(what, budget_bytes: int, effective_batch: int | None = None, *, precisions=("fp32", "bf16"), slack: float = SLACK,
         policies=SEARCHED, **options):  # fmt: skip
    """The Plan for a Setting, or the ModulePlan for your own nn.Module (its options: see `planner_modules.plan_module`).

    what: a Setting, of which model, sizes and optimizer are kept, or an nn.Module. budget_bytes: of the whole step's peak, with
    parameters, gradients, optimizer state and the batch. effective_batch: samples of one update; a Setting's own by default.
    slack: how much more FLOPs than the fewest are accepted for larger micro-batches. Raises TypeError and ValueError for
    numbers that are none. A budget that nothing keeps is no error: the Plan says what it would take.
    """
    for name, value in (("budget_bytes", budget_bytes), ("effective_batch", effective_batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}.")
    if isinstance(what, nn.Module):
        from .planner_modules import plan_module

        if effective_batch is None:
            raise ValueError("plan(model, ...) needs effective_batch: how many samples one update is to use.")
        return plan_module(what, budget_bytes, effective_batch, slack=slack, **options)
    if not isinstance(what, Setting):
        raise TypeError(f"plan takes a Setting or an nn.Module, not {type(what).__name__}.")
    if options:
        raise TypeError(f"plan(Setting, ...) has no option {', '.join(options)}.")
    settings = _splits(what, effective_batch or what.effective_batch, precisions)
    found = _candidates(settings, budget_bytes, policies)
    chosen = _chosen(found, budget_bytes, slack)
    if chosen is None:
        return _does_not_fit(what, settings, budget_bytes, policies)
    considered = tuple((c.setting.micro_batch, c.setting.policy, c.setting.precision, c.peak_bytes, c.flops) for c in found)
    return Plan(chosen.setting, budget_bytes, chosen.peak_bytes, chosen.flops, True, considered=considered)


def divisors(n: int) -> list:
    """All divisors of n, largest first."""
    return [d for d in range(n, 0, -1) if n % d == 0]


def _splits(setting: Setting, batch: int, precisions) -> list:
    """Every way to reach the effective batch, in each precision."""
    return [
        setting.but(micro_batch=m, accumulation_steps=batch // m, policy="none", precision=precision)
        for precision in precisions
        for m in divisors(batch)
    ]


def _candidates(settings, budget: int, policies) -> list:
    """Forecasts (by sketches: no measuring) of all that keep the budget, none for what does not."""
    found = []
    for setting in settings:
        for policy in policies:
            try:
                extra = {"budget_bytes": budget} if policy == "budgeted" else {}
                cast = forecast(setting.but(policy=policy, **extra), quick=True)
            except DoesNotFit:
                continue
            if cast.peak_bytes <= budget:
                found.append(cast)
                if policy == "none":
                    break  # nothing needs fewer FLOPs
    return found


def _chosen(found: list, budget: int, slack: float) -> Forecast | None:
    """The best candidate whose exact forecast keeps the budget, too."""
    left = list(found)
    while left:
        fewest = min(cast.flops for cast in left)
        best = min((cast for cast in left if cast.flops <= (1 + slack) * fewest), key=lambda cast: _order(cast.work[1], cast))
        left.remove(best)
        try:
            exact = forecast(best.setting)
        except DoesNotFit:
            continue
        if exact.peak_bytes <= budget:
            return exact
    return None


def _order(operators: int, cast: Forecast) -> tuple:
    setting = cast.setting
    return (operators, setting.precision != "fp32", cast.flops, setting.policy == "selective")


def least(setting: Setting, policies=SEARCHED) -> Forecast:
    """The Forecast with the lowest peak of all policies, for this micro-batch and precision."""
    casts = [forecast(setting.but(policy=policy)) for policy in policies if policy != "budgeted"]
    if "budgeted" in policies:
        try:
            tree_of(setting.but(policy="budgeted", budget_bytes=1))
        except DoesNotFit as error:
            casts.append(forecast(setting.but(policy="budgeted", budget_bytes=error.needed_bytes)))
    return min(casts, key=lambda cast: cast.peak_bytes)


def _does_not_fit(what: Setting, settings: list, budget: int, policies) -> Plan:
    ones = [setting for setting in settings if setting.micro_batch == 1]
    leanest = min((least(setting, policies) for setting in ones), key=lambda cast: cast.peak_bytes)
    advice = []
    for change in ({"optimizer": "momentum"}, {"optimizer": "sgd"}, {"policy": "offload"}, {"depth": max(1, what.depth // 2)},
                   {"precision": "bf16"}):  # fmt: skip
        name, value = next(iter(change.items()))
        if getattr(leanest.setting, name) == value or what.optimizer == "sgd" and name == "optimizer":
            continue
        other = leanest.setting.but(policy="none", **({} if name == "policy" else change))
        needed = forecast(other.but(policy="offload")).peak_bytes if name == "policy" else least(other, policies).peak_bytes
        if needed < leanest.peak_bytes:
            words = {"optimizer": f"{value} for {what.optimizer}", "depth": f"{value} blocks for {what.depth}",
                     "policy": "activations offloaded", "precision": "bf16 autocast"}[name]  # fmt: skip
            advice.append((words + (", fits" if needed <= budget else ""), needed))
    states = leanest.trace.records[0].by_category
    stays = sum(states.get(name, 0) for name in ("parameters", "optimizer state", "inputs")) + leanest.gradient_bytes
    advice.insert(0, ("parameters, gradients, optimizer state and the batch alone, which no schedule can lower", stays))
    return Plan(leanest.setting, budget, leanest.peak_bytes, leanest.flops, False, leanest.peak_bytes, tuple(advice))
