"""The learner's copies of the notebooks. What a learner changed is never overwritten."""

import hashlib
import json
import os
from pathlib import Path

from .environment import SetupError

RECORD = ".copied.json"


def refresh(source, work):
    """Bring the notebooks of `source` into the folder `work`; returns one sentence per thing worth saying.

    A copy that is as it was made follows the new version. A changed copy stays; where the course has a newer
    version of it, that is put beside it as NAME.new.ipynb. Raises SetupError where that cannot be written.
    """
    try:
        work.mkdir(exist_ok=True)
        record = _read(work / RECORD)
        said = [
            sentence
            for path in sorted(Path(source).glob("*.ipynb"))
            for sentence in _bring(path.name, path.read_bytes(), work, record)
        ]
        _write(work / RECORD, json.dumps(record, indent=1, sort_keys=True).encode())
        return said
    except OSError as error:
        raise SetupError(
            f"{error.filename or work} cannot be used ({error.strerror}): give yourself write access to "
            f"{work}, or clone the course into a folder of your own."
        ) from None


def _bring(name, content, work, record):
    """Copy one notebook if that loses nothing. `record`: file -> hash of what was put there last."""
    new, target = _hash(content), work / name
    now = _hash(target.read_bytes()) if target.exists() else None
    if now == new:
        record[name] = new
    elif now is None or now == record.get(name):
        _write(target, content)
        record[name] = new
        if now:
            yield f"{name}: brought up to date (you had not changed your copy)."
    elif new not in (record.get(name), record.get("seen " + name)):
        beside = _free(work, Path(name).stem, record)
        _write(work / beside, content)
        record[beside] = record["seen " + name] = new
        yield f"{name}: yours is kept as it is; the course's newer version is beside it as {beside}."


def _free(work, stem, record):
    """NAME.new.ipynb, or NAME.new2.ipynb ... where the learner has worked in the earlier one."""
    for number in ("", *range(2, 1000)):
        name = f"{stem}.new{number}.ipynb"
        if not (work / name).exists() or _hash((work / name).read_bytes()) == record.get(name):
            return name
    raise SetupError(f"There are a thousand new versions of {stem} in {work}: delete some of them.")


def _hash(content):
    return hashlib.sha256(content).hexdigest()


def _read(path):
    """The record; empty where it is missing or damaged, which makes every copy count as the learner's own."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write(path, content):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
