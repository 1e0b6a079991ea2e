"""checkpoint: the contract row by row against torch's, what ours adds, what it costs, and what bad input is told."""

import importlib
import os
import random
import threading
import weakref

import numpy
import pytest
import torch
from torch import nn

from course_lib.experiments import bench_checkpoint as bench
from course_lib.experiments.contract import implementations, rows
from course_lib.experiments.contract_rows import block, gradients, point, same
from course_lib.measure import Meter
from course_lib.memory import CheckpointError, checkpoint, checkpoint_sequential
from course_lib.memory.offload import offload_to_cpu, offload_to_disk
from course_lib.memory.randomness import Draws
from course_lib.memory.selective import keep_outputs_of

pytestmark = pytest.mark.filterwarnings("ignore")
BOTH, ROWS = implementations(), rows()
NAMES = [row.name.replace(" ", "-") for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_ours_keeps_the_contract(row):
    row.run(BOTH["ours"])


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_torch_keeps_the_contract_and_is_silent_where_we_say_so(row):
    if not row.strict:
        row.run(BOTH["torch"])
        return
    with pytest.raises((AssertionError, RuntimeError, ValueError, ZeroDivisionError)):
        row.run(BOTH["torch"])


def test_there_is_a_row_for_every_point_of_the_contract():
    assert len(NAMES) == len(set(NAMES)) and sum(not row.strict for row in ROWS) >= 60 and sum(row.strict for row in ROWS) >= 18


# -- cost ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack():
    return {name: bench.costs(bench.VARIANTS[name]) for name in ("no checkpointing", "per block, ours", "per block, torch")}


def test_on_the_32_block_stack_peak_and_flops_are_at_most_those_of_torch(stack):
    ours, theirs, plain = (stack[name] for name in ("per block, ours", "per block, torch", "no checkpointing"))
    assert ours["peak"] <= theirs["peak"] and ours["kept"] <= theirs["kept"] and ours["flops"] <= theirs["flops"]
    assert round(ours["flops"] / plain["flops"], 4) == 1.2222
    assert plain["peak"] > 9.9 * ours["peak"]


def test_fake_tensors_give_the_bytes_of_a_real_run():
    forward = bench.VARIANTS["per block, ours"]
    assert bench.costs(forward, blocks=3, dropout=0.1) == bench.costs(forward, blocks=3, dropout=0.1, fake=False)


def test_balanced_segments_have_a_lower_peak_than_torchs():
    ours, theirs = (bench.costs(bench.VARIANTS[f"6 segments, {who}"], blocks=11)["peak"] for who in ("ours", "torch"))
    assert ours < 0.6 * theirs  # the last segment has 1 block here, and 6 there


def test_a_region_costs_at_most_the_python_time_of_torchs():
    """Medians of interleaved runs. One of three attempts may be disturbed by the machine."""
    torch.set_num_threads(1)
    numpy.random.seed(0)  # no spare normal number, which would have NumPy's state read in full
    for _ in range(4):
        row = bench.overhead(repeats=12)["one operator"]
        if row["ours"] <= row["torch"]:
            return
    pytest.fail(f"microseconds for one region: {row}")


# -- random programs -------------------------------------------------------------------------------------------------


def program(seed: int):
    """A random chain of operations with checkpoints around random stretches of it, some inside others."""
    draw = random.Random(seed)

    def build(depth):
        steps = []
        for _ in range(draw.randint(1, 4)):
            kind = draw.choice(["linear", "sin", "exp", "dropout", "relu_", "region", "noise", "split"])
            if kind == "region" and depth < 3:
                steps.append(("region", build(depth + 1), draw.choice([{}, {"early_stop": False}, {"determinism_check": "values"}])))
            elif kind != "region":
                steps.append((kind, None, {}))
        return steps

    return build(0)


def perform(steps, x, weight, call):
    for kind, inner, options in steps:
        if kind == "linear":
            x = x @ weight
        elif kind in ("sin", "exp"):
            x = getattr(torch, kind)(x.clamp(-2, 2))
        elif kind == "dropout":
            x = nn.functional.dropout(x, 0.3)
        elif kind == "relu_":
            x = (x * 1.5).relu_()
        elif kind == "noise":
            x = x * (1 + random.random()) * torch.from_numpy(numpy.random.rand(*x.shape))
        elif kind == "split":
            a, b = call(lambda d: (d["x"].sin(), [d["x"].cos()]), {"x": x}) if options is None else (x.sin(), [x.cos()])
            x = a * b[0]
        else:
            x = call(lambda x, w, inner=inner: perform(inner, x, w, call), x, weight, **options)
    return x


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_have_the_gradients_of_the_plain_run(seed):
    steps = program(seed)

    def run(call):
        torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
        x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
        weight = torch.randn(5, 5, dtype=torch.double, requires_grad=True)
        out = perform(steps, x, weight, call)
        loss = out.square().sum() + weight.sum() + x.sum()
        loss.backward(retain_graph=True)
        loss.backward()
        after = torch.tensor([torch.rand(1).item(), random.random(), numpy.random.rand()])
        return [out.detach(), x.grad, weight.grad, after]

    same(run(checkpoint), run(lambda f, *args, **options: f(*args)))


# -- randomness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(2).tolist(),
        lambda: torch.randn(1).tolist(),
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.sample(range(9), 3),
        lambda: numpy.random.rand(3).tolist(),
        lambda: numpy.random.randn(1).tolist(),
    ],
)
def test_exactly_the_generators_that_were_used_are_kept_and_rewound(draw):
    for _ in range(4):  # every second normal number is a spare that moves no table
        draws = Draws()
        first = draw()
        draws.keep_drawn()
        assert len(draws.states) == 1
        now = draws.rewind()
        assert draw() == first
        draws.forward(now)
        assert draw() != first


def test_a_region_that_draws_nothing_keeps_no_state():
    draws = Draws()
    draws.keep_drawn()
    assert draws.states == []


# -- errors that say what to do ----------------------------------------------------------------------------------------


def test_the_value_check_names_the_first_tensor_that_differs_and_its_line():
    number = [1.0]

    def region(x):
        y = x.sin()
        return (y * number[0]).exp().cos()

    loss = checkpoint(region, point(), determinism_check="values").sum()
    number[0] = 0.5
    with pytest.raises(CheckpointError, match=r"saved tensor 1 of 3.*test_checkpoint.py:\d+: return \(y \* number"):
        loss.backward()


def test_a_doubled_dimension_is_explained_by_a_cache():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = []

        def forward(self, x):
            self.rows.append(x)
            return torch.cat(self.rows).sin()

    loss = checkpoint(Cached(), point()).sum()
    with pytest.raises(CheckpointError, match="Dimension 0 has doubled: is there a cache"):
        loss.backward()


def test_an_error_of_the_recompute_says_where_it_comes_from():
    calls = []

    def region(x):
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("gone")
        return x.sin()

    loss = checkpoint(region, point()).sum()
    with pytest.raises(KeyError) as caught:
        loss.backward()
    assert "run again in backward" in caught.value.__notes__[0]


def test_an_in_place_change_names_the_argument():
    scale = torch.ones(1, dtype=torch.double)
    loss = checkpoint(lambda x, *, scale: (x * scale).sin(), point(), scale=scale).sum()
    scale.add_(1)
    with pytest.raises(CheckpointError, match=r"argument 'scale' \(shape \(1,\)\).*version 0 and is at 1 now"):
        loss.backward()


def test_counters_and_sums_of_the_region_itself_are_not_mistaken_for_changes():
    counter, total = torch.zeros(1), 0.0

    def region(x):
        nonlocal total
        counter.add_(1)
        total = total + x.detach().mean()
        return x.sin()

    x = point()
    for _ in range(2):
        checkpoint(region, x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.cos())


def test_threads_do_not_meet_in_each_others_recomputes():
    def work(net):
        for _ in range(20):
            checkpoint(net, torch.randn(8, 4, requires_grad=True)).sum().backward()

    nets = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(net[1].num_batches_tracked) for net in nets] == [20] * 3


def test_arguments_that_hold_themselves_do_not_hang():
    ring, x = [1], point()
    ring.append(ring)
    checkpoint(lambda x, ring: x.sin() * ring[0], x, ring).sum().backward()
    assert torch.allclose(x.grad, x.cos())


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="needs a function or a module"):
        checkpoint(3, point())


