"""The course as a learner meets it: the real JupyterLab in a real browser."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from lab import DARK, LIGHT, ROOT, Notebook, Server, browser, chromium

pytestmark = [pytest.mark.slow, pytest.mark.browser]

# A notebook as small as it can be, with everything that the harness must see.
TINY = {
    "panel": """import ipywidgets as w
from IPython.display import display
slider, picture = w.IntSlider(1, 0, 9, description="radius"), w.HTML()
def draw(_=None):
    picture.value = f'<svg width="40" height="40"><circle cx="20" cy="20" r="{slider.value}"/></svg>'
slider.observe(draw, "value")
draw()
display(w.VBox([slider, picture]))""",
    "stub": "answer = ...",
    "check": "from IPython.display import HTML\n"
    "HTML(f\"<div role='status'>{'passed' if answer == 42 else 'not yet'}</div>\")",
    "breaks": "raise ValueError('this one is meant to be seen')",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder like the one that `python -m course_lib lab` opens: work/ with copies, figures/ beside it."""
    if not chromium():
        reason = "no Chromium is installed (on Debian and Ubuntu: apt install chromium)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("lab")
    (folder / "work").mkdir()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, folder / "work")
    if (ROOT / "figures").is_dir():
        shutil.copytree(ROOT / "figures", folder / "figures")
    cells = [
        {
            "id": name,
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for name, source in TINY.items()
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": cells}
    (folder / "work" / "tiny.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(place):
    with Server(place) as running:
        yield running


@pytest.fixture(scope="module")
def context(place, server):
    with browser(place / "profile") as running:
        yield running


@pytest.fixture
def open_notebook(context, server, place):
    """Opens notebooks of work/ and closes them at the end, with a picture of each as it was left."""
    opened = []

    def opener(name):
        assert (place / "work" / name).exists()
        opened.append(Notebook(context, server, f"work/{name}"))
        return opened[-1]

    yield opener
    for notebook in opened:
        notebook.shoot("end")
        notebook.close()


def test_the_server_lets_nobody_in_without_the_token(server):
    assert server.answers("api/contents") == 403
    assert server.answers(f"api/contents?token={server.token}") == 200


def test_what_these_tests_rest_on_is_seen(open_notebook):
    notebook = open_notebook("tiny.ipynb")
    assert notebook.run_all() is False
    assert "this one is meant to be seen" in notebook.errors()[0] and len(notebook.errors()) == 1
    before = notebook.pictures("panel")
    assert notebook.move_slider("panel") != before and 'r="2"' in notebook.pictures("panel")
    assert notebook.status("check") == "not yet"
    notebook.write("stub", "answer = 42")
    assert notebook.run("stub") and notebook.run("check")
    assert notebook.status("check") == "passed"
    notebook.theme(DARK)
    notebook.theme(LIGHT)


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The sources of the solved notebook 00, by cell id."""
    folder = tmp_path_factory.mktemp("solved")
    command = [
        sys.executable,
        "-m",
        "course_lib",
        "solve",
        "-o",
        str(folder),
        "notebooks/00_start_here.ipynb",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    cells = json.loads((folder / "00_start_here.ipynb").read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells}


def wrong(stub):
    """A wrong answer to any exercise: a function that returns a sentence, or that sentence as the value."""
    head = re.search(r"^def .*?:\s*$", stub, re.MULTILINE | re.DOTALL)
    if head:
        return f"{head.group().rstrip()}\n    return 'a wrong answer'"
    return re.sub(r"^(\w+) = \.\.\.", r"\1 = 'a wrong answer'", stub, flags=re.MULTILINE)


def test_start_here_runs_and_an_exercise_goes_from_not_started_to_wrong_to_right(open_notebook, solved):
    notebook = open_notebook("00_start_here.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    assert "not started" in notebook.status("check-warm-up").lower()
    stub = notebook.source("try-warm-up")
    said = []
    for answer in (wrong(stub), solved["try-warm-up"]):
        assert answer != stub
        notebook.write("try-warm-up", answer)
        assert notebook.run("try-warm-up") and notebook.run("check-warm-up")
        said.append(notebook.status("check-warm-up").lower())
    assert "passed" not in said[0] and "not started" not in said[0] and "passed" in said[1]
    assert notebook.errors() == []
    notebook.shoot("check", "check-warm-up")
    notebook.theme(DARK)
    notebook.shoot("check-dark", "check-warm-up")
    notebook.theme(LIGHT)


def test_where_memory_goes_runs_and_its_picture_follows_the_slider(open_notebook):
    notebook = open_notebook("01_where_memory_goes.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    assert notebook.pictures("memory-panel")
    notebook.shoot("panel", "memory-panel")
    notebook.move_slider("memory-panel")
    notebook.shoot("panel-moved", "memory-panel")
    notebook.theme(DARK)
    notebook.shoot("panel-dark", "memory-panel")
    notebook.theme(LIGHT)
    assert notebook.errors() == []


LOOP = """# exercise: 02.3
def accumulate(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        {clear}(loss_fn(model(inputs), targets){divide}).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            {end}"""
LOOPS = {  # what the learner writes: what the page must say
    "clears inside the window": dict(clear="optimizer.zero_grad(); ", divide=" / accumulation_steps", end="pass"),
    "4 times too long": dict(clear="", divide="", end="optimizer.zero_grad()"),
    "of earlier updates": dict(clear="", divide=" / accumulation_steps", end="pass"),
    "passed": dict(clear="", divide=" / accumulation_steps", end="optimizer.zero_grad()"),
}


def test_accumulate_names_three_wrong_loops_and_passes_the_right_one(open_notebook):
    notebook = open_notebook("02_accumulate_from_scratch.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    notebook.shoot("stack", "stack-panel")
    notebook.move_slider("stack-panel")
    notebook.shoot("stack-moved", "stack-panel")
    for words, parts in LOOPS.items():
        notebook.write("stub-loop", LOOP.format(**parts))
        assert notebook.run("stub-loop") and notebook.run("check-loop")
        said = notebook.status("check-loop").lower()
        assert words in said, said
        notebook.shoot(f"loop-{words.replace(' ', '-')}", "check-loop")
    notebook.theme(DARK)
    notebook.shoot("stack-dark", "stack-panel")
    notebook.theme(LIGHT)
    assert notebook.errors() == []


GATED = """# exercise: 03.7
@diagnosis(fault={fault!r}, proof={proof})
def inside_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        full = i % accumulation_steps == 0
        if full and {early}:
            optimizer.zero_grad()
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if full:
            optimizer.step()
            if not {early}:
                optimizer.zero_grad()"""
RIGHT = dict(fault="cleared on the wrong side", proof="[0, 0, 0, 1 / 4]")


def test_fix_the_loop_grades_the_name_then_the_proof_then_the_loop_and_draws_it(open_notebook):
    notebook = open_notebook("03_fix_the_loop.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    assert notebook.pictures("see")
    said = []
    for answer in (
        dict(RIGHT, fault="not divided", early=True),
        dict(RIGHT, proof="[1 / 4] * 4", early=True),
        dict(RIGHT, early=True),
        dict(RIGHT, early=False),
    ):
        notebook.write("stub-inside-wrapper", GATED.format(**answer))
        assert notebook.run("stub-inside-wrapper") and notebook.run("check-windows")
        said.append(notebook.status("check-windows").lower())
        notebook.shoot(f"gated-{len(said)}", "check-windows")
    first = [text.split("03.8")[0] for text in said]
    assert len(set(first)) == 4 and "passed" in first[3] and not any("passed" in text for text in first[:3]), first
    assert notebook.pictures("check-windows")
    notebook.theme(DARK)
    notebook.shoot("gated-dark", "check-windows")
    notebook.shoot("see-dark", "see")
    notebook.theme(LIGHT)
    assert notebook.errors() == []


def test_when_the_average_lies_runs_and_draws_its_pictures(open_notebook):
    notebook = open_notebook("04_when_the_average_lies.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    for cell in ("clipping-picture", "check-noise", "rates-measure"):
        assert notebook.pictures(cell), cell
        notebook.shoot(cell, cell)
    assert "not started" in notebook.status("check-tokens").lower()
    notebook.theme(DARK)
    notebook.shoot("rates-dark", "rates-measure")
    notebook.theme(LIGHT)
    assert notebook.errors() == []


RECOMPUTE = """# exercise: 05.2
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.segment = segment
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return segment(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x{detach} for x in ctx.saved_tensors]
        with torch.{mode}():
            output = ctx.segment(*inputs)
        {go}
        return None, *(x.grad for x in inputs)"""
OWN = ".detach().requires_grad_(x.requires_grad)"
RECOMPUTES = (  # what the learner writes, and whether it is right
    (dict(detach=OWN, mode="no_grad", go="torch.autograd.backward(output, gradient)"), False),
    (dict(detach=OWN, mode="enable_grad", go="inputs[0].grad = torch.autograd.grad(output, inputs[0], gradient)[0]"), False),
    (dict(detach=OWN, mode="enable_grad", go="torch.autograd.backward(output, 2 * gradient)"), False),
    (dict(detach=OWN, mode="enable_grad", go="torch.autograd.backward(output, gradient)"), True),
)


def test_checkpoint_from_scratch_tells_three_wrong_recomputes_apart_and_passes_the_right_one(open_notebook):
    notebook = open_notebook("05_checkpoint_from_scratch.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    assert notebook.pictures("idea-order") and notebook.pictures("check-v1")
    said = []
    for parts, right in RECOMPUTES:
        notebook.write("stub-v1", RECOMPUTE.format(**parts))
        assert notebook.run("stub-v1") and notebook.run("check-v1")
        said.append(notebook.status("check-v1").lower())
        assert ("passed" in said[-1]) == right, said[-1]
        notebook.shoot(f"recompute-{len(said)}", "check-v1")
    assert len(set(said)) == len(RECOMPUTES)
    notebook.theme(DARK)
    notebook.shoot("recompute-dark", "check-v1")
    notebook.theme(LIGHT)
    assert notebook.errors() == []


def test_where_to_cut_runs_and_its_panel_walks_through_the_ticks(open_notebook):
    notebook = open_notebook("06_where_to_cut.ipynb")
    assert notebook.run_all() and notebook.errors() == []
    for cell in ("measure-segments", "alive-panel", "alive-strip", "alive-maps", "frontier"):
        assert notebook.pictures(cell), cell
        notebook.shoot(cell, cell)
    notebook.move_slider("alive-panel", number=2)  # slots, budget, then the tick
    notebook.shoot("alive-moved", "alive-panel")
    assert "not started" in notebook.status("check-least").lower()
    notebook.theme(DARK)
    notebook.shoot("alive-dark", "alive-panel")
    notebook.theme(LIGHT)
    assert notebook.errors() == []
