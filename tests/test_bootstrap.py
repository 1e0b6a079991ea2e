"""The command on a machine where nothing is installed: it sets itself up, or says in one sentence why not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import bare
import pytest

import course_lib
from course_lib import __main__ as command
from course_lib.bootstrap import environment, lab, pip, requirements, suite

posix = pytest.mark.skipif(os.name != "posix", reason="signals and scripts of POSIX systems")


@pytest.fixture
def clone(tmp_path):
    return bare.Clone(tmp_path)


def isolated(code):
    """Run code in a Python that sees the course's folder and no installed package at all."""
    path = f"import sys; sys.path.insert(0, {str(requirements.ROOT)!r}); "
    return subprocess.run(
        [bare.PYTHON, "-I", "-S", "-c", path + code], capture_output=True, text=True, timeout=60
    )


# --- import and dispatch


def test_the_package_imports_in_milliseconds_without_any_other_package():
    done = isolated(
        "import time; t = time.perf_counter(); import course_lib; t = time.perf_counter() - t; "
        "assert t < 0.1, t; assert not [m for m in sys.modules if m.startswith('course_lib.')]"
    )
    assert done.returncode == 0, done.stderr


def test_a_name_whose_package_is_missing_says_how_to_start_the_course():
    done = isolated("import course_lib; course_lib.Meter")
    assert "is missing in the Python that runs this" in done.stderr
    assert "python -m course_lib lab" in done.stderr


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="chekc.*check"):
        course_lib.chekc  # noqa: B018


@pytest.mark.parametrize("name", course_lib.__all__)
def test_every_promised_name_exists(name):
    assert getattr(course_lib, name) is not None


@pytest.mark.parametrize("argv, code", [(["--help"], 0), (["-h"], 0), ([], 2)])
def test_help_names_every_command(argv, code, capsys):
    assert command.main(argv) == code
    said = capsys.readouterr().out
    assert all(name in said for name in command.COMMANDS)


def test_an_unknown_command_gets_one_sentence(clone):
    code, said = clone.run("labb")
    assert code == 2 and said.count("\n") == 1 and "'labb'" in said and "lab, test" in said


@pytest.mark.parametrize("argv", [["lab", "--help"], ["test", "--help"]])
def test_help_of_a_command_installs_nothing(clone, argv):
    code, said = clone.run(*argv)
    assert code == 0 and "usage" in said and not clone.venv.exists()


