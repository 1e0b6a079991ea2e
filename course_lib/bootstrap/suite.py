"""`python -m course_lib test`: the environment, then the tests, the learner's and the solved notebooks."""

import argparse
import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from . import environment
from .environment import say
from .requirements import ROOT

STAGES = {
    "unit": "the tests of the library, the command and JupyterLab in a browser",
    "learner": "the notebooks as a learner gets them: with blanks, and no cell may fail",
    "solved": "the notebooks with the answers filled in: every check must pass",
}
# lax: outputs are not compared (there are none); the time limit also catches a kernel that died
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]


class Outcome(NamedTuple):
    """What a stage came to: counts, seconds, what it printed, and whether it went well as a whole."""

    stage: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    text: str
    well: bool


def main(argv):
    """Set up what is missing, run the stages, print a table. Returns 0 if all went well, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib test",
        description="Set up what is missing, then run "
        + "; ".join(f"{stage}, {what}" for stage, what in STAGES.items()),
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"only these: {', '.join(STAGES)}")
    stages = parser.parse_args(argv).stages or list(STAGES)
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        parser.error(f"there is no stage {unknown[0]!r}; the stages are {', '.join(STAGES)}")
    start = time.monotonic()
    python = str(environment.ensure(["test"]))
    if os.environ.get("CI"):
        # building its grammar costs each process that imports nbformat 4 s, and no notebook schema needs it
        command = [python, "-m", "pip", "uninstall", "-q", "-y", "rfc3987-syntax"]
        subprocess.run(command, capture_output=True)
    setup = time.monotonic() - start
    with tempfile.TemporaryDirectory(prefix="course-test-") as folder:
        outcomes = [run(python, stage, Path(folder)) for stage in stages if stage == "unit"]
        rest = [stage for stage in STAGES if stage in stages and stage != "unit"]
        if rest:
            say(f"== {' and '.join(rest)}: running, this takes minutes")
        with ThreadPoolExecutor() as pool:
            for outcome in pool.map(lambda stage: run(python, stage, Path(folder), len(rest)), rest):
                say(outcome.text)
                outcomes.append(outcome)
    return report(outcomes, setup)


def run(python, stage, folder, at_once=1):
    """Run one stage: the unit stage prints as it goes, the others keep their text for later."""
    start = time.monotonic()
    variables = _variables(at_once)
    results = folder / f"{stage}.xml"
    pytest = [python, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", f"--junit-xml={results}"]
    text, code = "", 0
    if stage == "unit":
        say(f"== unit: {STAGES['unit']}")
        # a process for each core, each with one thread; without nbval: its import is slow, and plain tests do not use it
        spread = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile"]
        command = [*pytest, "-p", "no:nbval", *spread, "tests"]
        code = subprocess.run(command, cwd=ROOT, env={**variables, "OMP_NUM_THREADS": "1"}).returncode
    elif stage == "learner":
        code, text = _quietly([*pytest, *NBVAL, "notebooks"], variables)
    else:
        solved = folder / "solved"
        solved.mkdir()
        code, text = _quietly([python, "-m", "course_lib", "solve", "-o", solved], variables)
        if code == 0:
            strict = {**variables, "COURSE_STRICT": "1"}
            code, more = _quietly([*pytest, *NBVAL, f"--rootdir={solved}", solved], strict)
            text += more
    if stage != "unit":
        text = f"== {stage}: {STAGES[stage]}\n{text}"
    passed, failed, skipped = counts(results)
    if code and not failed:
        failed = 1
    return Outcome(stage, passed, failed, skipped, time.monotonic() - start, text, code == 0)


def counts(results):
    """(passed, failed, skipped) in a junit file; zeros where pytest ended before it could write one."""
    try:
        suites = list(xml.parse(results).getroot().iter("testsuite"))
    except (OSError, xml.ParseError):
        return 0, 0, 0
    total, failures, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def report(outcomes, setup):
    """Print the table and the line that sums it up. Returns the exit code."""
    say(f"\n{'stage':<9} {'result':<7} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}")
    say(f"{'set-up':<9} {'ok':<7} {'':>6} {'':>6} {'':>7} {setup:8.1f}")
    for row in outcomes:
        result = "ok" if row.well else "FAILED"
        say(f"{row.stage:<9} {result:<7} {row.passed:6} {row.failed:6} {row.skipped:7} {row.seconds:8.1f}")
    total = [sum(row[column] for row in outcomes) for column in (1, 2, 3)]
    say("{} passed, {} failed, {} skipped".format(*total))
    return 0 if all(row.well for row in outcomes) else 1


def _variables(at_once):
    """The environment variables of a stage: nothing is recorded, nothing is shown, the cores are shared."""
    variables = {key: value for key, value in os.environ.items() if key != "COURSE_STRICT"}
    path = os.pathsep.join(part for part in (str(ROOT), variables.get("PYTHONPATH")) if part)
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    return {
        **variables,
        "PYTHONPATH": path,
        "COURSE_PROGRESS": "off",
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": threads,
        "PYTHONUTF8": "1",
    }


def _quietly(command, variables):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    return done.returncode, done.stdout
