"""Whatever an answer does: its check ends soon, says one clear sentence and leaves the notebook alone."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy
import pytest
import torch
from engine_toys import ID, remove, toy

from course_lib.exercises import TODO, check, registry
from course_lib.exercises.capture import KEEP
from course_lib.exercises.want import want_close, want_int, want_number, want_sequence


@pytest.fixture(autouse=True)
def exercise():
    """The toy, with a short time limit."""
    remove()
    yield registry.register(toy(time_limit=1.0))
    remove()


def loop(xs):
    while True:
        pass


def loop_that_swallows(xs):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722
            pass


def loop_that_swallows_thrice(xs):
    while True:
        try:
            try:
                while True:
                    try:
                        sum(range(1000))
                    except:  # noqa: E722
                        continue
            except BaseException:
                continue
            finally:
                total = 0
        except BaseException:
            total += 1
            continue


def loop_that_sleeps(xs):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def loop_that_starts_again(xs):
    try:
        while True:
            torch.ones(10) @ torch.ones(10)
    finally:
        loop_that_starts_again(xs)


@pytest.mark.parametrize(
    "answer",
    [loop, loop_that_swallows, loop_that_swallows_thrice, loop_that_sleeps, loop_that_starts_again],
    ids=lambda answer: answer.__name__,
)
def test_an_endless_loop_ends_at_the_time_limit_and_leaves_no_thread(answer):
    before = set(sys._current_frames())
    start = time.monotonic()
    verdict = check(ID, answer)
    assert verdict.diagnosis == "time limit" and "never ends" in verdict.message
    assert "Restart" not in verdict.message
    assert time.monotonic() - start < 4
    time.sleep(0.05)
    assert set(sys._current_frames()) <= before


def test_a_call_that_cannot_be_interrupted_is_left_behind_with_the_cure_and_cannot_flood_the_page(capsys):
    def blocked(xs):
        try:
            time.sleep(3.5)  # waits in C code, where nothing can end it
        finally:
            print("much later " * 1000)

    verdict = check(ID, blocked)
    assert verdict.diagnosis == "time limit" and "Restart the kernel" in verdict.message
    capsys.readouterr()
    time.sleep(1.0)
    assert "much later" not in capsys.readouterr().out
    assert check(ID, lambda xs: xs.mean()).state == "passed"


def test_ten_megabytes_of_output_are_cut_and_counted(capsys):
    def answer(xs):
        for _ in range(10):
            print("<b>x</b>" * (1_000_000 // 8))

    verdict = check(ID, answer)
    assert verdict.state == "failed" and verdict.output_total > 9_999_000
    assert len(verdict.output) == KEEP
    assert len(verdict._repr_html_()) < 4 * KEEP and "<details>" in verdict._repr_html_()
    assert len(capsys.readouterr().out) < 2 * KEEP


def test_a_warning_of_an_answer_is_part_of_its_output():
    def answer(xs):
        print("careful", file=sys.stderr)
        return xs.mean()

    verdict = check(ID, answer)
    assert verdict.state == "passed" and "careful" in verdict.output


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


def calls_itself(xs):
    return calls_itself(xs)


def exits(xs):
    sys.exit(0)


def interrupts(xs):
    raise KeyboardInterrupt


def eats_memory(xs):
    raise MemoryError


def misspells(xs):
    total = xs.sum()
    return total.backwards()


def asks(xs):
    return float(input("the mean? "))


def debugs(xs):
    breakpoint()


def checks_itself(xs):
    return check(ID, checks_itself)


class Nasty(Exception):
    def __str__(self):
        raise ValueError("no")


class LyingText(str):
    def __getitem__(self, item):
        return self

    def __len__(self):
        return 1


def raises_nasty(xs):
    raise Nasty


def raises_a_megabyte(xs):
    raise ValueError(LyingText("<script>" * 200_000))


def raises_from_a_callback(xs):
    return xs.apply_(lambda x: 1 / 0)


def takes_too_few():
    return 3


@pytest.mark.parametrize(
    "answer, diagnosis, words",
    [
        (calls_itself, "recursion", "calls itself"),
        (exits, "raised", "`sys.exit(0)`"),
        (interrupts, "raised", "`raise KeyboardInterrupt`"),
        (eats_memory, "out of memory", "more memory"),
        (misspells, "raised", "`return total.backwards()`"),
        (asks, "asks for input", "`input`"),
        (debugs, "asks for input", "`breakpoint`"),
        (checks_itself, "wrong type", "Verdict"),
        (raises_nasty, "raised", "cannot be shown"),
        (raises_a_megabyte, "raised", "<script>"),
        (raises_from_a_callback, "raised", "division by zero"),
        (takes_too_few, "wrong signature", "Keep the parameters"),
        (lambda xs, ys: xs, "wrong signature", "Keep the parameters"),
        (lambda xs: (value for value in xs), "wrong type", "generator"),
        (lambda xs: None, "returned nothing", "`return`"),
        (lambda xs: xs.mean().as_subclass(type("Sneaky", (torch.Tensor,), {})), "wrong type", "Sneaky"),
        (lambda xs: xs * float("nan"), "wrong shape", "(3,)"),
        (lambda xs: xs.mean() * float("nan"), "not finite", "NaN"),
        (torch.nn.Linear, "wrong signature", "out_features"),
    ],
)
def test_each_mishap_gets_its_name_and_one_short_sentence(answer, diagnosis, words):
    verdict = check(ID, answer)
    assert verdict.diagnosis == diagnosis, verdict.message
    assert words in verdict.message and len(verdict.message) < 1000
    assert "Traceback" not in str(verdict) and "<script>" not in verdict._repr_html_()


def test_the_line_shown_is_the_learners_and_not_torchs():
    def answer(xs):
        rows = xs.reshape(3, 1)
        return torch.nn.functional.linear(rows, rows)[0] @ torch.ones(7)

    verdict = check(ID, answer)
    line = answer.__code__.co_firstlineno + 2
    assert f"line {line}: `return torch.nn" in verdict.message


def test_an_exception_inside_a_lazy_result_is_the_learners_too():
    def checker(answer):
        list(answer([1]))

    remove()
    registry.register(toy(checker=checker))
    verdict = check(ID, lambda xs: (1 / 0 for _ in xs))
    assert verdict.diagnosis == "raised" and "ZeroDivisionError" in verdict.message


def test_a_bug_in_a_checker_is_not_blamed_on_the_learner():
    remove()
    registry.register(toy(checker=lambda answer: torch.ones(2).reshape(3), reference=max, name="mean"))
    verdict = check(ID, max)
    assert verdict.diagnosis == "course error" and "not your fault" in verdict.message


@pytest.mark.parametrize("caught", [NotImplementedError, Exception, BaseException])
def test_a_todo_that_is_swallowed_is_still_not_started(caught):
    def answer(xs):
        try:
            TODO("the mean")
        except caught:
            return None

    assert check(ID, answer).state == "not started"


def test_a_todo_that_was_left_behind_does_not_spoil_a_right_answer():
    def answer(xs):
        try:
            TODO("the mean")
        except NotImplementedError:
            return xs.mean()

    assert check(ID, answer).state == "passed"


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


def test_a_function_that_replaces_stdout_does_not_keep_it():
    out, err = sys.stdout, sys.stderr

    def answer(xs):
        sys.stdout = sys.stderr = None
        return xs.mean()

    assert check(ID, answer).state == "passed"
    assert sys.stdout is out and sys.stderr is err


def test_other_threads_print_as_always_during_a_check(capsys):
    def answer(xs):
        other = threading.Thread(target=print, args=("from elsewhere",))
        other.start()
        other.join()
        return xs.mean()

    assert check(ID, answer).output == ""
    assert "from elsewhere" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_stop_comes_through_and_ends_the_answer():
    before = set(sys._current_frames())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        check(ID, loop_that_swallows)
    assert time.monotonic() - start < 0.9
    time.sleep(0.1)
    assert set(sys._current_frames()) <= before
    assert check(ID, lambda xs: xs.mean()).state == "passed"


def test_a_program_can_end_while_an_answer_is_stuck():
    code = (
        "import sys, time; sys.path.insert(0, 'tests')\n"
        "from engine_toys import toy, ID; from course_lib.exercises import check, registry\n"
        "registry.register(toy(time_limit=0.2)); check(ID, lambda xs: time.sleep(600)); print('end')"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    environment = {**os.environ, "COURSE_PROGRESS": "off", "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.endswith("end\n"), done.stderr


def test_the_guard_costs_little_per_call():
    seconds = []

    def checker(answer):
        xs = torch.ones(3)
        start = time.perf_counter()
        for _ in range(100):
            answer(xs)
        seconds.append((time.perf_counter() - start) / 100)

    remove()
    registry.register(toy(checker=checker))
    check(ID, lambda xs: xs)
    assert seconds[0] < 0.01


def asks_twice(answer):
    """A checker that calls the answer a second time and so meets what the first call left behind."""
    for _ in range(2):
        want_close(answer(torch.ones(3)), torch.tensor(1.0), "the mean", "wrong mean", "divide.")


@pytest.mark.parametrize("ask", [lambda: input(), lambda: breakpoint()], ids=["input", "breakpoint"])
def test_the_second_call_cannot_ask_for_input_either(ask):
    calls = []

    def answer(xs):
        calls.append(xs)
        if len(calls) == 2:
            ask()
        return xs.mean()

    remove()
    registry.register(toy(checker=asks_twice))
    assert check(ID, answer).diagnosis == "asks for input"


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


def test_an_answer_that_comes_back_late_does_not_undo_what_happened_since():
    notebook = {"time": time, "value": 1}
    exec("def mean(xs):\n    time.sleep(3.6)\n    return xs.mean()", notebook)
    assert check(ID, notebook["mean"]).diagnosis == "time limit"
    notebook["value"] = 2
    time.sleep(1.0)
    assert notebook["value"] == 2


@pytest.mark.parametrize("kind", [None, int, str, torch.Tensor, list], ids=str)
def test_a_mock_that_pretends_to_be_anything_is_refused(kind):
    fake = mock.MagicMock(spec=kind)
    remove()
    registry.register(toy())
    assert check(ID, lambda xs: fake).diagnosis == "wrong type"
    for want in (want_int, want_number, want_sequence):
        remove()
        registry.register(
            toy(reference=3, name="n", checker=lambda value, want=want: want(value, "the count"))
        )
        assert check(ID, fake).diagnosis == "wrong type"
    assert check(fake, fake).state == "failed"


def test_text_that_no_page_can_show_is_replaced():
    def answer(xs):
        print("\ud800 printed")
        raise ValueError("\udfff raised")

    verdict = check(ID, answer)
    verdict._repr_html_().encode("utf-8")
    assert "printed" in verdict.output and "raised" in verdict.message


def test_the_methods_of_layers_are_put_back_too():
    before = torch.nn.LayerNorm.forward

    def answer(xs):
        torch.nn.LayerNorm.forward = torch.nn.GELU.forward = None
        return xs.mean()

    assert check(ID, answer).state == "passed"
    assert torch.nn.LayerNorm.forward is before and torch.nn.GELU.forward is not None
