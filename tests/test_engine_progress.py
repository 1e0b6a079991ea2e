"""Progress is only ever appended, survives damaged files, and never stands in the way of the course."""

import json
import os
import subprocess
import sys

import pytest
from engine_toys import ID, remove, toy

from course_lib.exercises import check, hint, progress, registry, solution, status


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """A progress file of our own, and the toy to make progress with."""
    monkeypatch.setattr(progress, "_told", False)
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "mine" / "progress.jsonl"))
    remove()
    registry.register(toy())
    yield tmp_path / "mine" / "progress.jsonl"
    remove()


def standing():
    return progress.fold(progress.read())[ID]


def test_checks_hints_and_solutions_add_up(file):
    check(ID, ...)
    check(ID, sum)
    hint(ID)
    hint(ID)
    check(ID, lambda xs: xs.mean())
    solution(ID)
    check(ID, lambda xs: None)
    now = standing()
    assert (now.state, now.tries, now.hints, now.solution) == ("passed", 3, 2, True)
    assert len(file.read_text().splitlines()) == 7 and now.last > 1.7e9


def test_a_call_that_makes_no_sense_is_not_recorded(file):
    check("90.7", 3)
    check(ID)
    check(sum, ID)
    assert not file.exists()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe\n",
        b"{}\n[]\nnull\n3\n",
        b'{"id": 3, "t": 1, "event": "check", "state": "passed"}\n',
        b'{"id": "90.1", "t": NaN, "event": "check", "state": "passed"}\n',
        b'{"id": "90.1", "t": 1, "event": "check", "state": "brilliant"}\n',
        b'{"id": "90.1", "t": 1, "event": ["check"], "state": ["passed"]}\n',
        b'{"id": "90.1", "t": 1, "event": "hint", "number": "3"}\n',
        b"[" * 100_000 + b"\n",
        b'{"id": "90.1", "t": 1, "event": "check", "sta',
        b"x" * 1_000_000,
    ],
    ids=range(10),
)
def test_unreadable_lines_are_skipped_and_kept(file, garbage):
    check(ID, lambda xs: xs.mean())
    file.write_bytes(garbage + b"\n" + file.read_bytes() + garbage)
    check(ID, sum)
    assert standing().tries == 2 and standing().state == "passed"
    assert file.read_bytes().startswith(garbage) and garbage in file.read_bytes()[1:]
    assert "1 of" in str(status())


def test_a_file_that_cannot_be_written_costs_one_sentence_a_session(tmp_path, monkeypatch, capsys):
    (tmp_path / "in the way").write_text("a file, not a folder")
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "in the way" / "progress.jsonl"))
    for _ in range(3):
        assert check(ID, lambda xs: xs.mean()).state == "passed"
    assert capsys.readouterr().out.count("cannot be saved") == 1
    assert "0 of" in str(status())


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_costs_one_sentence(file, capsys):
    file.parent.mkdir()
    file.write_text("")
    file.chmod(0o400)
    check(ID, sum), check(ID, sum)
    assert capsys.readouterr().out.count("Permission denied") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
def test_a_full_disk_costs_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_PROGRESS", "/dev/full")
    check(ID, sum), check(ID, sum)
    assert capsys.readouterr().out.count("No space left") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_the_file_does_not_hang(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "pipe"))
    check(ID, sum)
    assert "0 of" in str(status())


def test_a_folder_may_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path))
    check(ID, sum)
    assert (tmp_path / "progress.jsonl").is_file()


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    assert progress.location() is None
    monkeypatch.delenv("COURSE_PROGRESS")
    monkeypatch.setenv("CI", "true")
    assert progress.location() is None and "not being saved" in str(status())
    monkeypatch.delenv("CI")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "roaming"))
    for platform, folder in (
        ("linux", "data"),
        ("darwin", "Library/Application Support"),
        ("win32", "roaming"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert progress.location() == tmp_path / folder / "training-memory-course" / "progress.jsonl"


def test_four_processes_append_without_losing_a_line(file):
    code = (
        "from course_lib.exercises import progress\n"
        "for n in range(300): progress.record('90.1', 'hint', number=n, text='x' * 200)"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    writers = [
        subprocess.Popen([sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": root})
        for _ in range(4)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    events = [json.loads(line) for line in file.read_text().splitlines() if line]
    assert sorted(event["number"] for event in events) == sorted(list(range(300)) * 4)


def test_status_is_a_table_for_eyes_and_for_screen_readers(capsys):
    remove()
    registry.register(toy(title="Means & <medians>"))
    check(ID, lambda xs: xs.mean())
    page = status()._repr_html_()
    for part in ("<caption", 'scope="col"', 'scope="row"', "Means &amp; &lt;medians&gt;", "✓ passed"):
        assert part in page
    capsys.readouterr()
    assert progress.main([]) == 0
    out = capsys.readouterr().out
    assert "90.1   Means & <medians>" in out and "passed" in out and "saved in" in out
