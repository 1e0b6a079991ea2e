"""Rows of the checkpoint contract that torch.utils.checkpoint keeps, too: lifetimes, nesting, hooks, selection.

Each is written from behaviour.
"""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn
from torch.nn import functional as F

from .contract_tools import Changing, Counted, Doubled, block, gradients, point, raises, same

ROWS: list = []


def row(function):
    ROWS.append(function)
    return function


@row
def a_second_backward_needs_retain_graph(api):
    loss = api.checkpoint(lambda x: x.sin().exp(), point()).sum()
    loss.backward()
    with raises(RuntimeError, "second time"):
        loss.backward()


@row
def with_retain_graph_each_backward_recomputes(api):
    seen, x = Counted(lambda x: x.sin().exp()), point()
    loss = api.checkpoint(seen, x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen.calls == 3 and torch.allclose(x.grad, 2 * x.cos() * x.sin().exp())


@row
def recomputed_tensors_die_when_backward_has_read_them(api):
    alive = []

    def function(x):
        y = x.sin()
        alive.append(weakref.ref(y))
        return y.exp().sin()

    loss = api.checkpoint(function, point()).sum()
    assert alive[0]() is None, "an activation lives after forward"
    loss.backward(retain_graph=True)
    assert all(ref() is None for ref in alive), "a recomputed activation lives after backward"


@row
def reading_saved_tensors_twice_in_one_backward_raises(api):
    Doubled.reads = 2
    try:
        with raises(api.Error, "already unpacked once"):
            api.checkpoint(Doubled.apply, point()).sum().backward()
    finally:
        Doubled.reads = 1


@row
def a_custom_function_works(api):
    x = point()
    api.checkpoint(lambda x: Doubled.apply(x).sin(), x).sum().backward()
    assert torch.allclose(x.grad, 2 * (2 * x).cos())


@row
def reading_a_saved_tensor_outside_backward_recomputes(api):
    seen, x = Counted(torch.exp), point()
    out = api.checkpoint(seen, x)
    assert torch.equal(out.grad_fn._saved_result, x.exp()) and torch.equal(out.grad_fn._saved_result, x.exp())
    assert seen.calls == 3


@row
def a_saved_tensor_without_grad_comes_back_as_itself(api):
    found = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            found.extend(ctx.saved_tensors)
            return grad, None

    y = point(grad=False)
    api.checkpoint(Keep.apply, point(), y).sum().backward()
    assert found[1] is y


@row
def a_checkpoint_inside_a_checkpoint_works(api):
    net, inner, x = block(dropout=0.3), block(dropout=0.3), point()
    got = gradients(lambda x, a, b: api.checkpoint(lambda x: a(api.checkpoint(b, x).sin()), x), x, net, inner)
    same(got, gradients(lambda x, a, b: a(b(x).sin()), x, net, inner))


@row
def the_same_module_in_two_regions_learns_from_both(api):
    net, x = block(dropout=0.3), point()
    got = gradients(lambda x, net: api.checkpoint(net, api.checkpoint(net, x)), x, net)
    same(got, gradients(lambda x, net: net(net(x)), x, net))


@row
def three_levels_run_each_region_once_per_level(api):
    seen = [Counted(torch.sin) for _ in range(3)]

    def level(i, x):
        return x if i == 3 else api.checkpoint(lambda x: seen[i](level(i + 1, x)).exp(), x)

    x = point()
    level(0, x).sum().backward()
    want = point()
    want.sin().exp().sin().exp().sin().exp().sum().backward()
    assert torch.allclose(x.grad, want.grad) and [s.calls for s in seen] == [2, 3, 4], [s.calls for s in seen]


@row
def inputs_of_an_inner_region_are_freed_by_the_outer_one(api):
    alive = []

    def outer(x):
        y = x.sin()
        alive.append(weakref.ref(y))
        return api.checkpoint(torch.exp, y)

    out = api.checkpoint(outer, point())
    assert alive[0]() is None and out is not None


@row
def the_graph_dies_without_the_garbage_collector(api):
    net, x = block(), point()
    gc.collect()
    gc.disable()
    try:
        watched = point().detach()
        ref = weakref.ref(watched)
        out = api.checkpoint(lambda a, b: api.checkpoint(net, a * b), x, watched)
        del watched
        out.sum().backward()
        del out
        assert ref() is None, "a reference cycle keeps an input alive"
    finally:
        gc.enable()


@row
def backward_inside_a_region_works(api):
    def function(x):
        y = x.sin()
        (g,) = torch.autograd.grad(y.exp().sum(), x, retain_graph=True)
        return y * g

    def plain(x):
        return x.sin() * torch.autograd.grad(x.sin().exp().sum(), x)[0]

    for stop in (True, False):
        x, want = point(), point()
        api.checkpoint(function, x, early_stop=stop).sum().backward()
        plain(want).sum().backward()
        assert torch.allclose(x.grad, want.grad), f"early_stop={stop}"


@row
def a_group_of_backward_calls_recomputes_once(api):
    from torch.utils.checkpoint import GraphExecGroup

    seen, x, y = Counted(lambda x, y: (x.sin(), y.sin())), point(), point()
    a, b = api.checkpoint(seen, x, y)
    with GraphExecGroup():
        a.sum().backward()
        b.sum().backward()
    assert seen.calls == 2 and torch.allclose(x.grad, x.cos()) and torch.allclose(y.grad, y.cos())


@row
def overlapping_backward_calls_in_a_group_raise(api):
    from torch.utils.checkpoint import GraphExecGroup

    loss = api.checkpoint(lambda x: x.sin().exp(), point()).sum()
    with GraphExecGroup():
        loss.backward(retain_graph=True)
        with raises(api.Error, "two backward calls that overlap"):
            loss.backward()


@row
def two_backward_calls_on_two_outputs_work(api):
    x = point()
    a, b = api.checkpoint(lambda x: (x.sin(), x.exp()), x)
    a.sum().backward()
    b.sum().backward()
    assert torch.allclose(x.grad, x.cos() + x.exp())


@row
def a_positional_tensor_changed_in_place_raises(api):
    x = point() * 1
    loss = api.checkpoint(lambda x: x.sin(), x).sum()
    x.mul_(2)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def an_input_that_the_region_changes_in_place_raises(api):
    x = point() * 1
    loss = api.checkpoint(lambda x: x.mul_(2).sin(), x).sum()
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


@row
def a_hook_of_a_parameter_used_inside_and_outside_fires_once(api):
    net, x, calls = nn.Linear(6, 6).double(), point(), []
    net.weight.register_hook(lambda g: calls.append(g))
    (api.checkpoint(net, x).sin() + net(x)).sum().backward()
    assert len(calls) == 1


@row
def an_output_may_be_changed_in_place(api):
    x = point()
    out = api.checkpoint(lambda x: x.exp(), x)
    out.mul_(3)
    out.sum().backward()
    assert torch.allclose(x.grad, 3 * x.exp())


@row
def hooks_around_a_region_get_its_inputs_only(api):
    packed = []
    x = point() * 1
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(tuple(t.shape)), t)[1], lambda t: t):
        loss = api.checkpoint(lambda x: x.sin().exp().sin(), x).sum()
    loss.backward()
    assert packed == [(4, 6)], packed


