"""Step times that run in turn, and FLOP ratios that are exact."""

import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.measure import compare, flop_ratio, flops, timing
from course_lib.measure.timing import Timing, quiet_malloc


def test_variants_run_in_turn_and_the_order_turns():
    order = []
    variants = {name: lambda name=name: order.append(name) for name in "abc"}
    times = compare(variants, repeats=3, warmup=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert list(times) == ["a", "b", "c"] and all(len(t.seconds) == 3 for t in times.values())


def test_the_device_is_waited_for_before_and_after_each_run(monkeypatch):
    events = []
    monkeypatch.setattr(timing, "synchronize", lambda on: events.append("wait"))
    compare({"a": lambda: events.append("a"), "b": lambda: events.append("b")}, repeats=1, warmup=0)
    assert events == ["wait", "a", "wait", "wait", "b", "wait"]


def test_warm_up_rounds_are_not_counted(monkeypatch):
    clock = iter([500.0, 0.0, 1.0, 10.0, 13.0, 20.0, 22.0])  # a warm-up reads it at its start only
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    times = compare({"a": lambda: None}, repeats=3, warmup=1)["a"]
    assert times.seconds == (1.0, 3.0, 2.0)


def test_the_faster_variant_is_found():
    naps = {"slow": lambda: time.sleep(0.02), "fast": lambda: time.sleep(0.002)}
    times = compare(naps, repeats=5, warmup=0)
    assert 0 < times["fast"].median < times["slow"].median


def test_median_and_spread_ignore_one_outlier():
    t = Timing((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0))
    assert t.median == 1.0 and t.spread == (1.0, 1.0)
    assert Timing((3.0, 1.0)).median == 2.0 and Timing((3.0, 1.0)).spread == (1.0, 3.0)
    assert repr(Timing((0.002, 0.004))) == "3.00 ms (half of 2 runs within 2.00 to 4.00)"


BAD = [({}, {}), ({"a": print}, {"repeats": 0}), ({"a": print}, {"warmup": -1})]


@pytest.mark.parametrize("variants, bad", BAD)
def test_nothing_to_compare_is_an_error(variants, bad):
    with pytest.raises(ValueError, match="at least one variant"):
        compare(variants, **bad)


def test_an_error_in_a_variant_passes_through():
    with pytest.raises(ZeroDivisionError):
        compare({"a": lambda: 1 / 0})


# -- FLOPs ---------------------------------------------------------------------------------------------


def test_flops_of_a_matrix_product_are_two_for_each_multiply_and_add():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert flops(lambda: a @ b) == 2 * 3 * 5 * 7
    assert flops(lambda: a + a) == 0


@pytest.mark.parametrize("depth", [2, 4, 9])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_tower_costs_exactly_one_more_forward(depth, reentrant):
    """In units of one layer's product: forward L, backward 2L, and L more where all is computed again."""
    tower = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(16, 16), nn.ReLU())))
    x = torch.randn(8, 16, requires_grad=True)
    plain = lambda: tower(x).sum().backward()  # noqa: E731
    again = lambda: checkpoint(tower, x, use_reentrant=reentrant).sum().backward()  # noqa: E731
    assert flop_ratio(again, plain) == 4 / 3
    assert flop_ratio(plain, plain) == 1
    assert flops(plain) == 3 * depth * 2 * 8 * 16 * 16


def test_a_base_without_flops_is_an_error():
    with pytest.raises(ValueError, match="nothing to count"):
        flop_ratio(lambda: torch.ones(2, 2) @ torch.ones(2, 2), lambda: torch.ones(2) + 1)


# -- malloc --------------------------------------------------------------------------------------------


def test_quiet_malloc_does_nothing_where_there_is_no_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert quiet_malloc() is False


def test_quiet_malloc_says_so_where_the_c_library_has_no_mallopt(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(timing.ctypes, "CDLL", lambda name: object())
    assert quiet_malloc() is False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is a call of glibc")
def test_quiet_malloc_can_be_called_twice():
    assert quiet_malloc() is quiet_malloc()


def test_only_a_cpu_needs_quiet_malloc(monkeypatch):
    called = []
    monkeypatch.setattr(timing, "quiet_malloc", lambda: called.append(1))
    compare({"a": lambda: None}, repeats=1, on=torch.device("meta"))
    assert called == []
    compare({"a": lambda: None}, repeats=1, on=torch.device("cpu"))
    assert called == [1]
