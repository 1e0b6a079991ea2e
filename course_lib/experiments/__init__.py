"""Models, data and settings that the experiments of the course run on. Names are resolved on first use."""

from importlib import import_module

_HOME = {"Setting": "setting", "Run": "experiment", "run": "experiment", "forecast": "forecasting", "plan": "planner"}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"course_lib.experiments has no name {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
