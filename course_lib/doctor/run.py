"""Call a loop: fill its parameters, watch it, and let nothing it does get out."""

from __future__ import annotations

import functools
import inspect
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from course_lib.sandbox.capture import Printed
from course_lib.sandbox.explain import explain
from course_lib.sandbox.faults import Fault
from course_lib.sandbox.job import Job, no_questions
from course_lib.sandbox.protect import World, thread_modes

from .observe import Watch
from .problems import copied
from .rows import Rows, tensors_in

_HERE = Path(__file__).parent
_SITE = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAIN = ("model", "optimizer", "loss_fn", "batches", "accumulation_steps")
SCALE = 65536.0  # GradScaler's usual first scale
CLIP = 0.1  # low enough to bite
WARM_UP = 1000
DECAY = 0.999


@dataclass
class Parts:
    """What an adapter hands to a loop. The last four are made when they are asked for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: object
    batches: list
    accumulation_steps: int
    watch: Watch
    epochs: int = 2

    @functools.cached_property
    def scheduler(self):
        """A linear warm-up over 1000 steps."""
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))

    @functools.cached_property
    def scaler(self):
        """A loss scaler for the CPU with the usual first scale, 65536."""
        return torch.amp.GradScaler("cpu", init_scale=SCALE)

    @functools.cached_property
    def ema(self):
        """Averaged weights with decay 0.999."""
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY)
        return torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)

    def log(self, value):
        """Where a loop reports its loss."""
        number = float(value.detach()) if isinstance(value, torch.Tensor) else float(value)
        self.watch.note("log", value=number)

    max_norm = CLIP

    @property
    def max_steps(self):
        """The updates that `epochs` epochs have, tails included."""
        return -(-len(self.batches) // self.accumulation_steps) * self.epochs


ALIASES = {
    "net": "model", "network": "model", "opt": "optimizer", "optim": "optimizer", "criterion": "loss_fn", "loss_func": "loss_fn",
    "loss_function": "loss_fn", "loader": "batches", "train_loader": "batches", "dataloader": "batches", "data_loader": "batches",
    "train_dataloader": "batches", "data": "batches", "grad_accum_steps": "accumulation_steps", "accum_steps": "accumulation_steps",
    "gradient_accumulation_steps": "accumulation_steps", "lr_scheduler": "scheduler", "grad_scaler": "scaler",
}  # fmt: skip
EXTRAS = ("scheduler", "scaler", "ema", "log", "max_norm", "epochs", "max_steps")


def call(loop, parts: Parts):
    """Call the loop with the parameters that it names. Raises TypeError for one that nobody knows."""
    try:
        parameters = list(inspect.signature(loop).parameters.values())
    except (TypeError, ValueError):
        return loop(*(getattr(parts, name) for name in MAIN))
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    means = {p.name: ALIASES.get(p.name, p.name) for p in named}
    filled = [p for p in named if means[p.name] in EXTRAS and (p.default is p.empty or p.name == "log")]
    extra = {p.name: getattr(parts, means[p.name]) for p in filled}
    required = [p for p in named if p.default is p.empty and p not in filled]
    if required and all(means[p.name] in MAIN for p in required):
        by_name = {p.name: getattr(parts, means[p.name]) for p in named if means[p.name] in MAIN}
        if any(p.kind == p.VAR_POSITIONAL for p in parameters):
            return loop(*(getattr(parts, name) for name in MAIN), **extra)
        return loop(**by_name, **extra)
    try:
        inspect.signature(loop).bind(*MAIN, **extra)
    except TypeError as error:
        words = f"The loop cannot be called as train({', '.join(MAIN)}): {error}."
        raise Fault("wrong signature", words) from None
    return loop(*(getattr(parts, name) for name in MAIN), **extra)


def asks_for(loop, name: str) -> bool:
    """Does the loop have a parameter of this name?"""
    try:
        parameter = inspect.signature(loop).parameters.get(name)
        return parameter is not None and parameter.default is parameter.empty
    except (TypeError, ValueError):
        return False


def globals_of(loop):
    """The names that the loop's code sees, or None."""
    function = inspect.unwrap(loop) if callable(loop) else loop
    function = getattr(function, "func", function)
    if not hasattr(function, "__globals__"):
        function = getattr(type(function), "__call__", function)
    found = getattr(function, "__globals__", None)
    return found if isinstance(found, dict) else None


