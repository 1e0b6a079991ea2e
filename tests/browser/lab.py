"""The real JupyterLab in a real browser, for tests: a server in a folder of its own, pages with notebooks.

Most lines here are answers to something that went wrong once: see the comments.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from course_lib.bootstrap import lab

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(__file__).with_name("screenshots")
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"

SETTINGS = {
    # a pop-up about news would lie over the notebook
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    # by default cells far off the screen are not in the page at all
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium():
    """The path of an installed Chromium or Chrome, or None. COURSE_CHROMIUM names another one."""
    named = os.environ.get("COURSE_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome", "chrome"]
    return next((path for path in map(shutil.which, names) if path), None)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """JupyterLab as `python -m course_lib lab` starts it, on `folder`/work. A context manager."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.port, self.token = free_port(), secrets.token_hex(16)
        self.log = self.folder / "server.log"

    def address(self, path=""):
        return f"http://127.0.0.1:{self.port}/{path}"

    def __enter__(self):
        own = self.folder / "own"
        # nothing of the person who runs the tests: no settings, no workspace that reopens old tabs
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_TOKEN": self.token}
        for name in ("CONFIG", "DATA", "RUNTIME"):
            variables[f"JUPYTER_{name}_DIR"] = str(own / name.lower())
        for name in ("SETTINGS", "WORKSPACES"):
            variables[f"JUPYTERLAB_{name}_DIR"] = str(own / name.lower())
        variables["IPYTHONDIR"] = str(own / "ipython")
        # the figures are drawn as in a learner's notebook
        variables.pop("MPLBACKEND", None)
        overrides = own / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir(parents=True)
        overrides.write_text(json.dumps(SETTINGS), encoding="utf-8")
        options = lab.parse(["--no-browser", "--ip", "127.0.0.1", "--port", str(self.port)])
        command = lab.command(sys.executable, options, self.folder)
        command.append("--LabApp.expose_app_in_browser=True")
        with open(self.log, "wb") as log:
            # a session of its own, so that kernels can be ended together with the server
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait(90)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass

    def _wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.answers(f"api/status?token={self.token}") == 200:
                return
            time.sleep(0.2)
        raise RuntimeError("JupyterLab did not start:\n" + self.tail())

    def answers(self, path):
        """The status code of an address of the server, or None where it does not answer."""
        try:
            with urllib.request.urlopen(self.address(path), timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def tail(self, lines=40):
        """The end of the server's log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextmanager
def browser(profile):
    """A running Chromium, with a user folder of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # tall: an output that is off the screen is drawn late
        context = playwright.chromium.launch_persistent_context(
            str(profile),
            executable_path=chromium(),
            args=CHROMIUM_FLAGS,
            viewport={"width": 1280, "height": 1600},
        )
        try:
            yield context
        finally:
            context.close()


# Finds the notebook that is open, whichever panel has the focus.
PANEL = "const panel = window.jupyterapp.shell.currentWidget; const cells = panel.content.widgets;"

# The idle mark shows "idle" before there is a session, and running then asks for a kernel and waits for ever.
READY = """() => {
    const session = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.connectionStatus === "connected"
        && session.session.kernel.status === "idle";
}"""


class Notebook:
    """A notebook that is open in the browser. Cells are named by their id."""

    def __init__(self, context, server, path):
        self.page, self.name, self.page_errors = context.new_page(), Path(path).stem, []
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        self.page.goto(server.address(f"lab/tree/{path}?token={server.token}&reset"))
        self.page.wait_for_function(READY)

    def _command(self, name, seconds):
        """Run a command of JupyterLab to its end; returns its result, which is false where a cell raised."""
        # not awaited in evaluate, which knows no time limit
        self.page.evaluate(
            """name => {
                window.done = null;
                const done = found => { window.done = found; };
                window.jupyterapp.commands.execute(name).then(
                    result => done({result}), error => done({error: String(error)}));
            }""",
            name,
        )
        done = self.page.wait_for_function("() => window.done", timeout=seconds * 1000).json_value()
        assert "error" not in done, done
        self.page.wait_for_function(READY)
        return done["result"]

    def run_all(self, seconds=180):
        """Run all cells; returns whether none raised."""
        return self._command("notebook:run-all-cells", seconds)

    def run(self, cell_id, seconds=60):
        """Run one cell; returns whether it did not raise."""
        self._index(cell_id, "panel.content.activeCellIndex = index;")
        return self._command("notebook:run-cell", seconds)

    def write(self, cell_id, source):
        """Replace the source of a cell, as an edit of the learner would."""
        self._index(cell_id, "cells[index].model.sharedModel.setSource(extra);", source)

    def source(self, cell_id):
        return self._index(cell_id, "return cells[index].model.sharedModel.getSource();")

    def cell(self, cell_id):
        """The cell as a playwright locator."""
        self._index(cell_id, "cells[index].node.setAttribute('data-course-id', id);")
        return self.page.locator(f'[data-course-id="{cell_id}"]')

    def _index(self, cell_id, action, extra=None):
        script = f"""([id, extra]) => {{ {PANEL}
            const index = cells.findIndex(cell => cell.model.id === id);
            if (index < 0) throw new Error(`there is no cell with the id ${{id}}`);
            {action} }}"""
        return self.page.evaluate(script, [cell_id, extra])

    def output(self, cell_id):
        return self.cell(cell_id).locator(".jp-Cell-outputArea")

    def status(self, cell_id):
        """The text of the result that a check shows."""
        return self.output(cell_id).get_by_role("status").first.inner_text()

    def pictures(self, cell_id):
        """The pictures in the output of a cell, as one string that changes when one of them does."""
        found = self.output(cell_id).locator("svg, img, canvas")
        found.first.wait_for()
        look = "all => all.map(one => one.outerHTML).join('\\n')"
        return found.evaluate_all(look)

    def move_slider(self, cell_id, key="ArrowRight", seconds=20, number=0):
        """Press a key on a slider of the cell and wait until its pictures change; returns the new ones."""
        before = self.pictures(cell_id)
        handle = self.output(cell_id).locator(".noUi-handle").nth(number)
        handle.scroll_into_view_if_needed()
        handle.focus()
        handle.press(key)
        deadline = time.monotonic() + seconds
        while self.pictures(cell_id) == before:
            assert time.monotonic() < deadline, f"the pictures of {cell_id} do not follow its slider"
            self.page.wait_for_timeout(50)
        return self.pictures(cell_id)

    def errors(self):
        """The texts of all error outputs, of cells and of output widgets, and the page's own errors."""
        # from the model, for an output reaches the page a moment after its cell has ended
        raised = self.page.evaluate(
            f"""() => {{ {PANEL} return cells.flatMap(cell => cell.model.outputs?.toJSON() ?? [])
                .filter(output => output.output_type === "error")
                .map(error => `${{error.ename}}: ${{error.evalue}}`); }}"""
        )
        self.page.wait_for_timeout(500)
        shown = self.page.locator('[data-mime-type="application/vnd.jupyter.error"]').all_inner_texts()
        return raised + shown[len(raised) :] + self.page_errors

    def theme(self, name):
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
        self.page.evaluate(change, name)
        light = "true" if name == LIGHT else "false"
        self.page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")
        # the style sheet of the theme arrives a moment after the mark
        self.page.wait_for_timeout(500)

    def shoot(self, label, cell_id=None):
        """Keep a screenshot of the page, or of one cell."""
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{self.name}-{label}.png"
        (self.cell(cell_id) if cell_id else self.page).screenshot(path=str(path))
        return path

    def close(self):
        self.page.close()
