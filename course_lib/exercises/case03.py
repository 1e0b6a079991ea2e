"""A loop to be diagnosed and mended: the name, the proof, then the doctor on what the learner made of it.

The doctor must be silent about the mended loop, costs and logs included. Then the loop trains for real and
must end where the reference ends: a fault "mended" by throwing out the clipping or the schedule shows there.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from course_lib.doctor import examine
from course_lib.doctor.diagnose import diagnose
from course_lib.doctor.examine import facts_of
from course_lib.doctor.poison import poisoned
from course_lib.doctor.problems import regression
from course_lib.doctor.run import Parts, asks_for, call
from course_lib.doctor.weigh import peaks

from . import registry
from .faults import Fault
from .guard import GuardedAnswer
from .names03 import FAULTS, claim_of, diagnosis, is_blank, want_diagnosis
from .registry import Exercise, Unusual, Wrong, register
from .want import want_number, want_sequence

__all__ = ["FAULTS", "Case", "before_and_after", "diagnosis", "given", "rebuilt"]

CLOSE = 1e-6
EIGHT = ((4,) * 8, 4)  # the data unless a story says otherwise: 8 micro-batches of 4 rows, K = 4
WORDS = {
    "clip": "the clipping",
    "scheduler": "the scheduler",
    "scaler step": "the loss scaler",
    "log": "the log",
}
CASES: dict = {}  # by the name of the loop
GIVEN: dict = {}  # name -> what the notebook gives: a loop, a model, a function


@dataclass(frozen=True)
class Case:
    """A faulty loop, `given`, and a mended one, `reference`, with the right diagnosis above it.

    asks, nudge: what the proof is, and how to find it. against, near: what speaks against other names.
    data: (rows of each micro-batch, K) of the runs; the first one is the picture's.
    shows: more data for a picture of the given loop. also: further names that fit.
    keeps: kinds of events that must stay in the loop. returns: what it returns counts. epochs: None for two.
    restarts: the loop goes on with a model of its own, so that only its gradients can be compared.
    spoiled: one micro-batch of the real training has no finite loss.
    unless_equal: findings that do not count where real training ends in the right place.
    """

    reference: Callable
    given: Callable
    asks: str
    nudge: str
    against: str
    near: dict = field(default_factory=dict)
    data: tuple = (EIGHT, ((4,) * 6, 3), ((3,) * 4, 2))
    shows: tuple = ()
    also: tuple = ()
    keeps: tuple = ()
    returns: bool = False
    epochs: int | None = None
    restarts: bool = False
    unless_equal: tuple = ()
    spoiled: bool = False

    @property
    def name(self):
        return self.reference.__name__

    @property
    def fault(self) -> str:
        return self.reference.fault

    def examine(self, loop, data=None):
        """The doctor's report on a loop, on this case's first data or on other."""
        sizes, k = data or self.data[0]
        options = {} if self.epochs is None else {"epochs": self.epochs}
        return examine(loop, k, sizes=list(sizes), **options)

    def check(self, answer) -> None:
        """Raise the Fault that says what is not right yet: the name, the proof, or the loop."""
        loop, problems = guarded(answer), [regression(sizes, k, seed=k) for sizes, k in self.data]
        want_diagnosis(
            getattr(answer, "_function", answer),
            (self.fault, *self.also),
            self.reference.proof,
            self.against,
            self.near,
            self.asks,
            self.nudge,
            probe=lambda: watched_run(loop, problems[0], 1),
        )
        for number, problem in enumerate(problems):
            self._want_healthy(loop, problem, memory=number == 0)
        for problem in () if self.restarts else problems[:2]:
            self._want_same_training(loop, problem)

    def _want_healthy(self, loop, problem, memory: bool) -> None:
        raised = None
        try:
            facts = watched_run(loop, problem, self.epochs or 2)
        except Fault as fault:
            if fault.diagnosis != "raised":
                raise
            raised, facts = fault, facts_of(loop, problem, epochs=self.epochs or 2)  # the doctor may know why
        for kind in self.keeps:
            if kind != "clip" and len(facts.log.of(kind)) < len(facts.updates):
                raise self._taken_out(kind, facts)
        facts.memory = peaks(loop, problem) if facts.updates and memory else {}
        found = [*diagnose(facts), *poisoned(loop, problem, None, facts)]
        found = [
            one for one in found if one.name not in self.unless_equal or not self._ends_right(loop, problem)
        ]
        # the fault that this exercise is about comes first: others may follow from it
        found.sort(key=lambda one: one.name not in (self.fault, *self.also))
        if raised is not None and (not found or found[0].name == "raised"):
            raise raised
        if found:
            more = f' The doctor also says "{found[1].name}".' if found[1:] else ""
            raise Fault(
                found[0].name,
                f"The diagnosis is right. The loop now: {found[0].evidence} {found[0].cure}{more}",
            )
        if self.restarts and not facts.log.of("replaced"):
            raise Fault(
                "taken out",
                "The diagnosis is right, but now nothing is restarted. Jobs do get killed: keep the restart, "
                "and lose nothing by it.",
            )

    def _taken_out(self, kind, facts) -> Fault:
        return Fault(
            "taken out",
            f"The diagnosis is right, but the loop makes {len(facts.updates)} updates and uses {WORDS[kind]} "
            f"{len(facts.log.of(kind))} times. Keep it: once for each update.",
        )

    def _ends_right(self, loop, problem) -> bool:
        return _alike(trained(loop, problem)["weights"], trained(self.reference, problem)["weights"])

    def _want_same_training(self, loop, problem) -> None:
        mine, right = (trained(one, problem, self.spoiled) for one in (loop, self.reference))
        for what, diagnosis_, words in (
            (
                "weights",
                "wrong weights after training",
                "training does not end where it should: an update does something else than the gradient, the "
                "optimizer and the story ask for" + self.spoiled * "; one micro-batch had no finite loss",
            ),
            (
                "rates",
                "wrong learning rate",
                "the schedule does not stand where it should: one step for each update",
            ),
            (
                "logged",
                "wrong logged loss",
                "the log is not the mean loss of each window: one number for each update",
            ),
        ):
            if not _alike(mine[what], right[what]):
                facts = watched_run(loop, problem, 2)
                if "clip" in self.keeps and len(facts.log.of("clip")) < len(facts.updates):
                    raise self._taken_out("clip", facts)
                raise Fault(
                    diagnosis_,
                    f"The diagnosis is right and each gradient, too, but after two epochs {words}.",
                )
        if self.returns:
            for got, expected in zip(mine["returned"], right["returned"]):
                _want_returned(got, expected)


def guarded(answer):
    """The learner's loop with its own parameters, every call through the guard."""
    if not isinstance(answer, GuardedAnswer):
        return answer

    @functools.wraps(answer._function)
    def loop(*args, **kwargs):
        batches = kwargs.get("batches", args[3] if len(args) > 3 else ())
        return answer.call(*args, unchanged=(batches,), **kwargs)

    return loop


