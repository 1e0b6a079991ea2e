"""Changes outside of a thread that must be undone even where the thread is ended in the middle of undoing them.

A thread that runs somebody's endless loop is ended by exceptions at every line, in `finally` parts too (stop.py). So
what such a thread has to put back is written down here, and the one who ended it does it again.
"""

import contextlib
import threading

_get_ident = threading.get_ident
_left: dict = {}  # thread -> functions, each harmless when it is called twice


@contextlib.contextmanager
def undoing():
    """`with undoing() as later: later(function)`: the functions are called at the end, the last one first."""
    mine = []
    _left.setdefault(_get_ident(), []).append(mine)
    try:
        yield mine.append
    finally:
        for function in reversed(mine):
            function()
        mine.clear()
        stack = _left.get(_get_ident(), [])
        stack[:] = [other for other in stack if other is not mine]


def undo_left(thread):
    """Undo what an ended thread left behind."""
    for mine in reversed(_left.pop(thread, [])):
        for function in reversed(mine):
            function()
