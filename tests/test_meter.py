"""The Meter against hand formulas, against the allocator, and in odd situations."""

import gc
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.experiments.models import GPT, cnn, mlp, next_token_loss
from course_lib.measure import CATEGORIES, PHASES, Meter, MeterWarning, Trace
from course_lib.measure.device import AllocatorCounters


def tower(width, depth):
    return nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())])


def tower_peak_by_hand(batch, width, depth):
    """Bytes above parameters and input for sum().backward() through Linear+ReLU pairs.

    Going back through layer l: l ReLU outputs are alive, then either the incoming gradient and the new one (ReLU), or one
    activation less, the gradient, the input's gradient (not for the first layer) and this layer's weight and bias
    gradient (Linear). Gradients of the layers above stay. 8 bytes: the loss and its gradient.
    """
    row, grads = batch * width * 4, (width * width + width) * 4
    peak = (depth + 1) * row  # forward: all ReLU outputs and one Linear output
    for layer in range(depth, 0, -1):
        above = (depth - layer) * grads
        # The first gradient is an expanded scalar, so the last ReLU finds no full-size incoming gradient.
        incoming = 0 if layer == depth else row
        peak = max(peak, layer * row + incoming + row + above + 8)
        peak = max(peak, (layer - 1) * row + row + (row if layer > 1 else 0) + grads + above + 8)
    return peak


@pytest.mark.parametrize("batch, width, depth", [(4096, 256, 8), (256, 1024, 8), (1, 64, 3), (7, 33, 5)])
def test_peak_of_an_mlp_is_the_hand_formula_to_the_byte(batch, width, depth):
    model, x = tower(width, depth), torch.randn(batch, width)
    with Meter(model) as meter:
        model(x).sum().backward()
    assert meter.trace.peak_bytes - meter.trace.baseline_bytes == tower_peak_by_hand(batch, width, depth)


# What a kernel allocates and frees inside one call, and no meter of tensors can see (bytes, measured, torch 2.11 to 2.15
# may differ): AdamW makes a few scalars, convolutions and layer norms use work buffers, attention rows for each thread.
KERNEL_SCRATCH = {"mlp": 64, "cnn": 400_000, "gpt": 600_000}


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_peak_equals_the_allocators_up_to_kernel_scratch(name):
    if name == "gpt":
        model, x, y, loss = GPT(), torch.randint(256, (4, 64)), torch.randint(256, (4, 64)), next_token_loss
    else:
        model = mlp() if name == "mlp" else cnn()
        x = torch.randn(64, 64) if name == "mlp" else torch.randn(64, 1, 8, 8)
        y, loss = torch.randint(10, (64,)), F.cross_entropy
    optimizer = torch.optim.AdamW(model.parameters())
    meter = Meter(model, optimizer, oracle=True)
    with meter:
        loss(model(x), y).backward()
        optimizer.step()
    hidden = meter.trace.oracle_peak_bytes - meter.trace.peak_bytes
    assert 0 <= hidden <= KERNEL_SCRATCH[name]


def test_phases_and_categories_of_a_step_with_known_sizes():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(8, 64)
    numbers, row = 64 * 64 + 3 * 64, 8 * 64 * 4
    with Meter(model, optimizer) as meter:
        model(x).sum().backward()
        optimizer.step()
    trace = meter.trace
    last = {record.phase: record.by_category for record in trace.records if record.op not in ("start", "end")}
    at_rest = trace.records[-1].by_category
    assert at_rest["parameters"] == numbers * 4
    assert at_rest["gradients"] == numbers * 4
    assert at_rest["optimizer state"] == 2 * numbers * 4 + 4 * 4  # and one step counter for each of four tensors
    assert at_rest["buffers"] == 2 * 64 * 4 + 8  # running mean and variance, and an int64 counter
    assert at_rest["inputs"] == row
    assert set(at_rest) == {"parameters", "gradients", "optimizer state", "buffers", "inputs"}
    in_forward = [r for r in trace.records if r.phase == "forward" and r.by_category.get("activations")][-1]
    forward_end = max(r.by_category.get("activations", 0) for r in trace.records if r.phase == "forward")
    assert forward_end == row + 2 * 64 * 4 + 4  # BatchNorm's input, its two statistics, the loss
    assert in_forward.phase == "forward" and "backward" in last and "optimizer" in last
    assert list(trace.peak_by_phase) == ["forward", "backward", "optimizer"]
    for record in trace.records:
        assert sum(record.by_category.values()) == record.live_bytes <= record.peak_bytes
        assert record.phase in PHASES and set(record.by_category) <= set(CATEGORIES)
        assert all(type(n) is int for n in record.by_category.values())
    assert sum(trace.peak_by_category.values()) == trace.peak_bytes


