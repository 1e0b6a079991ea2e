"""`python -m course_lib doctor FILE.py:FUNCTION`: examine a training loop that stands in a file."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from course_lib.sandbox.explain import explain
from course_lib.sandbox.faults import Fault

from .examine import examine
from .run import safely


def main(argv) -> int:
    """Returns 0 where nothing was found, 1 where something was, 2 where the loop could not be examined."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib doctor",
        description="Examine a training loop: what did each micro-batch count, and what is wrong?",
        epilog="The function is train(model, optimizer, loss_fn, batches, accumulation_steps), or one without parameters: "
        "then it is watched with whatever model and data it makes itself.",
    )
    parser.add_argument("loop", nargs="?", metavar="FILE.py:FUNCTION")
    parser.add_argument("-k", "--accumulation-steps", type=int, default=None, metavar="K")
    parser.add_argument("--sizes", help="rows of each micro-batch, such as 4,4,4,1 (default: equal, with a short tail)")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--reports", action="store_true", help="examine the loops of all known public reports, and count")
    options = parser.parse_args(argv)
    if options.reports:
        return reports()
    if not options.loop or ":" not in options.loop:
        parser.error("say which loop: FILE.py:FUNCTION")
    try:
        loop = load(*options.loop.rsplit(":", 1), options.time_limit)
        sizes = [int(part) for part in options.sizes.split(",")] if options.sizes else None
        report = examine(loop, options.accumulation_steps, sizes=sizes, time_limit=options.time_limit)
    except (Fault, ValueError, TypeError) as error:
        print(getattr(error, "message", error), file=sys.stderr)
        return 2
    print(report.to_json() if options.json else report)
    return 0 if report.ok else 1


def load(file: str, function: str, time_limit: float):
    """The function of this name in a file. Raises Fault with one sentence where there is none."""
    path = Path(file)
    if not path.is_file():
        raise Fault("no such file", f"There is no file {file}.")

    def work(clean_up):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise Fault("no such file", f"{file} is no Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.resolve().parent))  # its own imports, as `python FILE.py` finds them
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise Fault("raised", f"{file} cannot be read: line {error.lineno}: {error.msg}.") from None
        except Exception as error:
            raise explain(error, None, file, ((), {})) from None
        finally:
            sys.path.pop(0)
        return module

    module, fault, _ = safely(work, lambda: None, time_limit)
    if fault is not None:
        raise fault
    found = getattr(module, function, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == path.stem]
        raise Fault("no such function", f"{file} has no function {function}; it has: {', '.join(names) or 'none'}.")
    return found


def reports() -> int:
    """Examine every case and print report -> diagnosis -> right?, with the totals. Returns 1 if one is wrong."""
    from .cases import cases, judge

    start, rows, slowest = time.perf_counter(), [], 0.0
    print(f"{'case':<30} {'diagnosis given':<58} {'seconds':>7}  right?")
    for case in cases():
        report, wrong = judge(case)
        seconds = report.seconds if report is not None else 0.0
        slowest = max(slowest, seconds) if case.ranks == 1 else slowest
        given = ", ".join(report.names) if report is not None else "-"
        print(f"{case.id:<30.30} {given or '(silent)':<58.58} {seconds:7.2f}  {'yes' if wrong is None else 'NO: ' + wrong}")
        rows.append((case, report, wrong))
    silent = [(case, report) for case, report, _ in rows if not case.names]
    alarms = sum(1 for _, report in silent if report is not None and report.names)
    right = sum(1 for *_, wrong in rows if wrong is None)
    print(f"\n{right} of {len(rows)} right; right loops: {len(silent)}, false alarms on them: {alarms}")
    print(f"slowest examination in one process: {slowest:.2f} s; all together: {time.perf_counter() - start:.1f} s")
    return 0 if right == len(rows) else 1