@pytest.mark.parametrize("argv", [["lab", "--port", "0"], ["lab", "--port", "many"], ["test", "everything"]])
def test_options_are_checked_before_anything_is_installed(clone, argv):
    code, said = clone.run(*argv)
    assert code == 2 and argv[-1] in said and not clone.venv.exists()


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 8, 0), (3, 10, 14)])
def test_a_too_old_python_gets_one_sentence(version):
    done = isolated(
        f"sys.version_info = {version}; import course_lib.__main__ as m; sys.exit(m.main(['lab']))"
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "needs Python 3.11" in done.stderr and "%d.%d" % version[:2] in done.stderr


def test_the_needed_python_is_the_one_of_pyproject(root):
    assert (
        f'requires-python = ">={command.NEEDED[0]}.{command.NEEDED[1]}"'
        in (root / "pyproject.toml").read_text()
    )


# --- set-up


@pytest.mark.slow
def test_set_up_installs_once_and_a_second_run_installs_nothing(clone):
    code, said = clone.set_up()
    assert code == 0, said
    assert "making .venv" in said and str(environment.python_in(clone.venv)) in said
    assert ["torch==2.13.0" in line for line in clone.installs()] == [True, False]
    assert clone.set_up()[0] == 0 and len(clone.installs()) == 2
    # `test` needs more than `lab`; here it is there already, so nothing is installed for it either
    assert clone.run("status", "x")[1] == f"ran in {clone.venv} ['x']\n"
    # a new version of the course
    project = clone.folder / "pyproject.toml"
    project.write_text(project.read_text().replace('"numpy",', '"numpy>=999",'))
    code, said = clone.set_up()
    assert code == 0 and "numpy" in said and "torch" not in said and len(clone.installs()) == 3


@posix
@pytest.mark.slow
def test_a_set_up_that_was_killed_is_repaired_by_running_it_again(clone):
    process = clone.start("test", FAKE_PIP="hang")
    deadline = time.monotonic() + 60
    while not any("-e" in line for line in clone.installs()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, said = clone.set_up()
    assert code == 0 and "half-made" in said
    before = len(clone.installs())
    code, said = clone.set_up()
    assert code == 0 and len(clone.installs()) == before


@posix
@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(clone):
    process = clone.start("test", FAKE_PIP="hang")
    while not any("-e" in line for line in clone.installs()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors.endswith("Run the same command again to go on.\n")


@pytest.mark.slow
def test_a_venv_without_python_is_made_again(clone):
    (clone.venv / "bin").mkdir(parents=True)
    code, said = clone.set_up()
    assert code == 0 and "half-made" in said


@posix
def test_a_venv_of_an_old_python_is_not_deleted(clone):
    python = environment.python_in(clone.venv)
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 2\n')
    python.chmod(0o755)
    code, said = clone.set_up()
    assert code == 1 and said.count("\n") == 1 and "older than 3.11" in said and python.exists()


def test_a_command_in_a_python_without_the_packages_says_how_to_set_up(clone):
    (clone.folder / "course_lib" / "exercises" / "progress.py").write_text("import torch_that_is_not_there\n")
    code, said = clone.run("status")
    assert code == 1 and said.startswith("torch_that_is_not_there is missing") and "course_lib lab" in said


@pytest.mark.slow
def test_no_network_is_one_sentence_that_says_what_is_missing(tmp_path):
    clone = bare.Clone(tmp_path, fake_pip=False)
    offline = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
    }
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        clone.variables.pop(name, None)
    code, said = clone.run("lab", COURSE_TORCH="torch", **offline)
    assert code == 1
    last = said.strip().splitlines()[-1]
    assert last.startswith("No package index could be reached") and "torch" in last and "network" in last
    # and what is there already is kept
    state = json.loads((clone.venv / environment.STATE).read_text())
    assert state["step"] == "made"


def facts(prefix, root=None, **found):
    """What a probe finds, with everything that the course needs unless told otherwise."""
    everything = {name: ("99", "") for name in requirements.wanted(["test"])}
    everything.update({"torch": ("2.13.0+cpu", ""), "jupyterlab": ("4.6", ""), "nbval": ("0.11", "")})
    everything[requirements.PROJECT] = ("0.1.0", (root or requirements.ROOT).as_uri())
    everything.update(found)
    found = {name: pair for name, pair in everything.items() if pair}
    return {"python": [3, 11, 0], "prefix": str(prefix), "found": found}


@pytest.fixture
def recorded(monkeypatch):
    """pip, replaced by a list of what it was asked to install."""
    asked = []
    monkeypatch.setattr(pip, "install", lambda python, arguments, cwd: asked.append(arguments) or (0, ""))
    monkeypatch.setattr(pip, "find_links", lambda python: [])
    monkeypatch.setattr(environment, "_need_pip", lambda python: None)
    monkeypatch.setenv("COURSE_TORCH", "torch==1.2.3")
    return asked


def test_an_environment_that_has_everything_is_left_alone(tmp_path, recorded):
    environment._install("python", facts(tmp_path), ("test",))
    assert recorded == []


def test_an_installed_torch_is_kept(tmp_path, recorded):
    environment._install("python", facts(tmp_path, numpy=None), ())
    assert recorded == [["-e", "."]]


def test_a_torch_outside_of_the_range_is_replaced_and_this_is_said(tmp_path, recorded, capsys):
    environment._install("python", facts(tmp_path, torch=("2.4.1", "")), ("test",))
    assert recorded == [["torch==1.2.3"], ["-e", ".[test]"]]
    assert "torch 2.4.1 is installed here" in capsys.readouterr().out


def test_an_environment_set_up_for_another_clone_is_pointed_to_this_one(tmp_path, recorded):
    environment._install("python", facts(tmp_path, root=tmp_path), ())
    assert recorded == [["-e", "."]]


def test_an_installation_that_was_cut_off_in_an_active_environment_is_done_again(tmp_path, recorded):
    environment._write(tmp_path, {"step": "installing"})
    environment._install("python", facts(tmp_path), ())
    assert recorded == [["-e", "."]]


def test_an_environment_that_cannot_be_written_gets_one_sentence(tmp_path, recorded):
    with pytest.raises(environment.SetupError, match="cannot be written"):
        environment._install("python", facts(tmp_path / "nowhere"), ())


def test_the_active_environment_is_used_and_conda_base_is_left_clean(monkeypatch):
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(sys, "prefix", "/somewhere/venv")
    assert environment.active() == Path(sys.executable)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert environment.active() is None
    monkeypatch.setenv("CONDA_PREFIX", sys.base_prefix)
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "course")
    assert environment.active() == Path(sys.executable)
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert environment.active() is None
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "course")
    monkeypatch.setenv("CONDA_PREFIX", "/somewhere/else")
    assert environment.active() is None


