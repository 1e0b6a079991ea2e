"""checkpoint: the contract row by row against torch's, what ours adds, what it costs, and what bad input is told."""

import dataclasses
import importlib
import os
import random
import threading
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import GraphExecGroup

from course_lib.experiments import bench_checkpoint as bench
from course_lib.experiments.contract import implementations, rows
from course_lib.experiments.contract_tools import block, gradients, point, same
from course_lib.measure import Meter
from course_lib.memory import CheckpointError, checkpoint, checkpoint_sequential
from course_lib.memory.offload import offload_to_cpu, offload_to_disk
from course_lib.memory.randomness import Draws, Note
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
        assert sum(not isinstance(state, Note) for _, state in draws.states) == 1
        now = draws.rewind()
        assert draw() == first
        draws.forward(now)
        assert draw() != first


def test_regions_that_draw_nothing_keep_no_state_of_their_own():
    """One note of where PyTorch's generator stood serves them all, in case that a region rewinds it itself."""
    several = [Draws() for _ in range(32)]
    for draws in several:
        draws.keep_drawn()
    assert len({id(state) for draws in several for _, state in draws.states}) == 1
    assert not any(isinstance(state, torch.Tensor) for draws in several for _, state in draws.states)


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


# -- found by a hostile reader -----------------------------------------------------------------------------------------


def test_a_region_that_puts_the_random_state_back_itself_draws_the_same_again():
    def forked(x):
        with torch.random.fork_rng(devices=[]):
            mask = torch.rand_like(x)
        return (x * mask).sin()

    def run(call):
        torch.manual_seed(0)
        x = point()
        y = call(forked, x)
        torch.rand(7)
        y.sum().backward()
        return [x.grad, torch.rand(2)]

    same(run(checkpoint), run(lambda f, x: f(x)))


def test_what_was_one_object_is_one_object_in_the_recompute():
    shared, x = [1.0], point()
    checkpoint(lambda x, p, q: (x * (2 if p is q else 3)).sin(), x, shared, shared).sum().backward()
    assert torch.allclose(x.grad, 2 * (2 * x).cos())
    x, state = point(), []
    checkpoint(lambda x, s, d: (s.append(x.sin()), (d["s"][-1] * x).exp())[1], x, state, {"s": state}).sum().backward()
    assert x.grad is not None


def test_batchnorm_goes_with_selective_recompute_and_with_the_value_check():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    for options in (dict(context_fn=keep_outputs_of(torch.ops.aten.addmm)), dict(determinism_check="values")):
        checkpoint(net, torch.randn(3, 4, requires_grad=True), **options).sum().backward()
    assert net[1].num_batches_tracked == 2


def test_the_value_check_sees_through_a_selective_recompute():
    number = [1.0]
    keep = keep_outputs_of(torch.ops.aten.sum)
    y = checkpoint(lambda x: (x + number[0]).sin().exp(), point(), determinism_check="values", context_fn=keep)
    number[0] = 5.0
    with pytest.raises(CheckpointError, match="values differ"):
        y.sum().backward()


def test_the_value_check_reads_complex_and_conjugated_tensors():
    x = torch.randn(3, dtype=torch.cdouble, requires_grad=True)
    checkpoint(lambda x: (x.conj() * x.exp()).abs(), x, determinism_check="values").sum().backward()
    assert x.grad is not None


