"""The corpus itself, and loops put together at random: the doctor is silent exactly where the gradients are right."""

import itertools
import pickle
import random
from importlib import import_module
from pathlib import Path

import pytest
import torch

import course_lib.doctor.cases as corpus
from course_lib.doctor import examine
from course_lib.doctor.cases import MODULES, cases
from course_lib.doctor.problems import regression
from course_lib.doctor.report import Report

FOLDER = Path(corpus.__file__).parent
OPEN = [case for name in MODULES for case in getattr(import_module(f"{corpus.__name__}.{name}"), "OPEN", ())]


def test_every_module_with_cases_is_listed():
    files = {path.stem for path in FOLDER.glob("*.py") if "CASES = " in path.read_text(encoding="utf-8")}
    assert files == set(MODULES)


def test_every_case_tells_its_story():
    assert all(case.title and len(case.title) > 3 for case in cases())


def test_loops_for_several_ranks_can_be_sent_to_other_processes():
    assert all(pickle.dumps(case.loop) for case in cases() if case.ranks > 1)


@pytest.mark.parametrize("case", [c for c in OPEN if c.ranks == 1], ids=lambda case: case.id)
def test_a_loop_that_the_doctor_does_not_understand_gets_a_report_all_the_same(case):
    report = examine(case.loop, **case.options)
    assert isinstance(report, Report) and report.to_json() and str(report)


DOUBLE = ("right: flat buffer", "right: casts inputs", "right: with a second network")  # written for float64
RIGHT = [c for c in cases() if not c.names and c.ranks == 1 and not c.options]
RIGHT = [c for c in RIGHT if c.id not in DOUBLE and not c.id.startswith("right: script")]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_a_right_loop_is_right_on_a_model_and_batches_of_your_own_too(case):
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 5, generator=draw), torch.randn(4, 1, generator=draw)) for _ in range(10)]
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    report = examine(case.loop, 4, model=model, loss_fn=torch.nn.MSELoss(), batches=batches)
    assert report.ok, report


# -- loops put together at random ----------------------------------------------------------------------------------

DIVISORS = ("none", "K", "window", "rows", "index", "K twice", "epoch", "K - 1", "own rows")
CLEARS = ("per epoch", "each", "window start", "last", "after the step", "never")
STEPS = ("full", "full or end", "from zero", "each", "half", "double", "end")
EXTRAS = ("", "clip", "divide .grad", "skip one")


