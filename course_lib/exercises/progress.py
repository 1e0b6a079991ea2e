"""The learner's progress: one line of JSON per event, only ever appended, in the user's data folder."""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .verdict import STATES

_FOLDER = "training-memory-course"
_ORDER = ("not started", "failed", "not verified here", "passed")  # from worst to best
_told = False  # a problem with the file is told once a session


@dataclass
class Standing:
    """Where a learner stands with one exercise. `last` is in seconds since 1970, 0 if never."""

    state: str = "not started"
    tries: int = 0
    hints: int = 0
    solution: bool = False
    last: float = 0.0


def location():
    """The progress file, or None where none is kept: COURSE_PROGRESS=off, or CI and no COURSE_PROGRESS."""
    chosen = os.environ.get("COURSE_PROGRESS", "").strip()
    if chosen.lower() == "off" or (not chosen and os.environ.get("CI")):
        return None
    if chosen:
        path = Path(chosen).expanduser()
        return path / "progress.jsonl" if path.is_dir() else path
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / _FOLDER / "progress.jsonl"


def record(id, event, **facts):
    """Append one event. Never raises: a file that cannot be written costs one sentence a session."""
    try:
        path = location()
        if path is not None:
            _append(path, {"v": 1, "t": round(time.time(), 3), "id": id, "event": event, **facts})
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        _tell(error)


def read(path=None):
    """All events that can be understood, in order. Other lines are skipped and stay in the file."""
    path = location() if path is None else Path(path)
    if path is None or not path.is_file():
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [event for event in map(_parse, file) if event is not None]


def fold(events):
    """{exercise id: Standing}: the best state so far, tries, hints used, time of the last event."""
    standings = {}
    for event in events:
        standing = standings.setdefault(event["id"], Standing())
        standing.last = max(standing.last, event["t"])
        if event["event"] == "check":
            standing.tries += event["state"] != "not started"
            standing.state = max(standing.state, event["state"], key=_ORDER.index)
        elif event["event"] == "hint":
            # hints start anew with each session, so the number counts, not how often one was asked for
            standing.hints = max(standing.hints, event["number"])
        elif event["event"] == "solution":
            standing.solution = True
    return standings


def status():
    """The learner's progress as a Status, which shows itself."""
    from . import registry

    sentence, standings = "", {}
    try:
        path = location()
        standings = fold(read(path))
        if path is None:
            sentence = "Progress is not being saved (COURSE_PROGRESS=off or CI is set)."
    except (OSError, RuntimeError) as error:
        sentence = _sentence(error)
    rows = [(exercise, standings.get(exercise.id, Standing())) for exercise in registry.all_exercises()]
    return Status(rows, sentence)


@dataclass
class Status:
    """Progress over all exercises: `rows` of (Exercise, Standing), and a sentence where nothing is saved."""

    rows: list = field(repr=False)
    sentence: str = ""

    @property
    def passed(self):
        """How many exercises are passed."""
        return sum(standing.state == "passed" for _, standing in self.rows)

    def __str__(self):
        lines = [f"{self.passed} of {len(self.rows)} exercises passed", ""]
        width = max([len(exercise.title) for exercise, _ in self.rows], default=5)
        lines.append(f"{'id':<6} {'exercise':<{width}}  {'state':<18} {'tries':>5} {'hints':>5}  last")
        for exercise, standing in self.rows:
            lines.append(
                f"{exercise.id:<6} {exercise.title:<{width}}  {_words(standing):<18} {standing.tries:>5} "
                f"{standing.hints:>5}  {_day(standing.last)}".rstrip()
            )
        return "\n".join(lines + ([self.sentence] if self.sentence else []))

    __repr__ = __str__

    def _repr_html_(self):
        from html import escape

        left = "text-align: left"
        heads = ("Exercise", "State", "Tries", "Hints", "Last")
        head = "".join(f'<th scope="col" style="{left}">{text}</th>' for text in heads)
        body = "".join(
            f'<tr><th scope="row" style="{left}; font-weight: normal">{exercise.id} {escape(exercise.title)}'
            f'</th><td style="{left}">{_sign(standing)} {_words(standing)}</td><td>{standing.tries}</td>'
            f"<td>{standing.hints}</td><td>{_day(standing.last)}</td></tr>"
            for exercise, standing in self.rows
        )
        return (
            f'<table style="color: var(--jp-ui-font-color1, inherit)"><caption style="{left}">Your progress: '
            f"{self.passed} of {len(self.rows)} exercises passed. {escape(self.sentence)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def main(argv):
    """`python -m course_lib status`: print the table. Returns 0."""
    argparse.ArgumentParser(
        prog="python -m course_lib status", description="Show which exercises you have passed."
    ).parse_args(argv)
    print(status())
    path = location()
    if path is not None:
        print(f"\nsaved in {path}")
    return 0


def _append(path, event):
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(event).encode() + b"\n"
    # without O_NONBLOCK a named pipe in this place would wait for a reader for ever
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":
                line = b"\n" + line  # the last line was torn: do not lose this one with it
        # one write is one line, also with several notebooks open: O_APPEND needs no lock
        if os.write(handle, line) != len(line):
            raise OSError("the disk is full")
    finally:
        os.close(handle)


def _parse(line):
    """The event in a line, or None if it is torn or foreign."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("id"), str):
        return None
    if type(event.get("t")) not in (int, float) or not math.isfinite(event["t"]):
        return None
    kind = event.get("event")
    known = {
        "check": event.get("state") in STATES,
        "hint": type(event.get("number")) is int,
        "solution": True,
    }
    return event if isinstance(kind, str) and known.get(kind) else None


def _sentence(error):
    why = getattr(error, "strerror", None) or error
    return (
        f"Your progress cannot be saved or read ({why}); everything else works. "
        "COURSE_PROGRESS can name another file."
    )


def _tell(error):
    global _told
    if not _told:
        _told = True
        from .page import note

        note(_sentence(error), "warn")


def _sign(standing):
    return {"passed": "✓", "failed": "✗"}.get(standing.state, "○" if not standing.tries else "?")


def _words(standing):
    return standing.state + (" (solution seen)" if standing.solution and standing.state != "passed" else "")


def _day(seconds):
    try:
        return time.strftime("%Y-%m-%d", time.localtime(seconds)) if seconds else ""
    except (OSError, OverflowError, ValueError):
        return ""
