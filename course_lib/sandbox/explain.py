"""Tell a learner in which of their own lines something went wrong, without a traceback."""

import inspect
import linecache
import sysconfig
import textwrap
from pathlib import Path

from .faults import Fault
from .words import plain

_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parents[1]), str(Path(linecache.__file__).parent), "<frozen "}
)


def explain(error, function, name, called=None, checker=None):
    """A Fault that says which line of the learner's code raised `error` and what to do.

    `called`: (args, kwargs) if the error came out of a call of `function`. Without it the error came out of
    `checker`, and None is returned if no line of the learner's was involved: then the checker has a bug.
    """
    line = _own_line(error, function, getattr(checker, "__code__", None))
    if line is None and called is None:
        return None
    if line is None and isinstance(error, TypeError) and callable(function) and not _fits(function, *called):
        return Fault(
            "wrong signature",
            f"`{name}{signature_of(function)}` cannot be called as the exercise asks: {_message(error)}. "
            "Keep the parameters of the stub.",
        )
    where = f"in {line}" if line else f"in `{name}`"
    if isinstance(error, RecursionError):
        return Fault(
            "recursion",
            f"Your code calls itself without an end {where}. A recursion needs a case in which it stops.",
        )
    if isinstance(error, MemoryError):
        return Fault("out of memory", f"Your code asked for more memory than there is {where}.")
    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
        return Fault(
            "raised", f"Your code ends the program {where} with {_kind(error)}. Use `return` instead."
        )
    return Fault(
        "raised", f"Your code raised {_kind(error)} {where}. Python says: {_message(error) or 'nothing more'}"
    )


def signature_of(function):
    """The parameters as written, "(x, y)"; "(...)" where Python cannot tell."""
    try:
        return plain(str(inspect.signature(function)), 200)
    except Exception:
        return "(...)"


def source_of(thing):
    """The dedented source of a function or class, or None where Python cannot find it."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))
    except Exception:
        return None


def _own_line(error, function, checker):
    """'line 4: `loss.backwards()`': the innermost of the learner's own lines above the error, or None."""
    own_file, found, trace = _file_of(function), None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        own = file == own_file or not file.startswith(_LIBRARIES)
        if own and trace.tb_frame.f_code is not checker:
            found = trace
        trace = trace.tb_next
    if found is None:
        return None
    file, number = found.tb_frame.f_code.co_filename, found.tb_lineno
    text = linecache.getline(file, number, found.tb_frame.f_globals).strip()
    return f"line {number}" + (f": `{plain(text, 120)}`" if text else "")


def _file_of(function):
    """The file or notebook cell of a function, or None."""
    try:
        return inspect.unwrap(function).__code__.co_filename
    except Exception:
        return None


def _fits(function, args, kwargs):
    """True if the arguments fit the parameters of the function."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except Exception:
        return True
    return True


def _kind(error):
    return f"`{plain(type.__getattribute__(type(error), '__name__'), 60)}`"


def _message(error):
    """The exception's own words in one short line. Its `__str__` is the learner's code too."""
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"there is no key {_safe(repr, error.args[0])}"
    return _safe(str, error)


def _safe(text, value):
    try:
        return " ".join(plain(text(value), 400).split()).rstrip(".")
    except Exception:
        return "(its message cannot be shown)"
