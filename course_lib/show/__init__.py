"""Pictures and panels. Nothing below this floor imports it. Names are resolved on first use."""

from importlib import import_module

_HOME = {
    "picture": "style",
    "memory_timeline": "plots",
    "stacked_bars": "plots",
    "lines": "plots",
    "gradient_stack": "stack",
    "GradientState": "stack",
    "used_against_needed": "weights",
    "MemoryTimeline": "widgets.timeline",
    "GradientStack": "widgets.gradients",
}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"course_lib.show has no name {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
