"""Notebook 03: the faulty loops do what their diagnosis says; claims are graded without telling the answer."""

import ast
import inspect
import math
import textwrap
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from course_lib.doctor.names import TABLE
from course_lib.exercises import registry
from course_lib.exercises.answers03 import CheckpointedGiven, Plain
from course_lib.exercises.case03 import CASES, FAULTS, before_and_after, copied, diagnosis, given, rebuilt
from course_lib.exercises.judge import judge
from course_lib.exercises.parts03 import chain, peak_above_start
from course_lib.exercises.solve import exercise_id

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "03_fix_the_loop.ipynb"
EXERCISES = [exercise for exercise in registry.all_exercises() if exercise.id.startswith("03.")]
BY_NAME = {exercise.name: exercise for exercise in EXERCISES}
STUBS = {
    exercise_id(cell.source): cell.source
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells
    if cell.cell_type == "code" and exercise_id(cell.source)
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


def report_of(name, data=None):
    case = CASES[name]
    return case.examine(case.given, data)


def proof_of(name):
    return BY_NAME[name].reference.proof


# -- what the notebook gives ------------------------------------------------------------------------------


@each
def test_the_stub_in_the_notebook_is_the_loop_that_the_tests_know(exercise):
    def shape(source):
        node = ast.parse(textwrap.dedent(source)).body[-1]
        node.name, node.decorator_list = exercise.name, []
        return ast.dump(node)

    assert shape(STUBS[exercise.id]) == shape(inspect.getsource(given(exercise.name)))


def test_every_name_to_choose_from_is_one_of_the_doctors_but_for_those_about_models():
    assert set(FAULTS) - set(TABLE) == {"another function", "one segment"}


@each_case
def test_the_doctor_finds_the_fault_in_the_given_loop_and_none_in_the_mended_one(case):
    reports = [case.examine(case.given, data) for data in (None, *case.shows)]
    found = {name for report in reports for name in report.names}
    if case.name == "d2_pseudo":
        assert found == {"raised"}  # it breaks off before anything could be seen
    else:
        assert case.fault in found
    assert case.examine(case.reference).ok


# -- the proofs are what happens --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["inside_wrapper", "loud_gradients", "slow_training", "d2_loop"], ids=lambda name: name
)
def test_weights_of_the_first_update(name):
    assert report_of(name).windows[0].used == pytest.approx(proof_of(name), abs=1e-9)


def test_four_faults_of_the_sketch():
    loss = nn.Linear(2, 1)(torch.ones(1, 2)).mean()
    with pytest.warns(UserWarning, match="not a leaf"):
        assert loss.grad is None
    step = 0  # nothing changes it
    assert proof_of("d2_pseudo") == (None, step, sum(step % 4 == 0 for _ in range(10)))


def test_share_of_the_tail():
    tail = report_of("d0_loop").windows[2]
    assert sum(tail.used) / sum(tail.needed) == pytest.approx(proof_of("d0_loop"))


def test_two_models_that_differ():
    outputs = []
    for model in (Plain(1), CheckpointedGiven(1)):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(-1.0 if name.endswith("weight") else 0.0)
        outputs.append(model(torch.ones(1, 1)).item())
    assert tuple(outputs) == proof_of("Checkpointed")


def test_one_segment_brings_all_activations_back():
    x = torch.randn(256, 16)
    plain = peak_above_start(lambda blocks, x: nn.Sequential(*blocks)(x), chain(), x)
    assert peak_above_start(given("segmented"), chain(), x) > 0.95 * plain
    assert proof_of("segmented") == (len(chain()), len(chain()))


def test_forwards_before_the_first_backward():
    for loop, alive in zip((given("d3_row"), CASES["d3_row"].reference), proof_of("d3_row")):
        report = CASES["d3_row"].examine(loop, ((4,) * 8, 8))
        assert report.counts["forward"] / report.counts["backward"] == alive


def test_micro_batches_of_each_update_of_the_first_epoch():
    windows = [w for w in report_of("book_example").windows if w.epoch == 0]
    assert [len(w.used) for w in windows] == proof_of("book_example")


def test_rows_that_reach_backward():
    report = report_of("fast_epoch")
    used = sum(weight > 1e-9 for w in report.windows if w.epoch == 0 for weight in w.used)
    assert 4 * used == proof_of("fast_epoch")