@row
def an_error_in_forward_comes_out_and_leaves_no_hook(api):
    def broken(x):
        x.sin()
        raise KeyError("oops")

    with raises(KeyError, "oops"):
        api.checkpoint(broken, point())
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@row
def an_error_in_the_recompute_comes_out_and_leaves_the_state_alone(api):
    def broken(x):
        raise KeyError("oops")

    torch.manual_seed(7)
    want = (torch.rand(1), torch.rand(1))[1]
    torch.manual_seed(7)
    loss = api.checkpoint(Changing(lambda x: F.dropout(x).sin(), broken), point(1)).sum()
    before = torch.get_rng_state()
    with raises(KeyError, "oops"):
        loss.backward()
    assert torch.equal(before, torch.get_rng_state()) and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    del want


@row
def chosen_operators_are_not_run_again(api):
    from torch.utils.flop_counter import FlopCounterMode

    def work(**options):
        net, x = block(), point()
        with FlopCounterMode(display=False) as counter:
            api.checkpoint(lambda x: net(net(x)), x, **options).sum().backward()
        return counter.get_total_flops(), net[0].weight.grad

    kept, grad = work(context_fn=api.keep(torch.ops.aten.addmm.default))
    plain, want = work()
    net, x = block(), point()
    with FlopCounterMode(display=False) as counter:
        net(net(x)).sum().backward()
    assert kept == counter.get_total_flops() < plain and torch.equal(grad, want)


@row
def a_policy_function_chooses_call_by_call(api):
    calls = []

    def policy(op, args, kwargs):
        calls.append(op)
        return op is torch.ops.aten.exp.default

    x = point()
    api.checkpoint(lambda x: x.sin().exp().sin(), x, context_fn=api.keep(policy)).sum().backward()
    want = point()
    want.sin().exp().sin().sum().backward()
    assert torch.equal(x.grad, want.grad) and calls.count(torch.ops.aten.exp.default) == 1


@row
def a_kept_output_that_was_changed_raises(api):
    def function(x):
        y = x.sin().exp()
        z = y.sin()
        with torch.no_grad():
            y.mul_(2)
        return z

    with raises(RuntimeError, "mutated"):
        api.checkpoint(function, point(), context_fn=api.keep(torch.ops.aten.exp.default)).sum().backward()


@row
def kept_outputs_serve_one_backward(api):
    x = point()
    loss = api.checkpoint(lambda x: x.sin().exp().sin(), x, context_fn=api.keep(torch.ops.aten.exp.default)).sum()
    loss.backward()
    with raises(RuntimeError):
        loss.backward()


@row
def sequential_gives_the_plain_result_for_any_number_of_segments(api):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(7))).double()
    x = point()
    want = gradients(lambda x, net: net(x), x, net)
    for k in range(1, 8):
        same(gradients(lambda x, net: api.sequential(net, k, x), x, net), want)


@row
def sequential_refuses_unknown_arguments(api):
    with raises(ValueError, "Unexpected keyword arguments"):
        api.sequential([torch.sin, torch.cos], 2, point(), colour="blue")
