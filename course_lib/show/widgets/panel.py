"""The base of every live panel: controls, a picture, a sentence, and two threads that do the work.

Callbacks may run on any thread of the kernel, so they only write down what is wanted. One thread draws, at
most twelve times a second, always the latest state. One thread runs jobs (measurements). While a cell of
the notebook is running, JupyterLab may hold back clicks until the cell has ended; everything a panel does
has a Python call, too.
"""

from __future__ import annotations

import atexit
import base64
import html
import sys
import threading
import time

import ipywidgets as W
from traitlets import TraitError

from course_lib.show.style import Picture, picture

FRAMES_PER_SECOND = 12
WIDE = {"description_width": "initial"}  # else JupyterLab cuts labels at 92 pixels
_STATUS = '<p role="status" aria-live="polite" style="line-height:1.4">{}</p>'
_open: dict = {}  # the panel that each cell has open


class Stopped(Exception):
    """A job was asked to stop."""


class Job:
    """One run of a panel's `work`, which calls `progress` between its steps; that also ends it if asked."""

    def __init__(self, say):
        self._say, self._halt = say, threading.Event()

    @property
    def stopped(self) -> bool:
        return self._halt.is_set()

    def stop(self) -> None:
        self._halt.set()

    def progress(self, done: int, total: int, words: str) -> None:
        """Show "words" and how much is done. Raises Stopped when the job should end."""
        if self.stopped:
            raise Stopped
        self._say(done, total, words)


