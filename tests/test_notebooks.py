"""The notebooks as they are committed: clean, readable, complete, and one stub for each exercise."""

import ast
import builtins
import dis
import inspect
import re
import statistics
import types
from pathlib import Path

import nbformat
import pytest

from course_lib.exercises import registry
from course_lib.exercises.judge import reference_source
from course_lib.exercises.solve import exercise_id, solved
from course_lib.exercises.tidy import KERNEL, tidy

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)

READABLE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4})*.*|[0-9-]+")  # what nbformat and JupyterLab make up
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<file>[^)\s]+)[^)]*\)")
ABSOLUTE = re.compile(r"(?<![\w.:/<])/(home|Users|root|tmp|work|usr|opt|mnt|var|content|data)/|\b[A-Z]:\\")
NETWORK = re.compile(
    r"https?://|urlopen|urlretrieve|\brequests\.|\bwget\b|\bcurl\b|pip install|download=True"
)
ASKS = re.compile(r"(?<![\w.])input\(")


def read(path):
    return nbformat.read(path, as_version=4)


def code(path):
    """The code cells of a notebook."""
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def words(path):
    return [cell for cell in read(path).cells if cell.cell_type == "markdown"]


def lines(cell):
    return [line for line in cell.source.split("\n") if line.strip()]


def tree(source):
    """The syntax tree of a cell, without IPython's own lines."""
    plain = [line if not line.lstrip().startswith(("%", "!")) else "" for line in source.split("\n")]
    return ast.parse("\n".join(plain))


def stubs(path):
    """[(id, cell)] of the cells that a learner fills in."""
    found = [(exercise_id(cell.source), cell) for cell in code(path)]
    return [(id, cell) for id, cell in found if id]


STUBS = [pytest.param(path, id, cell, id=f"{path.stem} {id}") for path in PATHS for id, cell in stubs(path)]


def test_there_are_notebooks():
    assert PATHS, f"no notebooks in {FOLDER}"


def test_their_names_are_numbered_without_a_gap():
    assert [path.name[:3] for path in PATHS] == [f"{number:02d}_" for number in range(len(PATHS))]
    assert all(re.fullmatch(r"\d\d(_[a-z0-9]+)+", path.stem) for path in PATHS)


@each
def test_it_is_a_valid_notebook_of_the_format_that_keeps_ids(path):
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=nbformat.NO_CONVERT)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    nbformat.validate(notebook)


@each
def test_it_is_tidy(path):
    """No outputs, counts, widget state or traces of a front end. Cure: the command in the message."""
    text = path.read_text(encoding="utf-8")
    assert text == tidy(text), "run: python -m course_lib.exercises.tidy notebooks/*.ipynb"
    assert read(path).metadata == {"kernelspec": KERNEL}


@each
def test_cell_ids_are_readable_and_unique(path):
    ids = [cell.id for cell in read(path).cells]
    assert len(set(ids)) == len(ids)
    assert [id for id in ids if not READABLE.fullmatch(id) or RANDOM.fullmatch(id)] == []


@each
def test_its_size_suits_one_sitting(path):
    cells = read(path).cells
    assert (1 if path.name.startswith("00") else 30) <= len(cells) <= 45
    counts = [len(lines(cell)) for cell in code(path)]
    assert statistics.median(counts) <= 10 and max(counts) <= 40 and min(counts) >= 1


@each
def test_pictures_have_alt_text_and_exist(path):
    for cell in words(path):
        assert "attachments" not in cell
        for image in IMAGE.finditer(cell.source):
            assert len(image["alt"].split()) >= 3, f"{cell.id}: say in words what {image['file']} shows"
            assert (path.parent / image["file"]).is_file(), f"{cell.id}: there is no {image['file']}"
        for tag in re.findall(r"<img[^>]*>", cell.source):
            assert re.search(r'alt="[^"]+"', tag), f"{cell.id}: {tag}"


