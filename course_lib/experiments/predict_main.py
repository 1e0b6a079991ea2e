"""`python -m course_lib predict ...`: what a training step would need, without running it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

from course_lib.measure import CATEGORIES, PHASES, PredictError, mib, predict
from course_lib.measure.rules import CUBLAS_WORKSPACE_BYTES

from .named import NAMES, OPTIMIZERS, named

CARDS_GIB = (8, 16, 24, 40, 80, 141)

CURES = {
    "parameters": "shard them (ZeRO-3, FSDP), or train fewer of them (adapters)",
    "gradients": "shard them (ZeRO-2), or keep them in 16 bits",
    "optimizer state": "shard or offload it (ZeRO-1, ZeRO-Offload), or use an optimizer with a smaller state",
    "activations": "checkpoint blocks (--checkpoint per-block), or a smaller --batch with --accumulate",
    "recomputed": "smaller checkpointed regions, or a smaller --batch with --accumulate",
    "temporary": "a smaller --batch with --accumulate; with foreach optimizers, a fused one",
    "inputs": "a smaller --batch with --accumulate",
    "buffers": "buffers are part of the model: choose a smaller one",
}


def main(argv=None) -> int:
    """Print the table. Returns 0; 1 when the step cannot be predicted; 2 when the arguments are not understood."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib predict",
        description="Predict the memory of a training step, without running it. WHAT is a named model "
        f"({', '.join(NAMES)}) or FILE.py:FUNCTION, a function without arguments that trains a step, or that returns "
        "(model, optimizer, run).",
    )
    parser.add_argument("what", metavar="WHAT")
    parser.add_argument("--batch", type=int, default=8, help="samples of one micro-batch (8)")
    parser.add_argument("--length", type=int, help="tokens of a sample (the model's own)")
    parser.add_argument("--optimizer", default="adamw", help=f"{', '.join(OPTIMIZERS)} (adamw)")
    parser.add_argument("--precision", default="fp32", help="fp32, or bf16 for autocast (fp32)")
    parser.add_argument("--checkpoint", default="none", help="none or per-block (none)")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of one update (1)")
    parser.add_argument("--target", default="cuda", help="cuda for the rules of a CUDA device, or cpu (cuda)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args(argv)
    start = time.process_time()
    try:
        step = _step(options)
        trace = predict(step, target=options.target)
    except PredictError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (ValueError, TypeError, OSError, ImportError, SyntaxError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    seconds = time.process_time() - start
    if options.json:
        print(json.dumps(summary(trace)))
    else:
        print(table(trace, options, seconds))
    return 0


def _step(options):
    if ":" not in options.what and not options.what.endswith(".py"):
        return named(
            options.what,
            batch=options.batch,
            length=options.length,
            optimizer=options.optimizer,
            precision=options.precision,
            checkpoint=options.checkpoint,
            accumulation_steps=options.accumulate,
        )
    path, _, name = options.what.rpartition(":")
    if not path or not name:
        raise ValueError(f"Say which function of {options.what}: FILE.py:FUNCTION.")
    if not Path(path).is_file():
        raise ValueError(f"There is no file {path}.")
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{path} has no function {name!r}.")
    return getattr(module, name)


def summary(trace) -> dict:
    """The numbers of the table, in bytes."""
    return {
        "target": trace.device,
        "peak_bytes": trace.peak_bytes,
        "peak_phase": trace.peak_record.phase,
        "peak_op": trace.peak_record.op,
        "peak_by_phase": trace.peak_by_phase,
        "peak_by_category": {name: n for name, n in trace.peak_by_category.items() if n},
        "fits": {f"{gib} GiB": trace.peak_bytes <= gib * 2**30 for gib in CARDS_GIB},
    }


def table(trace, options, seconds: float) -> str:
    """The table as text."""
    phases, parts = trace.peak_by_phase, {c: n for c in CATEGORIES if (n := trace.peak_by_category.get(c, 0))}
    lines = [
        f"{options.what}: predicted for {trace.device}, nothing was allocated ({seconds:.1f} CPU seconds)",
        "",
        f"peak {mib(trace.peak_bytes)}, in {trace.peak_record.phase}, at {trace.peak_record.op}",
        "",
        f"{'phase':<18} {'highest':>12}",
        *(f"{phase:<18} {mib(phases[phase]):>12}" for phase in PHASES if phase in phases),
        "",
        f"{'at the peak':<18} {'':>12}",
        *(f"{name:<18} {mib(n):>12} {n / trace.peak_bytes:>6.1%}" for name, n in parts.items()),
        "",
        f"{'memory':<18} {'fits':>12}",
    ]
    for gib in CARDS_GIB:
        room = gib * 2**30 - trace.peak_bytes
        lines.append(f"{gib:>4} GiB {'':<9} {'yes' if room >= 0 else 'no':>12}   {mib(abs(room))} {'left' if room >= 0 else 'short'}")
    largest = max(parts, key=parts.get)
    if trace.peak_bytes > CARDS_GIB[0] * 2**30:
        lines += ["", f"Largest part: {largest}. What makes it smaller: {CURES[largest]}."]
    if options.target == "cuda":
        workspace = ", ".join(f"{mib(n)} {when}" for when, n in CUBLAS_WORKSPACE_BYTES.items())
        lines += [
            "",
            f"Not counted: the CUDA context (some hundred MiB), the workspace of cuBLAS ({workspace}), scratch inside kernels, and",
            "what the allocator reserves beyond what it has given out. Leave a tenth of the card for them.",
        ]
    return "\n".join(lines)