def test_state_that_regions_move_themselves_is_no_change_from_outside():
    counter, x = torch.zeros(()), point()

    def counted(x):
        counter.add_(1)
        return x.sin().exp()

    loss = checkpoint(counted, checkpoint(counted, x)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    weights = {"g": point(6, 6), "d": point(6, 6)}
    y = checkpoint(lambda x: (x @ weights["g"]).tanh(), x)
    with torch.no_grad():
        weights["d"].add_(1)  # another entry of a container that the region reads
    y.sum().backward()


@pytest.mark.parametrize("loop", [range(3), (1.0, 2.0, 3.0), (torch.sin, torch.exp, torch.tanh)], ids=["index", "number", "function"])
def test_any_loop_variable_that_is_looked_up_too_late_is_named(loop):
    layers, h = [block() for _ in range(3)], point()
    for item in loop:

        def region(h):
            h = layers[item](h) if isinstance(item, int) else item(h) if callable(item) else h * item  # noqa: B023
            return h.sin()

        h = checkpoint(region, h)
    with pytest.raises(CheckpointError, match="the name 'item' stood for something else"):
        h.sum().backward()


def test_defaults_and_inner_functions_are_watched():
    first, second = point() * 1, point() * 1
    for region in (lambda x, *, w=first: (x + w).sin(), lambda x, v=second, w=first: (x + v + w).sin()):
        y = checkpoint(region, point())
        first.add_(1)
        with pytest.raises(CheckpointError, match="inplace"):
            y.sum().backward()


def test_a_flag_of_an_input_that_flips_is_noticed():
    a, b = torch.ones(3), torch.ones(3, requires_grad=True)
    y = checkpoint(lambda a, b: (a * b).sin(), a, b)
    a.requires_grad_(True)
    with pytest.raises(CheckpointError, match="requires_grad=False in forward"):
        y.sum().backward()


def test_generators_anywhere_in_the_arguments_are_replayed():
    def noisy(x, given):
        noise = torch.rand(x.shape, generator=given["torch"][0], dtype=x.dtype)
        return (x * (noise + given["numpy"].rand())).sin()

    def run(call):
        x = point()
        call(noisy, x, {"torch": [torch.Generator().manual_seed(1)], "numpy": numpy.random.RandomState(1)}).sum().backward()
        return [x.grad]

    same(run(checkpoint), run(lambda f, x, d: f(x, d)))
    system = random.SystemRandom()
    checkpoint(lambda x: x.sin() * (1 if system else 0), point()).sum().backward()


def test_arguments_that_are_graphs_of_objects_take_no_time():
    @dataclasses.dataclass
    class Node:
        parent: object
        kids: list

    root = Node(None, [])
    root.kids = [Node(root, []) for _ in range(300)]
    checkpoint(lambda x, tree: x.sin(), point(), root).sum().backward()


def test_a_rerun_that_failed_can_be_tried_again():
    calls = []

    def fails_once(x):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("full")
        return x.sin()

    x = point()
    loss = checkpoint(fails_once, x).sum()
    with GraphExecGroup():
        with pytest.raises(MemoryError):
            loss.backward(retain_graph=True)
        loss.backward()
    assert torch.allclose(x.grad, x.cos())


def test_the_debug_log_names_the_first_operator_that_differs():
    calls = []

    def region(x):
        calls.append(1)
        return (x.sin() if len(calls) == 1 else x.cos()).exp()[: 2 if len(calls) > 1 else 4].exp()

    with pytest.raises(CheckpointError, match="the runs differ from operation 0 on"):
        checkpoint(region, point(), debug=True).sum().backward()
    calls.clear()

    def later(x):
        calls.append(1)
        return x.sin().exp()[: 2 if len(calls) > 1 else 4].exp()

    with pytest.raises(CheckpointError, match="the runs differ from operation 3 on"):
        checkpoint(later, point(), debug=True).sum().backward()


def test_a_graph_without_backward_dies_though_its_region_reads_a_global():
    outputs = [point() * 1]
    ref = weakref.ref(outputs[0])

    def region(x):
        return (x + outputs[0]).sin().exp()

    outputs.append(checkpoint(region, point()))
    outputs.clear()
    assert ref() is None


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


def test_a_graph_under_offload_dies_with_its_files_though_no_backward_came(tmp_path):
    x, refs = point(20_000), []
    for _ in range(3):
        with offload_to_disk(str(tmp_path), min_bytes=2**16):
            loss = (x * 2).sin().mean().exp()  # exp saves its own, small result
        refs.append(weakref.ref(loss))
    del loss
    assert all(ref() is None for ref in refs) and not any(names for _, _, names in os.walk(tmp_path))


def test_a_tensor_that_stayed_and_was_changed_raises_as_without_offload():
    x = point()
    with offload_to_cpu():
        y = x.exp()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


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