@each
def test_it_runs_anywhere_offline_and_asks_for_nothing(path):
    for cell in read(path).cells:
        assert not ABSOLUTE.search(cell.source), cell.id
        assert cell.cell_type != "code" or not NETWORK.search(cell.source), cell.id
        assert cell.cell_type != "code" or not ASKS.search(cell.source), cell.id


@each
def test_every_code_cell_is_python(path):
    for cell in code(path):
        tree(cell.source)


@each
def test_it_begins_with_a_title_and_ends_with_the_check_out(path):
    cells = read(path).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    last = cells[-3:]
    assert any(cell.id.endswith("check-out") or "check out" in cell.source.lower() for cell in last)
    assert any("status()" in cell.source for cell in last), "the check-out shows the learner's progress"


@each
def test_it_has_one_stub_for_each_of_its_exercises(path):
    ids = [id for id, _ in stubs(path)]
    assert ids == [exercise.id for exercise in registry.all_exercises() if exercise.id[:2] == path.name[:2]]


def test_no_exercise_is_without_a_notebook():
    numbers = {path.name[:2] for path in PATHS}
    assert {exercise.id for exercise in registry.all_exercises() if exercise.id[:2] not in numbers} == set()


@pytest.mark.parametrize("path, id, cell", STUBS)
def test_a_stub_is_blank_and_has_the_name_and_parameters_of_its_exercise(path, id, cell):
    exercise, node = registry.get(id), tree(cell.source).body[-1]
    if not exercise.calls:
        assert isinstance(node, ast.Assign) and node.targets[0].id == exercise.name
        assert isinstance(node.value, ast.Constant) and node.value.value is ...
        return
    assert node.name == exercise.name
    assert 'TODO("' in cell.source
    if isinstance(node, ast.FunctionDef):
        scope = {"TODO": None}
        exec(compile(ast.Module([ast.parse(blank(node)).body[0]], []), id, "exec"), scope)
        assert names(scope[exercise.name]) == names(exercise.reference)


@pytest.mark.parametrize("path, id, cell", STUBS)
def test_a_stub_is_checked_in_a_later_cell(path, id, cell):
    cells = code(path)
    later = cells[[other.id for other in cells].index(cell.id) + 1 :]
    assert any(f'check("{id}", {registry.get(id).name})' in other.source for other in later)


@pytest.mark.parametrize("path, id, cell", STUBS)
def test_a_reference_needs_nothing_that_the_notebook_lacks(path, id, cell):
    exercise = registry.get(id)
    bound = set(dir(builtins)).union(*(bindings(other.source) for other in code(path)))
    assert free(compile(reference_source(exercise), id, "exec")) - bound - {exercise.name} == set()


@each
def test_its_solved_copy_has_no_blank_left(path):
    notebook = read(path)
    assert solved(notebook) == len(stubs(path))
    assert not any('TODO("' in cell.source for cell in notebook.cells if cell.cell_type == "code")


def blank(node):
    """The source of a function with only its parameters: defaults and annotations may need names."""
    node = ast.parse(ast.unparse(node)).body[0]
    node.returns, node.decorator_list, node.body = None, [], [ast.Pass()]
    for argument in node.args.posonlyargs + node.args.args + node.args.kwonlyargs:
        argument.annotation = None
    none = ast.Constant(None)
    node.args.defaults = [none for _ in node.args.defaults]
    node.args.kw_defaults = [value and none for value in node.args.kw_defaults]
    return ast.unparse(ast.fix_missing_locations(node))


def names(function):
    """The names of the parameters, and which have a default."""
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default is one.empty) for one in parameters]


def bindings(source):
    """The names that a cell binds at its top level."""
    found = set()
    for node in tree(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            continue
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in inner.names}
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found.add(inner.id)
    return found


def free(code):
    """The global names that compiled code looks up, in nested functions too."""
    found = {
        step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return found.union(*(free(part) for part in code.co_consts if isinstance(part, types.CodeType)))
