"""The reference loop: its gradient is the large batch's gradient at every update, whatever the sizes."""

import ast
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_lib.experiments.models import GPT, mlp, next_token_loss
from course_lib.measure import Meter
from course_lib.memory import accumulate, ledger

PADDING = -100
pytestmark = pytest.mark.filterwarnings("error")


class Recorder(torch.optim.SGD):
    """SGD that notes every gradient, and the weights before, at each update."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, lr=lr)
        self.seen = []

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        assert all(p.grad is not None for p in parameters), "a parameter without a gradient"
        self.seen.append([p.grad.clone() for p in parameters])
        return super().step(closure)


def classifier(seed=0):
    torch.manual_seed(seed)
    return mlp(6, width=8, depth=2, classes=4).double()


def micro_batches(sizes, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, 6, generator=draw, dtype=torch.float64), torch.randint(4, (n,), generator=draw))
        for n in sizes
    ]


def large_batches(make, loss_fn, batches, k):
    """The oracle, one plain step for each window as one batch: (gradients, losses, weights at the end)."""
    model = make()
    optimizer, gradients, losses = torch.optim.SGD(model.parameters(), lr=0.1), [], []
    for start in range(0, len(batches), k):
        inputs, targets = (torch.cat(parts) for parts in zip(*batches[start : start + k]))
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        losses.append(loss.item())
        optimizer.step()
    return gradients, losses, list(model.parameters())


def assert_like_large_batches(make, loss_fn, batches, k, given_as=list, **options):
    model = make()
    optimizer = Recorder(model.parameters())
    losses = accumulate(model, optimizer, loss_fn, given_as(batches), k, **options)
    gradients, right_losses, weights = large_batches(make, loss_fn, batches, k)
    assert len(optimizer.seen) == len(gradients) == len(losses)
    close = dict(rtol=1e-9, atol=1e-12)
    for got, right in zip(optimizer.seen, gradients):
        torch.testing.assert_close(got, right, **close)
    torch.testing.assert_close(list(model.parameters()), weights, **close)
    assert losses == pytest.approx(right_losses, rel=1e-12)
    assert all(type(loss) is float for loss in losses)
    assert all(p.grad is None for p in model.parameters()), "gradients are left for the next epoch"


@pytest.mark.parametrize(
    "sizes, k",
    [
        pytest.param([4] * 8, 4, id="equal sizes, whole windows"),
        pytest.param([4, 4, 4, 1], 4, id="short last micro-batch"),
        pytest.param([4] * 6, 4, id="short last window"),
        pytest.param([4, 4, 4, 4, 4, 3], 4, id="both short"),
        pytest.param([4, 4, 2], 50, id="K larger than the loader"),
        pytest.param([4, 3, 2], 1, id="K = 1"),
        pytest.param([1, 9, 2, 5, 3], 3, id="every size different"),
    ],
)
@pytest.mark.parametrize("given_as", [list, iter], ids=["list", "generator"])
def test_every_update_has_the_gradient_of_the_large_batch(sizes, k, given_as):
    assert_like_large_batches(classifier, F.cross_entropy, micro_batches(sizes), k, given_as)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.integers(1, 10), st.integers(0, 99))
def test_any_sizes_and_any_k_give_the_large_batch(sizes, k, seed):
    assert_like_large_batches(classifier, F.cross_entropy, micro_batches(sizes, seed), k)


def test_old_gradients_do_not_leak_into_the_first_window():
    def make():
        model = classifier()
        F.cross_entropy(model(torch.ones(2, 6, dtype=torch.float64)), torch.tensor([0, 1])).backward()
        return model

    assert_like_large_batches(make, F.cross_entropy, micro_batches([4, 4]), 2)


# -- tokens ----------------------------------------------------------------------------------------


def tiny_gpt():
    torch.manual_seed(0)
    return GPT(vocab=11, length=6, width=8, depth=1, heads=2).double()


def padded(lengths, seed=2):
    """Micro-batches of 2 x 6 tokens; all targets from a sample's length on are padding."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for pair in lengths:
        tokens = torch.randint(11, (2, 6), generator=draw)
        targets = torch.randint(11, (2, 6), generator=draw)
        for row, length in enumerate(pair):
            targets[row, length:] = PADDING
        batches.append((tokens, targets))
    return batches


def tokens_that_count(targets):
    return (targets != PADDING).sum()


@pytest.mark.parametrize(
    "lengths, k",
    [
        pytest.param([(6, 6), (1, 2), (3, 0)], 3, id="unequal"),
        pytest.param([(6, 5), (0, 0), (2, 1), (4, 4)], 4, id="a micro-batch that is all padding"),
        pytest.param([(0, 0), (3, 3), (2, 6)], 2, id="all padding first, short window last"),
    ],
)
def test_weights_by_tokens_give_the_mean_over_all_tokens(lengths, k):
    assert_like_large_batches(tiny_gpt, next_token_loss, padded(lengths), k, count=tokens_that_count)


