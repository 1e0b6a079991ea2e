"""End a thread that runs somebody's endless loop, also one inside `try: ... except: pass`.

An exception raised in the thread from outside would be caught by such a loop, which then goes on. So the
first one also switches tracing on: from then on every line that the thread reaches, in an `except` part too,
asks for the next exception, and the thread has no line left on which to go on.
"""

import ctypes
import functools
import sys
import threading

_get_ident = threading.get_ident  # an answer may patch threading
_tracing = set()  # the threads that are traced already
_api = ctypes.pythonapi
_object = ctypes.py_object
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, _object)(("PyThreadState_SetAsyncExc", _api))
# The same as a trace function, which Python calls with three more arguments. It is C code on purpose: a trace
# function in Python would itself be hit by the exception that it asks for, and be switched off.
_raise_on_line = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, _object, _object, _object, _object)(
    ("PyThreadState_SetAsyncExc", _api)
)


class TimeUp(SystemExit):
    """The time limit has passed. A SystemExit, because a raw thread ends silently on one."""


class _First(TimeUp):
    """The first TimeUp of a thread. Its `__init__` runs in that thread."""

    def __init__(self, *args):
        # only the first has an __init__: those that come later would hit each other's, without an end
        _tracing.add(_get_ident())
        raise_again = functools.partial(_raise_on_line, _get_ident(), TimeUp)
        frame = sys._getframe(1)
        while frame is not None:
            frame.f_trace = raise_again
            frame = frame.f_back
        sys.settrace(raise_again)


def interrupt(thread):
    """Raise TimeUp in a thread at its next step in Python code. False if the thread is gone."""
    return _raise_in(thread, TimeUp if thread in _tracing else _First) > 0


def forget(thread):
    """A new thread may get the number of an old one: call this at its start, and after an old one ended."""
    _tracing.discard(thread)