def test_a_second_step_starts_with_optimizer_state_and_peaks_no_lower():
    model = mlp()
    optimizer, x, y = torch.optim.Adam(model.parameters()), torch.randn(8, 64), torch.randint(10, (8,))
    traces = []
    for _ in range(2):
        with Meter(model, optimizer) as meter:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        traces.append(meter.trace)
    first, second = (trace.records[0].by_category for trace in traces)
    assert "optimizer state" not in first and second["optimizer state"] > 0
    assert "gradients" not in second  # zero_grad() gave them back


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_shows_as_recompute_and_recomputed(reentrant):
    from torch.utils.checkpoint import checkpoint

    model, x = tower(64, 4), torch.randn(8, 64, requires_grad=True)
    with Meter(model) as meter:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert "recompute" in meter.trace.peak_by_phase
    assert max(r.by_category.get("recomputed", 0) for r in meter.trace.records) >= 3 * 8 * 64 * 4


def test_double_backward_is_backward_and_not_recompute():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(4, 8, requires_grad=True)
    with Meter(model) as meter:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.pow(2).sum().backward()
    assert set(meter.trace.peak_by_phase) == {"forward", "backward"}


def test_views_count_nothing_and_keep_their_base_alive():
    with Meter() as meter:
        base = torch.zeros(1000)
        view = base[:10].view(2, 5).t().expand(3, 5, 2)
        assert meter.live_bytes == 4000
        del base
        assert meter.live_bytes == 4000
        del view
        assert meter.live_bytes == 0
    assert meter.trace.peak_bytes == 4000


def test_in_place_and_out_variants_allocate_nothing():
    a, b, out = torch.ones(100), torch.ones(100), torch.empty(100)
    with Meter() as meter:
        a.add_(b).mul_(2).relu_()
        torch.add(a, b, out=out)
    assert meter.trace.peak_bytes == meter.trace.baseline_bytes == 1200


def test_resizing_is_followed_up_and_down():
    with Meter() as meter:
        t = torch.zeros(10)
        t.resize_(1000)
        assert meter.live_bytes == 4000
        t.untyped_storage().resize_(0)
        t.detach_()
        t.resize_(5)
        assert meter.live_bytes == 20
    assert meter.trace.peak_bytes == 4000


def test_out_that_grows_is_counted_at_its_new_size():
    out = torch.empty(0)
    with Meter() as meter:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.add(torch.ones(100), torch.ones(100), out=out)
        assert meter.live_bytes == 400


def test_data_swap_frees_the_old_storage():
    p = nn.Parameter(torch.zeros(100))
    with Meter() as meter:
        p + 0
        p.data = torch.zeros(50)
        assert meter.live_bytes == 200


def test_a_reference_cycle_is_alive_until_it_is_collected():
    gc.collect()
    gc.disable()
    try:
        with Meter() as meter:
            cycle = [torch.zeros(100)]
            cycle.append(cycle)
            del cycle
            assert meter.live_bytes == 400
            gc.collect()
            assert meter.live_bytes == 0
    finally:
        gc.enable()


def test_sparse_gradients_are_counted():
    embedding = nn.Embedding(100, 8, sparse=True)
    with Meter(embedding) as meter:
        embedding(torch.tensor([1, 2, 3])).sum().backward()
    assert meter.trace.records[-1].by_category["gradients"] >= 3 * 8 * 4


