"""Checkpoint schedules against what is known to be optimal, and against the two planners that torch ships.

    python -m course_lib.experiments.bench_schedule            # about two minutes on two cores
    python -m course_lib.experiments.bench_schedule --full     # brute force up to 10 blocks (some minutes)

Peaks are bytes of living tensors above parameters, gradients and the input. FLOPs are those of matrix
products, attention and convolutions, as executed; a recompute that stops early costs less than a forward.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential as torch_sequential
from torch.utils.flop_counter import flop_registry

from course_lib.measure import mib
from course_lib.measure.storages import StorageWatch
from course_lib.memory import schedule
from course_lib.memory.chain import Block as Data

from .models import Block

BLOCKS, BATCH, LENGTH, WIDTH, HEADS = 6, 8, 128, 256, 4
FRACTIONS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0)
ROW = {
    19: None,
    20: 140,
    24: 60,
    28: 52,
    32: 48,
    40: 33,
    48: 31,
    50: 30,
    64: 29,
    96: 27,
    128: 25,
    160: 23,
    192: 21,
    256: 17,
}
ROW |= {320: 13, 384: 9, 448: 5, 512: 1, 514: 0}
PAIRS = ((10, 1), (10, 3), (16, 2), (24, 4), (32, 3), (32, 8), (50, 5), (64, 1), (64, 6))


# -- the binomial optimum --------------------------------------------------------------------------------


class Tiny(nn.Module):
    """The smallest block that counts its calls."""

    calls = 0

    def forward(self, x):
        Tiny.calls += 1
        return torch.sin(x)


def executed_calls(plan) -> int:
    """Block forwards beyond the first of each block, counted while the schedule runs."""
    Tiny.calls = 0
    n = len(plan.chain)
    plan.run([Tiny() for _ in range(n)], torch.ones(1, requires_grad=True)).sum().backward()
    return Tiny.calls - n


def binomial_table() -> list:
    """(n, slots, t(n, slots), recomputations of the tree, executed ones)."""
    rows = []
    for n, slots in PAIRS:
        plan = schedule.binomial(n, slots)
        rows.append((n, slots, schedule.t(n, slots), plan.recomputations, executed_calls(plan)))
    return rows


# -- the planner against brute force ---------------------------------------------------------------------


def all_trees(first: int, last: int):
    """Every tree over the blocks first to last - 1 whose stretches end with a block that is kept."""
    if last - first == 1:
        yield (first,)
        return
    for rest in all_trees(first + 1, last):
        yield (first, *rest)
    for middle in range(first + 1, last):
        rests = list(all_trees(middle, last))
        for inner in all_trees(first, middle):
            for rest in rests:
                yield (inner, *rest)


def random_chain(n: int, draw: random.Random) -> schedule.Chain:
    """A chain in which nothing is equal; a third of its numbers are 0."""

    def size(most):
        return draw.choice([0, draw.randint(0, most), draw.randint(0, most)])

    blocks = tuple(Data(size(6), size(20), size(4), size(9), size(3)) for _ in range(n))
    return schedule.Chain(blocks, output_bytes=size(5), input_gradient_bytes=size(3))


def against_brute_force(n: int, chains: int, seed: int = 0) -> tuple:
    """(trees for each chain, budgets tried, times the planner was off)."""
    draw, tried, off, trees = random.Random(seed + n), 0, 0, 0
    for _ in range(chains):
        chain = random_chain(n, draw)
        plans = (schedule.from_tree(chain, tree) for tree in all_trees(0, n))
        points = sorted((plan.peak_bytes, plan.recompute_cost) for plan in plans)
        trees, low = len(points), points[0][0]
        for budget in sorted({peak for peak, _ in points}):
            plan, tried = schedule.budgeted(chain, budget), tried + 1
            least = min(cost for peak, cost in points if peak <= budget)
            off += plan.peak_bytes > budget or plan.recompute_cost != least or schedule.minimum(chain) != low
    return trees, tried, off


# -- real blocks -----------------------------------------------------------------------------------------


class Watch(StorageWatch):
    """Living bytes and FLOPs; also of what torch.compile made, since compiling itself is not looked at."""

    flops = 0

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out


@dataclass(frozen=True)
class Cost:
    peak: int  # bytes above parameters, gradients and input
    flops: int


def stack(blocks: int = BLOCKS, batch: int = BATCH, length: int = LENGTH, width: int = WIDTH):
    """Transformer blocks and an input, all gradients allocated."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width, HEADS) for _ in range(blocks)))
    x = torch.randn(batch, length, width, requires_grad=True)
    for tensor in (*model.parameters(), x):
        tensor.grad = torch.zeros_like(tensor)
    return model, x


def cost_of(forward, model, x) -> Cost:
    """Peak and FLOPs of one forward, sum and backward."""
    watch = Watch(x.device)
    for tensor in (*model.parameters(), x):
        watch.seed(tensor, "inputs")
        watch.seed(tensor.grad, "gradients")
    with watch:
        before = watch.live
        forward(x).sum().backward()
    return Cost(watch.peak - before, watch.flops)


def compiled(model, x, fraction: float) -> Cost:
    """torch.compile with `activation_memory_budget`, partitioned and then run by eager kernels."""
    import torch._functorch.config as functorch

    torch._dynamo.reset()
    with functorch.patch(activation_memory_budget=fraction), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forward = torch.compile(lambda y: model(y), backend="aot_eager_decomp_partition")
        forward(x).sum().backward()
        return cost_of(forward, model, x)


