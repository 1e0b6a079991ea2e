"""What is found on a device, with devices that are not here played by stand-ins."""

import importlib
from types import SimpleNamespace

import pytest
import torch

from course_lib.measure import DeviceCard, describe, device
from course_lib.measure.device import AllocatorCounters, CudaCounters, counters, memory_limit, synchronize

where = importlib.import_module("course_lib.measure.device")  # the name `device` is the function
CPU = torch.device("cpu")


@pytest.fixture
def bare(monkeypatch):
    """A torch that knows no accelerator, and no COURSE_DEVICE."""
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    monkeypatch.delattr(torch, "accelerator", raising=False)
    for kind in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(torch, kind, SimpleNamespace(is_available=lambda: False), raising=False)
    return monkeypatch


def missing(*args, **kwargs):
    raise RuntimeError("not here")


def card(bare, kind, **more):
    """Pretend that this kind is there, with these calls."""
    bare.setattr(torch, kind, SimpleNamespace(is_available=lambda: True, **more))
    return torch.device(kind)


# -- which device ----------------------------------------------------------------------------------------


def test_without_an_accelerator_it_is_the_cpu(bare):
    assert device() == CPU


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_an_accelerator_is_found_by_its_own_module(bare, kind):
    card(bare, kind)
    assert device() == torch.device(kind)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_torch_with_an_accelerator_api_is_asked_first(bare, kind):
    api = SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: torch.device(kind))
    bare.setattr(torch, "accelerator", api, raising=False)
    assert device() == torch.device(kind)


@pytest.mark.parametrize("api", [SimpleNamespace(), SimpleNamespace(is_available=missing)])
def test_an_accelerator_api_that_lacks_or_raises_is_passed_over(bare, api):
    bare.setattr(torch, "accelerator", api, raising=False)
    card(bare, "xpu")
    assert device() == torch.device("xpu")


def test_a_torch_without_a_module_for_a_kind_is_no_trouble(bare):
    for kind in ("cuda", "xpu", "mps"):
        bare.delattr(torch, kind)
    assert device() == CPU


def test_course_device_wins_over_what_is_there(bare):
    card(bare, "cuda")
    bare.setenv("COURSE_DEVICE", "cpu")
    assert device() == CPU
    bare.setenv("COURSE_DEVICE", "")
    assert device() == torch.device("cuda")


def test_a_name_wins_over_course_device(bare):
    bare.setenv("COURSE_DEVICE", "no such device")
    assert device("cpu") == CPU and device(CPU) == CPU


@pytest.mark.parametrize("name", ["no such device", "cuda:99", "cpu:x", "xla", "vulkan"])
def test_a_device_that_is_not_there_is_one_message_with_the_cure(bare, name):
    bare.setenv("COURSE_DEVICE", name)
    with pytest.raises(ValueError) as caught:
        device()
    said = str(caught.value)
    assert repr(name) in said and "set it to 'cpu'" in said and "\n" not in said
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


# -- counters --------------------------------------------------------------------------------------------


def test_a_cpu_keeps_no_peak(bare):
    assert counters(CPU) is None and counters(torch.device("meta")) is None


MEMORY = {
    "memory_allocated": lambda on: 1,
    "max_memory_allocated": lambda on: 2,
    "memory_reserved": lambda on: 3,
    "reset_peak_memory_stats": lambda on: None,
}


def test_the_accelerator_api_counts_for_every_kind(bare):
    bare.setattr(torch, "accelerator", SimpleNamespace(**MEMORY), raising=False)
    for kind in ("cuda", "xpu"):
        bare.setattr(torch, kind, SimpleNamespace(is_available=lambda: True))
        found = counters(torch.device(kind))
        assert type(found) is AllocatorCounters
        assert (found.current(), found.peak(), found.reserved()) == (1, 2, 3)


def test_a_torch_whose_accelerator_api_has_no_memory_calls_still_counts_on_cuda(bare):
    bare.setattr(torch, "accelerator", SimpleNamespace(), raising=False)
    found = counters(card(bare, "cuda", **MEMORY))
    assert type(found) is CudaCounters and found.peak() == 2


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_a_device_without_a_peak_counter_has_no_counters(bare, error):
    def raises(on):
        raise error("no")

    api = SimpleNamespace(**{**MEMORY, "reset_peak_memory_stats": raises})
    bare.setattr(torch, "accelerator", api, raising=False)
    assert counters(card(bare, "mps")) is None


# -- memory and waiting ------------------------------------------------------------------------------------


def test_the_memory_of_a_card_and_of_this_machine(bare):
    properties = SimpleNamespace(total_memory=80 * 2**30)
    assert memory_limit(card(bare, "cuda", get_device_properties=lambda on: properties)) == 80 * 2**30
    assert memory_limit(card(bare, "mps", recommended_max_memory=lambda: 10)) == 10
    assert memory_limit(card(bare, "xpu", get_device_properties=missing)) in (10, None)
    found = memory_limit(CPU)
    assert found is None or found > 2**28


def test_unknown_memory_is_none_and_not_zero(bare):
    bare.delattr(where.os, "sysconf", raising=False)
    assert memory_limit(CPU) is None
    assert memory_limit(card(bare, "xpu")) is None
    assert dict(describe(CPU).rows())["its memory"].startswith("unknown")


def test_waiting_calls_the_kinds_own_synchronize_and_nothing_on_a_cpu(bare):
    calls = []
    synchronize(card(bare, "xpu", synchronize=lambda: calls.append("xpu")))
    synchronize(CPU)
    synchronize(card(bare, "mps"))  # has none: nothing to do
    assert calls == ["xpu"]


# -- the card ----------------------------------------------------------------------------------------------


def everything(card):
    """All words of a card that a learner can see."""
    return repr(card) + card._repr_html_()


def test_a_cpu_is_never_said_to_have_vram_except_to_deny_it(bare):
    card = describe(CPU)
    assert isinstance(card, DeviceCard) and (card.kind, card.gpu) == ("cpu", False)
    assert "alive" in card.meter_sentence and "main memory" in repr(card)
    said = everything(card).replace("nothing here is called VRAM", "")
    for word in ("VRAM", "显存", "device memory", "allocator"):
        assert word not in said


def test_a_cpu_that_was_chosen_beside_a_gpu_does_not_deny_the_gpu(bare):
    card(bare, "cuda")
    bare.setenv("COURSE_DEVICE", "cpu")
    assert "no GPU here" not in everything(describe())


def test_a_card_with_counters_is_real_device_memory(bare):
    bare.setattr(torch, "accelerator", SimpleNamespace(**MEMORY), raising=False)
    properties = SimpleNamespace(total_memory=141 * 2**30)
    calls = {"get_device_properties": lambda on: properties, "get_device_name": lambda on: "A <card>"}
    found = describe(card(bare, "cuda", **calls))
    assert (found.name, found.gpu, found.memory_bytes) == ("A <card>", True, 141 * 2**30)
    assert "real device memory" in found.meter_sentence and "main memory" not in everything(found)
    assert "A &lt;card&gt;" in found._repr_html_() and "<card>" not in found._repr_html_()


def test_a_device_without_counters_is_not_said_to_be_measured_by_its_allocator(bare):
    found = describe(card(bare, "mps"))
    assert found.gpu and found.name == "mps"
    assert "allocator" not in found.meter_sentence and "no peak" in found.meter_sentence


def test_the_card_is_a_table_with_row_headers():
    html = describe()._repr_html_()
    assert html.count('<th scope="row"') == 4 and "<caption>" in html
    assert torch.__version__ in html