def watched(problem, loop, adapter=None, epochs: int = 2, hold: bool = True, change=None, run=None, clean_up=None):
    """Run a loop on a fresh problem and return (log, rows, model): what it did.

    `change(epoch, batches)` may spoil the batches. `run`: how to call it (the exercises have their own guard).
    """
    model = problem.model()
    optimizer = problem.optimizer([p for p in model.parameters() if p.requires_grad])
    for parameter in model.parameters():
        parameter.grad = None  # what stood there before is none of this loop's doing
    rows = Rows()
    probe = copied(model)
    counted = _tracked(model)
    inner = asks_for(loop, "epochs") or asks_for(loop, "max_steps")
    watch = Watch(model, optimizer, rows, hold=hold, user_globals=globals_of(loop))
    if clean_up is not None:
        watch.clean_up = clean_up
    parts = Parts(model, optimizer, problem.loss_fn, [], problem.accumulation_steps, watch, epochs)
    for epoch in range(1 if inner else epochs):
        batches = list(problem.batches(epoch))
        if change is not None:
            batches = change(epoch, batches)
        rows.add(epoch, batches, lambda batch: inputs_of(problem, probe, batch))
        parts.batches = list(batches)
        watch.note("epoch", number=epoch)
        _doctor_stops_here = True  # the search for graphs in the loop's variables ends at this frame
        try:
            with watch.on():
                if run is not None:
                    returned = run(parts)
                elif adapter is not None:
                    returned = adapter(loop, parts)
                else:
                    returned = call(loop, parts)
        except Fault as fault:
            if run is not None:
                raise
            watch.log.error = fault
            break
        except Exception as error:
            if run is not None:
                raise
            watch.log.error = explain(error, loop, _name(loop), ((0,) * 5, {})) or Fault("raised", repr(error))
            break
        if inspect.isgenerator(returned):
            watch.log.generator = True
            returned.close()
            break
        watch.log.returned.append(returned)
    watch.log.tracked = max((now - before for before, now in zip(counted, _tracked(model))), default=0)
    return watch.log, rows, model


def _tracked(model) -> list:
    """How many batches each BatchNorm layer of a model has counted."""
    return [int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]


def _ours(error) -> bool:
    """Was it raised by the doctor's own code, outside of any call of the loop?"""
    trace, files = error.__traceback__, []
    while trace is not None:
        files.append(Path(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    own = [file for file in files if _HERE in file.parents and file.parent.name != "cases"]
    others = [file for file in files if _HERE not in file.parents and not str(file).startswith(_SITE)]
    return bool(own) and not [file for file in others if file.parent.name != "sandbox"]


def inputs_of(problem, model, batch) -> list:
    """The tensors that the model is given for a batch: the problem's own loss may shift or scale them first."""
    if problem.loss_of is None:
        return []
    seen: list = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: seen.extend(tensors_in((args, kwargs))), with_kwargs=True)
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            problem.micro_loss(model, batch)
    except Exception:
        return []
    finally:
        hook.remove()
        torch.set_rng_state(state)
    return seen


def _name(loop) -> str:
    return getattr(loop, "__name__", type(loop).__name__)


def safely(work, loop, time_limit: float):
    """Do `work()` in a thread with a time limit; what the loop prints is kept short, what it replaces is put back.

    `work` gets a function that puts back what the loop replaced. Returns (result, Fault or None, printed text).
    """
    box, printed, job = [], Printed(), Job()
    world, torch_only = World(globals_of(loop)), World()
    stopped = in_time = False

    def inside():
        printed.claim()
        modes = thread_modes()
        try:
            box.append(work(lambda: torch_only.restore(modes)))  # a counter of the loop's own goes on
        finally:
            world.restore(modes)

    with no_questions():
        printed.open()
        try:
            job.start(inside, lambda error: error)
            in_time = job.wait(time_limit)
            stopped = in_time or job.stop()
        except BaseException:  # Stop was pressed
            stopped = job.stop()
            raise
        finally:
            torch_only.close()
            world.close()
            printed.close()
            if not stopped:
                printed.mute()
    if not in_time:
        return None, Fault("time limit", f"The loop was still running after {time_limit:g} seconds. A large model needs a higher time_limit."), printed.kept
    if job.error is None:
        return box[0], None, printed.kept
    if isinstance(job.error, Fault):
        return None, job.error, printed.kept
    if _ours(job.error):
        words = f"The doctor itself came to grief, not your loop: {type(job.error).__name__}: {str(job.error)[:300]}"
        return None, Fault("could not be examined", words), printed.kept
    fault = explain(job.error, loop, _name(loop), ((0,) * 5, {})) if isinstance(job.error, BaseException) else None
    return None, fault or Fault("raised", f"The loop raised {type(job.error).__name__}."), printed.kept
