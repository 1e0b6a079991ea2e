"""What notebook 04 measures with: gradients side by side, tokens, contrastive views, learning rates, pictures."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.exercises.alive import Alive
from course_lib.exercises.faults import Fault
from course_lib.exercises.watch import Mistake, equal, micro_gradients, want_updates, watch
from course_lib.experiments.contrastive import info_nce, two_views
from course_lib.experiments.gradients import compared, gradient_of, stored_gradient
from course_lib.experiments.rates import best_rate, losses_above_best, patients, slope
from course_lib.experiments.tokens import PADDING, count_tokens, padded, random_rows, sentences, token_loss
from course_lib.show.averages import clipping, clipping_paths, log_lines, round_numbers


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


# -- gradients ------------------------------------------------------------------------------------------


def test_a_gradient_is_all_parameters_in_one_vector_and_leaves_grad_alone():
    model = small()
    x = torch.randn(5, 3, dtype=torch.float64)
    vector = gradient_of(model(x).mean(), model)
    assert all(p.grad is None for p in model.parameters())
    model(x).mean().backward()
    assert torch.equal(vector, torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.equal(stored_gradient(model), vector)


def test_a_frozen_parameter_has_no_part_in_it():
    model = small()
    model[0].requires_grad_(False)
    assert gradient_of(model(torch.ones(1, 3, dtype=torch.float64)).sum(), model).numel() == 5


def test_reading_gradients_that_are_not_there_is_said():
    with pytest.raises(ValueError, match="backward"):
        stored_gradient(small())


def test_comparing_gives_length_and_direction():
    right = torch.tensor([3.0, 4.0])
    assert compared(right * 2, right) == pytest.approx((2.0, 1.0))
    assert compared(torch.tensor([-4.0, 3.0]), right) == pytest.approx((1.0, 0.0), abs=1e-7)
    assert compared(torch.zeros(2), right) == (0.0, 0.0)
    with pytest.raises(ValueError, match="cannot be compared"):
        compared(right, torch.zeros(3))


# -- tokens ---------------------------------------------------------------------------------------------


def test_padding_is_left_out_of_loss_and_count():
    inputs, targets = padded([torch.tensor([1, 2, 3]), torch.tensor([4, 5])])
    assert inputs.tolist() == [[1, 2], [4, 0]] and targets.tolist() == [[2, 3], [5, PADDING]]
    assert count_tokens(targets) == 3
    logits = torch.randn(2, 2, 8, dtype=torch.float64)
    kept = F.cross_entropy(logits[targets != PADDING], targets[targets != PADDING])
    assert torch.allclose(token_loss(logits, targets), kept)
    assert torch.allclose(token_loss(logits, targets, "sum") / 3, kept)


@pytest.mark.parametrize("rows", [[], [torch.tensor([1])]])
def test_rows_without_anything_to_predict_are_said(rows):
    with pytest.raises(ValueError, match="at least two tokens"):
        padded(rows)


def test_random_rows_have_the_lengths_that_were_asked_for_and_are_repeatable():
    _, targets = random_rows([2, 5], seed=3)
    assert [count_tokens(row) for row in targets] == [2, 5]
    assert torch.equal(targets, random_rows([2, 5], seed=3)[1])
    state = torch.get_rng_state()
    random_rows([4])
    assert torch.equal(state, torch.get_rng_state())


def test_real_sentences_come_short_and_long():
    (short, _), (long, targets) = sentences(3, 2)
    assert len(short) == 3 and len(long) == 2 and short.shape[1] < long.shape[1]
    assert 0 <= int(long.min()) and int(long.max()) < 128
    text = bytes(long[0][: count_tokens(targets[0])].tolist()).decode()
    assert text[0].isupper() and " " in text
    with pytest.raises(ValueError, match="sentences"):
        sentences(0, 1)


# -- contrastive ----------------------------------------------------------------------------------------


def test_a_single_pair_has_nothing_to_tell_apart():
    assert info_nce(torch.randn(1, 4), torch.randn(1, 4)).item() == 0


def test_equal_views_are_easier_than_strangers():
    first, second = two_views(8)
    assert info_nce(first, second) < info_nce(first, second.roll(1, 0))
    assert first.dtype == torch.float64 and not torch.equal(first, second)


# -- learning rates -------------------------------------------------------------------------------------


def test_no_linear_model_is_better_than_the_floor():
    inputs, target, floor = patients()
    assert inputs.shape == (442, 11) and target.shape == (442,)
    assert 0 < floor < 1  # the target has variance 1
    assert min(losses_above_best("SGD", 64, [0.05], passes=1, seeds=2)) > 0


def test_small_models_side_by_side_are_what_each_is_alone():
    rates = [0.01, 0.05]
    together = losses_above_best("Adam", 32, rates, seeds=2)
    alone = [losses_above_best("Adam", 32, [rate], seeds=2)[0] for rate in rates]
    assert together == pytest.approx(alone, rel=1e-9)


def test_a_rate_that_blows_up_is_infinitely_bad():
    assert losses_above_best("SGD", 8, [1e9], passes=10, seeds=1) == [math.inf]


@pytest.mark.parametrize("optimizer, batch", [("Lion", 8), ("SGD", 0), ("SGD", 443)])
def test_what_cannot_be_trained_is_said(optimizer, batch):
    with pytest.raises(ValueError):
        losses_above_best(optimizer, batch, [0.1])


def test_the_best_rate_is_the_vertex_of_a_parabola():
    rates = [2.0**i for i in range(6)]
    losses = [(math.log(rate) - math.log(5)) ** 2 for rate in rates]
    assert best_rate(rates, losses) == pytest.approx(5)
    with pytest.raises(ValueError, match="edge"):
        best_rate(rates, sorted(losses))


def test_the_slope_of_a_power_law_is_its_exponent():
    assert slope([4, 8, 16], [3 * b**0.5 for b in (4, 8, 16)]) == pytest.approx(0.5)


# -- watching -------------------------------------------------------------------------------------------


def update(model, x):
    def call(optimizer):
        model(x).mean().backward()
        optimizer.step()

    return call


def test_a_watched_step_moves_nothing_and_is_written_down():
    model, x = small(), torch.ones(2, 3, dtype=torch.float64)
    before = [p.clone() for p in model.parameters()]
    seen = watch(model, update(model, x))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    [right] = micro_gradients(model, [lambda m: m(x).mean()])
    assert len(seen.updates) == 1 and equal(seen.updates[0], right) and seen.rates == [1.0]


def test_a_run_is_told_apart_by_its_gradients():
    model, x = small(), torch.ones(2, 3, dtype=torch.float64)
    seen = watch(model, update(model, x))
    want_updates(seen, seen.updates)
    twice = Mistake("half", [g.clone() for g in seen.updates], "Half of it.")
    with pytest.raises(Fault) as fault:
        want_updates(seen, [2 * g for g in seen.updates], [twice])
    assert fault.value.diagnosis == "half"
    with pytest.raises(Fault) as fault:
        want_updates(seen, [2 * g for g in seen.updates])
    assert fault.value.diagnosis == "wrong gradient" and "0.5 times" in fault.value.message
    with pytest.raises(Fault) as fault:
        want_updates(seen, seen.updates * 2)
    assert fault.value.diagnosis == "wrong number of updates"


def test_what_autograd_keeps_is_counted_and_forgotten():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    alive = Alive(without=model.parameters())
    with alive.watching():
        output = model(torch.randn(4, 3)).sum()
        kept = alive.now
        output.backward()
    assert kept >= 4 * 3 + 4 * 8 and alive.most == kept and alive.now == 0


# -- pictures -------------------------------------------------------------------------------------------


def test_clipping_once_and_each_time_end_where_the_report_says():
    once, each = clipping_paths([(2, 0), (0, 2)], 1.0)
    assert once[-1] == pytest.approx((0.5**0.5, 0.5**0.5)) and each[-1] == pytest.approx((0.2**0.5, 0.8**0.5))
    alt = clipping([(2, 0), (0, 2)], 1.0).alt
    assert "(0.447, 0.894)" in alt and "(0.707, 0.707)" in alt and "0.949" in alt


def test_a_limit_that_never_bites_changes_nothing():
    once, each = clipping_paths([(0.1, 0.2), (0.3, 0.1)], 5.0)
    assert once[-1] == pytest.approx((0.4, 0.3)) and each[-1] == pytest.approx((0.4, 0.3))
    clipping([(0.1, 0.2), (0.3, 0.1), (0, 0)], 5.0)


@pytest.mark.parametrize("micro, limit", [([], 1.0), ([(1, 2, 3)], 1.0), ([(1, 2)], 0.0)])
def test_what_cannot_be_drawn_is_said(micro, limit):
    with pytest.raises(ValueError):
        clipping(micro, limit)


def test_logarithmic_axes_show_plain_numbers():
    figure = log_lines([("measured", [1, 10], [0.004, 0.3])], "x", "y", "title")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2"] and "0.004" in figure.alt
    assert round_numbers(1e-6, 1e3)[0] == pytest.approx(1e-6) and len(round_numbers(1e-6, 1e3)) == 10
    with pytest.raises(ValueError, match="above 0"):
        log_lines([("measured", [1, 2], [0, 1])], "x", "y", "title")