def planners(model, x, fractions=FRACTIONS) -> tuple:
    """(Cost without checkpoints, minimum of ours, {planner: {fraction: (Cost or None, note)}})."""
    base = cost_of(model, model, x)
    chain = schedule.measure(model, x)
    lowest = schedule.minimum(chain)
    n = len(model)
    equal = {
        k: cost_of(lambda y, k=k: torch_sequential(model, k, y, use_reentrant=False), model, x)
        for k in range(1, n + 1)
    }
    found: dict = {"ours": {}, "torch's budget": {}, "sequential": {}}
    for fraction in fractions:
        budget = int(fraction * base.peak)
        if budget < lowest:
            found["ours"][fraction] = None, f"minimum {mib(lowest)}"
        else:
            plan = schedule.budgeted(chain, budget)
            cost = cost_of(lambda y, plan=plan: plan.run(model, y), model, x)
            found["ours"][fraction] = (
                cost,
                "" if cost.peak == plan.peak_bytes else f"predicted {plan.peak_bytes} B",
            )
        try:
            found["torch's budget"][fraction] = compiled(model, x, fraction), ""
        except (ImportError, AttributeError, RuntimeError) as error:  # no compiler here, or another torch
            found["torch's budget"][fraction] = None, f"{type(error).__name__}: does not run here"
        fitting = [(cost.flops, k) for k, cost in equal.items() if cost.peak <= budget]
        k = min(fitting)[1] if fitting else None
        found["sequential"][fraction] = (equal[k], f"k = {k}") if k else (None, "none fits")
    return base, lowest, found


def flags(costs: list, budgets: list) -> list:
    """What is wrong with each of a planner's results, largest budget first: [set of words]."""
    words: list = []
    lower = [cost for cost in costs if cost is not None]
    for cost, budget in zip(costs, budgets):
        wrong = set()
        if cost is not None:
            before = lower[: lower.index(cost)]
            wrong |= {"OVER"} if cost.peak > budget else set()
            wrong |= {"PEAK ROSE"} if any(larger.peak < cost.peak for larger in before) else set()
            wrong |= {"FLOPS FELL"} if any(larger.flops > cost.flops for larger in before) else set()
        words.append(wrong)
    return words


# -- tables ----------------------------------------------------------------------------------------------


def print_binomial() -> None:
    print("Binomial schedules: extra block forwards")
    print(f"{'n':>4} {'slots':>6} {'t(n, s)':>8} {'tree':>6} {'executed':>9}")
    for n, slots, *counts in binomial_table():
        wrong = "" if len(set(counts)) == 1 else "   DIFFERENT"
        print(f"{n:>4} {slots:>6} {counts[0]:>8} {counts[1]:>6} {counts[2]:>9}{wrong}")


def print_row() -> None:
    chain = schedule.Chain.uniform(32)
    print("\n32 equal blocks (state 1, saved 16, gradient 1): extra forwards for a budget, ours / optimum")
    start, cells = time.perf_counter(), []
    for budget, best in ROW.items():
        plan = schedule.budgeted(chain, budget)
        wrong = "!" if plan.peak_bytes > budget or best not in (None, plan.recomputations) else ""
        cells.append(f"{budget}: {plan.recomputations}/{'feasible' if best is None else best}{wrong}")
    print("  ".join(cells), f"  (minimum {schedule.minimum(chain)}; {time.perf_counter() - start:.1f} s)")


def print_brute_force(full: bool) -> None:
    print("\nThe planner against brute force over all trees, random chains")
    print(f"{'blocks':>6} {'chains':>7} {'trees each':>11} {'budgets':>8} {'off':>4}")
    for n, chains in ((2, 20), (4, 20), (6, 10), (7, 4), (8, 1), *(((9, 1), (10, 1)) if full else ())):
        trees, tried, off = against_brute_force(n, chains)
        print(f"{n:>6} {chains:>7} {trees:>11} {tried:>8} {off:>4}", flush=True)


def print_planners() -> None:
    base, lowest, found = planners(*stack())
    size = f"batch {BATCH}, length {LENGTH}, width {WIDTH}"
    print(
        f"\n{BLOCKS} transformer blocks, {size}, executed. The budget is a part of the peak without checkpoints,"
    )
    print(f"{mib(base.peak)}; torch's budget is meant for saved bytes and gets the same part of those.")
    print(f"FLOPs are of the whole step, 1.000 without checkpoints. Our minimum is {mib(lowest)}.")
    print(f"{'budget':>6} {'':>10}" + "".join(f" | {name:<41}" for name in found))
    budgets = [int(fraction * base.peak) for fraction in FRACTIONS]
    words = {name: flags([cost for cost, _ in row.values()], budgets) for name, row in found.items()}
    for place, fraction in enumerate(FRACTIONS):
        line = f"{fraction:>6.2f} {mib(budgets[place]):>10}"
        for name, row in found.items():
            cost, note = row[fraction]
            text = f"{mib(cost.peak):>9} {cost.flops / base.flops:>6.3f}" if cost else f"{'-':>9} {'-':>6}"
            line += f" | {text} {' '.join([note, *sorted(words[name][place])]).strip():<24}"
        print(line.rstrip())
    for name, row in words.items():
        over, uneven = sum("OVER" in wrong for wrong in row), sum(bool(wrong - {"OVER"}) for wrong in row)
        print(f"{name}: over its budget {over} times, not monotone {uneven} times")


def main(argv=None) -> int:
    full = "--full" in (sys.argv[1:] if argv is None else argv)
    torch.set_num_threads(1)
    print_binomial()
    print_row()
    print_brute_force(full)
    print_planners()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