def assembled(divisor, clear, step, extra):
    """A loop with one choice for each of its parts."""

    def loop(model, optimizer, loss_fn, batches, accumulation_steps):
        k, n = accumulation_steps, len(batches)
        if clear == "per epoch":
            optimizer.zero_grad()
        for i, (x, y) in enumerate(batches):
            window = batches[i - i % k :][:k]
            if clear == "each" or clear == "window start" and i % k == 0 or clear == "last" and (i + 1) % k == 0:
                optimizer.zero_grad()
            by = {
                "none": 1.0, "K": k, "window": len(window), "rows": sum(len(a) for a, _ in window) / len(x),
                "index": i % k + 1, "K twice": k * k, "epoch": n, "K - 1": k - 1, "own rows": len(x),
            }[divisor]  # fmt: skip
            loss = loss_fn(model(x), y) / by
            if not (extra == "skip one" and i % k == 1):
                loss.backward()
            if extra == "clip":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if extra == "divide .grad":
                for parameter in model.parameters():
                    parameter.grad /= k
            now = {
                "full": (i + 1) % k == 0, "full or end": (i + 1) % k == 0 or i + 1 == n, "from zero": i % k == 0,
                "each": True, "half": (i + 1) % (k // 2) == 0, "double": (i + 1) % (2 * k) == 0, "end": i + 1 == n,
            }[step]  # fmt: skip
            if now:
                optimizer.step()
                if clear == "after the step":
                    optimizer.zero_grad()

    return loop


def is_right(loop, sizes, k):
    """Are all updates those of large batches, with the tail stepped or carried? Measured without the doctor."""
    problem = regression(sizes, k)
    model, seen, epochs = problem.model(), [], [problem.batches(0), problem.batches(1)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def look(*_):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        seen.append(torch.cat([gradient.flatten() for gradient in gradients]))

    def gradient(window):
        x, y = (torch.cat(part) for part in zip(*window))
        taken = torch.autograd.grad(problem.loss_fn(model(x), y), list(model.parameters()))
        return torch.cat([part.flatten() for part in taken])

    def same(windows):
        pairs = zip(seen, windows)
        return len(seen) == len(windows) and all(torch.allclose(a, gradient(w), rtol=1e-6) for a, w in pairs)

    optimizer.register_step_pre_hook(lambda *_: look())
    for batches in epochs:
        loop(model, optimizer, problem.loss_fn, list(batches), k)
    stream = epochs[0] + epochs[1]
    carried = [stream[start : start + k] for start in range(0, len(stream), k)]
    flushed = [batches[start : start + k] for batches in epochs for start in range(0, len(batches), k)]
    return same(flushed) or same(carried) or same([window for window in carried if len(window) == k])


@pytest.mark.parametrize("seed", range(4))
def test_the_doctor_is_silent_exactly_where_an_assembled_loop_is_right(seed):
    draw = random.Random(seed)
    choices = list(itertools.product(DIVISORS, CLEARS, STEPS, EXTRAS))
    rights = list(itertools.product(("window", "rows"), ("window start", "after the step"), ("full or end",), ("",)))
    for parts in draw.sample(choices, 20) + draw.choices(rights, k=4):
        k = draw.choice([2, 3, 4, 6])
        n = draw.choice([2 * k, 2 * k + 1, 3 * k - 1])
        sizes = [4] * n if draw.random() < 0.6 else [draw.choice([1, 2, 3, 5]) for _ in range(n)]
        loop = assembled(*parts)
        report = examine(loop, k, sizes=sizes)
        wrong = [diagnosis.name for diagnosis in report.diagnoses if diagnosis.kind in ("wrong", "limit")]
        assert (not wrong) == is_right(loop, sizes, k), (parts, k, sizes, report.names)


NAMED = {
    "none": {"not divided"}, "K twice": {"divided twice"}, "index": {"running division"}, "K - 1": {"all scaled"},
    "each": {"cleared too early"}, "last": {"cleared on the wrong side", "cleared too early"},
    "never": {"not cleared"},
    "full": {"tail leaks", "tail dropped"}, "from zero": {"wrong window"}, "half": {"wrong window"},
    "clip": {"clipped in the window"}, "divide .grad": {"repeated division"}, "skip one": {"data skipped"},
}  # fmt: skip
# two faults of which one hides the other
HIDDEN = {
    ("index", "each"), ("index", "from zero"), ("index", "last"), ("each", "divide .grad"), ("last", "divide .grad"),
    ("none", "divide .grad"), ("K twice", "divide .grad"), ("index", "divide .grad"), ("K - 1", "divide .grad"),
}  # fmt: skip


def _parts(fault):
    """The right loop with one or two parts changed."""
    parts = ["rows", "after the step", "full or end", ""]
    for name in fault:
        for place, kind in enumerate((DIVISORS, CLEARS, STEPS, EXTRAS)):
            if name in kind and not (name == "each" and place != 1):
                parts[place] = name
    return parts


PAIRS = [p for p in itertools.combinations(NAMED, 2) if sum(part in NAMED for part in _parts(p)) == 2]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_faults_are_both_named(pair):
    report = examine(assembled(*_parts(pair)), 4, sizes=[6] * 10)
    found = [bool(NAMED[name] & set(report.names)) for name in pair]
    assert all(found) or pair in HIDDEN and any(found), report.names