class Panel(W.VBox):
    """A live panel. A subclass gives `title`, `controls()`, `view()` and `figure()`, and `work()` if it
    measures.

    Every action has a Python call: `.set(name=value)`, `.run()`, `.stop()`, `.snapshot()`, `.check()`,
    `.close()`; `.wait_idle()` returns when everything asked for is measured and drawn. Making the panel
    again in the same cell closes the earlier one. An error is shown in the panel, kept in `.error`, and
    raised by `.check()`.
    """

    title = "Panel"

    # -- what a subclass gives --

    def controls(self) -> dict:
        """{name: widget with a `value`}, in the order in which they are shown."""
        raise NotImplementedError

    def view(self, settings: dict, result, before) -> tuple[str, str]:
        """(HTML of the picture, sentence) for the settings and the latest two results of `work` or None."""
        raise NotImplementedError

    def figure(self, settings: dict, result, before):
        """The same picture as a figure with `.alt`, for static viewers and `.snapshot()`."""
        raise NotImplementedError

    work = None  # def work(self, settings, job) -> result; runs in the job thread after each change

    def adapt(self, settings: dict) -> None:
        """Bring limits of controls in line with other controls. Called before drawing; may change values."""

    # -- making and ending --

    def __init__(self, **settings):
        self._state = threading.Condition(threading.RLock())
        # numbers of the state: wanted by callbacks, drawn by the draw thread
        self._wanted = self._drawn = 0
        self._job: Job | None = None
        self._job_wanted = self._closing = self._holding = False
        self._result = self._before = None
        self.error: BaseException | None = None
        self._controls = self.controls()
        self._picture, self._status, self._problem = W.HTML(), W.HTML(), W.HTML()
        rows = [W.HTML(f"<b>{html.escape(self.title)}</b>"), self._row(self._controls.values())]
        if self.work is not None:
            self._run = W.Button(
                description="Run again", tooltip="Measure once more with these settings"
            )
            self._stop = W.Button(
                description="Stop", disabled=True, tooltip="End the measurement after this step"
            )
            self._bar = W.IntProgress(value=0, max=1, layout=W.Layout(width="12em"))
            self._doing = W.HTML()
            self._run.on_click(lambda _button: self._want(job=True))
            self._stop.on_click(lambda _button: self.stop())
            rows.append(self._row((self._run, self._stop, self._bar, self._doing)))
        super().__init__(
            [*rows, self._picture, self._status, self._problem], layout=W.Layout(max_width="900px")
        )
        _close_earlier(self)
        try:
            self.set(**settings)
        except ValueError:
            self.close()
            raise
        for name, control in self._controls.items():
            control.observe(lambda _change: self._want(job=True), names="value")
        self._want(job=True)
        targets = [self._draw_loop, self._job_loop] if self.work is not None else [self._draw_loop]
        self._threads = [
            threading.Thread(target=t, daemon=True, name=f"{self.title}: {t.__name__}") for t in targets
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _row(children) -> W.HBox:
        return W.HBox(list(children), layout=W.Layout(flex_flow="row wrap", align_items="center"))

    def close(self) -> None:
        """End the threads (after the step they are in) and the widgets. May be called twice."""
        state = getattr(self, "_state", None)
        if state is not None and not self._closing:
            with state:
                self._closing = True
                if self._job is not None:
                    self._job.stop()
                state.notify_all()
            for thread in getattr(self, "_threads", ()):
                if thread is not threading.current_thread():
                    thread.join(5)
            for widget in (*self._controls.values(), self._picture, self._status, self._problem):
                widget.close()
        super().close()

    # -- the Python calls --

    @property
    def settings(self) -> dict:
        """The values of all controls, by name."""
        return {name: control.value for name, control in self._controls.items()}

    @property
    def result(self):
        """What the last finished measurement gave; None before the first."""
        with self._state:
            return self._result

    def set(self, **values) -> None:
        """Change controls, as if by hand, all at once. Raises ValueError with the choices otherwise."""
        for name in values:
            if name not in self._controls:
                raise ValueError(
                    f"{self.title} has no setting {name!r}; it has {', '.join(self._controls)}."
                )
        with self._state:
            self._holding = True
        try:
            for name in sorted(values, key=list(self._controls).index):
                _assign(name, self._controls[name], values[name])
                self.adapt(self.settings)
        finally:
            with self._state:
                self._holding = False
            if values:
                self._want(job=True)

    def run(self, wait: bool = True, timeout: float = 120.0):
        """Measure (or draw) now. With `wait`, return the result when there, or raise what went wrong."""
        self._want(job=True)
        if not wait:
            return None
        self.wait_idle(timeout)
        self.check()
        return self.result

    def stop(self) -> None:
        """End the running measurement after the step it is in; its numbers are dropped."""
        with self._state:
            self._job_wanted = False
            if self._job is not None:
                self._job.stop()
            self._state.notify_all()

    def wait_idle(self, timeout: float = 60.0) -> None:
        """Return when all is measured and drawn. Raises TimeoutError after `timeout` seconds."""
        with self._state:
            if not self._state.wait_for(lambda: self._closing or self._idle(), timeout):
                raise TimeoutError(
                    f"{self.title} was still busy after {timeout:g} seconds; .stop() ends it."
                )

    def _idle(self) -> bool:
        return self._drawn == self._wanted and self._job is None and not self._job_wanted

    def check(self) -> None:
        """Raise the error that the panel shows, if it shows one."""
        if self.error is not None:
            raise self.error

    def snapshot(self) -> Picture:
        """What the panel shows now, as a picture that stays in the saved notebook."""
        self.wait_idle()
        return picture(self._figure())

    def _figure(self):
        with self._state:
            arguments = self.settings, self._result, self._before
        return self.figure(*arguments)

    def _repr_mimebundle_(self, **kwargs):
        """The widget; for viewers that run no widgets a PNG and a sentence beside it."""
        data = super()._repr_mimebundle_(**kwargs) or {}
        if not isinstance(data, dict):
            return data
        try:
            still = self.snapshot()
            data["image/png"], data["text/plain"] = base64.b64encode(still.png()).decode(), still.alt
        except Exception as error:  # the panel itself can still be shown, with the error in it
            data["text/plain"] = f"{self.title}: no picture yet ({error})"
        return data

    # -- threads --

    def _want(self, *, job: bool = False) -> None:
        """All that a callback does: write down that something is wanted."""
        with self._state:
            if self._holding or self._closing:
                return
            self.error = None
            self._wanted += 1
            if job and self.work is not None:
                self._job_wanted = True
                if self._job is not None:
                    self._job.stop()  # the latest settings win
            self._state.notify_all()

    def _draw_loop(self) -> None:
        drawn_at = 0.0
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or self._drawn != self._wanted)
                while (
                    not self._closing
                    and (rest := drawn_at + 1 / FRAMES_PER_SECOND - time.monotonic()) > 0
                ):
                    self._state.wait(rest)
                if self._closing:
                    return
            drawn_at = time.monotonic()
            try:
                with self._state:
                    number = self._wanted
                    failed = self.error is not None
                self.adapt(self.settings)
                with self._state:
                    arguments = self.settings, self._result, self._before
                self._picture.value, sentence = self.view(*arguments)
                if number == self._wanted:  # the sentence is read aloud, so only at rest
                    self._status.value = _STATUS.format(html.escape(sentence))
                if not failed:
                    self._problem.value = ""
            except Exception as error:
                self._fail(error)
            with self._state:
                self._drawn = number
                self._state.notify_all()

    def _job_loop(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or self._job_wanted)
                if self._closing:
                    return
                self._job_wanted, self._job, settings = False, Job(self._progress), self.settings
                self.error = None
            self._run.disabled, self._stop.disabled = True, False
            try:
                result = self.work(settings, self._job)
                with self._state:
                    if not self._job.stopped:
                        self._before, self._result = self._result, result
            except Stopped:
                pass
            except Exception as error:
                self._fail(error)
            self._run.disabled, self._stop.disabled = False, True
            self._bar.value, self._doing.value = 0, "stopped" if self._job.stopped else ""
            with self._state:
                self._job = None
                self._wanted += 1
                self._state.notify_all()

    def _progress(self, done: int, total: int, words: str) -> None:
        self._bar.max, self._bar.value = total, done
        self._doing.value = html.escape(f"{words} ({done} of {total} done)")

    def _fail(self, error: Exception) -> None:
        with self._state:
            self.error = error
        words = html.escape(f"{type(error).__name__}: {error}")
        self._problem.value = (
            '<p role="alert" style="color:var(--jp-error-color1,#b00020)"><b>This did not work.</b> '
            f"{words}<br>Change a setting to try again; <code>.check()</code> raises the error.</p>"
        )