@pytest.mark.parametrize("segments, error", [(0, ValueError), (4, ValueError), (True, TypeError), (1.5, TypeError)])
def test_bad_numbers_of_segments_get_one_sentence(segments, error):
    with pytest.raises(error, match="^segments"):
        checkpoint_sequential([torch.sin] * 3, segments, point())
    with pytest.raises(ValueError, match="no functions"):
        checkpoint_sequential([], 1, point())


def test_the_older_variant_is_torchs_own():
    net, x = block(), point()
    out = checkpoint(net, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        torch.autograd.grad(out.sum(), x)


# -- selective recompute and offload -----------------------------------------------------------------------------------


def test_kept_operators_survive_autocast_and_shared_weights():
    """A weight cast for one region is in autocast's cache for the next: forward and recompute would count other casts."""
    shared, x = nn.Linear(6, 6), torch.randn(4, 6, requires_grad=True)
    keep = keep_outputs_of(torch.ops.aten._to_copy, torch.ops.aten.addmm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(lambda x: shared(x).sin(), x, context_fn=keep)
        loss = checkpoint(lambda x: shared(x).sin(), y, context_fn=keep).float().sum()
    loss.backward()
    assert shared.weight.grad is not None


def test_kept_outputs_are_freed_by_backward():
    found = []

    def policy(op, args, kwargs):
        return op is torch.ops.aten.exp.default

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.append(weakref.ref(x.untyped_storage()))
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    x = point(64, 64)
    with Meter() as meter:
        loss = checkpoint(lambda x: Spy.apply(x.sin().exp()).sin(), x, context_fn=keep_outputs_of(policy)).sum()
        assert meter.live_bytes > x.nbytes  # the kept exp
        loss.backward()
        del loss
        assert meter.live_bytes <= 2 * x.nbytes  # x and its gradient


def test_something_that_is_no_operator_is_refused():
    with pytest.raises(TypeError, match="torch.ops.aten.mm.default"):
        keep_outputs_of("mm")


def test_activations_on_disk_leave_memory_and_come_back(tmp_path):
    net, x = block(), point(256, 6)
    want = gradients(lambda x, net: net(x), x, net)

    def offloaded(x, net):
        with offload_to_disk(str(tmp_path), min_bytes=0):
            return net(x)

    with Meter(net) as meter:
        out = offloaded(x, net)
        files = sum(len(names) for _, _, names in os.walk(tmp_path))
        kept = meter.live_bytes
    with Meter(net) as plain:
        out2 = net(x)
        assert kept < plain.live_bytes and files >= 3
    del out, out2
    assert not any(names for _, _, names in os.walk(tmp_path)), "files outlive their graph"
    same(gradients(offloaded, x, net), want)


def test_weights_and_small_tensors_stay_where_they_are():
    net, x = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 20)), torch.randn(8, 20)
    with offload_to_disk(min_bytes=0) as offload:
        net(x).sum()
    assert offload.moved_bytes == x.nbytes + 8 * 64 * 4  # the input, and what ReLU and the second Linear share
    with offload_to_disk(min_bytes=2**20) as offload:
        net(x).sum()
    assert offload.moved_bytes == 0 < offload.kept_bytes


def test_on_a_cpu_there_is_nothing_to_offload_to_the_cpu():
    net, x = block(), point()
    with offload_to_cpu():
        out = net(x)
    out.sum().backward()
    assert net[0].weight.grad is not None
    with pytest.raises(ValueError, match="min_bytes"):
        offload_to_cpu(min_bytes=-1)


def test_a_checkpoint_under_offload_offloads_its_input():
    net, x = block(), point(64, 6) * 1
    with offload_to_disk(min_bytes=0) as offload:
        loss = checkpoint(net, x).sum()
    assert offload.moved_bytes == x.nbytes
    loss.backward()
    assert net[0].weight.grad is not None


def test_the_module_stays_readable_in_one_sitting():
    source = importlib.import_module("course_lib.memory.checkpoint").__file__
    assert len(open(source, encoding="utf-8").read().splitlines()) < 400
