"""Which Python the course runs in, and what is installed there.

An active virtual or conda environment is used as it is. Otherwise the course makes `.venv` beside
pyproject.toml. A small state file in the environment, written last, says that the set-up is complete; it
names the hash of pyproject.toml, so a new version of the course installs what it newly needs.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import pip, wheels
from .requirements import PROJECT, ROOT, canonical, missing, wanted

STATE = "training-memory-course.json"
VENV = ROOT / ".venv"

_PROBE = """
import importlib.metadata as m, json, sys
def folder(d):
    try: return json.loads(d.read_text("direct_url.json") or "{}").get("url", "")
    except Exception: return ""
found = {}
for d in m.distributions():
    name, url = d.metadata["Name"], folder(d)
    if name and (name not in found or url): found[name] = (d.version, url)
print(json.dumps({"python": list(sys.version_info[:3]), "prefix": sys.prefix, "found": found}))
"""


class SetupError(Exception):
    """A set-up that cannot go on. Its text is one sentence for the learner that names the cure."""


def say(sentence):
    print(sentence, flush=True)


def active():
    """The Python of the active virtual or conda environment, or None where there is none.

    conda's base environment is the one that is active when nobody has chosen one, and it should stay clean.
    """
    if sys.prefix != sys.base_prefix:
        return Path(sys.executable)
    conda = os.environ.get("CONDA_PREFIX")
    if conda and os.environ.get("CONDA_DEFAULT_ENV") != "base":
        if Path(sys.prefix).resolve().is_relative_to(Path(conda).resolve()):
            return Path(sys.executable)
    return None


def python_in(venv):
    """Where a virtual environment keeps its Python."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def probe(python):
    """What is installed for this Python: {'python', 'prefix', 'found': {name: (version, url)}}, or None."""
    try:
        # -P: what lies in the current folder does not count as installed
        done = subprocess.run([str(python), "-P", "-c", _PROBE], capture_output=True, text=True, timeout=120)
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    facts["found"] = {canonical(name): tuple(pair) for name, pair in facts["found"].items()}
    return facts


def ensure(extras=()):
    """Set up what is missing; returns the Python to use. Raises SetupError with the cure."""
    if not (ROOT / "pyproject.toml").exists():
        raise SetupError(f"There is no pyproject.toml in {ROOT}: run this in a clone of the course.")
    python = active()
    if python is None:
        python = python_in(VENV)
        _make_venv(python)
    facts = probe(python)
    if facts is None:
        raise SetupError(
            f"{python} does not run or is older than Python 3.11: activate another environment, or leave it "
            f"and delete {VENV}, then run the same command again."
        )
    _install(python, facts, tuple(extras))
    return python


def enter(argv):
    """Run a command in the course's environment: return if this is it, else hand over for good."""
    if active() is not None or _read(VENV).get("step") != "ready":
        return
    hand_over([python_in(VENV), "-m", "course_lib", *argv])


def hand_over(command, environment=None):
    """Become this command, where the system can; else run it and exit with its code."""
    command = [str(part) for part in command]
    environment = dict(os.environ if environment is None else environment)
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(ROOT), environment.get("PYTHONPATH")) if part
    )
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(command[0], command, environment)
    try:
        raise SystemExit(subprocess.call(command, env=environment))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _make_venv(python):
    """Make `.venv`, or remake it where it is broken or where a set-up was cut off while installing."""
    step = _read(VENV).get("step")
    if step != "installing" and probe(python) is not None:
        return
    if step is None and _runs(python):
        # made by somebody for something else
        raise SetupError(f"The Python of {VENV} is older than 3.11: rename or delete it and run this again.")
    if VENV.exists():
        say(f"{VENV.name} is half-made or broken: making it again.")
    else:
        say(f"No virtual environment is active: making {VENV.name} in {ROOT}.")
    # --clear removes what was there; a Python that is in use cannot remove itself, but this one is another
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        if "ensurepip" in done.stdout + done.stderr:
            version = "%d.%d" % sys.version_info[:2]
            raise SetupError(
                "This Python cannot make virtual environments: install its venv package (on Debian and "
                f"Ubuntu: apt install python{version}-venv) and run the same command again."
            )
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise SetupError(f"{VENV} could not be made ({reason[0]}): check that the folder can be written.")
    _write(VENV, {"step": "made"})


def _runs(python):
    try:
        return subprocess.run([str(python), "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _key():
    """What a complete set-up was made for: this pyproject.toml, in this place."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + " " + str(ROOT)


def _install(python, facts, extras):
    """Install what the environment lacks, torch first, and write down that the set-up is complete."""
    prefix = Path(facts["prefix"])
    installed = {name: version for name, (version, _) in facts["found"].items()}
    lacking = missing(installed, extras)
    state = _read(prefix)
    here = facts["found"].get(PROJECT, ("", ""))[1].rstrip("/") == ROOT.as_uri()
    complete = state.get("step") == "ready" and state.get("key") == _key() + " " + str(facts["python"])
    if complete and here and not lacking and set(extras) <= set(state.get("extras", ())):
        return
    cut_off = state.get("step") == "installing"
    names = lacking + ([] if here and not lacking and not cut_off else [PROJECT])
    if names:
        say(f"Installing into {prefix}: {', '.join(names)}.")
        _need_pip(python)
    before = dict(state, step="made")
    _write(prefix, {"step": "installing"})
    if "torch" in lacking:
        _install_torch(python, prefix, before, installed.get("torch"))
    if names:
        target = f".[{','.join(extras)}]" if extras else "."
        code, errors = pip.install(python, ["-e", target], ROOT)
        if code:
            _write(prefix, before)
            raise SetupError(pip.explain(errors, [name for name in names if name != "torch"]))
    _write(prefix, {"step": "ready", "key": _key() + " " + str(facts["python"]), "extras": sorted(extras)})


def _install_torch(python, prefix, before, old):
    specifier = wanted()["torch"]
    if old:
        say(f"torch {old} is installed here, and the course needs torch{specifier}.")
    choice = wheels.choose(specifier, pip.find_links(python))
    say(choice.sentence)
    code, errors = pip.install(python, choice.arguments, ROOT)
    if code:
        _write(prefix, before)
        raise SetupError(pip.explain(errors, ["torch"]))


def _need_pip(python):
    """Some tools make environments without pip: add it."""

    def has_pip():
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0

    if not has_pip():
        subprocess.run([str(python), "-m", "ensurepip"], capture_output=True)
        if not has_pip():
            raise SetupError(f"{python} has no pip: install it there, or leave that environment.")


def _read(prefix):
    """The state file of an environment; empty where there is none or it cannot be read."""
    try:
        state = json.loads((prefix / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write(prefix, state):
    temporary = prefix / (STATE + ".tmp")
    try:
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, prefix / STATE)
    except OSError as error:
        raise SetupError(
            f"{prefix} cannot be written ({error.strerror}): activate an environment of your own, or none."
        ) from None
