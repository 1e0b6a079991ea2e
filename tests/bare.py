"""A copy of the course with a fake pip, and a Python outside of every environment, to try the set-up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# the Python that this environment was made with
PYTHON = getattr(sys, "_base_executable", None) or sys.executable

# Installs by writing down that it did. FAKE_PIP=hang stops in the middle, as a killed terminal would find it.
FAKE_PIP = """
import os, pathlib, sys, sysconfig, time, tomllib
argv = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(" ".join(argv) + "\\n")
if argv[0] != "install":
    sys.exit(0)
site = pathlib.Path(sysconfig.get_path("purelib"))
def put(name, url=None):
    folder = site / f"{name}-99.dist-info"
    folder.mkdir(exist_ok=True)
    version = {"torch": "2.13.0", "jupyterlab": "4.2", "nbval": "0.11"}.get(name, "99")
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    if url:
        (folder / "direct_url.json").write_text('{"url": "%s"}' % url)
if any(word.startswith("torch") for word in argv):
    put("torch")
if "-e" in argv:
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["test"]
    for line in lines[1:]:
        put(line.split(">")[0])
        if os.environ.get("FAKE_PIP") == "hang":
            time.sleep(60)
    put("training-memory-course", pathlib.Path.cwd().as_uri())
"""


class Clone:
    """A folder that holds what a clone holds before anything is installed."""

    def __init__(self, folder, fake_pip=True):
        self.folder = Path(folder).resolve() / "clone"
        library = self.folder / "course_lib"
        library.mkdir(parents=True)
        for name in ("__init__.py", "__main__.py"):
            shutil.copy(ROOT / "course_lib" / name, library)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "course_lib" / "bootstrap", library / "bootstrap", ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        (self.folder / "notebooks").mkdir()
        (self.folder / "notebooks" / "00_start_here.ipynb").write_text("{}", encoding="utf-8")
        # a command that says where it runs
        (library / "exercises").mkdir()
        (library / "exercises" / "__init__.py").touch()
        where = "import sys\n\ndef main(argv):\n    print('ran in', sys.prefix, argv)\n"
        (library / "exercises" / "progress.py").write_text(where, encoding="utf-8")
        self.log = Path(folder) / "pip.log"
        gone = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "COURSE_TORCH", "CI", "PYTHONHOME")
        self.variables = {key: value for key, value in os.environ.items() if key not in gone}
        if fake_pip:
            pip = Path(folder) / "fake" / "pip"
            pip.mkdir(parents=True)
            (pip / "__init__.py").touch()
            (pip / "__main__.py").write_text(FAKE_PIP, encoding="utf-8")
            self.variables.update(
                PYTHONPATH=str(pip.parent), FAKE_LOG=str(self.log), COURSE_TORCH="torch==2.13.0"
            )

    @property
    def venv(self):
        return self.folder / ".venv"

    def installs(self):
        """The pip installations so far, one line each."""
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if line.startswith("install")]

    def start(self, *argv, **variables):
        """Start `python -m course_lib ARGV` in the folder."""
        return subprocess.Popen(
            [PYTHON, "-m", "course_lib", *argv],
            cwd=self.folder,
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *argv, **variables):
        """Run it to the end: (exit code, everything it printed). A traceback is never right."""
        process = self.start(*argv, **variables)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in out + err, out + err
        return process.returncode, out + err

    def set_up(self, **variables):
        """Only the set-up: what `lab` and `test` begin with."""
        code = "from course_lib.bootstrap import environment as e\n"
        code += "try: print('python:', e.ensure())\n"
        code += "except e.SetupError as error: print(error); raise SystemExit(1)"
        done = subprocess.run(
            [PYTHON, "-c", code],
            cwd=self.folder,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr
