"""Run a checker on a learner's answer so that nothing the answer does can hurt the notebook or the verdict.

The checker runs in a thread with a time limit. Whatever the answer raises becomes a Fault with the learner's
own line; what it prints is kept short; what it replaces is put back (see protect.py).
"""

from dataclasses import dataclass

from course_lib.sandbox.capture import Printed
from course_lib.sandbox.explain import explain, signature_of, source_of
from course_lib.sandbox.job import Job, inside, no_questions
from course_lib.sandbox.protect import World, one_thread, thread_modes
from course_lib.sandbox.stop import TimeUp

from . import faults
from .faults import Fault, NotStarted
from .unchanged import changed, held

__all__ = ["GuardedAnswer", "Outcome", "inside", "run", "source_of"]


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
    with no_questions(), one_thread():
        return _run(checker, answer, time_limit, name, calls)


def _run(checker, answer, time_limit, name, calls):
    printed, job, todos = Printed(), Job(), len(faults.reached)
    in_time = stopped = False
    world = World(_globals_of(answer) if calls else None)
    subject = GuardedAnswer(answer, name, world) if calls else answer
    printed.open()
    try:
        job.start(
            lambda: (printed.claim(), checker(subject)),
            lambda error: _explained(error, answer, name, checker),
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


def _explained(error, answer, name, checker):
    """A Fault for what an answer raised outside of a guarded call, or the text of a bug in the checker."""
    if isinstance(error, NotStarted):
        return error
    fault = explain(error, answer, name, checker=checker)
    return fault if fault is not None else f"{type(error).__name__}: {error}"


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
