"""Rows of the checkpoint contract that torch.utils.checkpoint keeps, too. Each is written from behaviour."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import weakref

import torch
from torch import nn
from torch.nn import functional as F

ROWS: list = []


def row(function):
    ROWS.append(function)
    return function


@contextlib.contextmanager
def raises(kind, text: str = ""):
    try:
        yield
    except kind as error:
        assert text in str(error), f"the error does not say {text!r}: {error}"
        return
    raise AssertionError(f"no {kind.__name__}: silent")


def block(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 12), nn.GELU(), nn.Dropout(dropout), nn.Linear(12, 6), nn.Tanh()]
    return nn.Sequential(*layers).double()


def point(*shape, grad: bool = True) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*(shape or (4, 6)), dtype=torch.double, requires_grad=grad)


def gradients(function, *inputs) -> list:
    """Gradients of sum(function(*inputs) ** 2) for every tensor in `inputs` and every parameter of modules there."""
    leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += [p for m in inputs if isinstance(m, nn.Module) for p in m.parameters()]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(11)
    function(*inputs).square().sum().backward()
    return [leaf.grad.clone() if leaf.grad is not None else None for leaf in leaves]


def same(got, want) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a is not None, f"gradient {i} is None"
        assert torch.equal(a, b), f"gradient {i} is wrong"


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


class Doubled(torch.autograd.Function):
    """x * 2 by hand; saves its input and reads it once, or twice, in backward."""

    forwards, reads = 0, 1

    @staticmethod
    def forward(ctx, x):
        Doubled.forwards += 1
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        for _ in range(Doubled.reads):
            ctx.saved_tensors
        return grad * 2


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


def point_on_cpu():
    return torch.ones(3, device="cpu", requires_grad=True)


class Changing:
    """First call: one thing. Second call: another."""

    def __init__(self, first, second):
        self.both = [first, second]

    def __call__(self, x):
        return (self.both.pop(0) if len(self.both) > 1 else self.both[0])(x)


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
