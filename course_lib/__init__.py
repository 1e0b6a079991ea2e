"""The names that a notebook uses, each fetched from its home on first use.

Importing this package costs milliseconds and needs nothing but Python: the set-up command lives in it
and must run before torch is there. Keep this file readable for old Pythons, so that they can be told.
"""

_HOMES = {
    "course_lib.doctor": ("examine",),
    "course_lib.exercises": ("check", "hint", "solution", "ready", "status", "TODO"),
    "course_lib.measure": ("Meter", "Trace", "describe", "device", "mib", "predict"),
    "course_lib.memory": ("accumulate", "checkpoint", "checkpoint_sequential", "ledger", "schedule"),
}
_HOME_OF = dict((name, home) for home, names in _HOMES.items() for name in names)
_ROOMS = ("doctor", "exercises", "experiments", "measure", "memory", "show")

__all__ = sorted(_HOME_OF)


def __getattr__(name):
    """Fetch a public name or a sub-package. Raises ImportError with the cure where a package is missing."""
    import importlib

    if name not in _HOME_OF and name not in _ROOMS:
        raise AttributeError("course_lib has no name %r; it has: %s" % (name, ", ".join(__all__)))
    try:
        if name in _ROOMS:
            return importlib.import_module("course_lib." + name)
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    except ImportError as error:
        missing = getattr(error, "name", None) or ""
        if not missing or missing.split(".")[0] == "course_lib":
            raise
        raise _outside(missing) from None
    globals()[name] = value
    return value


def _outside(missing):
    """The ImportError of a Python in which the course was never set up: what is missing, where, the cure."""
    import sys

    return ImportError(
        "%s is missing in the Python that runs this (%s). Start the course with `python -m course_lib lab` "
        "in the course folder and open the notebook there." % (missing, sys.executable),
        name=missing,
    )


def __dir__():
    return sorted(list(globals()) + list(__all__) + list(_ROOMS))