def watched_run(loop, problem, epochs: int):
    """What the doctor sees of a loop. What the loop raises comes out: a TODO, or the guard's Fault."""
    return facts_of(loop, problem, epochs=epochs, run=lambda parts: call(loop, parts))


def trained(loop, problem, spoiled=False) -> dict:
    """Where two epochs of real training end: weights, learning rates, what was logged and returned.

    spoiled: a target in the second window of the first epoch is infinite.
    """
    model = problem.model()
    logged, returned = _Logged(), []
    parts = Parts(
        model, problem.optimizer(model.parameters()), problem.loss_fn, [], problem.accumulation_steps, logged
    )
    for epoch in range(1 if asks_for(loop, "epochs") else 2):
        parts.batches = list(problem.batches(epoch))
        if spoiled and epoch == 0:
            parts.batches[problem.accumulation_steps][1][0] = float("inf")
        returned.append(call(loop, parts))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    rates = [group["lr"] for group in parts.optimizer.param_groups]
    return {"weights": weights, "rates": rates, "logged": logged.values, "returned": returned}


class _Logged:
    def __init__(self):
        self.values = []

    def note(self, kind, value=0.0, **more):
        if kind == "log":
            self.values.append(value)


def _alike(mine, right) -> bool:
    return len(mine) == len(right) and all(
        abs(a - b) <= CLOSE * max(1e-3, abs(b)) for a, b in zip(mine, right)
    )


