"""Examine a loop under data parallelism: real processes, real collectives (gloo), one model wrapped in DDP on each.

Each rank has its own micro-batches. At every step the gradient on each rank is solved for the weights of the
micro-batches of *all* ranks, and the all-reduces of the window are counted.
"""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from .known import relative
from .names import ORDER, cure_of, kind_of
from .observe import Watch
from .problems import regression
from .report import Diagnosis, Report, Window
from .rows import Rows
from .run import Parts, call

NEAR = 1e-6


def examine_ranks(loop, sizes, accumulation_steps: int, time_limit: float = 60.0) -> Report:
    """Run `loop` on len(sizes) ranks; sizes[r]: the rows of each micro-batch of rank r. One epoch.

    loop: a function in a file (each process imports it), called with a DistributedDataParallel model. Raises ValueError
    where the ranks cannot be started at all; what the loop itself does ends up in the report.
    """
    world, start = len(sizes), time.perf_counter()
    if world < 2:
        raise ValueError("sizes needs one list of micro-batch sizes for each of at least two ranks.")
    with tempfile.TemporaryDirectory() as folder:
        context = _context()
        arguments = (world, folder, loop, [list(rows) for rows in sizes], accumulation_steps, time_limit)
        try:
            ranks = [context.Process(target=_rank, args=(r, *arguments), daemon=True) for r in range(world)]
            for rank in ranks:
                rank.start()
        except Exception as error:
            raise ValueError(f"This loop cannot be sent to other processes: put it into a file. ({error})") from None
        end = time.monotonic() + time_limit
        for rank in ranks:
            rank.join(max(0.1, end - time.monotonic()))
        late = [rank for rank in ranks if rank.is_alive()]
        for rank in late:
            rank.kill()
            rank.join()
        results = [_load(folder, r) for r in range(world)]
    return _report(results, sizes, accumulation_steps, bool(late), time.perf_counter() - start)