def test_the_default_count_would_be_wrong_for_padding():
    """So the tests above do hold something: without `count` the gradient differs."""
    batches = padded([(6, 6), (1, 2)])
    model = tiny_gpt()
    optimizer = Recorder(model.parameters())
    accumulate(model, optimizer, next_token_loss, batches, 2)
    gradients, _, _ = large_batches(tiny_gpt, next_token_loss, batches, 2)
    assert not torch.allclose(optimizer.seen[0][0], gradients[0][0], rtol=1e-3)


def test_a_window_of_padding_only_names_the_trouble_and_keeps_the_updates_before():
    model = tiny_gpt()
    optimizer = Recorder(model.parameters())
    with pytest.raises(ValueError, match="no target that counts.*Skip such data"):
        accumulate(model, optimizer, next_token_loss, padded([(3, 3), (0, 0)]), 1, count=tokens_that_count)
    assert len(optimizer.seen) == 1


# -- memory ----------------------------------------------------------------------------------------


def trace_of(k, micro=32, windows=2):
    """The trace of `windows` updates of k micro-batches each."""
    torch.manual_seed(0)
    model = mlp(64, width=128, depth=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(micro, 64), torch.randint(10, (micro,))) for _ in range(k * windows)]
    with Meter(model, optimizer) as meter:
        accumulate(model, optimizer, F.cross_entropy, batches, k)
    return meter.trace


def test_the_peak_does_not_grow_with_k():
    # from K = 2 on the gradients live beside the activations; a further micro-batch adds only data
    peaks = []
    for k in (2, 4, 8, 16):
        records = trace_of(k).records
        peaks.append(max(r.live_bytes - r.by_category.get("inputs", 0) for r in records))
    assert max(peaks) - min(peaks) <= 64, peaks  # a few scalars


@pytest.mark.parametrize("k", [1, 4, 16])
def test_only_the_activations_of_one_micro_batch_are_alive(k):
    most = max(record.by_category.get("activations", 0) for record in trace_of(k).records)
    one = ledger.total(ledger.mlp_activations(32, 128, 6, 10))
    assert one <= most <= one + 64


# -- bad input -------------------------------------------------------------------------------------


def stands_still(model):
    before = [p.detach().clone() for p in model.parameters()]
    return lambda: all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


@pytest.mark.parametrize(
    "steps, error",
    [(0, ValueError), (-1, ValueError)] + [(bad, TypeError) for bad in (2.5, 4.0, True, "4", None)],
)
def test_a_bad_number_of_steps_is_named_before_anything_happens(steps, error):
    model = classifier()
    unchanged = stands_still(model)
    with pytest.raises(error, match="accumulation_steps must be") as caught:
        accumulate(model, Recorder(model.parameters()), F.cross_entropy, micro_batches([4]), steps)
    assert str(steps) in str(caught.value) and unchanged()


@pytest.mark.parametrize("empty", [[], (pair for pair in ())], ids=["list", "generator"])
def test_no_batches_is_an_error_with_a_cure(empty):
    model = classifier()
    with pytest.raises(ValueError, match="no batches.*drop_last"):
        accumulate(model, Recorder(model.parameters()), F.cross_entropy, empty, 2)


def test_a_frozen_model_is_an_error_with_a_cure():
    model = classifier().requires_grad_(False)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="requires_grad=True.*Unfreeze"):
        accumulate(model, optimizer, F.cross_entropy, micro_batches([4]), 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_no_weight_and_keeps_the_updates_before(bad):
    batches = micro_batches([4] * 6)
    batches[3][0][0, 0] = bad  # in the second window of two
    model, before = classifier(), classifier()
    accumulate(before, Recorder(before.parameters()), F.cross_entropy, batches[:2], 2)
    optimizer = Recorder(model.parameters())
    with pytest.raises(FloatingPointError, match="update was not made.*learning rate"):
        accumulate(model, optimizer, F.cross_entropy, batches, 2)
    assert len(optimizer.seen) == 1
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters()))
    assert all(p.grad is None for p in model.parameters())


def test_whole_number_inputs_to_an_mlp_name_the_cure():
    model = classifier()
    whole = [(torch.ones(4, 6, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))]
    with pytest.raises(TypeError, match=r"inputs of torch.int64.*inputs.float\(\)"):
        accumulate(model, Recorder(model.parameters()), F.cross_entropy, whole, 1)


def test_other_errors_of_the_model_pass_through_as_they_are():
    model, too_narrow = classifier(), torch.ones(4, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        accumulate(model, Recorder(model.parameters()), F.cross_entropy, [(too_narrow, torch.ones(4))], 1)


def test_the_loop_can_be_read_in_one_look():
    function = ast.parse(inspect.getsource(accumulate)).body[0]
    body = function.body[1:]  # after the docstring
    assert function.end_lineno - body[0].lineno + 1 <= 40


def test_a_numpy_integer_is_a_number_of_steps():
    import numpy

    from course_lib.memory.checks import require_steps

    assert require_steps(numpy.int64(4)) == 4