def test_an_exception_passes_through_and_leaves_a_trace_and_no_hooks():
    model = tower(16, 2)
    with pytest.raises(ZeroDivisionError):
        with Meter(model) as meter:
            model(torch.randn(2, 16))
            1 / 0
    assert meter.trace.error.startswith("ZeroDivisionError")
    assert not model._forward_pre_hooks
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters() if p._post_accumulate_grad_hooks is not None)


def test_nested_meters_agree_and_the_outer_one_goes_on():
    model, x = tower(32, 2), torch.randn(4, 32)
    with Meter(model) as outer:
        with Meter(model) as inner:
            model(x).sum().backward()
        model.zero_grad()
        keep = torch.zeros(10)
    assert inner.trace.peak_bytes == outer.trace.peak_bytes
    assert outer.trace.end_bytes == outer.trace.baseline_bytes + keep.nbytes


def test_a_meter_sees_input_data_from_the_start():
    x, y = torch.randn(100, 8), torch.randn(100, 1)
    model = nn.Linear(8, 1)
    with Meter(model) as meter:
        F.mse_loss(model(x), y).backward()
    assert meter.trace.records[0].by_category["inputs"] == x.nbytes + y.nbytes


def test_numpy_memory_counts_from_its_first_use():
    import numpy

    with Meter() as meter:
        for _ in range(10):
            torch.from_numpy(numpy.zeros(1000, dtype="float32")) + 1
    assert meter.trace.peak_bytes == 8000


@pytest.mark.parametrize("what", ["forward", "backward", "optimizer.step"])
def test_work_on_another_thread_gives_one_clear_warning(what):
    model = tower(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 16)
    with pytest.warns(MeterWarning, match=f"{what} ran on a thread") as caught:
        with Meter(model, optimizer) as meter:
            if what == "forward":
                work = lambda: [model(x) for _ in range(3)]  # noqa: E731
            else:
                loss = model(x).sum()
                work = loss.backward if what == "backward" else optimizer.step
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert len([w for w in caught if w.category is MeterWarning]) == 1
    assert any(what in message for message in meter.trace.warnings)


def test_a_meter_on_its_own_thread_measures_there():
    model, x, traces = tower(16, 2), torch.randn(2, 16), []

    def work():
        with Meter(model) as meter:
            model(x).sum().backward()
        traces.append(meter.trace)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    model.zero_grad()
    with Meter(model) as meter:
        model(x).sum().backward()
    assert traces[0].peak_bytes == meter.trace.peak_bytes and not traces[0].warnings


def test_what_dies_after_the_block_does_not_change_a_trace_that_is_read_late():
    model, x = tower(16, 2), torch.randn(2, 16)
    with Meter(model) as meter:
        out = model(x)
        keep = [torch.zeros(100) for _ in range(5)]
    size = out.nbytes + sum(t.nbytes for t in keep)
    del out, keep
    assert meter.trace.end_bytes >= meter.trace.baseline_bytes + size
    assert meter.trace.records[-1].op == "end"


def test_a_hand_written_update_can_name_its_phase():
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    momentum = []
    with Meter(model) as meter:
        model(x).sum().backward()
        with meter.phase("optimizer"), torch.no_grad():
            momentum = [p.grad.clone() for p in model.parameters()]
            for p, m in zip(model.parameters(), momentum):
                p -= 0.1 * m
    assert meter.trace.records[-1].by_category["optimizer state"] == 72 * 4
    assert "optimizer" in meter.trace.peak_by_phase


def test_measuring_changes_neither_results_nor_the_graph_checks():
    torch.manual_seed(0)
    model, x = tower(16, 2), torch.randn(4, 16)
    model(x).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with Meter(model):
        model(x).sum().backward()
        h = torch.ones(3, requires_grad=True).exp()
        h.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            h.sum().backward()  # a meter built on saved-tensor hooks would silence this error
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters()))


