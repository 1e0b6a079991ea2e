"""Look closely at a learner's value: the right type, finite, and no object that only claims to be equal.

Each function raises Fault with a sentence that says what came instead, or returns a plain value that is safe
to compare. Let in: numbers of Python, NumPy and 0-dim tensors alike, Fraction, Decimal, tuples for lists.
What is not: bool as a number, a float where a count is asked, tensor subclasses, NaN and infinity.
"""

import math
import numbers
from decimal import Decimal
from fractions import Fraction

import torch

from .faults import Fault


def want_int(value, what):
    """`value` as a plain int. Accepts int, NumPy integers and 0-dim integer tensors; not bool, not float."""
    value = _unpack(value, what)
    if type(value) is int:
        return value
    if type(value) is float:
        raise Fault("wrong type", f"{what} should be a whole number, but it is the float {shown(value)}: "
                    "a division with `/` makes a float, `//` keeps an int.")  # fmt: skip
    raise _wrong_type(value, what, "a whole number (int)")


def want_number(value, what):
    """`value` as a finite int, float, Fraction or Decimal. Also accepts NumPy numbers and 0-dim tensors."""
    value = _unpack(value, what)
    # comparing exactly must not take for ever: no integers of a million digits, no huge exponents
    if type(value) in (int, Fraction) and abs(value) < 10**4000:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is Decimal and value.is_finite() and abs(value.adjusted()) < 400:
        return value
    if type(value) in (int, float, Fraction, Decimal):
        raise Fault("not finite", f"{what} is {shown(value)}. Look for a division by zero or an overflow.")
    raise _wrong_type(value, what, "a number")


def want_tensor(value, what, shape=None, dtype=None):
    """`value` if it is a plain tensor (or Parameter) with this shape and dtype, all of it finite."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise _wrong_type(value, what, "a torch tensor")
    if value.layout != torch.strided or value.device.type == "meta":
        raise Fault("wrong type", f"{what} should be an ordinary dense tensor with values.")
    if shape is not None and tuple(value.shape) != tuple(shape):
        raise Fault("wrong shape", f"{what} has shape {tuple(value.shape)} and should have {tuple(shape)}.")
    if dtype is not None and value.dtype != dtype:
        raise Fault("wrong dtype", f"{what} is {_short(value.dtype)} and should be {_short(dtype)}.")
    if (value.is_floating_point() or value.is_complex()) and not bool(torch.isfinite(value.detach()).all()):
        raise Fault(
            "not finite", f"{what} holds NaN or infinity. Look for a division by zero or an overflow."
        )
    return value


def want_sequence(value, what, length=None):
    """The items as a list. Accepts list, tuple, range, 1-dim arrays and tensors; no generator or set."""
    if issubclass(type(value), list):
        items = list(list.__iter__(value))
    elif issubclass(type(value), tuple):
        items = list(tuple.__iter__(value))
    elif type(value) is range or (_is_array(value) and value.ndim == 1):
        items = list(value) if type(value) is range else value.tolist()
    elif type(value) is torch.Tensor and value.ndim == 1:
        items = value.detach().tolist()
    elif hasattr(type(value), "__next__"):
        raise Fault("wrong type", f"{what} is {_kind(value)}, which can be read only once: "
                    "collect the items with `list(...)`.")  # fmt: skip
    else:
        raise _wrong_type(value, what, "a list")
    if length is not None and len(items) != length:
        raise Fault("wrong length", f"{what} has {len(items)} items and should have {length}.")
    return items


def want_true(condition, diagnosis, message):
    """Raise Fault(diagnosis, message) unless the condition holds."""
    if not bool(condition):
        raise Fault(diagnosis, message)


def want_close(got, expected, what, diagnosis, hint, rel=1e-6):
    """Raise Fault(diagnosis, "what is .., expected ..: hint") unless both agree to `rel`.

    Numbers: |got - expected| <= rel * |expected|; tensors: the largest difference against the largest entry
    of `expected`. Where `expected` is zero, `rel` itself is the bound.
    """
    if isinstance(expected, torch.Tensor):
        got = want_tensor(got, what, shape=expected.shape).detach()
        expected = expected.detach()
        wide = torch.complex128 if got.is_complex() or expected.is_complex() else torch.float64
        got, expected = got.to("cpu", wide), expected.to("cpu", wide)
        if got.numel() == 0:
            return
        off = (got - expected).abs().max().item()
        scale = expected.abs().max().item()
        if off <= rel * (scale or 1):
            return
        raise Fault(
            diagnosis, f"{what} is off by up to {off:.3g} (its largest right entry is {scale:.3g}): {hint}"
        )
    got, expected = want_number(got, what), want_number(expected, "the expected value")
    # Fractions are exact: no overflow with huge ints, no rounding on the way
    bound = Fraction(rel) * (abs(Fraction(expected)) or 1)
    if abs(Fraction(got) - Fraction(expected)) > bound:
        raise Fault(diagnosis, f"{what} is {shown(got)}, expected {shown(expected)}: {hint}")


def shown(value):
    """A short text for a value, safe for objects whose own repr cannot be trusted."""
    if type(value) is int and value.bit_length() > 200:
        return "a huge whole number"
    if type(value) in (int, bool, type(None)):
        return f"{value:,}" if type(value) is int else repr(value)
    if type(value) is float:
        return f"{value:.6g}"
    if type(value) is Fraction and max(abs(value.numerator), value.denominator).bit_length() > 200:
        return "a fraction of huge numbers"
    if type(value) in (str, Fraction, Decimal):
        text = repr(value) if type(value) is str else str(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return _kind(value)


def _unpack(value, what):
    """Python's own number for a NumPy number, a 0-dim tensor or a subclass of int or float."""
    if value is None or type(value) is bool:
        return value
    if (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.numel() == 1
    ):
        if value.dtype == torch.bool or value.ndim != 0 or value.device.type == "meta":
            return value
        return value.detach().item()
    if _is_array(value) and value.ndim == 0 and value.dtype.kind in "iuf":
        value = value[()]
    if issubclass(type(value), int):
        return int.__int__(value)
    if issubclass(type(value), float):
        return float.__float__(value)
    if type(value).__module__ == "numpy" and issubclass(type(value), numbers.Real):
        return int(value) if issubclass(type(value), numbers.Integral) else float(value)
    return value


def _wrong_type(value, what, wanted):
    if value is None:
        return Fault("returned nothing", f"{what} should be {wanted}, but it is None. "
                     "A function without `return` returns None.")  # fmt: skip
    if value is Ellipsis:
        return Fault("wrong type", f"{what} is still `...`: put {wanted} there.")
    return Fault("wrong type", f"{what} should be {wanted}, but it is {_kind(value)}.")


def _kind(value):
    """What a value is, in words, without asking the value itself."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return f"a {_short(value.dtype)} tensor of shape {tuple(value.shape)}"
    if type(value) in (bool, str):
        return f"the {type(value).__name__} {shown(value)}" if type(value) is str else f"{value!r} (a bool)"
    if isinstance(value, type):
        return "a class"
    name = type.__getattribute__(type(value), "__name__")
    return f"an object of type `{name[:60]}`"


def _is_array(value):
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _short(dtype):
    return str(dtype).removeprefix("torch.")