def _context():
    """How processes are started. Where it exists, a server that has imported torch once forks them in milliseconds."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", __name__])
    return context


def _load(folder, rank):
    path = os.path.join(folder, f"rank{rank}.pt")
    return torch.load(path, weights_only=False) if os.path.exists(path) else {"error": "the process ended early"}


def _rank(rank, world, folder, loop, sizes, accumulation_steps, time_limit):
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=time_limit))
    result: dict = {}
    try:
        result = _watched(rank, loop, sizes, accumulation_steps)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    torch.save(result, os.path.join(folder, f"rank{rank}.tmp"))
    os.replace(os.path.join(folder, f"rank{rank}.tmp"), os.path.join(folder, f"rank{rank}.pt"))
    if dist.is_initialized():
        dist.destroy_process_group()


def _watched(rank, loop, sizes, accumulation_steps) -> dict:
    total = sum(len(rows) for rows in sizes)
    problem = regression([n for rows in sizes for n in rows], accumulation_steps)
    before = sum(len(rows) for rows in sizes[:rank])
    batches = problem.batches(0)[before : before + len(sizes[rank])]
    model = problem.model()
    wrapped = DistributedDataParallel(model)
    marks: list = []  # ("reduce" | "forward" | "no_sync", ...) in order

    def counted(state, bucket):
        if bucket.is_last():
            marks.append(("reduce",))
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    wrapped.register_comm_hook(None, counted)
    wrapped.register_forward_pre_hook(lambda *_: marks.append(("forward", wrapped.require_backward_grad_sync)))
    no_sync = wrapped.no_sync
    wrapped.no_sync = lambda: (marks.append(("no_sync",)), no_sync())[1]
    optimizer = problem.optimizer(model.parameters())
    rows = Rows()
    rows.add(0, batches)
    watch = Watch(model, optimizer, rows)
    note_step = watch._note_step

    def mark_step(stepping):
        note_step(stepping)
        marks.append(("step",))

    watch._note_step = mark_step
    marks_of = {"clip": "clip", "backward": "backward"}
    note = watch.note

    def mark(kind, *args, **more):
        if kind in marks_of:
            marks.append((marks_of[kind],))
        return note(kind, *args, **more)

    watch.note = mark
    parts = Parts(wrapped, optimizer, problem.loss_fn, list(batches), accumulation_steps, watch, 1)
    with watch.on():
        call(loop, parts)
    fresh = problem.model()
    gradients = []
    for x, y in problem.batches(0):
        taken = torch.autograd.grad(problem.loss_fn(fresh(x), y), list(fresh.parameters()))
        gradients.append(torch.cat([g.flatten() for g in taken]))
    assert len(gradients) == total
    return {
        "steps": [event.before for event in watch.log.of("step")],
        "marks": marks,
        "gradients": torch.stack(gradients, dim=1),
        "backwards": len(watch.log.of("backward")),
    }


# -- judging -------------------------------------------------------------------------------------------------------


def _report(results, sizes, k, late, seconds) -> Report:
    world, found = len(sizes), {}
    where = f"{world} processes (gloo), a small tanh network in float64"
    errors = [f"rank {r}: {result['error']}" for r, result in enumerate(results) if "error" in result]
    if late:
        found["time limit"] = "The ranks wait for each other: one of them calls a collective that another does not."
    elif errors:
        found["raised"] = "; ".join(errors)[:600]
    if found:
        return Report(_diagnoses(found), accumulation_steps=k, on=where, seconds=seconds)
    steps = [len(result["steps"]) for result in results]
    windows = []
    if len(set(steps)) > 1:
        found["ranks differ"] = f"The ranks make different numbers of updates: {steps}."
    else:
        for number in range(steps[0]):
            windows.append(_window(number, results, sizes, k, found))
    if not steps[0] and not found:
        found["no update"] = "optimizer.step() never ran."
    _windows(results[0], sizes[0], k, found)
    _collectives(results[0]["marks"], k, found)
    counts = {
        "step": steps[0],
        "backward": results[0]["backwards"],
        "collectives": sum(1 for mark in results[0]["marks"] if mark[0] == "reduce"),
    }
    return Report(_diagnoses(found), tuple(windows), counts, {}, (), k, where, seconds)


def _diagnoses(found) -> tuple:
    names = sorted(found, key=lambda name: ORDER.get(name, 1))
    return tuple(Diagnosis(name, found[name], cure_of(name), kind_of(name)) for name in names)


def _window(number, results, sizes, k, found) -> Window:
    world, matrix = len(sizes), results[0]["gradients"]
    columns, rows, start = [], [], 0
    for mine in sizes:
        window = range(number * k, min((number + 1) * k, len(mine)))
        columns.append([start + i for i in window])
        rows.append([mine[i] for i in window])
        start += len(mine)
    flat = [c for part in columns for c in part]
    total = sum(n for part in rows for n in part)
    needed = [n / total for part in rows for n in part]
    gradients = [result["steps"][number] for result in results]
    used, rest = _solve(matrix[:, flat], gradients[0])
    window = Window(number + 1, 0, tuple(flat), tuple(used), tuple(needed), rest, {}, _alike(used, needed) and rest < NEAR)
    off = max(relative(g - gradients[0], gradients[0]) for g in gradients[1:])
    if off > NEAR:
        own = [sum(w for w, c in zip(_solve(matrix[:, flat], g)[0], flat) if c in columns[r]) for r, g in enumerate(gradients)]
        shares = ", ".join(f"{share:.3g}" for share in own)
        found.setdefault("ranks differ", (
            f"At update {number + 1} the ranks hold different gradients ({off:.0%} apart): the copies of the model drift. Weight "
            f"of each rank's own micro-batches in its gradient: {shares}."
        ))  # fmt: skip
        return window
    if window.right or number and found:
        return window
    table = f"Update {number + 1} used the weights {_list(used)}; needed are {_list(needed)}."
    factor = [u / n for u, n in zip(used, needed)]
    start = sum(len(part) for part in columns) and [c - number * k for part in columns for c in part[:1]]
    earlier = [c for first, part in zip(start, columns) for c in range(first, part[0])] if number and all(columns) else []
    both, left = _solve(matrix[:, earlier + flat], gradients[0]) if rest > NEAR and earlier else ([], 1.0)
    if left < NEAR and any(abs(w) > NEAR for w in both[: len(earlier)]):
        found.setdefault("not cleared", f"Update {number + 1} still holds micro-batches of the updates before it.")
    elif rest > NEAR:
        found.setdefault("not a weighted sum", f"{rest:.1%} of the gradient comes from no micro-batch of any rank.")
    elif _alike(factor, [1 / world] * len(factor)):
        found.setdefault("averaged over ranks", (
            f"{table} All are 1/{world} of that: the loss is divided by a global count, and DDP takes the mean over {world} ranks "
            "as well."
        ))  # fmt: skip
    elif _alike(used, [n / sum(part) / world for part in rows for n in part]) or _alike(
        used, [1 / len(part) / world for part in rows for _ in part]
    ):
        found.setdefault("mean over ranks", (
            f"{table} Each rank takes the mean over its own samples and counts 1/{world}, but the ranks have "
            f"{_list([sum(part) for part in rows])} of them."
        ))  # fmt: skip
    elif k > 1 and _alike(factor, [float(len(columns[0]))] * len(factor)):
        found.setdefault("not divided", f"{table} Nothing makes a mean of the sum.")
    elif k > 1 and _alike(factor, [1 / k] * len(factor)):
        found.setdefault("divided twice", f"{table} The mean is taken twice.")
    elif any(abs(u) < NEAR for u in used):
        found.setdefault("cleared too early", f"{table} Some micro-batches of the window are gone.")
    else:
        same = _alike(factor, [factor[0]] * len(factor))
        found.setdefault("all scaled" if same else "wrong weights", table)
    return window


def _windows(result, mine, k, found):
    """Where the updates come on a rank, and what a clip inside a window does."""
    made, asked = len(result["steps"]), -(-len(mine) // k)
    wrong = ("cleared too early", "wrong weights", "all scaled", "not a weighted sum", "divided twice", "not divided")
    if made == len(mine) > asked:
        for name in wrong:
            found.pop(name, None)
        found["update every micro-batch"] = f"{made} updates for {len(mine)} micro-batches on each rank; {asked} were asked for."
    elif made == asked - 1 and len(mine) % k:
        found["tail dropped"] = f"{len(mine) % k} of {len(mine)} micro-batches of each rank never reach an update."
    clips = inside = 0
    for mark in result["marks"]:
        if mark[0] == "clip":
            clips += 1
        elif mark[0] == "backward":
            inside, clips = inside + clips, 0
        elif mark[0] == "step":
            clips = 0
    if inside:
        for name in wrong:
            found.pop(name, None)
        found["clipped in the window"] = f"The gradient was clipped {inside} times before its window was full."


def _collectives(marks, k, found):
    """Count the all-reduces of each window."""
    reduces, forwards, most, contexts, outside = 0, 0, 0, 0, 0
    for mark in marks:
        if mark[0] == "reduce":
            reduces += 1
        elif mark[0] == "no_sync":
            contexts += 1
        elif mark[0] == "forward":
            forwards += 1
            outside += mark[1]
        elif mark[0] == "step":
            if forwards > 1:
                most = max(most, reduces)
            reduces = forwards = 0
    if most > 1:
        words = f"{most} all-reduces for one update of {k} micro-batches; one is enough. The gradient is right."
        if contexts:
            found["forward outside no_sync"] = f"{words} no_sync() was entered {contexts} times, but the forwards ran outside of it."
        else:
            found["collectives per micro-batch"] = words


def _solve(matrix, gradient):
    weights = torch.linalg.lstsq(matrix, gradient.unsqueeze(1)).solution.squeeze(1)
    return [float(w) for w in weights], relative(gradient - matrix @ weights, gradient)


def _alike(a, b) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= NEAR * max(abs(y), 1e-3) for x, y in zip(a, b))


def _list(values) -> str:
    return ", ".join(f"{value if abs(value) > 1e-9 else 0:.3g}" for value in values)


