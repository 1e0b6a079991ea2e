"""Schedules on real blocks: they predict what the Meter measures, to the byte, and budgets are kept."""

import random
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from course_lib.experiments.models import Block
from course_lib.measure import Meter
from course_lib.memory import schedule

torch.set_num_threads(1)


class Mixer(nn.Module):
    """Ends with what saves nothing: its rerun stops in the middle."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return (x + self.down(torch.nn.functional.silu(self.up(x)))) * 0.5


def linear(a, b, after=nn.GELU):
    return nn.Sequential(nn.Linear(a, b), after())


def mlp():
    return [linear(24, 24, nn.Tanh) for _ in range(6)], (16, 24)


def uneven():
    sizes = [24, 48, 8, 96, 4, 40]
    return [
        *(nn.Sequential(nn.Linear(a, 2 * b), nn.GELU(), nn.Linear(2 * b, b)) for a, b in pairwise(sizes))
    ], (16, 24)


def layers():
    return [nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.2), nn.LayerNorm(24), nn.Linear(24, 36), nn.Tanh()], (
        16,
        24,
    )


def gpt():
    return [Block(16, 2, dropout=0.1) for _ in range(5)], (2, 8, 16)


def gpt_with_matrices():
    return [
        *(Block(16, 2, dropout=0.1, fused=False) for _ in range(3)),
        nn.LayerNorm(16),
        nn.Linear(16, 50),
    ], (2, 8, 16)


def cnn():
    def conv(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, stride=stride), nn.BatchNorm2d(b), nn.ReLU())

    return [conv(3, 4), conv(4, 4), conv(4, 8, 2), nn.Sequential(nn.Flatten(), nn.Linear(128, 10))], (
        4,
        3,
        8,
        8,
    )


def mixed():
    encoder = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    return [Mixer(16), Block(16, 2), linear(16, 16, nn.ReLU), encoder, Mixer(16), nn.LayerNorm(16)], (
        2,
        8,
        16,
    )


STACKS = [mlp, uneven, layers, gpt, gpt_with_matrices, cnn, mixed]


def prepare(stack, there, x_grad, seed=0):
    torch.manual_seed(seed)
    blocks, shape = stack()
    return nn.ModuleList(blocks), torch.randn(shape, requires_grad=x_grad)


def clear(blocks, x, there):
    x.grad = None
    for parameter in blocks.parameters():
        parameter.grad = torch.zeros_like(parameter) if there and parameter.requires_grad else None


def executed(plan, blocks, x, there):
    """(bytes above what was alive before, calls of blocks) of a step, by the Meter."""
    clear(blocks, x, there)
    calls: list = []
    hooks = [block.register_forward_pre_hook(lambda module, inputs: calls.append(module)) for block in blocks]
    with Meter(blocks) as meter:
        (x.detach() * 0).sum()  # the Meter has met x
        before = meter.live_bytes
        plan.run(blocks, x).sum().backward()
    for hook in hooks:
        hook.remove()
    return meter.peak_bytes - before, len(calls)


def schedules(chain):
    return [
        schedule.none(chain),
        schedule.per_block(chain),
        schedule.segments(chain, 2),
        schedule.nested(chain),
        schedule.binomial(chain, 1),
        schedule.binomial(chain, 2),
    ]


@pytest.mark.parametrize(
    "there, x_grad", [(False, True), (True, False)], ids=["fresh gradients", "gradients there"]
)
@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.__name__)
def test_the_meter_agrees_with_every_schedule_to_the_byte(stack, there, x_grad):
    blocks, x = prepare(stack, there, x_grad)
    clear(blocks, x, there)
    chain = schedule.measure(blocks, x)
    for plan in schedules(chain):
        assert executed(plan, blocks, x, there) == (plan.peak_bytes, len(blocks) + plan.recomputations), plan


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.__name__)
def test_budgets_are_kept_when_executed_and_what_they_cost_falls_with_them(stack):
    blocks, x = prepare(stack, False, True)
    clear(blocks, x, False)
    chain = schedule.measure(blocks, x)
    low, high = schedule.minimum(chain), schedule.none(chain).peak_bytes
    peaks, costs = [], []
    for part in (0, 0.15, 0.4, 0.7, 1):
        budget = int(low + part * max(0, high - low))
        plan = schedule.budgeted(chain, budget)
        peak, calls = executed(plan, blocks, x, False)
        assert peak == plan.peak_bytes <= budget
        assert calls == len(blocks) + plan.recomputations
        peaks.append(peak)
        costs.append(plan.recompute_cost)
    assert peaks == sorted(peaks) and costs == sorted(costs, reverse=True)
    assert costs[-1] == 0 if high >= low else True
    with pytest.raises(ValueError, match=rf"\b{low}\b"):
        schedule.budgeted(chain, low - 1)


@pytest.mark.parametrize("seed", range(6))
def test_random_chains_keep_random_budgets(seed):
    draw = random.Random(seed)

    def stack():
        width = draw.choice([8, 16])
        kinds = [
            lambda: Block(width, 2, draw.choice([0.0, 0.1]), draw.random() < 0.5),
            lambda: Mixer(width),
            lambda: nn.LayerNorm(width),
        ]
        kinds += [
            lambda: linear(width, width, draw.choice([nn.ReLU, nn.Tanh, nn.SiLU, nn.Softplus])),
            lambda: nn.Dropout(0.1),
        ]
        return [nn.Linear(width, width), *(draw.choice(kinds)() for _ in range(draw.randint(3, 7)))], (
            2,
            4,
            width,
        )

    there = draw.random() < 0.5
    blocks, x = prepare(stack, there, draw.random() < 0.5, seed)
    clear(blocks, x, there)
    chain = schedule.measure(blocks, x)
    low, high = schedule.minimum(chain), schedule.none(chain).peak_bytes
    for _ in range(4):
        budget = draw.randint(low, max(low, high))
        plan = schedule.budgeted(chain, budget)
        peak, calls = executed(plan, blocks, x, there)
        assert peak == plan.peak_bytes <= budget and calls == len(blocks) + plan.recomputations


@pytest.mark.parametrize("stack", [gpt, cnn, mixed], ids=lambda stack: stack.__name__)
def test_every_schedule_gives_the_gradients_of_the_plain_step_with_the_same_dropout(stack):
    blocks, x = prepare(stack, False, True)
    chain = schedule.measure(blocks, x)

    def gradients(run):
        clear(blocks, x, False)
        torch.manual_seed(7)
        run().square().sum().backward()
        return [x.grad.clone(), *(parameter.grad.clone() for parameter in blocks.parameters())]

    def plain():
        y = x
        for block in blocks:
            y = block(y)
        return y

    expected = gradients(plain)
    for plan in schedules(chain):
        got = gradients(lambda plan=plan: plan.run(blocks, x))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), plan


def test_measuring_leaves_gradients_statistics_and_random_numbers_alone():
    blocks, x = prepare(cnn, False, True)
    blocks.append(nn.Dropout(0.5))
    weight = blocks[0][0].weight
    weight.grad = kept = torch.ones_like(weight)
    x.grad = kept_too = torch.ones_like(x)
    state = {name: value.clone() for name, value in blocks.state_dict().items()}
    random_state = torch.get_rng_state()
    schedule.measure(blocks, x)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in blocks.state_dict().items())
    assert weight.grad is kept and bool((kept == 1).all())
    assert x.grad is kept_too and bool((kept_too == 1).all())
    assert all(p.grad is None for p in blocks.parameters() if p is not weight)


def test_fake_blocks_measure_the_same_as_real_ones():
    def chain():
        blocks = [Part(), Block(24, 4, 0.1), nn.Linear(24, 9)]
        return schedule.measure(blocks, torch.randn(2, 8, 24))

    real = chain()
    with FakeTensorMode():
        assert chain() == real


def test_a_measured_chain_says_what_each_block_needs():
    blocks, x = nn.ModuleList([nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)]), torch.randn(10, 8)
    chain = schedule.measure(blocks, x)
    numbers = [(b.state_bytes, b.saved_bytes, b.weight_gradient_bytes, b.forward_cost) for b in chain.blocks]
    assert numbers[0] == (0, 0, 4 * (8 * 16 + 16), 2 * 10 * 8 * 16)  # its input is the caller's
    assert numbers[1][0] == 4 * 160  # Tanh's input is a state, and Tanh's backward does not need it
    assert numbers[2] == (4 * 160, 4 * 160, 4 * (16 * 4 + 4), 2 * 10 * 16 * 4)
    for parameter in blocks.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert [b.weight_gradient_bytes for b in schedule.measure(blocks, x).blocks] == [0, 0, 0]


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return torch.tanh(x * self.scale)


def test_one_slot_for_64_blocks_is_63_checkpoints_inside_each_other():
    blocks = nn.ModuleList(Tiny() for _ in range(64))
    plan = schedule.binomial(64, 1)
    x = torch.ones(2, requires_grad=True)
    _, calls = executed(plan, blocks, x, False)
    assert calls == 64 + schedule.t(64, 1)
    got = x.grad.clone()
    executed(schedule.none(plan.chain), blocks, x, False)
    assert torch.equal(got, x.grad)


def flops_of(step) -> int:
    with FlopCounterMode(display=False) as counter:
        step().sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("stack", [gpt, uneven])
def test_the_cost_of_a_schedule_is_the_flops_that_it_adds_with_early_stops_counted(stack):
    torch.manual_seed(0)
    blocks, shape = stack()
    x = torch.randn(shape, requires_grad=True)
    chain = schedule.measure(blocks, x)
    plain = flops_of(lambda: nn.Sequential(*blocks)(x))
    low, high = schedule.minimum(chain), schedule.none(chain).peak_bytes
    plans = [schedule.per_block(chain), schedule.nested(chain), schedule.segments(chain, 2)]
    plans += [schedule.budgeted(chain, low + (high - low) * part // 4) for part in range(5)]
    plans += [
        schedule.from_tree(chain, ((0, (1,)), *range(2, len(blocks))))
    ]  # a region that ends with a region
    for plan in plans:
        assert flops_of(lambda plan=plan: plan.run(blocks, x)) - plain == plan.recompute_cost, plan.tree


def test_equal_memory_is_bought_with_more_regions_since_each_stops_early():
    with FakeTensorMode():
        blocks = [Block(256, 4) for _ in range(6)]
        for parameter in nn.ModuleList(blocks).parameters():
            parameter.grad = torch.zeros_like(parameter)
        chain = schedule.measure(blocks, torch.randn(8, 128, 256))
    plan = schedule.budgeted(chain, 60 * 2**20)
    assert (
        plan.tree == (0, 1, (2,), (3,), (4,), 5) and plan.recompute_cost == 2 * chain.blocks[0].forward_cost
    )


class Part(nn.Module):
    """Returns a part of something larger."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(24, 96)

    def forward(self, x):
        return torch.tanh(self.wide(x))[..., :24]


