"""Solved copies hold the reference in every blank, and never replace a learner's notebook."""

import nbformat
import pytest
from engine_toys import remove, toy
from nbformat import v4

from course_lib.exercises import registry, solve, tidy

STUB = '# exercise: 90.1\ndef mean(xs):\n    TODO("add, count, divide")'


@pytest.fixture(autouse=True)
def exercise():
    remove()
    yield registry.register(toy())
    remove()


@pytest.fixture
def notebook(tmp_path):
    """Writes a notebook with these code cells; the ids are a, b, c."""

    def write(*sources):
        cells = [v4.new_code_cell(source, id=id) for id, source in zip("abc", sources)]
        path = tmp_path / "90_toy.ipynb"
        nbformat.write(v4.new_notebook(cells=cells), path)
        return path

    return write


def test_a_solved_copy_keeps_ids_and_first_lines_and_runs(notebook, tmp_path, capsys):
    path = notebook("import torch", STUB, "assert mean(torch.tensor([1.0, 3.0])) == 2")
    before = path.read_bytes()
    assert solve.main(["-o", str(tmp_path / "out"), str(path)]) == 0
    assert path.read_bytes() == before and "1 filled in" in capsys.readouterr().out
    copy = nbformat.read(tmp_path / "out" / path.name, as_version=4)
    assert [cell.id for cell in copy.cells] == ["a", "b", "c"]
    assert copy.cells[1].source.startswith("# exercise: 90.1\ndef mean(xs):\n    total")
    scope = {}
    for cell in copy.cells:
        exec(cell.source, scope)


@pytest.mark.parametrize("source, line", [(None, "answer = 24"), ("8 * 3", "answer = 8 * 3")])
def test_a_value_is_filled_in_as_an_assignment(notebook, tmp_path, source, line):
    remove()
    registry.register(toy(reference=24, checker=lambda value: None, name="answer", source=source))
    path = notebook("# exercise: 90.1\nanswer = ...")
    assert solve.main(["-o", str(tmp_path / "out"), str(path)]) == 0
    copy = nbformat.read(tmp_path / "out" / path.name, as_version=4)
    assert copy.cells[0].source == f"# exercise: 90.1\n{line}"


def test_without_a_folder_it_goes_into_a_temporary_one(notebook, capsys):
    assert solve.main([str(notebook(STUB))]) == 0
    assert "course-solved-" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["", "sub"])
def test_the_notebooks_folder_is_refused(notebook, folder, capsys):
    path = notebook(STUB)
    before = sorted(solve.NOTEBOOKS.glob("**/*")) if solve.NOTEBOOKS.exists() else []
    assert solve.main(["-o", str(solve.NOTEBOOKS / folder), str(path)]) == 1
    assert "name another folder" in capsys.readouterr().err
    assert before == (sorted(solve.NOTEBOOKS.glob("**/*")) if solve.NOTEBOOKS.exists() else [])


def test_a_notebook_is_never_overwritten_by_its_copy(notebook, capsys):
    path = notebook(STUB)
    before = path.read_bytes()
    assert solve.main(["-o", str(path.parent), str(path)]) == 1
    assert "overwrite" in capsys.readouterr().err and path.read_bytes() == before


def test_what_is_wrong_with_a_notebook_is_one_sentence(notebook, tmp_path, capsys):
    path = notebook("# exercise: 90.8\nx = ...")
    assert solve.main(["-o", str(tmp_path / "out"), str(path)]) == 1
    assert "There is no exercise '90.8': did you mean \"90.1\"" in capsys.readouterr().err
    path.write_text("{not a notebook")
    assert solve.main(["-o", str(tmp_path / "out"), str(path)]) == 1
    assert "cannot be read as a notebook" in capsys.readouterr().err
    assert solve.main(["-o", str(tmp_path / "out"), str(tmp_path / "missing.ipynb")]) == 1
    assert "Not solved" in capsys.readouterr().err


def test_a_reference_with_another_name_than_the_stub_is_refused(notebook, tmp_path, capsys):
    remove()
    registry.register(toy(name="average"))
    assert solve.main(["-o", str(tmp_path / "out"), str(notebook(STUB))]) == 1
    assert "must be called `average`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line, id",
    [
        ("# exercise: 02.3", "02.3"),
        ("#exercise:02.3", "02.3"),
        ("# exercise: 02.3 the loop", None),
        ("x = 1  # exercise: 02.3", None),
        ("print('# exercise: 02.3')", None),
    ],
)
def test_only_the_marker_line_makes_a_stub(line, id):
    assert solve.exercise_id(line + "\nx = ...") == id


def test_tidy_takes_away_what_a_run_leaves_behind_and_nothing_else(tmp_path, capsys):
    cell = v4.new_code_cell(
        "x = 1   \n", id="a-cell", execution_count=3, metadata={"tags": ["keep"], "scrolled": True}
    )
    cell.outputs = [v4.new_output("stream", text="hello")]
    words = v4.new_markdown_cell("# Title", id="title")
    widgets = {
        "widgets": {"application/vnd.jupyter.widget-state+json": {}},
        "language_info": {"name": "python"},
    }
    notebook = v4.new_notebook(
        cells=[words, cell], metadata={**widgets, "kernelspec": {"name": "x", "display_name": "x"}}
    )
    path = tmp_path / "a.ipynb"
    nbformat.write(notebook, path)
    assert tidy.main([str(path)]) == 0 and "tidied" in capsys.readouterr().out
    clean = nbformat.read(path, as_version=4)
    assert [cell.id for cell in clean.cells] == ["title", "a-cell"]
    assert clean.cells[1].source == "x = 1" and clean.cells[1].metadata == {"tags": ["keep"]}
    assert clean.cells[1].outputs == [] and clean.cells[1].execution_count is None
    assert list(clean.metadata) == ["kernelspec"] and clean.metadata.kernelspec.name == "python3"
    assert tidy.main([str(path)]) == 0 and capsys.readouterr().out == ""
