"""Rows where torch.utils.checkpoint (2.13) goes on in silence, with a wrong gradient or a wrong state, and ours does not."""

from __future__ import annotations

import functools
import random

import numpy
import torch
from torch import nn

from .contract_tools import Changing, block, point, raises, same

ROWS: list = []
scale_of_the_module = torch.ones(1, dtype=torch.double)


def row(function):
    ROWS.append(function)
    return function


@row
def a_keyword_tensor_changed_in_place_raises(api):
    x, scale = point(), torch.ones(1, dtype=torch.double)
    loss = api.checkpoint(lambda x, *, scale: (x * scale).sin(), x, scale=scale).sum()
    scale.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_tensor_in_a_container_changed_in_place_raises(api):
    x, scale = point(), torch.ones(1, dtype=torch.double)
    loss = api.checkpoint(lambda x, d: (x * d["deep"][0]).sin(), x, {"deep": [scale]}).sum()
    scale.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_tensor_of_the_closure_changed_in_place_raises(api):
    x, scale = point(), torch.ones(1, dtype=torch.double)
    loss = api.checkpoint(lambda x: (x + scale).sin(), x).sum()
    scale.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_global_tensor_changed_in_place_raises(api):
    loss = api.checkpoint(lambda x: (x + scale_of_the_module).sin(), point()).sum()
    scale_of_the_module.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_tensor_bound_by_partial_changed_in_place_raises(api):
    scale = torch.ones(1, dtype=torch.double)
    loss = api.checkpoint(functools.partial(lambda s, x: (x + s).sin(), scale), point()).sum()
    scale.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_weight_updated_before_backward_raises_as_without_checkpoint(api):
    net = block()
    loss = api.checkpoint(net, point()).sum()
    with torch.no_grad():
        net[0].weight.add_(1)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_tensor_changed_in_place_after_it_was_saved_raises(api):
    def function(x):
        y = x.exp()  # autograd saves the result of exp
        y.add_(1)
        return y.sin()

    with raises(RuntimeError, "modified by an inplace operation"):
        api.checkpoint(function, point()).sum().backward()


@row
def a_loop_variable_bound_too_late_raises(api):
    layers, x = [block() for _ in range(3)], point()
    for layer in layers:
        x = api.checkpoint(lambda x: layer(x), x)  # noqa: B023
    with raises(RuntimeError, "'layer'"):
        x.sum().backward()


@row
def python_randomness_is_replayed(api):
    def noisy(x):
        return (x * random.random()).sin()

    def run(call):
        random.seed(1)
        x = point()
        loss = call(noisy, x).sum()
        random.random()
        loss.backward()
        return [x.grad, torch.tensor(random.random())]

    same(run(api.checkpoint), run(lambda f, x: f(x)))


@row
def numpy_randomness_is_replayed(api):
    def noisy(x):
        return (x * torch.from_numpy(numpy.random.randn(*x.shape))).sin()

    def run(call):
        numpy.random.seed(1)
        x = point()
        loss = call(noisy, x).sum()
        loss.backward()
        return [x.grad, torch.tensor(numpy.random.rand())]

    same(run(api.checkpoint), run(lambda f, x: f(x)))


@row
def generators_of_ones_own_are_replayed(api):
    def noisy(x, a, b):
        noise = torch.rand(x.shape, generator=a, dtype=torch.double) + torch.from_numpy(b.random(tuple(x.shape)))
        return (x * noise).sin()

    def run(call):
        x = point()
        a, b = torch.Generator().manual_seed(1), numpy.random.default_rng(1)
        call(noisy, x, a, b).sum().backward()
        return [x.grad, torch.rand(1, generator=a), torch.tensor(b.random())]

    same(run(api.checkpoint), run(lambda f, x, a, b: f(x, a, b)))


@row
def other_values_under_the_same_shapes_are_found_on_request(api):
    function = Changing(lambda x: (x * 1.0).sin(), lambda x: (x * 0.5).sin())
    try:
        loss = api.checkpoint(function, point(), determinism_check="values").sum()
    except ValueError:
        raise AssertionError("there is no check of values") from None
    with raises(api.Error, "the first is saved tensor 0 of 1"):
        loss.backward()


@row
def batchnorm_statistics_are_updated_once(api):
    def statistics(call):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()).double()
        call(net, point()).sum().backward()
        return [net[1].running_mean, net[1].running_var, net[1].num_batches_tracked]

    same(statistics(api.checkpoint), statistics(lambda net, x: net(x)))


@row
def a_list_that_the_region_fills_is_filled_once(api):
    def attend(x, cache):
        cache.append(x * 2)
        return (torch.cat(cache) * 3).sin()

    cache, x = [], point()
    api.checkpoint(attend, x, cache).sum().backward()
    want = point()
    attend(want, []).sum().backward()
    assert len(cache) == 1, f"the cache was filled {len(cache)} times"
    same([x.grad], [want.grad])


@row
def the_default_dtype_is_restored_in_the_recompute(api):
    x = point()
    try:
        torch.set_default_dtype(torch.double)
        loss = api.checkpoint(lambda x: (x * torch.ones(6)).sin(), x).sum()
    finally:
        torch.set_default_dtype(torch.float)
    seen = []
    loss2 = None
    try:
        torch.set_default_dtype(torch.double)
        loss2 = api.checkpoint(lambda x: (seen.append(torch.ones(1).dtype), x.sin())[1], x).sum()
    finally:
        torch.set_default_dtype(torch.float)
    loss.backward()
    loss2.backward()
    assert seen == [torch.double, torch.double], seen


@row
def an_except_clause_of_the_region_cannot_swallow_the_early_stop(api):
    swallowed = []

    def function(x):
        try:
            return x.sin()
        except Exception:
            swallowed.append(1)
            return x

    api.checkpoint(function, point()).sum().backward()
    assert not swallowed, "the region's own `except Exception` ran in the recompute"


@row
def a_region_without_random_numbers_keeps_no_random_state(api):
    import gc

    def states():
        found = [o for o in gc.get_objects() if type(o) is torch.Tensor]
        return sum(o.dtype == torch.uint8 and o.numel() > 4000 for o in found)

    before = states()
    out = api.checkpoint(block(), point())
    after = states()
    assert after == before, f"{after - before} state of {torch.get_rng_state().nbytes} bytes is kept"
    del out


@row
def sequential_with_too_many_or_no_segments_says_so(api):
    for k in (0, -1, 3):
        with raises(ValueError, "segments must be from 1 to 2"):
            api.sequential([torch.sin, torch.cos], k, point())


@row
def sequential_cuts_into_equal_segments(api):
    calls = [0] * 10

    def layer(i):
        def run(x):
            calls[i] += 1
            return x.sin()

        return run

    api.sequential([layer(i) for i in range(10)], 4, point()).sum().backward()
    assert calls == [2] * 8 + [1] * 2, f"calls of the ten layers: {calls}"


@row
def the_module_can_ask_whether_it_is_recomputed(api):
    from course_lib.memory.checkpoint import recomputing

    seen = []
    api.checkpoint(lambda x: (seen.append(recomputing()), x.sin())[1], point()).sum().backward()
    assert seen == [False, True], seen
