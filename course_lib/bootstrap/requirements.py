"""What pyproject.toml asks for, and whether a set of installed versions satisfies it."""

import operator
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "training-memory-course"

_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:(?:>=|<=|==|>|<)[0-9.]+,?\s*)*)$")
_CLAUSE = re.compile(r"(>=|<=|==|>|<)([0-9.]+)")


def canonical(name):
    """A distribution's name as indexes compare it: lower case, one dash between words."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version, length=4):
    """The numbers of a version, padded with zeros and without tags: '2.13.0+cpu' -> (2, 13, 0, 0)."""
    numbers = re.match(r"(?:\d+\.)*\d+", version)
    parts = [int(part) for part in numbers.group().split(".")] if numbers else []
    return tuple((parts + [0] * length)[:length])


def parse(requirement):
    """'torch>=2.11,<2.16' -> ('torch', '>=2.11,<2.16'). Raises ValueError for anything fancier.

    The outer Python has no packaging library, so pyproject.toml keeps to names and plain comparisons (a test
    holds it to that).
    """
    match = _REQUIREMENT.match(requirement.strip())
    if not match:
        raise ValueError(f"not a plain requirement: {requirement!r}")
    return canonical(match.group(1)), match.group(2).strip()


def satisfies(version, specifier):
    """Whether an installed version fulfils a specifier such as '>=2.11,<2.16'; the empty one takes all."""
    return all(_COMPARE[sign](release(version), release(bound)) for sign, bound in _CLAUSE.findall(specifier))


def wanted(extras=(), root=ROOT):
    """The project's requirements, {name: specifier}, with those of the extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return dict(parse(line) for line in lines)


def missing(installed, extras=(), root=ROOT):
    """Names of requirements that `installed` ({name: version}) lacks or has in a wrong version."""
    return [
        name
        for name, specifier in wanted(extras, root).items()
        if name not in installed or not satisfies(installed[name], specifier)
    ]
