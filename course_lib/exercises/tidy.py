"""`python -m course_lib.exercises.tidy FILE...`: notebooks without outputs, counts and widget state, for git.

Cell ids stay as they are: they are readable, and JupyterLab keeps them. A test holds notebooks to this form.
"""

import sys
from pathlib import Path

import nbformat

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def tidy(text):
    """The text of a notebook in the form in which it is committed."""
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for cell in notebook.cells:
        # tags mean something (raises-exception), the rest is what a front end left behind
        cell.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in ("tags",) if cell.metadata.get(key)}
        )
        cell.source = "\n".join(line.rstrip() for line in cell.source.split("\n")).strip("\n")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nbformat.writes(notebook) + "\n"


def main(argv):
    """Tidy the named files in place; say which changed. Returns 0."""
    for name in argv:
        path = Path(name)
        text = path.read_text(encoding="utf-8")
        clean = tidy(text)
        if clean != text:
            path.write_text(clean, encoding="utf-8", newline="\n")
            print(f"tidied {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
