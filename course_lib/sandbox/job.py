"""One piece of somebody's work in a thread that can be ended."""

import _thread
import builtins
import contextlib
import contextvars
import sys
import threading
import time

from .faults import Fault
from .stop import TimeUp, forget, interrupt
from .undo import undo_left

GRACE = 2.0  # seconds that a thread gets to end once it is told to
# own references: the work may patch these modules while it runs
_get_ident, _sleep, _monotonic = threading.get_ident, time.sleep, time.monotonic
_inside = set()  # the threads in which somebody's work is running


class Job:
    """The thread: a raw one, which an exit of the interpreter does not wait for. `error`: what the work raised."""

    def __init__(self):
        self.error = None
        self._done = _thread.allocate_lock()
        self._done.acquire()
        self._thread = None
        self._over = False

    def start(self, work, translate=lambda error: error):
        """Begin. `translate` makes `error` of what the work raised, in the thread: it may call the work's own code."""
        # with the context of the cell, so that `display` in an answer finds its page
        run = contextvars.copy_context().run
        self._thread = _thread.start_new_thread(run, (self._run, work, translate))

    def _run(self, work, translate):
        forget(_get_ident())
        undo_left(_get_ident())  # a new thread may get the number of an old one
        _inside.add(_get_ident())
        try:
            work()
        except (Fault, TimeUp) as error:
            self.error = error
        except BaseException as error:
            self.error = translate(error)
        finally:
            self._over = True
            sys.settrace(None)
            _inside.discard(_get_ident())
            self._done.release()

    def wait(self, seconds):
        """True if the work is over in time. Waits in short steps, so that Stop and Ctrl-C come through."""
        end = _monotonic() + seconds
        while not self._done.acquire(timeout=0.1):
            if _monotonic() > end:
                return False
        return True

    def stop(self):
        """Tell the thread to end until it does. False if it did not within GRACE: it waits in C code."""
        end = _monotonic() + GRACE
        while not self._over and self._thread is not None and interrupt(self._thread):
            if _monotonic() > end:
                undo_left(self._thread)
                return False
            _sleep(0.01)
        undo_left(self._thread)
        _inside.discard(self._thread)  # the thread may have been ended just before it did this itself
        forget(self._thread)
        return True


def inside():
    """True in the thread of a job."""
    return _get_ident() in _inside


@contextlib.contextmanager
def no_questions():
    """No `input` and no debugger meanwhile: a thread that waits for an answer cannot be ended."""
    before = builtins.input, sys.breakpointhook
    builtins.input = sys.breakpointhook = _no_questions
    try:
        yield
    finally:
        builtins.input, sys.breakpointhook = before


def _no_questions(*_):
    sentence = (
        "Your code asks for input, and nobody can answer during a check: remove `input` and `breakpoint`."
    )
    raise Fault("asks for input", sentence)
