"""What the README names is there: files, commands, notebooks, variables, names of the library."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from course_lib.__main__ import COMMANDS
from course_lib.bootstrap.suite import STAGES

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"(?ms)^ *```.*?^ *```", "", TEXT)  # without code blocks
BLOCKS = "\n".join(re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```", TEXT))
INLINE = re.findall(r"`([^`\n]+)`", PROSE)
CODE = [line.strip() for line in [*BLOCKS.splitlines(), *INLINE]]
COMMAND_LINES = [line for line in CODE if line.startswith("python ")]

NOT_IN_GIT = {"work/", ".venv", "notebooks/NN_name.ipynb"}  # made on the learner's machine, or a pattern


def named_paths():
    """Every path that the README links to or writes as code."""
    found = set(re.findall(r"\]\(([^)\s]+)\)", PROSE))
    for text in INLINE:
        if re.fullmatch(r"[\w.]+(/[\w.]+)+/?|\w+\.(md|toml|yml|py)", text):
            found.add(text)
    words = [word for line in COMMAND_LINES for word in shlex.split(line)]
    found |= {word for word in words if word.endswith((".py", ".ipynb", ".yml"))}
    return sorted(found - NOT_IN_GIT)


@pytest.mark.parametrize("name", named_paths())
def test_a_file_or_folder_that_it_names_exists(name):
    assert not name.startswith("/"), "no absolute paths"
    # a learner's copy is named like its notebook
    assert (ROOT / re.sub(r"^work/", "notebooks/", name)).exists()


@pytest.mark.parametrize("line", sorted(set(COMMAND_LINES)))
def test_a_command_that_it_names_exists(line):
    words = shlex.split(line)
    if words[1] != "-m":
        assert words[1].endswith(".py") and (ROOT / words[1]).is_file()
        return
    module, *rest = words[2:]
    assert importlib.util.find_spec(module), module
    if module == "course_lib":
        assert rest[0] in COMMANDS
        if rest[0] == "test":
            assert set(rest[1:]) <= set(STAGES)


def test_both_commands_of_a_newcomer_are_there():
    assert "python -m course_lib lab\npython -m course_lib test\n" in BLOCKS


def test_conda_users_get_the_name_that_the_environment_has():
    name = re.search(r"(?m)^name: (\S+)", (ROOT / "environment.yml").read_text(encoding="utf-8"))[1]
    assert f"conda env create -f environment.yml\nconda activate {name}\n" in BLOCKS


def test_the_map_is_what_exists_no_row_more_no_row_less():
    assert re.findall(r"\]\((notebooks/\S+\.ipynb)\)", TEXT) == [
        f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ]
    rooms = {path.parent.name for path in (ROOT / "course_lib").glob("*/__init__.py")}
    assert set(re.findall(r"(?m)^\| `course_lib/(\w+)` \|", TEXT)) == rooms


def test_every_variable_that_it_explains_is_read_by_the_library():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "course_lib").rglob("*.py"))
    variables = set(re.findall(r"COURSE_[A-Z]+", TEXT))
    assert {"COURSE_PROGRESS", "COURSE_STRICT", "COURSE_DEVICE"} <= variables
    assert all(f'"{variable}"' in source for variable in variables)


def test_the_library_example_runs_as_it_stands():
    import torch
    from torch.nn import functional as F

    from course_lib.experiments.data import Batches, digits
    from course_lib.experiments.models import mlp

    example = re.search(r"(?ms)^```python\n(.*?)^```", TEXT)[1]
    model = mlp(width=16, depth=1)
    optimizer = torch.optim.AdamW(model.parameters())
    scope = dict(model=model, optimizer=optimizer, loss_fn=F.cross_entropy, batches=Batches(*digits(64), 8))
    exec(example, scope)
    assert scope["meter"].trace.peak_bytes > 0


def test_its_picture_says_in_words_what_it_shows_and_where_it_was_measured():
    alt, file = re.search(r"!\[([^\]]+)\]\(([^)]+)\)", TEXT).groups()
    assert len(alt.split()) > 10
    drawn = (ROOT / file).read_text(encoding="utf-8")
    assert "Measured on CPU" in drawn and "Measured on a CPU" in TEXT