@pytest.mark.parametrize(
    "errors, cure",
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "Connect to the network"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "free some",
        ),
        ("error: externally-managed-environment", "leave the environment"),
        ("ERROR: No matching distribution found for torch<2.16,>=2.11", "another Python"),
        ("ERROR: Failed building wheel for numpy", "Failed building wheel for numpy"),
        ("", "no reason given"),
    ],
)
def test_a_failed_pip_becomes_one_sentence_with_the_cure(errors, cure):
    said = pip.explain(errors, ["torch", "numpy"])
    assert cure in said and "torch" in said and "\n" not in said


# --- lab and test


def test_a_busy_port_gets_one_sentence_before_anything_is_installed(clone):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = clone.run("lab", "--port", port, "--ip", "127.0.0.1")
    assert code == 1 and said.count("\n") == 1 and f"Port {port} is busy" in said and not clone.venv.exists()
    assert not lab.busy(int(port), "127.0.0.1")


def test_jupyterlab_opens_the_first_notebook_and_keeps_its_token(tmp_path):
    line = lab.command("python", lab.parse(["--no-browser", "--port", "9000"]), tmp_path)
    assert "--LabApp.default_url=/lab/tree/work/00_start_here.ipynb" in line and "--no-browser" in line
    assert "--ServerApp.port=9000" in line and "--ServerApp.port_retries=0" in line
    assert not [word for word in line if "token" in word.lower() or "password" in word.lower()]
    assert not [word for word in lab.command("python", lab.parse([]), tmp_path) if "port" in word]


def test_an_incomplete_clone_gets_one_sentence(clone):
    (clone.folder / "notebooks" / "00_start_here.ipynb").unlink()
    code, said = clone.run("lab")
    assert code == 1 and said.count("\n") == 1 and "complete clone" in said


def test_results_are_counted_and_one_failure_fails_the_whole(tmp_path, capsys):
    cases = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('x')\n"
    cases += "@pytest.fixture\ndef broken(): 1 / 0\ndef test_d(broken): pass\n"
    (tmp_path / "test_it.py").write_text(cases)
    results = tmp_path / "results.xml"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider"]
    code = subprocess.run([*line, f"--junit-xml={results}", tmp_path], capture_output=True).returncode
    assert code == 1 and suite.counts(results) == (1, 2, 1)
    assert suite.counts(tmp_path / "none.xml") == (0, 0, 0)
    good, bad = (
        suite.Outcome("unit", 5, 0, 1, 1.0, "", True),
        suite.Outcome("solved", 3, 2, 0, 1.0, "", False),
    )
    assert suite.report([good], 0.1) == 0 and suite.report([good, bad], 0.1) == 1
    assert capsys.readouterr().out.endswith("8 passed, 2 failed, 1 skipped\n")


def test_a_stage_that_breaks_before_it_counts_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_quietly", lambda command, variables: (3, "no notebook was read"))
    outcome = suite.run(sys.executable, "learner", tmp_path)
    assert not outcome.well and (outcome.passed, outcome.failed) == (0, 1) and "no notebook" in outcome.text