def parts():
    return [*(Part() for _ in range(4)), nn.Linear(24, 8)], (16, 24)


def savers_and_others():
    conv = [
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    ]
    return conv, (4, 1, 8, 8)


def frozen_beginning():
    blocks = [linear(24, 24, nn.Tanh) for _ in range(5)]
    for block in blocks[:2]:
        block.requires_grad_(False)
    return blocks, (16, 24)


@pytest.mark.parametrize("there", [False, True], ids=["fresh gradients", "gradients there"])
@pytest.mark.parametrize(
    "stack", [parts, savers_and_others, frozen_beginning], ids=lambda stack: stack.__name__
)
def test_views_blocks_that_save_nothing_and_frozen_blocks_are_predicted_too(stack, there):
    blocks, x = prepare(stack, there, x_grad=False)
    clear(blocks, x, there)
    chain = schedule.measure(blocks, x)
    for plan in [*schedules(chain), schedule.budgeted(chain, schedule.minimum(chain))]:
        assert executed(plan, blocks, x, there) == (plan.peak_bytes, len(blocks) + plan.recomputations), plan


def test_what_cannot_be_measured_block_by_block_is_refused_in_one_sentence():
    block, x = nn.Linear(8, 8), torch.randn(2, 8)
    with pytest.raises(ValueError, match="shares a trainable parameter"):
        schedule.measure([block, nn.Tanh(), block], x)
    before = x.clone()
    for blocks in ([block, nn.ReLU(inplace=True)], [nn.ReLU(inplace=True), block]):
        with pytest.raises(ValueError, match="in place"):
            schedule.measure(blocks, x)
    assert torch.equal(x, before)


class Remembers(nn.Module):
    """Notes which outputs of other blocks are alive whenever it runs."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs, self.scale, self.alive = outputs, nn.Parameter(torch.ones(3)), []

    def forward(self, x):
        self.alive.append([ref() is not None for ref in self.outputs])
        out = x * self.scale
        self.outputs.append(weakref.ref(out))
        return out


def test_in_forward_only_the_outermost_stretches_keep_their_inputs():
    outputs: list = []
    blocks = [Remembers(outputs) for _ in range(6)]
    plan = schedule.from_tree(schedule.Chain.uniform(6), ((0, (1, (2, 3))), (4,), 5))
    plan.run(blocks, torch.ones(3, requires_grad=True)).sum().backward()
    first = [block.alive[0] for block in blocks]
    # when block 3 runs, only its own input is there: not those of the two stretches around it
    assert first[3] == [False, False, True]
    assert first[4] == [False, False, False, True] and first[5] == [False, False, False, True, True]
