"""Run a checker on a learner's answer so that nothing the answer does can hurt the notebook or the verdict.

The checker runs in a thread with a time limit. Whatever the answer raises becomes a Fault with the learner's
own line; what it prints is kept short; what it replaces is put back (see protect.py).
"""

import _thread
import builtins
import contextlib
import contextvars
import sys
import threading
import time
from dataclasses import dataclass

from . import faults
from .capture import Printed
from .explain import explain, signature_of, source_of
from .faults import Fault, NotStarted
from .protect import World, thread_modes
from .stop import TimeUp, forget, interrupt
from .unchanged import changed, held

GRACE = 2.0  # seconds that a thread gets to end once it is told to
# own references: an answer may patch these modules while it runs
_get_ident, _sleep, _monotonic = threading.get_ident, time.sleep, time.monotonic
_inside = set()  # the threads in which an answer is being checked


@dataclass
class Outcome:
    """How a check went: `fault` (None: passed), was a TODO reached, what was printed, a bug of the course."""

    fault: Fault | None = None
    todo: bool = False
    printed: str = ""
    printed_total: int = 0
    bug: str | None = None


class GuardedAnswer:
    """A learner's function, as checkers see it: call it, and only Fault and NotStarted can come out."""

    def __init__(self, function, name, world):
        self._function, self._world = function, world
        self.name = name
        self.source = source_of(function)

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)

    def call(self, *args, unchanged=(), **kwargs):
        """Call the function. Raises Fault("mutated input") if one of `unchanged` is not what it was before.

        `unchanged`: tensors, modules, optimizers, arrays, or lists, tuples and dicts of them. Gradients may
        change.
        """
        before = [held(thing) for thing in unchanged]
        modes = thread_modes()
        try:
            result = self._function(*args, **kwargs)
        except (Fault, NotStarted, TimeUp):
            raise
        except BaseException as error:
            self._world.restore(modes)
            raise explain(error, self._function, self.name, (args, kwargs)) from None
        finally:
            self._world.restore(modes)
        for record in before:
            if changed(record):
                raise Fault(
                    "mutated input",
                    f"`{self.name}` changed a {_word(record[0])} that it was given. Look for in-place "
                    "operations (`+=`, `x[...] =`, names that end in `_`) and work on a copy.",
                )
        return result

    def __repr__(self):
        return f"{self.name}{signature_of(self._function)}"


def run(checker, answer, time_limit, name, calls=True):
    """Run `checker` on an answer for at most `time_limit` seconds, and say how it went.

    Raises nothing but KeyboardInterrupt, after the work was ended.
    `calls`: the answer is a function or class, and the checker gets a GuardedAnswer.
    """
    with _questions_refused():
        return _run(checker, answer, time_limit, name, calls)


def _run(checker, answer, time_limit, name, calls):
    printed, job, todos = Printed(), _Job(), len(faults.reached)
    in_time = stopped = False
    world = World(_globals_of(answer) if calls else None)
    subject = GuardedAnswer(answer, name, world) if calls else answer
    printed.open()
    try:
        job.start(
            lambda: (printed.claim(), checker(subject)),
            lambda error: explain(error, answer, name, checker=checker),
        )
        in_time = job.wait(time_limit)
        stopped = in_time or job.stop()
    except BaseException:  # the learner pressed Stop
        stopped = job.stop()
        raise
    finally:
        world.close()
        printed.close()
        if not stopped:
            printed.mute()
    outcome = Outcome(printed=printed.kept, printed_total=printed.total, todo=len(faults.reached) > todos)
    del faults.reached[todos:]
    if not in_time:
        outcome.fault = Fault("time limit", _too_long(name, time_limit, stopped))
    elif isinstance(job.error, NotStarted):
        outcome.todo = True
        outcome.fault = Fault("not started", "a TODO was reached")
    elif isinstance(job.error, Fault):
        outcome.fault = job.error
    else:
        outcome.bug = job.error
    return outcome


def inside():
    """True in the thread of an answer that is being checked right now."""
    return _get_ident() in _inside


class _Job:
    """One piece of work in its own thread: a raw one, which an exit of the interpreter does not wait for."""

    def __init__(self):
        self.error = None
        self._done = _thread.allocate_lock()
        self._done.acquire()
        self._thread = None
        self._over = False

    def start(self, work, explained):
        # with the context of the cell, so that `display` in an answer finds its page
        run = contextvars.copy_context().run
        self._thread = _thread.start_new_thread(run, (self._run, work, explained))

    def _run(self, work, explained):
        forget(_get_ident())
        _inside.add(_get_ident())
        try:
            work()
        except (Fault, NotStarted, TimeUp) as error:
            self.error = error
        except BaseException as error:
            self.error = _explained(error, explained)
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
                return False
            _sleep(0.01)
        _inside.discard(self._thread)  # the thread may have been ended just before it did this itself
        forget(self._thread)
        return True


def _explained(error, explained):
    """A Fault for what an answer raised outside of a guarded call, or the text of a bug in the checker."""
    fault = explained(error)
    return fault if fault is not None else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _questions_refused():
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


def _globals_of(answer):
    """The names that a function sees: of the notebook it was written in."""
    function = getattr(answer, "__wrapped__", None) or getattr(answer, "func", answer)
    if isinstance(function, type):
        function = next((item for item in vars(function).values() if hasattr(item, "__globals__")), None)
    found = getattr(function, "__globals__", None)
    return found if isinstance(found, dict) else None


def _too_long(name, limit, stopped):
    text = f"`{name}` was still running after {limit:g} seconds. Look for a loop that never ends."
    if stopped:
        return text
    return (
        f"{text} It could not be stopped: it waits inside a call such as `time.sleep`. "
        "Restart the kernel (menu Kernel, Restart) before you go on."
    )


def _word(thing):
    for kind, word in (("Module", "model"), ("Optimizer", "optimizer"), ("Tensor", "tensor")):
        if any(base.__name__ == kind for base in type(thing).__mro__):
            return word
    return type(thing).__name__
