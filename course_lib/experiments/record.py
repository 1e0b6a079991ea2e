"""Measure, on the device at hand, everything that the course's static figures are drawn from.

    python -m course_lib record [FOLDER]

writes `<name>_<kind of device>.json` files, by default into `figures/data`. Every file carries the device,
the version of torch, the date and the commit. `python -m course_lib figures` draws from these files alone.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from course_lib.experiments.cutting import alive_recording
from course_lib.experiments.data import Batches, digits
from course_lib.experiments.models import mlp
from course_lib.experiments.split import FEATURES, split_gradients
from course_lib.experiments.steps import measured_step
from course_lib.measure import Meter, describe, device
from course_lib.memory.accumulate import accumulate

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "figures" / "data"
STEPS = {
    "memory_timeline": {"model": "MLP", "optimizer": "Adam", "batch": 128, "width": 256, "depth": 4},
    "gpt_step": {"model": "GPT", "optimizer": "Adam", "batch": 16, "width": 128, "depth": 3},
}


def origin() -> dict:
    """Where and when a recording was made: device, kind, torch, date (UTC), commit ("+": changed files)."""
    card = describe()
    name = "CPU" if card.kind == "cpu" else card.name  # a CPU's bytes are the same on every machine
    return {
        "device": name,
        "kind": card.kind,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+" if _git("status", "--porcelain", "course_lib") else ""),
    }


def _git(*words: str) -> str:
    try:
        run = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
        return run.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "" if words[0] == "status" else "unknown"


def step_recording(settings: dict) -> dict:
    """The first and the second training step of a model: {"settings", "trace", "before"}."""
    first, second = ({**settings, "step": number} for number in (1, 2))
    return {
        "settings": second,
        "trace": json.loads(measured_step(second).to_json()),
        "before": json.loads(measured_step(first).to_json()),
    }


def memory_against_k(samples: int = 1536, splits=(1, 2, 4, 8, 16)) -> dict:
    """Peak bytes by category of one update over the same samples in K micro-batches, for each K."""
    on, rows = device(), []
    inputs, targets = digits(samples)
    inputs, targets = inputs.to(on), targets.to(on)
    for k in splits:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = mlp(width=256, depth=4).to(on)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = Batches(inputs, targets, -(-samples // k))
        with Meter(model, optimizer) as meter:
            accumulate(model, optimizer, torch.nn.functional.cross_entropy, batches, k)
        trace = meter.trace
        rows.append({"k": k, "peak_bytes": trace.peak_bytes, "by_category": trace.peak_by_category})
    return {"samples": samples, "model": "MLP, width 256, depth 4", "source": trace.source, "rows": rows}


def stack_recording(k: int = 4) -> dict:
    """The gradient stack: k micro-gradients of equal and of unequal batches, and the whole batch's."""
    cases = {}
    for name, unequal in (("equal", False), ("unequal", True)):
        micro, sizes, big = split_gradients(k, unequal)
        cases[name] = {"micro": micro, "sizes": sizes, "big": big}
    return {"features": FEATURES, **cases}


def main(argv: list[str]) -> int:
    """Record everything into a folder (default figures/data); prints each file with its seconds."""
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        print("usage: python -m course_lib record [FOLDER]", file=sys.stderr)
        return 2
    folder = Path(argv[0]) if argv else DATA
    folder.mkdir(parents=True, exist_ok=True)
    where = origin()
    jobs = {name: lambda settings=settings: step_recording(settings) for name, settings in STEPS.items()}
    jobs |= {"memory_against_k": memory_against_k, "gradient_stack": stack_recording, "who_is_alive": alive_recording}
    for name, job in jobs.items():
        started = time.perf_counter()
        text = json.dumps({"origin": where, **job()}, separators=(",", ":"))
        path = folder / f"{name}_{where['kind']}.json"
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path}  {time.perf_counter() - started:.1f} s, {len(text) / 1024:.0f} KiB")
    return 0