def test_micro_batches_of_the_first_update_of_the_second_epoch():
    first = next(w for w in report_of("jumpy_epochs").windows if w.epoch == 1)
    assert len(first.used) + len(first.stale) == proof_of("jumpy_epochs")


def test_updates_of_an_epoch_with_slices():
    assert sum(w.epoch == 0 for w in report_of("sliced_batches").windows) == proof_of("sliced_batches")


def test_length_with_equal_micro_batches():
    assert sum(report_of("moving_average").windows[0].used) == pytest.approx(proof_of("moving_average"))


def test_weights_that_a_window_of_odd_sizes_needs():
    assert report_of("odd_sizes").windows[0].needed == pytest.approx(proof_of("odd_sizes"))


class Two(nn.Module):
    """Two weights; the loss of a micro-batch is one of them times a number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x @ self.weight


def gradients_at_steps(loop, rows, k, **more):
    """What stands in `.grad` at each step, for micro-batches whose gradients are these rows."""
    model, seen = Two(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.clone()))
    batches = [(torch.tensor([row]), torch.zeros(1)) for row in rows]
    loop(model, optimizer, lambda outputs, targets: outputs.mean(), batches, k, **more)
    return seen


def test_a_clip_of_each_part():
    # the loss is divided by K = 2, so that backward adds (2, 0) and (0, 2)
    (got,) = gradients_at_steps(given("safe_steps"), [[4.0, 0.0], [0.0, 4.0]], 2, max_norm=1.0)
    assert got.tolist() == pytest.approx(proof_of("safe_steps"), rel=1e-4)


def test_a_clip_of_scaled_gradients():
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    (got,) = gradients_at_steps(given("stuck_model"), [[3.0, 4.0]] * 4, 4, scaler=scaler, max_norm=0.1)
    assert got.norm().item() == pytest.approx(proof_of("stuck_model"), rel=1e-3)


def test_weight_of_the_third_micro_batch_under_an_eager_scaler():
    assert report_of("eager_scaler").windows[0].used[2] == pytest.approx(proof_of("eager_scaler"))


def test_updates_of_an_epoch_with_a_bad_batch():
    rows = [[1.0, 1.0]] * 2 + [[math.nan, 1.0]] + [[1.0, 1.0]] * 5
    seen = gradients_at_steps(given("one_bad_batch"), rows, 2, max_norm=1.0)
    assert len(seen) == proof_of("one_bad_batch")
    mended = gradients_at_steps(CASES["one_bad_batch"].reference, rows, 2, max_norm=1.0)
    assert len(mended) == 3 and all(bool(g.isfinite().all()) for g in mended)


def test_updates_of_a_warm_up():
    report = report_of("short_warm_up", ((4,) * 16, 8))
    assert 1000 * report.counts["step"] / report.counts["scheduler"] == proof_of("short_warm_up")


def test_what_the_log_shows():
    shown = []
    gradients_at_steps(given("pretty_curve"), [[1.0, 1.0]] * 4, 4, log=shown.append)
    assert shown == [0.0]  # the weights are zero
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [(torch.zeros(1, 1), torch.zeros(1, 1))] * 4
    two = lambda outputs, targets: outputs.mean() * 0 + 2.0  # noqa: E731
    given("pretty_curve")(model, optimizer, two, batches, 4, shown.append)
    assert shown[-1] == pytest.approx(proof_of("pretty_curve"))


def test_graphs_that_a_running_total_holds():
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [(torch.ones(1, 2), torch.zeros(1))] * 16
    total = given("long_memory")(model, optimizer, nn.functional.mse_loss, batches, 4)
    names, todo, seen = [], [total.grad_fn], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        todo += [child for child, _ in node.next_functions if child is not None]
    assert names.count("MseLossBackward0") == proof_of("long_memory")


def test_what_a_restart_loses():
    second = report_of("night_shift").windows[1]
    assert sum(second.used) / sum(second.needed) == pytest.approx(proof_of("night_shift"))


def test_a_rebuilt_model_has_weights_and_state_and_no_gradient():
    model = Two()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    again, other = rebuilt(model, optimizer)
    assert again.weight.tolist() == model.weight.tolist() and again.weight.grad is None
    assert other.state_dict()["state"][0]["step"] == 1 and other.param_groups[0]["lr"] == 0.5


def test_backward_calls_of_two_players():
    report = report_of("two_players")
    calls = report.counts["backward"] // len(report.windows)
    assert [calls, len(report.windows[0].used)] == proof_of("two_players")


# -- how a claim is graded --------------------------------------------------------------------------------


def stated(exercise, fault, proof):
    if isinstance(exercise.reference, type):
        return diagnosis(fault, proof)(type(exercise.name, (exercise.reference,), {}))
    return copied(exercise.reference, fault, proof)


@each
def test_no_wrong_name_is_told_the_right_one(exercise):
    right = exercise.reference.fault
    also = CASES[exercise.name].also if exercise.name in CASES else ()
    for name in FAULTS:
        if name in (right, *also):
            continue
        verdict = judge(exercise.id, stated(exercise, name, exercise.reference.proof))
        assert verdict.diagnosis == "wrong name", str(verdict)
        assert f'"{name}"' in verdict.message and f'"{right}"' not in verdict.message
        assert right not in verdict.message.replace(name, "").replace(FAULTS[name], ""), str(verdict)


@each
def test_half_a_claim_is_asked_for_the_other_half(exercise):
    right = exercise.reference
    assert judge(exercise.id, stated(exercise, ..., ...)).state == "not started"
    assert judge(exercise.id, stated(exercise, right.fault, ...)).diagnosis == "no proof"
    assert judge(exercise.id, stated(exercise, ..., right.proof)).diagnosis == "no diagnosis"


@each
def test_without_the_decorator_nothing_passes(exercise):
    bare = stated(exercise, 0, 0)
    if isinstance(bare, type):
        bare = type(exercise.name, (given(exercise.name),), {})
    else:
        del bare.fault, bare.proof
    assert judge(exercise.id, bare).diagnosis in ("no diagnosis", "raised")


@pytest.mark.parametrize(
    "fault, proof, word",
    [
        ("no updates", None, "no update"),
        ("the tail", None, "not in the list"),
        (3, None, "in quotes"),
        ("no update", "0, 0", "should be a list"),
        ("no update", [0] * 7, "7 items"),
        ("no update", [0] * 7 + [True], "a bool"),
        ("no update", [0] * 7 + [math.nan], "NaN"),
        ("no update", [0] * 7 + [10**5000], "huge"),
    ],
)
def test_a_claim_of_the_wrong_kind_gets_a_sentence(fault, proof, word):
    verdict = judge("03.1", stated(BY_NAME["d2_loop"], fault, proof))
    assert verdict.state == "failed" and verdict.diagnosis != "course error"
    assert word in verdict.message or verdict.diagnosis == "not finite", str(verdict)


def test_names_and_proofs_may_be_written_in_other_ways():
    for fault in ("No Update", ["no update"], " no  update "):
        for proof in ((0,) * 7 + (0.25,), torch.tensor([0.0] * 7 + [0.25])):
            assert judge("03.1", stated(BY_NAME["d2_loop"], fault, proof)).state == "passed"
    assert judge("03.14", stated(BY_NAME["moving_average"], "running division", 2.08)).state == "passed"
    assert judge("03.20", stated(BY_NAME["short_warm_up"], "schedule per micro-batch", 126)).state == "failed"


# -- the pictures ------------------------------------------------------------------------------------------


def test_nothing_is_drawn_before_the_learner_has_committed_to_a_diagnosis():
    case = CASES["loud_gradients"]
    for fault, proof in ((..., ...), ("not divided", ...), (..., [1] * 4)):
        assert before_and_after(copied(case.given, fault, proof)) == []
    assert before_and_after(case.given) == [] and before_and_after(len) == []


def as_named(loop, name, fault, proof):
    again = copied(loop, fault, proof)
    again.__name__ = name
    return again


def test_the_doctor_speaks_once_the_name_is_right():
    case = CASES["loud_gradients"]
    ((title, report, words),) = before_and_after(as_named(case.given, case.name, "wrong window", [1] * 4))
    assert report.windows and not report.diagnoses and "not divided" not in words
    ((title, report, words),) = before_and_after(as_named(case.given, case.name, "not divided", 5))
    assert report.names == ("not divided",) and "not divided" in words
    pictures = before_and_after(case.reference)
    assert [title for title, *_ in pictures] == ["loud_gradients as given", "loud_gradients now"]
    assert pictures[1][1].ok


def test_there_is_no_picture_where_every_weight_is_right():
    assert [report for _, report, _ in before_and_after(CASES["short_warm_up"].reference)] == [None, None]
