"""`python -m course_lib solve`: copies of the notebooks in which every blank holds an answer."""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import nbformat

from . import registry
from .judge import reference_source

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
_STUB = re.compile(r"\s*#\s*exercise:\s*(\S+)\s*")


class SolveError(Exception):
    """A notebook cannot be solved; the message says why and where."""


def exercise_id(source):
    """The id in the first line of a stub cell, "# exercise: 02.3", or None for any other cell."""
    match = _STUB.fullmatch(source.split("\n", 1)[0])
    return match.group(1) if match else None


def solved(notebook):
    """Fill in the answers of a notebook (nbformat's NotebookNode), in place. Returns how many.

    The first line of a stub cell stays: the copy, too, says which exercise it is.
    Raises SolveError for an id that is not registered.
    """
    count = 0
    for cell in notebook.cells:
        id = exercise_id(cell.source) if cell.cell_type == "code" else None
        if id is None:
            continue
        try:
            answer = reference_source(registry.get(id))
        except (registry.UnknownExercise, ValueError) as error:
            raise SolveError(f"cell {cell.get('id')}: {error}") from None
        cell.source = cell.source.split("\n", 1)[0] + "\n" + answer
        count += 1
    return count


def main(argv):
    """Write solved copies, never over the learner's notebooks. Returns 0, or 1 after a sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib solve",
        description="Write copies of the notebooks with all answers filled in.",
    )
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to (a new temporary folder unless given)"
    )
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="all unless given")
    options = parser.parse_args(argv)
    paths = options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb"))
    try:
        if not paths:
            raise SolveError(f"there are no notebooks in {NOTEBOOKS}")
        folder = _folder(options.output, paths)
        for path in paths:
            print(f"{folder / path.name}: {_copy(path, folder)} filled in")
    except (SolveError, OSError) as error:
        sys.stderr.write(f"Not solved: {error}\n")
        return 1
    return 0


def _folder(chosen, paths):
    """The folder to write into; refuses those in which notebooks would be overwritten."""
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="course-solved-"))
    folder = Path(chosen).resolve()
    if folder == NOTEBOOKS or NOTEBOOKS in folder.parents:
        raise SolveError("the notebooks folder is for blanks only; name another folder after -o")
    if any(path.resolve().parent == folder for path in paths):
        raise SolveError(f"that would overwrite the notebooks in {folder}; name another folder after -o")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _copy(path, folder):
    """Write the solved copy of one notebook. Returns how many answers are in it."""
    try:
        notebook = nbformat.read(path, as_version=4)
        count = solved(notebook)
    except SolveError as error:
        raise SolveError(f"{path.name}, {error}") from None
    except Exception as error:  # nbformat has many ways to say that a file is no notebook
        raise SolveError(f"{path} cannot be read as a notebook ({type(error).__name__})") from None
    nbformat.write(notebook, folder / path.name)
    return count
