"""Where and when something was measured."""

from __future__ import annotations

import datetime
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

from course_lib.measure import describe

ROOT = Path(__file__).resolve().parents[2]


def origin(on=None) -> dict:
    """Device, kind, torch, threads, date (UTC), commit ("+": changed files) of a measurement."""
    card = describe(on)
    name = "CPU" if card.kind == "cpu" else card.name  # a CPU's bytes are the same on every machine
    return {
        "device": name,
        "kind": card.kind,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _commit(),
    }


@lru_cache(maxsize=1)
def _commit() -> str:
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "course_lib") else "")


def _git(*words: str) -> str:
    try:
        run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
        return run.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "" if words[0] == "status" else "unknown"
