"""Notebook 05: the four witnesses believe good checkpoints and catch bad ones; a picture of what ran when."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.exercises import answers05 as a
from course_lib.exercises import scenes05, scenes05b, witnesses
from course_lib.exercises.answers05a import kept_bytes, kept_measured, step_ratio
from course_lib.exercises.answers05c import variant
from course_lib.exercises.answers05f import PlainTower, TowerInReview
from course_lib.exercises.faults import Fault
from course_lib.exercises.nb05c import step
from course_lib.exercises.scenes05 import Functional, Probe
from course_lib.exercises.witnesses import eager, expected, observe, want_own_work, watch_for_ready_made
from course_lib.measure import flop_ratio
from course_lib.memory import checkpoint as course_checkpoint
from course_lib.show.recompute import order_of_work

EVERY = scenes05.FIRST + scenes05.SURROUNDED + scenes05b.SECOND
each = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)


def torchs(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def diagnosis(run, kind, **how):
    """What the witnesses call a checkpoint, or None where they have nothing to say."""
    try:
        witnesses.testify(run, kind, **how)
    except Fault as fault:
        return fault.diagnosis
    return None


# -- whom the witnesses believe ---------------------------------------------------------------------------


@pytest.mark.parametrize("run", [torchs, course_checkpoint], ids=["torch", "course"])
@each
def test_ready_made_checkpoints_pass_every_witness(run, kind):
    assert diagnosis(run, kind, stops_early=True) is None


@pytest.mark.parametrize("kind", [*scenes05.FIRST, scenes05.Autocast, scenes05b.Inside, scenes05b.Penalty])
def test_plain_code_is_caught_wherever_there_is_something_to_save(kind):
    assert diagnosis(eager, kind) == "never recomputed"


def test_plain_code_is_right_where_nothing_is_kept():
    assert diagnosis(eager, scenes05b.Frozen) is None


@pytest.mark.parametrize("kind", scenes05.FIRST, ids=lambda kind: kind.__name__)
def test_the_reentrant_kind_is_right_where_version_1_should_be(kind):
    assert diagnosis(lambda f, *xs: checkpoint(f, *xs, use_reentrant=True), kind) is None


@pytest.mark.parametrize(
    "kind, name",
    [
        (scenes05b.RawInput, "output without graph"),
        (scenes05b.Nested, "output without graph"),
        (scenes05b.Penalty, "second backward"),
        (scenes05b.Asked, "raised"),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_the_reentrant_kind_fails_where_only_version_3_can_do_it(kind, name):
    assert diagnosis(lambda f, *xs: checkpoint(f, *xs, use_reentrant=True), kind) == name


def test_torch_without_its_random_state_is_caught_by_the_mask():
    careless = lambda *xs: checkpoint(*xs, use_reentrant=False, preserve_rng_state=False)  # noqa: E731
    assert diagnosis(careless, scenes05.Dropout) == "other random numbers"


# -- each witness alone -----------------------------------------------------------------------------------


def test_an_output_that_is_off_by_a_little_is_wrong():
    assert diagnosis(lambda f, x: torchs(f, x) + 1e-9, Functional) == "wrong output"
    assert diagnosis(lambda f, x: torchs(f, x).float(), Functional) == "wrong dtype"


def test_one_wrong_gradient_among_many_is_found_and_named():
    class Doubled(torch.autograd.Function):
        forward = staticmethod(lambda ctx, w: w.clone())
        backward = staticmethod(lambda ctx, g: g * 2)

    def run(function, x):
        scene = function.__self__
        w2, scene.w2 = scene.w2, Doubled.apply(scene.w2)
        y = torchs(function, x)
        scene.w2 = w2
        return y

    with pytest.raises(Fault, match="segment.w2"):
        witnesses.testify(run, Functional)


def test_a_copy_of_an_intermediate_is_found_by_its_bytes():
    held = []

    def run(function, x):
        held.append(torch.zeros_like(x))
        return torchs(function, x)

    assert diagnosis(run, Functional) == "intermediates alive"


def test_a_third_run_is_one_too_many():
    def run(function, x):
        def twice(x):
            if function.__self__.probe.phase == "backward":
                with torch.no_grad():
                    function(x)
            return function(x)

        return torchs(twice, x)

    assert diagnosis(run, Functional) == "recomputed too often"


def test_bytes_after_forward_are_those_of_the_inputs_and_outputs_alone():
    right, least = expected(Functional)
    saved = right.alive - least
    assert saved == scenes05.ROWS * scenes05.WIDTH * 8  # the result of tanh; the input is the scene's own
    assert observe(Functional(), torchs).alive == least


def test_freed_on_the_way_sees_what_is_handed_out_and_kept():
    assert diagnosis(variant(pop=False), scenes05b.Long) == "kept through backward"
    assert diagnosis(variant(), scenes05b.Long) is None


def test_a_probe_forgets_what_is_gone_and_keeps_what_is_there():
    probe, tensor = Probe(), torch.zeros(3)
    probe.mark("kept", tensor)
    probe.mark("gone", torch.zeros(3))
    assert probe.alive() == ["kept"]


def test_scenes_are_the_same_each_time():
    for kind in EVERY:
        one, two = kind(), kind()
        assert all(torch.equal(one.leaves[name], two.leaves[name]) for name in one.leaves)


# -- whose work it is -------------------------------------------------------------------------------------


def test_a_ready_made_checkpoint_is_recognised_under_any_name():
    disguised = [lambda f, x: torchs(f, x), lambda f, x: course_checkpoint(f, x)]
    for run in disguised:
        with pytest.raises(Fault, match="further down"):
            want_own_work(run, Functional)
    want_own_work(a.my_checkpoint, Functional)


def test_looking_for_ready_made_ones_ends_with_the_block():
    with watch_for_ready_made() as used:
        pass
    torchs(torch.sin, torch.ones(1, requires_grad=True))
    assert not used


# -- the numbers of the notebook --------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu"])
def test_kept_bytes_are_what_autograd_packs(activation):
    for sizes in ((3, 5, 7), (16, 4, 32)):
        assert kept_bytes(*sizes, activation) == kept_measured(*sizes, activation)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("segments", [1, 2, 4])
def test_step_ratio_is_what_a_flop_counter_says(segments, early):
    size = 8 // segments
    parts = [nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(size))) for _ in range(segments)]
    each = a.my_checkpoint if early else a.Recompute.apply

    def run(through, free):
        x = torch.ones(2, 4, requires_grad=True)
        for i, part in enumerate(parts):
            x = part(x) if free and i == segments - 1 else through(part, x)
        x.sum().backward()

    for free in (False, True):
        ratio = flop_ratio(lambda: run(each, free), lambda: run(lambda part, x: part(x), free))
        assert ratio == pytest.approx(step_ratio(8, segments, early, free))


def test_my_sequential_cuts_as_evenly_as_possible():
    class Counted(nn.Module):
        runs = 0

        def forward(self, x):
            self.runs += 1
            return x.sin()

    for n, k in ((7, 3), (10, 4), (5, 5), (3, 1)):
        blocks = [Counted() for _ in range(n)]
        a.my_sequential(blocks, k, torch.ones(1, requires_grad=True)).backward()
        assert sum(block.runs == 2 for block in blocks) == n - n // k
    with pytest.raises(ValueError, match="1 to 3"):
        a.my_sequential(blocks, 4, torch.ones(1))


def test_the_tower_in_review_has_the_five_faults():
    kept, read = step(TowerInReview), step(TowerInReview, late_scale=0.25)
    assert kept.calls == [1, 1, 1, 5]  # late-bound closure
    assert step(TowerInReview, train=False).calls == [1] * 4  # eval gate
    assert kept.buffers["blocks.3.1.num_batches_tracked"] == 5  # statistics
    assert not torch.equal(kept.gradients["blocks.0.0.weight"], read.gradients["blocks.0.0.weight"])  # state
    assert step(TowerInReview, drop=0.5).stream != step(PlainTower, drop=0.5).stream  # foreign randomness


# -- the picture ------------------------------------------------------------------------------------------


def test_the_order_of_work_has_a_square_for_each_event_and_a_sentence():
    phases = ("forward", "forward", "recompute", "backward", "recompute", "backward")
    events = list(zip((1, 2, 2, 2, 1, 1), phases))
    figure = order_of_work(events)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == list("FFRBRB") and len(axes.patches) == 6
    assert [round(patch.get_y() + 0.42) for patch in axes.patches] == [1, 2, 2, 2, 1, 1]
    assert "forward of 1, 2; recompute of 2; backward of 2" in figure.alt


@pytest.mark.parametrize("events", [[], [(1, "sideways")], [(0, "forward")]])
def test_an_order_that_cannot_be_drawn_is_refused(events):
    with pytest.raises(ValueError):
        order_of_work(events)
