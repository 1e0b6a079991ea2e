"""The validators let in what a fair teacher would, and nothing that only looks right."""

import enum
import math
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
import torch

from course_lib.exercises.faults import Fault
from course_lib.exercises.want import (
    shown,
    want_close,
    want_int,
    want_number,
    want_sequence,
    want_tensor,
    want_true,
)


class Liar:
    """Equal to everything, larger and smaller too, and any number on demand."""

    def __eq__(self, other):
        return True

    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__

    def __hash__(self):
        return 0

    def __float__(self):
        return 3.0

    __int__ = __index__ = lambda self: 3

    def __repr__(self):
        raise RuntimeError("no")

    def __class_getitem__(cls, item):
        return cls


class LyingInt(int):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0

    __rsub__ = __mul__ = __abs__ = lambda self, *_: 0
    __hash__ = int.__hash__


class Colour(enum.IntEnum):
    RED = 3


class Sneaky(torch.Tensor):
    pass


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [3, numpy.int64(3), numpy.uint8(3), numpy.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
    + [LyingInt(3), Colour.RED],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_whole_number_becomes_a_plain_int(value):
    got = want_int(value, "the count")
    assert type(got) is int and got == 3


@pytest.mark.parametrize(
    "value, diagnosis",
    [
        (True, "wrong type"),
        (numpy.bool_(True), "wrong type"),
        (torch.tensor(True), "wrong type"),
        (3.0, "wrong type"),
        (torch.tensor(3.0), "wrong type"),
        (torch.tensor([3]), "wrong type"),
        ("3", "wrong type"),
        (Liar(), "wrong type"),
        (Fraction(3), "wrong type"),
        (3 + 0j, "wrong type"),
        (None, "returned nothing"),
        (..., "wrong type"),
        (float("nan"), "wrong type"),
        (int, "wrong type"),
        (torch.tensor(3).as_subclass(Sneaky), "wrong type"),
    ],
)
def test_what_is_no_count_is_refused_with_its_name(value, diagnosis):
    with pytest.raises(Fault) as fault:
        want_int(value, "the count")
    assert fault.value.diagnosis == diagnosis and fault.value.message.startswith("the count")


@pytest.mark.parametrize(
    "value, expected",
    [
        (3, 3),
        (0.5, 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.5), 0.5),
        (numpy.longdouble(0.5), 0.5),
        (numpy.float16(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.nn.Parameter(torch.tensor(0.5)), 0.5),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.1"), Decimal("0.1")),
        (10**400, 10**400),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_number_is_let_in(value, expected):
    got = want_number(value, "the loss")
    assert type(got) in (int, float, Fraction, Decimal) and got == expected


@pytest.mark.parametrize(
    "value, diagnosis",
    [
        (math.nan, "not finite"),
        (-math.inf, "not finite"),
        (numpy.float32("nan"), "not finite"),
        (torch.tensor(math.inf), "not finite"),
        (Decimal("nan"), "not finite"),
        (Decimal("1e9999999"), "not finite"),
        (1 << 100_000, "not finite"),
        (True, "wrong type"),
        (1j, "wrong type"),
        (torch.ones(1), "wrong type"),
        (torch.ones(2), "wrong type"),
        (torch.tensor(0.5, device="meta"), "wrong type"),
        ([0.5], "wrong type"),
        (Liar(), "wrong type"),
        (None, "returned nothing"),
    ],
    ids=range(15),
)
def test_what_is_no_finite_number_is_refused(value, diagnosis):
    with pytest.raises(Fault) as fault:
        want_number(value, "the loss")
    assert fault.value.diagnosis == diagnosis


def test_a_tensor_is_let_in_with_its_shape_and_dtype():
    value = torch.ones(2, 3, requires_grad=True)
    assert want_tensor(value, "x", shape=(2, 3), dtype=torch.float32) is value
    assert want_tensor(torch.nn.Parameter(value), "x", shape=torch.Size([2, 3])).shape == (2, 3)
    assert want_tensor(torch.tensor([1, 2]), "x").tolist() == [1, 2]
    assert want_tensor(torch.ones(0), "x", shape=(0,)).numel() == 0


@pytest.mark.parametrize(
    "value, diagnosis",
    [
        (torch.ones(3, 2), "wrong shape"),
        (torch.ones(2, 3, dtype=torch.float64), "wrong dtype"),
        (torch.full((2, 3), math.nan), "not finite"),
        (torch.ones(2, 3).as_subclass(Sneaky), "wrong type"),
        (torch.ones(2, 3).to_sparse(), "wrong type"),
        (torch.ones(2, 3, device="meta"), "wrong type"),
        (numpy.ones((2, 3), dtype="float32"), "wrong type"),
        ([[1.0] * 3] * 2, "wrong type"),
        (None, "returned nothing"),
        (Liar(), "wrong type"),
    ],
)
def test_what_is_no_such_tensor_is_refused(value, diagnosis):
    with pytest.raises(Fault) as fault:
        want_tensor(value, "x", shape=(2, 3), dtype=torch.float32)
    assert fault.value.diagnosis == diagnosis


@pytest.mark.parametrize(
    "value",
    [[1, 2], (1, 2), range(1, 3), Pair(1, 2), numpy.array([1, 2]), torch.tensor([1, 2])],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_list_becomes_a_plain_list(value):
    got = want_sequence(value, "the losses", length=2)
    assert type(got) is list and got == [1, 2]


class EndlessList(list):
    def __iter__(self):
        while True:
            yield 1

    def __len__(self):
        return 2


def test_a_list_that_lies_about_its_items_is_read_as_it_is():
    assert want_sequence(EndlessList([5]), "the losses", length=1) == [5]


@pytest.mark.parametrize(
    "value, diagnosis, words",
    [
        ((x for x in (1, 2)), "wrong type", "list(...)"),
        (map(abs, (1, 2)), "wrong type", "list(...)"),
        ({1, 2}, "wrong type", "set"),
        ({1: 2}, "wrong type", "dict"),
        ("12", "wrong type", "str"),
        ([1], "wrong length", "1 items"),
        (torch.ones(2, 2), "wrong type", "(2, 2)"),
        (Liar(), "wrong type", "Liar"),
        (None, "returned nothing", "None"),
    ],
)
def test_what_is_no_list_is_refused(value, diagnosis, words):
    with pytest.raises(Fault) as fault:
        want_sequence(value, "the losses", length=2)
    assert fault.value.diagnosis == diagnosis and words in fault.value.message


@pytest.mark.parametrize(
    "got, expected",
    [
        (1.0 + 1e-9, 1),
        (Fraction(1, 3), 1 / 3),
        (Decimal("0.1"), 0.1),
        (10**400, 10**400),
        (1e-9, 0.0),
        (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-9])),
        (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64)),
        (torch.ones(0), torch.ones(0)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2)),
    ],
)
def test_close_enough_is_close(got, expected):
    want_close(got, expected, "it", "far", "try again")


@pytest.mark.parametrize(
    "got, expected",
    [
        (1.1, 1),
        (0, 1e-30),
        (10**400, 1.0),
        (LyingInt(4), 3),
        (torch.tensor([1.0, 0.1]), torch.tensor([1.0, 0.0])),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_what_is_off_is_told_with_both_values_and_the_hint(got, expected):
    with pytest.raises(Fault) as fault:
        want_close(got, expected, "it", "far", "try again")
    assert fault.value.diagnosis == "far" and fault.value.message.endswith("try again")


def test_a_shape_that_would_broadcast_is_not_close():
    with pytest.raises(Fault) as fault:
        want_close(torch.ones(1), torch.ones(3), "it", "far", "try again")
    assert fault.value.diagnosis == "wrong shape"


def test_want_true_raises_its_own_diagnosis():
    want_true(True, "slug", "message")
    with pytest.raises(Fault, match="slug: message"):
        want_true(False, "slug", "message")


@pytest.mark.parametrize(
    "value",
    [Liar(), 10**1000, Fraction(10**1000, 3), "x" * 10_000, Decimal("1e400"), torch.ones(2), int, True],
)
def test_any_value_can_be_shown_in_a_few_words(value):
    assert len(shown(value)) < 80
