"""Draw figures/*.svg again from figures/data/*.json, and from nothing else.

    python -m course_lib figures

The data of a CPU draw `<name>.svg`; the data of any other device draw `<name>_<kind>.svg` beside it. The same
data give the same bytes (with the same matplotlib).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from course_lib.experiments.record import DATA
from course_lib.experiments.steps import step_title
from course_lib.measure.trace import ALLOCATOR, Trace, mib
from course_lib.memory.schedule import Tick
from course_lib.show.alive_map import alive_map
from course_lib.show.plots import memory_timeline, stacked_bars
from course_lib.show.stack import GradientState, gradient_stack
from course_lib.show.style import Picture, picture


def counted(source: str, origin: dict) -> str:
    """What was counted and where: "live tensor bytes, CPU". Only an accelerator's allocator counts VRAM."""
    return f"{'VRAM by the allocator' if source == ALLOCATOR else source}, {origin['device']}"


def draw_step(data: dict):
    """The second step of a model over its first."""
    trace, before = (Trace.from_json(json.dumps(data[name])) for name in ("trace", "before"))
    note = counted(trace.source, data["origin"])
    return memory_timeline(trace, before, step_title(data["settings"]), note=note)


def draw_against_k(data: dict):
    """Peak memory against the number of micro-batches, by category."""
    rows = [(f"K = {row['k']}", row["by_category"]) for row in data["rows"]]
    title = f"Peak of one update over {data['samples']} samples in K micro-batches"
    return stacked_bars(rows, title, note=counted(data["source"], data["origin"]))


def draw_stack(data: dict):
    """Equal micro-batches, all added: the sum meets the big-batch gradient."""
    case = data["equal"]
    names = tuple(f"the weight of {name}" for name in data["features"])
    micro = tuple(map(tuple, case["micro"]))
    return gradient_stack(
        GradientState(micro, tuple(case["sizes"]), tuple(case["big"]), len(micro), "by K", names)
    )


def draw_alive(data: dict):
    """Whole steps of several schedules of one chain; the title says whether the meter agreed."""
    steps = [
        SimpleNamespace(
            name=row["name"],
            chain=range(data["blocks"]),
            ticks=[Tick(*tick) for tick in row["ticks"]],
            recomputations=row["again"],
        )
        for row in data["rows"]
    ]
    agreed = all(row["predicted_bytes"] == row["measured_bytes"] for row in data["rows"])
    note = "measured peaks equal the predicted ones, " if agreed else "predicted, "
    return alive_map(steps, f"Five schedules of {data['blocks']} blocks", note=note + data["origin"]["device"])


DRAW = {
    "memory_timeline": draw_step,
    "gpt_step": draw_step,
    "memory_against_k": draw_against_k,
    "gradient_stack": draw_stack,
    "who_is_alive": draw_alive,
}


def load(path: Path) -> dict:
    """One recording. Raises ValueError, with the cure, for a file that is no recording."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        missing = {"device", "kind", "torch", "date", "commit"} - set(data["origin"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.name} is no recording ({error}); `python -m course_lib record` makes it."
        ) from None
    if missing:
        raise ValueError(f"{path.name} does not say its {', '.join(sorted(missing))}; record it again.")
    return data


def draw(path: Path) -> tuple[str, Picture]:
    """(file name, picture) for one recording. The picture's sentence says where and when it was measured."""
    data = load(path)
    origin = data["origin"]
    name = path.stem.removesuffix(f"_{origin['kind']}")
    if name not in DRAW:
        raise ValueError(
            f"{path.name}: there is no drawing called {name!r}; there are {', '.join(DRAW)}."
        )
    figure = DRAW[name](data)
    made = f" Measured on {origin['device']} with torch {origin['torch']}, {origin['date']}."
    suffix = "" if origin["kind"] == "cpu" else f"_{origin['kind']}"
    return f"{name}{suffix}.svg", picture(figure, figure.alt + made)


def main(argv: list[str], data: Path = DATA) -> int:
    """Draw every recording into the folder above the data. Returns 0, or 1 if something is missing."""
    if argv:
        print("usage: python -m course_lib figures", file=sys.stderr)
        return 2
    recordings = sorted(data.glob("*.json"))
    if not recordings:
        print(
            f"There is no recording in {data}. `python -m course_lib record` makes them.",
            file=sys.stderr,
        )
        return 1
    failed = 0
    for path in recordings:
        try:
            name, drawing = draw(path)
        except ValueError as error:
            failed = 1
            print(error, file=sys.stderr)
            continue
        target = data.parent / name
        drawing.save(target)
        print(f"{target}  ({mib(target.stat().st_size)}): {drawing.alt}")
    return failed
