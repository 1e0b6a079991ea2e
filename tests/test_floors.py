"""Imports only go down the floors, and what runs before the set-up imports nothing but Python."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "course_lib"
# what each room may import besides itself
MAY = {
    "measure": set(),
    "sandbox": set(),
    "memory": {"measure"},
    "experiments": {"memory", "measure"},
    "doctor": {"experiments", "memory", "measure", "sandbox"},
    "exercises": {"doctor", "experiments", "memory", "measure", "sandbox"},
    "interview": {"exercises", "doctor", "experiments", "memory", "measure", "sandbox"},
    "show": {"interview", "exercises", "doctor", "experiments", "memory", "measure", "sandbox"},
    "bootstrap": set(),
}
BARE = ["__init__.py", "__main__.py", "bootstrap/*.py"]


def imports(source, module):
    """Full names that a module's source imports, inside functions too. `module` is its own dotted name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".")[: -node.level]
                base = ".".join(here + ([base] if base else []))
            # `from . import ledger` names a module, `from .trace import mib` does not: keep both readings
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_name(path):
    """The dotted name of a file; a package's own __init__ counts as a module in it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room(name):
    """The room that a dotted name lies in, or None outside of the house."""
    parts = name.split(".")
    return parts[1] if parts[0] == "course_lib" and len(parts) > 1 and parts[1] in MAY else None


def climbs(source, module):
    """Imports of a module that do not go down."""
    own = room(module)
    return sorted({name for name in imports(source, module) if room(name) not in ({None, own} | MAY[own])})


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room(module_name(path))]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_only_go_down(path):
    assert climbs(path.read_text(encoding="utf-8"), module_name(path)) == []


@pytest.mark.parametrize("path", [p for glob in BARE for p in sorted(PACKAGE.glob(glob))], ids=module_name)
def test_what_runs_before_the_set_up_imports_only_python(path):
    tops = {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"), module_name(path))}
    assert tops <= set(sys.stdlib_module_names) | {"course_lib"}


def test_every_folder_of_the_library_is_a_known_room():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(MAY)


@pytest.mark.parametrize(
    "source, found",
    [
        ("def f():\n    from course_lib.show import plots", ["course_lib.show", "course_lib.show.plots"]),
        ("from ..exercises import check", ["course_lib.exercises", "course_lib.exercises.check"]),
        ("from .. import show", ["course_lib.show"]),
        ("import course_lib.doctor", ["course_lib.doctor"]),
        ("from .trace import mib\nfrom ..measure import Meter\nimport torch", []),
    ],
)
def test_an_import_that_climbs_is_seen(source, found):
    assert climbs(source, "course_lib.memory.ledger") == found


def test_no_rooms_import_each_other():
    for name, below in MAY.items():
        assert all(name not in MAY[other] for other in below)


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_the_files_that_meet_an_old_python_can_be_read_by_it(name):
    ast.parse((PACKAGE / name).read_text(encoding="utf-8"), feature_version=(3, 6))
