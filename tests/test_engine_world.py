"""What an answer changes outside of itself is put back, and inputs that it changed are noticed."""

import random
import sys

import numpy
import pytest
import torch
from engine_toys import ID, remove, toy

from course_lib.exercises import check, registry


@pytest.fixture(autouse=True)
def exercise():
    """The toy, with a short time limit."""
    remove()
    yield registry.register(toy(time_limit=1.0))
    remove()


def deletes_add(xs):
    del torch.add
    return xs.mean()


def patches_allclose_and_equal(xs):
    torch.allclose = torch.equal = lambda *_, **__: True
    return xs.sum() / 2


def patches_backward(xs):
    torch.Tensor.backward = lambda *_, **__: None
    return xs.mean()


def hides_inherited_methods(xs):
    torch.Tensor.abs = torch.Tensor.max = torch.Tensor.item = lambda *_, **__: torch.zeros(())
    return xs.sum()


def patches_the_engine(xs):
    import course_lib.exercises.want as want

    want.want_close = want.want_tensor = lambda *_, **__: xs
    globals()["check"] = None
    sys.modules["torch"] = sys
    return xs.sum()


def patches_builtins(xs):
    import builtins

    builtins.len = builtins.abs = builtins.all = lambda *_: 0
    return xs.sum()


def switches_modes(xs):
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    sys.setrecursionlimit(5000)
    return xs.mean()


@pytest.mark.parametrize(
    "answer, diagnosis",
    [
        (deletes_add, ""),
        (patches_allclose_and_equal, "wrong mean"),
        (patches_backward, ""),
        (hides_inherited_methods, "wrong mean"),
        (patches_the_engine, "wrong mean"),
        (patches_builtins, "wrong mean"),
        (switches_modes, ""),
    ],
)
def test_what_an_answer_replaces_is_put_back_before_it_is_compared(answer, diagnosis):
    names, methods, handler = dict(vars(torch)), dict(vars(torch.Tensor)), check
    modes = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        sys.getrecursionlimit(),
    )
    verdict = check(ID, answer)
    assert verdict.diagnosis == diagnosis, verdict.message
    assert {name: vars(torch).get(name) for name in names} == names
    assert dict(vars(torch.Tensor)) == methods
    assert check is handler and sys.modules["torch"] is torch and len("abc") == 3
    assert torch.is_grad_enabled() and not torch.are_deterministic_algorithms_enabled()
    now = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        sys.getrecursionlimit(),
    )
    assert now == modes


def test_names_of_the_notebook_are_put_back_and_new_ones_stay():
    notebook = {"torch": torch, "model": "the model"}
    code = """if True:
        def mean(xs):
            global model, seen, torch
            seen, model = 1, None
            del torch
            return xs.mean()
    """
    exec(code, notebook)
    assert check(ID, notebook["mean"]).state == "passed"
    assert notebook["model"] == "the model" and notebook["seen"] == 1 and notebook["torch"] is torch


def in_place(xs):
    return xs.div_(len(xs)).sum()


def through_data(xs):
    result = xs.mean()
    xs.data[0] = 7
    return result


def through_numpy(xs):
    result = xs.mean()
    xs.numpy()[0] = 7
    return result


def asks_for_gradients(xs):
    return xs.requires_grad_().mean()


def resizes(xs):
    result = xs.mean()
    xs.resize_(2)
    return result


@pytest.mark.parametrize("answer", [in_place, through_data, through_numpy, asks_for_gradients, resizes])
def test_an_input_that_was_changed_is_noticed_however_it_was_done(answer):
    verdict = check(ID, answer)
    assert verdict.diagnosis == "mutated input" and "tensor" in verdict.message


def _spoil_weight(model, optimizer, batches):
    model.weight.data.add_(1)


def _spoil_mode(model, optimizer, batches):
    model.eval()


def _spoil_buffer(model, optimizer, batches):
    model.steps += 1


def _spoil_rate(model, optimizer, batches):
    optimizer.param_groups[0]["lr"] = 0.5


def _spoil_list(model, optimizer, batches):
    batches.pop()


def _spoil_batch(model, optimizer, batches):
    batches[0][0].zero_()


def _spoil_swap(model, optimizer, batches):
    model.weight = torch.nn.Parameter(model.weight.detach().clone())


@pytest.mark.parametrize(
    "spoil, word",
    [
        (_spoil_weight, "model"),
        (_spoil_mode, "model"),
        (_spoil_buffer, "model"),
        (_spoil_swap, "model"),
        (_spoil_rate, "optimizer"),
        (_spoil_list, "list"),
        (_spoil_batch, "list"),
        (lambda model, optimizer, batches: None, None),
        (lambda model, optimizer, batches: model(batches[0][0]).sum().backward(), None),
    ],
)
def test_a_changed_model_optimizer_or_list_of_batches_is_noticed_and_gradients_are_not(spoil, word):
    def checker(answer):
        model = torch.nn.Linear(2, 2)
        model.register_buffer("steps", torch.zeros(2))
        model.register_buffer("unknown", torch.tensor(float("nan")))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = [(torch.ones(1, 2), torch.ones(1)), (torch.ones(1, 2), torch.ones(1))]
        answer.call(model, optimizer, batches, unchanged=(model, optimizer, batches))

    remove()
    registry.register(toy(checker=checker))
    verdict = check(ID, spoil)
    assert verdict.diagnosis == ("mutated input" if word else "")
    assert word is None or f"changed a {word}" in verdict.message


def loop(xs):
    while True:
        pass


def exits(xs):
    sys.exit(0)


@pytest.mark.parametrize("ending", [lambda: None, loop, exits], ids=["returns", "loops", "exits"])
def test_a_check_leaves_the_random_state_as_it_was(ending):
    def answer(xs):
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)
        torch.rand(3)
        ending(xs) if ending in (loop, exits) else None
        return xs.mean()

    torch.manual_seed(7), random.seed(7), numpy.random.seed(7)
    expected = (torch.rand(1).item(), random.random(), numpy.random.random())
    torch.manual_seed(7), random.seed(7), numpy.random.seed(7)
    check(ID, answer)
    assert (torch.rand(1).item(), random.random(), numpy.random.random()) == expected


def test_modes_of_the_thread_do_not_leak_into_the_checker():
    def answer(xs):
        torch.set_default_device("meta")
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        torch.set_grad_enabled(False)
        return xs.mean()

    def checker(guarded):
        guarded(torch.ones(3))
        assert torch.ones(1).device.type == "cpu" and torch.is_grad_enabled()
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32

    remove()
    registry.register(toy(checker=checker))
    assert check(ID, answer).state == "passed"


def test_a_check_inside_no_grad_is_a_check_like_any_other():
    def checker(guarded):
        for _ in range(2):
            weight = torch.ones(2, requires_grad=True)
            assert guarded(weight).requires_grad

    remove()
    registry.register(toy(checker=checker))
    with torch.no_grad():
        assert check(ID, lambda xs: xs.mean()).state == "passed"
        assert not torch.is_grad_enabled()


def test_the_methods_of_layers_are_put_back_too():
    before = torch.nn.LayerNorm.forward

    def answer(xs):
        torch.nn.LayerNorm.forward = torch.nn.GELU.forward = None
        return xs.mean()

    assert check(ID, answer).state == "passed"
    assert torch.nn.LayerNorm.forward is before and torch.nn.GELU.forward is not None