def _assign(name: str, control, value) -> None:
    """Give a control a value, or say which values it takes."""
    if isinstance(control, W.IntSlider):
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not control.min <= value <= control.max
        ):
            raise ValueError(
                f"{name} is a whole number from {control.min} to {control.max}, not {value!r}."
            )
    elif isinstance(control, W.Checkbox):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is True or False, not {value!r}.")
    elif isinstance(control, (W.SelectionSlider, W.ToggleButtons)):
        choices = [option[1] if isinstance(option, tuple) else option for option in control.options]
        if isinstance(value, bool) or value not in choices:
            raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}.")
    try:
        control.value = value
    except TraitError as error:
        raise ValueError(f"{name} cannot be {value!r}: {error}") from None


def _close_earlier(panel: Panel) -> None:
    """A cell that is run again makes a new panel; the threads of the earlier one must end."""
    key = type(panel).__name__, _cell()
    earlier, _open[key] = _open.get(key), panel
    if earlier is not None:
        earlier.close()


def _cell() -> str | None:
    """The id of the notebook cell that is running, where the front end tells it."""
    try:
        return sys.modules["IPython"].get_ipython().kernel.get_parent()["metadata"]["cellId"]
    except (KeyError, AttributeError, TypeError):
        return None


@atexit.register
def _close_all() -> None:
    for panel in list(_open.values()):
        panel.close()