def _want_returned(got, expected) -> None:
    if isinstance(expected, list):
        values = [
            want_number(value, "a number that the loop returns")
            for value in want_sequence(got, "what the loop returns", len(expected))
        ]
    else:
        values, expected = [want_number(got, "what the loop returns")], [expected]
    if not _alike([float(value) for value in values], expected):
        raise Fault(
            "wrong return",
            f"The diagnosis is right and each gradient, too, but the loop returns {values[0]:.4g} where it "
            f"should return {expected[0]:.4g}.",
        )


def rebuilt(model, optimizer):
    """(model, optimizer) as a new process builds them: saved weights and optimizer state, nothing else."""
    again = copy.deepcopy(model)  # a copied parameter has no .grad
    other = type(optimizer)(again.parameters(), **optimizer.defaults)
    other.load_state_dict(optimizer.state_dict())
    return again, other


def before_and_after(loop) -> list:
    """[(title, report or None, words)]: the doctor on a loop as given, and on what the learner made of it.

    Empty until the learner has named a fault and proved it: first think, then look. The doctor's own words,
    and its findings in the report, are kept back until the name is right. No report where no weight is wrong
    before or after: there is nothing to see in a picture of it.
    """
    registry.get("03.1")  # the cases are there once the exercises are
    claim, case = claim_of(loop), CASES.get(getattr(loop, "__name__", None))
    if claim is None or case is None or any(is_blank(part) for part in claim):
        return []
    seen = [(f"{case.name} as given", case.examine(case.given))]
    seen += [
        (f"{case.name}, {len(data[0])} micro-batches", case.examine(case.given, data)) for data in case.shows
    ]
    now = case.examine(loop)
    if _picture_of(now) != _picture_of(seen[0][1]):
        seen.append((f"{case.name} now", now))
    told = type(claim[0]) is str and claim[0].strip().lower() in {
        case.fault.lower(),
        *map(str.lower, case.also),
    }
    drawn = any(not window.right for _, report in seen for window in report.windows)
    return [(title, _shown(report, told) if drawn else None, _words(report, told)) for title, report in seen]


def _picture_of(report) -> tuple:
    return (
        report.names,
        report.counts,
        [(window.micro_batches, window.used, window.residual) for window in report.windows],
    )


def _shown(report, told: bool):
    """What a picture may show: None where there was no update."""
    if not any(window.micro_batches for window in report.windows):
        return None
    return report if told else replace(report, diagnoses=())


def _words(report, told: bool) -> str:
    if not told:
        return "name the fault rightly, and the doctor says what it found"
    found = "; ".join(f"{one.name}: {one.evidence}" for one in report.diagnoses)
    return found or "the doctor has nothing to say"


def given(name: str):
    """What the notebook gives under this name, whatever the learner made of it. Raises KeyError."""
    registry.get("03.1")
    return GIVEN[name]


def copied(function, fault, proof):
    """The function once more, with another diagnosis above it."""
    again = type(function)(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    again.__kwdefaults__ = function.__kwdefaults__
    return diagnosis(fault, proof)(again)


def add(
    id: str,
    case: Case,
    *,
    title: str,
    story: str,
    hints,
    proof,
    misnamed: str,
    wrong=(),
    unusual=(),
    unmended: str = "",
) -> None:
    """Register a case as an exercise.

    proof: a wrong one. misnamed: a wrong name. wrong: (words, loop, diagnosis, source).
    unusual: (words, loop).
    unmended: the diagnosis of the loop as it is given, where that is not the fault's name.
    """
    fault, right = case.fault, case.reference.proof
    CASES[case.name], GIVEN[case.name] = case, case.given

    def state(loop):
        return copied(loop, fault, right)

    register(
        Exercise(
            id=id,
            title=title,
            prompt=f"{story} Name the fault and prove it, then mend the loop. The proof: {case.asks}.",
            reference=case.reference,
            hints=hints,
            checker=case.check,
            wrong=(
                Wrong("as given", state(case.given), unmended or fault),
                Wrong("right name, wrong proof", copied(case.given, fault, proof), "wrong proof"),
                Wrong("mended, wrong name", copied(case.reference, misnamed, right), "wrong name"),
                *(Wrong(words, state(loop), name, source) for words, loop, name, source in wrong),
            ),
            unusual=tuple(Unusual(words, state(loop)) for words, loop in unusual),
        )
    )
