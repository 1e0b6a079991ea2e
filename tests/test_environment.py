"""environment.yml says nothing of its own: it installs the project, which lists its dependencies."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from course_lib.bootstrap import requirements


@pytest.fixture(scope="module")
def recipe(root):
    return yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pip_part(recipe):
    return [line for entry in recipe["dependencies"] if isinstance(entry, dict) for line in entry["pip"]]


def conda_part(recipe):
    return [entry for entry in recipe["dependencies"] if isinstance(entry, str)]


def test_conda_gets_python_and_pip_from_one_channel_and_nothing_else(recipe):
    assert recipe["channels"] == ["conda-forge"]
    assert sorted(re.split("[=<> ]", entry)[0] for entry in conda_part(recipe)) == ["pip", "python"]


def test_the_pinned_python_is_one_that_the_project_takes(recipe, project):
    pin = next(entry for entry in conda_part(recipe) if entry.startswith("python"))
    assert re.fullmatch(r"python=\d+\.\d+", pin)
    assert Version(pin.partition("=")[2]) in SpecifierSet(project["requires-python"])


def test_pip_installs_exactly_this_project_with_known_extras(recipe, project):
    (line,) = pip_part(recipe)
    extras = re.fullmatch(r"-e \.\[([\w,-]+)\]", line).group(1).split(",")
    assert set(extras) <= set(project["optional-dependencies"])


def test_the_environment_is_named_like_the_project(recipe, project):
    assert recipe["name"] == project["name"] == requirements.PROJECT


def lines(project):
    return project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]


def test_our_small_reader_of_requirements_agrees_with_packaging(project):
    for line in lines(project):
        name, specifier = requirements.parse(line)
        theirs = Requirement(line)
        assert name == requirements.canonical(theirs.name)
        assert SpecifierSet(specifier) == theirs.specifier and not theirs.marker and not theirs.extras


def test_no_requirement_is_listed_twice(project):
    names = [requirements.parse(line)[0] for line in lines(project)]
    assert len(names) == len(set(names))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4), st.sampled_from([">=2.11,<2.16", "<3", ">=8", ""])
)
def test_our_comparison_of_versions_agrees_with_packaging(parts, specifier):
    version = ".".join(map(str, parts))
    for tag in ("", "+cpu"):
        assert requirements.satisfies(version + tag, specifier) == (
            Version(version + tag) in SpecifierSet(specifier)
        )


@pytest.mark.parametrize(
    "line", ["torch; python_version < '3.12'", "torch[x]", "torch @ file:///x", "torch~=2.1", "-e ."]
)
def test_a_requirement_that_the_set_up_cannot_read_is_refused(line):
    with pytest.raises(ValueError):
        requirements.parse(line)


def test_ci_pins_satisfy_the_project(root, project):
    pins = (root / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in pins if line and not line.startswith("#"))
    pinned = {requirements.canonical(name): version for name, version in pinned.items()}
    assert [
        name for name in map(lambda line: requirements.parse(line)[0], lines(project)) if name not in pinned
    ] == []
    for line in lines(project):
        name, specifier = requirements.parse(line)
        assert requirements.satisfies(pinned[name], specifier)


@pytest.mark.slow
def test_the_pip_part_installs_into_a_fresh_environment(recipe, root, tmp_path):
    """What conda would run after unpacking Python: `pip install` of the pip part, in the repository.

    The fresh environment sees the packages of this one through a .pth file. So pip resolves every
    requirement in earnest, and has only the project itself to put in place: seconds, not gigabytes. The
    full installation from nothing is what .ci/run does on each run.
    """
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    python = fresh / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    here = [path for path in sys.path if path.endswith("site-packages")]
    with open(os.path.join(site, "borrowed.pth"), "w", encoding="utf-8") as borrowed:
        borrowed.write("\n".join(here) + "\n")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    report = tmp_path / "report.json"
    done = subprocess.run(
        [*command, "--report", str(report), *pip_part(recipe)[0].split(" ", 1)],
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    put = [entry["metadata"]["name"] for entry in json.loads(report.read_text(encoding="utf-8"))["install"]]
    assert requirements.PROJECT in put
    check = "import course_lib, course_lib.bootstrap.requirements as r; print(r.ROOT)"
    where = subprocess.check_output([python, "-c", check], text=True, cwd=tmp_path, env=variables).strip()
    assert where == str(root)
