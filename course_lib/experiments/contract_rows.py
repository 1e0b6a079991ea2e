"""Rows of the checkpoint contract that torch.utils.checkpoint keeps, too: results, arguments, the world around, errors.

Each is written from behaviour.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect

import torch
from torch import nn

from .contract_tools import Changing, Counted, Doubled, block, gradients, point, point_on_cpu, raises, same

ROWS: list = []


def row(function):
    ROWS.append(function)
    return function


@row
def takes_the_arguments_that_torch_takes(api):
    function = api.checkpoint.func if isinstance(api.checkpoint, functools.partial) else api.checkpoint
    names = set(inspect.signature(function).parameters)
    assert {"function", "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop"} <= names


@row
def outputs_and_every_gradient_are_those_of_the_plain_call(api):
    net, x = block(), point()
    assert torch.equal(api.checkpoint(net, x), net(x))
    same(gradients(lambda x, net: api.checkpoint(net, x), x, net), gradients(lambda x, net: net(x), x, net))


@row
def autograd_grad_works(api):
    net, x = block(), point()
    (got,) = torch.autograd.grad(api.checkpoint(net, x).sum(), x)
    assert torch.equal(got, torch.autograd.grad(net(x).sum(), x)[0])


@row
def backward_for_chosen_inputs_works(api):
    net, x = block(), point()
    api.checkpoint(net, x).sum().backward(inputs=[net[0].weight])
    assert net[0].weight.grad is not None and x.grad is None and net[3].weight.grad is None


@row
def second_derivatives_pass_gradgradcheck(api):
    x = point(3)
    assert torch.autograd.gradgradcheck(lambda x: api.checkpoint(lambda x: (x.sin() * x).exp(), x), (x,))


@row
def a_gradient_penalty_reaches_the_weights(api):
    def penalty(call):
        net, x = block(), point()
        (g,) = torch.autograd.grad(call(net, x).sum(), x, create_graph=True)
        g.square().sum().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    same(penalty(api.checkpoint), penalty(lambda net, x: net(x)))


@row
def forward_mode_derivatives_pass(api):
    import torch.autograd.forward_ad as forward_ad

    x = point(3)
    with forward_ad.dual_level():
        out = api.checkpoint(torch.sin, forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.allclose(forward_ad.unpack_dual(out).tangent, x.cos())


@row
def vmap_over_its_backward_works(api):
    x = point(3)
    assert torch.autograd.gradcheck(lambda x: api.checkpoint(lambda x: x.sin().exp(), x), (x,), check_batched_grad=True)


@row
def torch_func_grad_is_refused_with_an_error(api):
    with raises(RuntimeError):
        torch.func.grad(lambda x: api.checkpoint(torch.sin, x).sum())(point(3, grad=False))


@row
def parameters_learn_when_no_input_requires_grad(api):
    net, x = block(), point(grad=False)
    same(gradients(lambda net: api.checkpoint(net, x), net), gradients(lambda net: net(x), net))


@row
def adapters_on_a_frozen_base_learn(api):
    torch.manual_seed(0)
    base, adapter, x = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6), torch.randn(4, 6)
    same(
        gradients(lambda m: api.checkpoint(lambda x: (base(x) + m(x)).tanh(), x), adapter),
        gradients(lambda m: (base(x) + m(x)).tanh(), adapter),
    )


@row
def a_region_that_is_all_detached_is_harmless(api):
    x, head = point(), nn.Linear(6, 1).double()

    def frozen(x):
        with torch.no_grad():
            return x.sin()

    head(api.checkpoint(frozen, x)).sum().backward()
    assert head.weight.grad is not None and x.grad is None


@row
def keyword_arguments_reach_the_function(api):
    x, scale = point(), torch.tensor(3.0, dtype=torch.double, requires_grad=True)
    got = gradients(lambda x, s: api.checkpoint(lambda x, *, scale: (x * scale).sin(), x, scale=s), x, scale)
    same(got, gradients(lambda x, s: (x * s).sin(), x, scale))


@row
def tensors_in_lists_and_dicts_get_gradients(api):
    x, y = point(), point() + 1
    y = y.detach().requires_grad_()
    got = gradients(lambda x, y: api.checkpoint(lambda d, l: (d["a"] * l[0][0]).sin(), {"a": x}, [(y, 2)]), x, y)
    same(got, gradients(lambda x, y: (x * y).sin(), x, y))


@row
def any_output_structure_carries_gradients(api):
    @dataclasses.dataclass
    class Out:
        a: torch.Tensor
        b: object

    x = point()
    out = api.checkpoint(lambda x: (Out(x.sin(), None), {"k": [x.exp(), 7]}, None, "text"), x)
    (out[0].a + out[1]["k"][0]).sum().backward()
    assert out[2] is None and out[3] == "text" and torch.allclose(x.grad, x.cos() + x.exp())


@row
def a_function_that_returns_nothing_returns_nothing(api):
    assert api.checkpoint(lambda x: None, point()) is None and api.checkpoint(lambda x: 7, point()) == 7


@row
def without_gradients_the_function_just_runs(api):
    seen = Counted(torch.sin)
    with torch.no_grad():
        out = api.checkpoint(seen, point())
    with torch.inference_mode():
        api.checkpoint(seen, point())
    assert seen.calls == 2 and not out.requires_grad


@row
def dropout_draws_the_same_mask_again(api):
    net, x = block(dropout=0.5), point()
    same(gradients(lambda x, net: api.checkpoint(net, x), x, net), gradients(lambda x, net: net(x), x, net))


@row
def a_recompute_does_not_shift_the_random_stream(api):
    def after(call):
        net, x = block(dropout=0.5), point()
        torch.manual_seed(1)
        loss = call(net, x).sum()
        torch.rand(3)
        loss.backward()
        return torch.rand(4)

    assert torch.equal(after(api.checkpoint), after(lambda net, x: net(x)))


@row
def random_state_can_be_left_alone_on_request(api):
    net, x = block(dropout=0.5), point()
    got = gradients(lambda x, net: api.checkpoint(net, x, preserve_rng_state=False), x, net)
    want = gradients(lambda x, net: net(x), x, net)
    assert any(not torch.equal(a, b) for a, b in zip(got, want)), "the mask was drawn again nevertheless"


@row
def autocast_is_restored_in_the_recompute(api):
    net, dtypes = nn.Linear(6, 6), []
    net.register_forward_hook(lambda module, inputs, out: dtypes.append(out.dtype))
    x = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = api.checkpoint(lambda x: net(x).sin(), x).float().sum()
    loss.backward()
    assert dtypes == [torch.bfloat16] * 2, f"dtypes of the two runs: {dtypes}"


@row
def autocast_off_stays_off_when_backward_runs_under_it(api):
    net, dtypes, x = nn.Linear(6, 6), [], torch.randn(4, 6)
    net.register_forward_hook(lambda module, inputs, out: dtypes.append(out.dtype))
    loss = api.checkpoint(lambda x: net(x).sin(), x).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss.backward()
    assert dtypes == [torch.float32] * 2, f"dtypes of the two runs: {dtypes}"


@row
def a_device_context_is_restored_in_the_recompute(api):
    devices = []

    def function(x):
        devices.append(torch.empty(1).device.type)
        return x.sin()

    with torch.device("meta"):
        loss = api.checkpoint(function, point_on_cpu()).sum()
    loss.backward()
    assert devices == ["meta", "meta"], f"devices of the two runs: {devices}"


@row
def other_shapes_in_the_recompute_raise(api):
    with raises(api.Error, "different metadata"):
        api.checkpoint(Changing(lambda x: x.sin(), lambda x: x[:1].sin()), point()).sum().backward()


@row
def other_dtypes_in_the_recompute_raise(api):
    with raises(api.Error, "different metadata"):
        api.checkpoint(Changing(lambda x: x.sin(), lambda x: x.float().sin()), point()).sum().backward()


@row
def the_check_can_be_switched_off(api):
    function = Changing(lambda x: x.sin(), lambda x: x.float().sin())
    api.checkpoint(function, point(), determinism_check="none").sum().backward()


@row
def an_unknown_check_is_a_value_error(api):
    with raises(ValueError, "determinism_check should be one of"):
        api.checkpoint(torch.sin, point(), determinism_check="maybe")


@row
def fewer_saved_tensors_raise(api):
    with raises(api.Error, "A different number of tensors was saved"):
        api.checkpoint(Changing(lambda x: x.sin().exp(), lambda x: x.sin()), point()).sum().backward()


@row
def more_saved_tensors_raise_without_early_stop(api):
    function = Changing(lambda x: x.sin(), lambda x: x.sin().exp())
    with raises(api.Error, "trying to save more tensors during recomputation"):
        api.checkpoint(function, point(), early_stop=False).sum().backward()


@row
def a_mode_switched_between_forward_and_backward_raises(api):
    net, x = block(dropout=0.5), point()
    loss = api.checkpoint(net, x).sum()
    net.eval()
    with raises(api.Error):
        loss.backward()


@row
def debug_lists_the_operators_of_both_runs(api):
    function = Changing(lambda x: x.sin().exp(), lambda x: x.cos())
    with raises(api.Error, "you passed `debug=True` to checkpoint"):
        api.checkpoint(function, point(), debug=True).sum().backward()
    with api.debug(True), raises(api.Error, "cos"):
        api.checkpoint(Changing(lambda x: x.sin().exp(), lambda x: x.cos()), point()).sum().backward()


@row
def debug_with_a_context_of_ones_own_is_a_value_error(api):
    with raises(ValueError, "debug=True is incompatible"):
        api.checkpoint(torch.sin, point(), debug=True, context_fn=lambda: (contextlib.nullcontext(),) * 2)


@row
def the_operator_that_saves_last_is_not_run_again(api):
    def count(**options):
        Doubled.forwards = 0
        tail = Counted(lambda x: x.detach())
        api.checkpoint(lambda x: [y := torch.exp(x.sin()), tail(y)][0], point(), **options).sum().backward()
        return tail.calls

    assert count() == 1 and count(early_stop=False) == 2


@row
def the_global_early_stop_beats_the_argument(api):
    tail = Counted(lambda x: x.detach())
    function = lambda x: [y := x.sin(), tail(y)][0]  # noqa: E731
    with api.early_stop(False):
        loss = api.checkpoint(function, point(), early_stop=True).sum()
    loss.backward()
    assert tail.calls == 2


@row
def context_fn_wraps_forward_and_each_recompute(api):
    seen = []

    class Mark:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            seen.append(self.name)

        def __exit__(self, *error):
            return False

    loss = api.checkpoint(torch.sin, point(), context_fn=lambda: (Mark("forward"), Mark("again"))).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen == ["forward", "again", "again"], seen


@row
def a_recompute_runs_the_operators_of_forward_and_a_detach(api):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    seen: list = []
    x = point(1)
    out = api.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (Names(), contextlib.nullcontext()))
    assert seen == ["exp.default"], seen
    out = api.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (contextlib.nullcontext(), Names()))
    out.sum().backward()
    assert seen == ["exp.default"] * 2 + ["detach.default"], seen


@row
def backward_calls_in_a_group_may_follow_each_other_through_a_region(api):
    from torch.utils.checkpoint import GraphExecGroup

    def halves(x):
        y = x.sin().cos()
        return y, y.sin().cos()

    for group, calls in ((GraphExecGroup(), 2), (contextlib.nullcontext(), 3)):
        seen, x = Counted(halves), point()
        y, z = api.checkpoint(seen, x)
        with group:
            (g,) = torch.autograd.grad(z, y, torch.ones_like(z))
            torch.autograd.grad(y, x, g)
        assert seen.calls == calls, seen.calls


@row
def a_freed_saved_tensor_cannot_be_read(api):
    out = api.checkpoint(torch.exp, point())
    out.sum().backward()
    with raises(RuntimeError, "already been freed"):
        out.grad_fn._saved_result


@row
def a_forward_context_that_swallows_errors_is_an_error(api):
    def broken(x):
        raise KeyError("oops")

    with raises(RuntimeError, "suppressed an exception"):
        api.checkpoint(broken, point(), context_fn=lambda: (contextlib.suppress(KeyError), contextlib.nullcontext()))