def test_compiled_code_is_measured_and_the_meter_itself_is_not_compiled():
    model, x = tower(16, 2), torch.randn(2, 16)
    compiled = torch.compile(model, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    with Meter(model) as meter:
        compiled(x).sum().backward()
    model.zero_grad()
    with Meter(model) as plain:
        model(x).sum().backward()
    assert meter.trace.peak_bytes == plain.trace.peak_bytes
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


def test_fake_tensors_give_the_real_peak_without_allocating():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def step(model, x, y):
        with Meter(model) as meter:
            F.cross_entropy(model(x), y).backward()
        return meter.trace

    real = step(mlp(), torch.randn(8, 64), torch.randint(10, (8,)))
    with FakeTensorMode():
        fake = step(mlp(), torch.randn(8, 64), torch.randint(10, (8,)))
        big = step(mlp(64, 100_000, 3), torch.randn(8, 64), torch.randint(10, (8,)))
    assert fake.peak_bytes == real.peak_bytes
    assert [r.live_bytes for r in fake.records] == [r.live_bytes for r in real.records]
    assert big.peak_bytes > 2 * 2 * 100_000**2 * 4


def test_tensor_subclasses_are_unwrapped_to_what_they_hold():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    pair = two_tensor(torch.ones(100), torch.ones(100))
    with Meter() as meter:
        pair + pair
    assert meter.trace.peak_bytes - meter.trace.baseline_bytes == 800


def test_a_trace_survives_json():
    model = tower(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Meter(model, optimizer) as meter:
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
    again = Trace.from_json(meter.trace.to_json())
    assert [r[1:] for r in again.records] == [r[1:] for r in meter.trace.records]
    assert again.peak_by_category == meter.trace.peak_by_category and again.to_json() == meter.trace.to_json()


@pytest.mark.parametrize("bad", [{"model": 3}, {"optimizer": "adam"}])
def test_wrong_arguments_are_named(bad):
    with pytest.raises(TypeError, match="Meter's"):
        Meter(**bad)


def test_a_meter_is_used_once():
    meter = Meter()
    with meter:
        with pytest.raises(RuntimeError, match="one block"):
            meter.__enter__()
    with pytest.raises(RuntimeError, match="one block"):
        meter.__enter__()
    with pytest.raises(RuntimeError, match="inside the"):
        with meter.phase("forward"):
            pass


class CountersFromMemory(AllocatorCounters):
    """Stands in for a GPU's allocator: what the meter must do with counters, wherever they come from."""

    def __init__(self, scratch):
        self.scratch, self.meter, self.high = scratch, None, 0

    def current(self):
        return 1000

    def reset_peak(self):
        self.high = 0

    def peak(self):
        return 1000 + self.meter.peak_bytes + self.scratch


def test_on_an_allocator_its_peak_is_the_truth_and_the_rest_is_hidden():
    counters = CountersFromMemory(scratch=512)
    model = tower(16, 2)
    meter = counters.meter = Meter(model, counters=counters)
    with meter:
        model(torch.randn(2, 16)).sum().backward()
    trace = meter.trace
    tensors = max(record.live_bytes for record in trace.records)
    assert trace.source == "allocator" and trace.baseline_bytes == 1000
    assert trace.peak_bytes == 1000 + tensors + 512 and trace.hidden_bytes == 1512
    assert sum(trace.peak_by_category.values()) == trace.peak_bytes
    assert set(trace.peak_by_phase) == {"forward", "backward"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: checks the allocator's counters")
def test_on_cuda_tensors_and_allocator_agree_up_to_hidden_bytes():
    model = tower(256, 4).cuda()
    x = torch.randn(64, 256, device="cuda")
    model(x).sum().backward()  # creates the cuBLAS workspace
    model.zero_grad()
    with Meter(model) as meter:
        model(x).sum().backward()
    assert meter.trace.source == "allocator"
    assert 0 <= meter.trace.hidden_bytes <= 64 * 2**20
