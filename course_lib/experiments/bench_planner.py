"""The planner against brute force, and its choices executed: does each keep its budget, and what is its regret?

    python -m course_lib.experiments.bench_planner [SETTINGS]         # default: 120

Brute force tries every split of the batch into micro-batches, both precisions, selective recompute, and every tree that cuts
between the parts of the model; it shares the costs of single parts with the planner, and no part of its search. Regret: FLOPs
of the choice over FLOPs of the best that keeps the budget.
"""

from __future__ import annotations

import statistics
import sys

from course_lib.measure.trace import mib

from .anatomy import anatomy
from .bench_schedule import all_trees
from .forecasting import Forecast, forecast
from .planner import divisors, plan
from .setting import Setting

MODELS = (
    Setting(depth=2, width=32, length=16),
    Setting(depth=3, width=32, length=32, optimizer="sgd"),
    Setting(depth=3, width=64, length=16, optimizer="momentum"),
    Setting(depth=4, width=32, length=16, optimizer="sgd"),
    Setting(depth=3, width=32, length=64, optimizer="sgd"),
    Setting(model="cnn", depth=3, width=8, length=16),
    Setting(model="cnn", depth=4, width=8, length=8, optimizer="sgd"),
    Setting(model="cnn", depth=3, width=16, length=16, optimizer="momentum"),
)
BATCHES = (1, 2, 4, 6, 16)
SHARES = (0.15, 0.5, 0.9)  # of the way from the leanest step to the one that keeps all


def every_way(model: Setting, batch: int) -> list:
    """[(peak bytes, FLOPs)] of every split, precision and tree."""
    found = []
    for precision in ("fp32", "bf16"):
        for m in divisors(batch):
            setting = model.but(micro_batch=m, accumulation_steps=batch // m, precision=precision)
            body = anatomy(setting)
            casts = [Forecast(setting, body, tree) for tree in all_trees(0, setting.depth + 1)]
            casts.append(forecast(setting.but(policy="selective")))
            found += [(cast.peak_bytes, cast.flops) for cast in casts]
    return found


def rows(count: int):
    """One row for each case: (setting, batch, budget, the Plan, fewest FLOPs by brute force)."""
    made = 0
    for batch in BATCHES:
        for model in MODELS:
            ways = every_way(model, batch)
            low = min(peak for peak, _ in ways)
            for share in SHARES:
                if made == count:
                    return
                budget = int(low + share * (forecast(model.but(micro_batch=batch)).peak_bytes - low)) + 1
                made += 1
                yield model, batch, budget, plan(model, budget, batch), min(flops for peak, flops in ways if peak <= budget)


def main(argv=None) -> int:
    count = int((argv or sys.argv[1:] or ["120"])[0])
    regrets, kept = [], 0
    print(f"{'model':<34} {'batch':>5} {'budget':>10} {'choice':<42} {'measured':>10} {'regret':>7}")
    for model, batch, budget, chosen, best in rows(count):
        measured = chosen.run(repeats=0, oracle=False).peak_bytes
        kept += chosen.fits and measured <= budget
        regrets.append(chosen.flops / best)
        size = f"{model.model} {model.depth} x {model.width}, {model.length}, {model.optimizer}"
        words = f"{chosen.setting.micro_batch} x {chosen.setting.accumulation_steps}, {chosen.setting.policy}, {chosen.setting.precision}"
        print(f"{size:<34} {batch:>5} {mib(budget):>10} {words:<42} {mib(measured):>10} {regrets[-1]:>7.4f}")
    print(f"{len(regrets)} settings: {kept} executed within their budget, "
          f"regret median {statistics.median(regrets):.4f}, worst {max(regrets):.4f}")  # fmt: skip
    return int(kept < len(regrets) or max(regrets) > 1.15 or statistics.median(regrets) > 1.05)


if __name__ == "__main__":
    raise SystemExit(main())
