"""The exercises of notebook 05 on traps: BatchNorm under a recompute, a review, and the repair."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import torch
from torch import nn

from . import answers05f as f
from .faults import Fault, NotStarted
from .registry import Exercise, Unusual, Wrong, register
from .want import shown, want_tensor, want_true
from .witnesses import apart, close, raise_own

# -- 05.7 --------------------------------------------------------------------------------------------------


def _model():
    torch.manual_seed(4)
    deep = nn.Sequential(nn.BatchNorm1d(6), nn.Tanh())
    untracked = nn.BatchNorm1d(6, track_running_stats=False)
    layers = nn.Linear(6, 6), deep, nn.Linear(6, 6), untracked, nn.BatchNorm1d(6), nn.Linear(6, 2)
    return nn.Sequential(*layers).double()


def check_frozen(answer):
    model, x = _model(), torch.randn(20, 6, dtype=torch.float64) * 3
    needed, before = copy.deepcopy(model)(x), copy.deepcopy(model.state_dict())
    settings = _settings(model)

    def as_before(when, prefix=""):
        moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        if moved and all(name.endswith("num_batches_tracked") for name in moved):
            raise Fault("counter moved", f"{when}, the running mean and variance are as before, but "
                        f"{moved[0]} went up: this batch would count twice.")  # fmt: skip
        want_true(not moved, f"{prefix}statistics moved", f"{when}, {', '.join(moved[:2])} is not as before. "
                  "Every BatchNorm counts, deep inside too (model.modules()); and what you note must be a "
                  "copy, since the layer writes into the tensor itself.")  # fmt: skip
        want_true(_settings(model) == settings, "not restored", f"{when}, a setting of a layer (mode, "
                  "momentum, track_running_stats) is not what it was before.")  # fmt: skip

    with _context(answer, model):
        got = want_tensor(model(x), "the model's output under frozen_statistics", shape=needed.shape)
    want_true(close(got, needed, 1e-11), "normalised otherwise", "Under frozen_statistics the output is not "
              "the one of training. BatchNorm must go on to normalise by the batch; `eval()` makes it use "
              "its running statistics.")  # fmt: skip
    as_before("After the block")
    try:
        with _context(answer, model):
            model(x)
            raise ArithmeticError
    except ArithmeticError:
        pass
    as_before("After an exception in the block (a recompute that stops early is one)", "after an error, ")
    _check_steps(answer)


def _settings(model):
    names = ("training", "momentum", "track_running_stats")
    return [getattr(module, name, None) for module in model.modules() for name in names]


def _context(answer, model):
    got = answer.call(model)
    want_true(hasattr(type(got), "__enter__") and hasattr(type(got), "__exit__"), "not a context",
              f"`frozen_statistics(model)` should give something for a `with`; it gives {shown(got)}. Write "
              "`@contextmanager` above the function, and a `yield` where the block runs.")  # fmt: skip
    return got


def _check_steps(answer):
    """Two steps with torch's checkpoint, the context around its recompute, beside two plain ones."""
    from contextlib import nullcontext

    from torch.utils.checkpoint import CheckpointError, checkpoint

    model = _model()
    twin = copy.deepcopy(model)
    for step in (1, 2):
        x = torch.randn(20, 6, dtype=torch.float64)
        contexts = lambda: (nullcontext(), _context(answer, model))  # noqa: E731
        y = checkpoint(model, x, use_reentrant=False, context_fn=contexts)
        try:
            y.square().sum().backward()
        except CheckpointError as error:
            raise Fault("saves other tensors", "With your context around torch's recompute, the model saves "
                        f"other tensors than in the first run: {' '.join(str(error).split()[1:26])} ... A "
                        "BatchNorm that tracks no statistics saves two tensors less. Let it work as always, "
                        "and put the statistics back.") from None  # fmt: skip
        twin(x).square().sum().backward()
        for (name, mine), right in zip(model.state_dict().items(), twin.state_dict().values()):
            want_true(close(mine, right, 1e-11), "statistics moved", "With your context around torch's "
                      f"recompute, after step {step} {name} is not what a plain step gives.")  # fmt: skip
        for (name, mine), right in zip(model.named_parameters(), twin.parameters()):
            want_true(close(mine.grad, right.grad, 1e-9), "wrong gradient", "With your context around "
                      f"torch's recompute the gradient of {name} is wrong in step {step}.")  # fmt: skip


register(Exercise(
    id="05.7",
    title="BatchNorm counts once",
    prompt="Write a context manager for a recompute: in it the model works as always, and after it the "
    "running mean, the running variance and the counter of each BatchNorm in the model are what they were "
    "before, whatever happened.",
    reference=f.frozen_statistics,
    hints=(
        "It is version 2 once more: note a state, let something run, put the state back, in a `finally`.",
        "Three buffers move in a training forward: running_mean, running_var, num_batches_tracked. "
        "norm.buffers() has them.",
        "model.modules() goes through all layers; the base class of BatchNorm is "
        "nn.modules.batchnorm._BatchNorm.",
        "Note buffer.clone(), since the layer writes into the buffer itself; put it back with "
        "buffer.copy_(noted). contextlib.contextmanager and `yield` make a context of it.",
    ),
    checker=check_frozen,
    wrong=(
        Wrong("does nothing", f.nothing, "statistics moved", "B62"),
        Wrong("eval mode", f.in_eval_mode, "normalised otherwise", "B62"),
        Wrong("momentum 0", f.momentum_zero, "counter moved", "B62"),
        Wrong("no statistics at all", f.no_tracking, "saves other tensors", "B71"),
        Wrong("no finally", f.no_finally, "after an error, statistics moved"),
        Wrong("the first level only", f.only_top_level, "statistics moved"),
        Wrong("notes without a copy", f.no_copies, "statistics moved"),
        Wrong("leaves the momentum at 0", f.momentum_left, "not restored"),
        Wrong("no context", f.a_value, "not a context"),
    ),
    unusual=(Unusual("other buffers for the time being", f.FrozenStatistics), Unusual("hooks", f.by_hooks)),
))  # fmt: skip

# -- 05.8 --------------------------------------------------------------------------------------------------

ASKED = {
    "eval gate": ("A", "In which mode does the segment run twice, and in which does it not? Is the mode the "
    "right thing to ask, if gradients are wanted in eval mode, too?"),
    "foreign randomness": ("C", "torch's checkpoint replays torch's random numbers. Where does a number come "
    "from somewhere else?"),
    "late-bound closure": ("E", "Ask of each name in `segment` that is no parameter: what does it hold when "
    "backward runs?"),
    "state read late": ("D", "A trainer may set an attribute of the model between forward and backward. "
    "Which line reads one?"),
    "statistics twice": ("F", "Some layers change themselves in a forward. Which line makes them run twice "
    "without a word to them?"),
    "input changed in place": (None, "Look for `+=`, for names that end in `_`, and for assignments to "
    "slices."),
    "no input requires grad": (None, "That trap belongs to the reentrant kind. Which one is this?"),
}  # fmt: skip

SMALL_LETTERS = {name: letter and letter.lower() for name, letter in f.review.items()}
SMALL_LETTERS["statistics twice"] = "e"


def check_review(answer):
    want_true(isinstance(answer, dict), "wrong type", "`review` should be a dict: the name of a trap to a "
              "line's letter, or to None.")
    unknown = [shown(name) for name in answer if name not in ASKED]
    want_true(not unknown, "unknown name", f"There is no trap {', '.join(unknown[:3])} in the list. The "
              f"names are: {', '.join(ASKED)}.")
    missing = [name for name in ASKED if name not in answer or answer[name] is ...]
    want_true(not missing, "incomplete", f"Not judged yet: {', '.join(missing)}. Give each a letter from A "
              "to G, or None.")
    for name, (letter, ask) in ASKED.items():
        got = answer[name]
        got = got.strip().upper() if isinstance(got, str) else got
        known = got is None or (isinstance(got, str) and got in set("ABCDEFG"))
        want_true(known, "wrong type", f'"{name}": a letter from A to G, or '
                  f"None; not {shown(answer[name])}.")  # fmt: skip
        if got == letter or (name == "statistics twice" and got == "E"):
            continue
        if letter is None:
            raise Fault("false alarm", f'"{name}": line {got} is innocent of that. {ask}')
        if got is None:
            raise Fault("trap missed", f'"{name}" is in there. {ask}')
        raise Fault("wrong line", f'"{name}": not line {got}. {ask}')


register(Exercise(
    id="05.8",
    title="The review",
    prompt="Which of the traps are in the tower, and in which line? A dict from each of the seven names to a "
    'letter, "A" to "G", or to None where the trap is not there.',
    name="review",
    reference=f.review,
    source=f.REVIEW_SOURCE,
    hints=(
        "Go through the lines, and ask two questions of each: what does it read, and what does it change? "
        "Both happen twice.",
        "What a segment reads must be the same in backward, long after the loop has ended: names of the "
        "loop, attributes, random numbers.",
        "Five of the seven are there. `+=` is nowhere, and use_reentrant=False sees weights as well as "
        "inputs.",
    ),
    checker=check_review,
    wrong=(
        Wrong("nothing found", dict.fromkeys(ASKED), "trap missed"),
        Wrong("randomness in the loop's line", {**f.review, "foreign randomness": "B"}, "wrong line", "B61"),
        Wrong("no closure", {**f.review, "late-bound closure": None}, "trap missed", "B73"),
        Wrong("an assignment for a change in place", {**f.review, "input changed in place": "D"}, "false "
              "alarm", "B75"),
        Wrong("reentrant", {**f.review, "no input requires grad": "F"}, "false alarm", "B52"),
        Wrong("the scale in the wrong line", {**f.review, "state read late": "C"}, "wrong line", "B66"),
        Wrong("half done", {"eval gate": "A"}, "incomplete"),
        Wrong("other words", {"closure": "D"}, "unknown name"),
    ),
    unusual=(Unusual("small letters, statistics at the block's line", SMALL_LETTERS),),
))  # fmt: skip

# -- 05.9 --------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """One step of a tower: what came out, and how often each block ran."""

    output: torch.Tensor
    calls: list  # runs of each block, forward and backward together
    stream: object  # Python's random state afterwards
    buffers: dict
    gradients: dict = field(default_factory=dict)
    error: BaseException | None = None


def step(make, drop=0.0, train=True, late_scale=None, grad=True, steps=1, raw=False) -> Ran:
    """Run a tower once or more. raw: its input is data.

    late_scale: what a trainer sets model.scale to between forward and backward.
    """
    random.seed(12), torch.manual_seed(6)
    model = make(8, 4, drop).double()
    model.load_state_dict(f.PlainTower(8, 4).double().state_dict())
    for number, parameter in enumerate(model.parameters()):
        draw = torch.Generator().manual_seed(number)
        parameter.data += torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 4
    model.train(train)
    calls = [0] * 4
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, i=number: calls.__setitem__(i, calls[i] + 1))
    x = torch.randn(32, 8, dtype=torch.float64, requires_grad=not raw)
    ran = None
    for _ in range(steps):
        with torch.set_grad_enabled(grad):
            y = model(x)
        ran = Ran(y, calls, None, {})
        want_tensor(y, "The tower's output", shape=(32, 8))
        model.scale = model.scale if late_scale is None else late_scale
        try:
            if y.requires_grad:
                (y * torch.linspace(-1, 2, 8, dtype=torch.float64)).sum().backward()
        except (Fault, NotStarted):
            raise
        except Exception as error:
            ran.error = error
        model.scale = 1.0
    ran.gradients = {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    ran.buffers, ran.stream = {name: b.clone() for name, b in model.named_buffers()}, random.getstate()
    return ran


def check_tower(answer):
    made = answer._function

    def make(*sizes):
        model = answer.call(*sizes)
        want_true(isinstance(model, nn.Module) and hasattr(model, "blocks"), "wrong type", "`Tower(width, "
                  "depth, drop)` should make a PlainTower with another forward.")  # fmt: skip
        return model

    def both(words, **how):
        mine, plain = step(make, **how), step(f.PlainTower, **how)
        want_true(close(mine.output, plain.output, 1e-11), "wrong output", f"{words}, the output is not "
                  "PlainTower's.")
        return mine, plain

    def want_gradients(mine, plain, diagnosis, words):
        if mine.error is not None and diagnosis == "wrong gradient":
            raise_own(mine.error, made, words)
        want_true(mine.error is None, diagnosis, words)
        missing = [n for n, g in plain.gradients.items() if g is not None and mine.gradients[n] is None]
        want_true(not missing, "no gradient", f"The gradient of {', '.join(missing[:2])} is None.")
        needed = {name: g for name, g in plain.gradients.items() if g is not None}
        wrong = [name for name, g in needed.items() if not close(mine.gradients[name], g, 1e-9)]
        if wrong:
            raise Fault(diagnosis, f"{words} The gradients are off: "
                        f"{apart(mine.gradients, plain.gradients)}.")

    mine, plain = both("In training mode")
    again = [n - 1 for n in mine.calls]
    want_true(max(again) < 2 or min(again) > 0, "late-bound closure", "The four blocks were run "
              f"{mine.calls} times: backward recomputed the last block in the others' place (B73). Whatever "
              "changes from round to round must be handed to the segment, not looked up by it.")  # fmt: skip
    want_true(max(again) > 0, "no checkpoint", "In training mode each block ran once: there is no checkpoint "
              "left.")
    if mine.error is not None:
        raise_own(mine.error, made, "Without skips and with a fixed scale")
    want_true(again == [1] * 4, "not once more", f"The four blocks were run {mine.calls} times in forward "
              "and backward; 2 each is right.")
    want_gradients(mine, plain, "wrong gradient", "Without skips and with a fixed scale:")
    mine, plain = both("On data as the input", raw=True)
    missing = [name for name, gradient in mine.gradients.items() if gradient is None and name != "x"]
    want_true(not missing, "no input requires grad", "Where the tower's input is data, the gradient of "
              f"{', '.join(missing[:2])} is None (B52): the reentrant kind looks at its inputs "
              "only.")  # fmt: skip
    still, _ = both("In eval mode", train=False)
    want_true(still.calls == [2] * 4, "eval gate", "In eval mode, with gradients wanted, the blocks ran "
              f"{still.calls} times: no memory is saved there (B77). A frozen or fine-tuned model is often "
              "in eval mode and needs its gradients all the same. What decides is whether recording is on, "
              "and checkpoint asks that itself.")  # fmt: skip
    quiet, _ = both("Under no_grad", grad=False)
    want_true(quiet.calls == [1] * 4, "inference", f"Under no_grad the blocks ran {quiet.calls} times; once "
              "each is right.")
    mine, plain = both("With a scale that changes after the forward pass", late_scale=0.25)
    want_gradients(mine, plain, "state read late", "Between forward and backward the trainer sets "
                   "model.scale to 0.25, and the recompute takes it (B66).")  # fmt: skip
    mine, plain = both("With drop=0.5", drop=0.5)
    drawn = mine.stream != plain.stream
    why = "(B61): torch's checkpoint knows nothing of Python's `random`"
    if not drawn:
        why = "(B73), without being drawn again: a closure looks the decision up when it runs"
    want_gradients(mine, plain, "foreign randomness" if drawn else "late-bound closure", "With drop=0.5, "
                   f"other blocks are skipped in the recompute than in the forward pass {why}.")  # fmt: skip
    want_true(not drawn, "foreign randomness", "After a step Python's random stream is not where PlainTower "
              "leaves it: somebody draws in backward.")  # fmt: skip
    for steps in (1, 2):
        mine, plain = step(make, steps=steps), step(f.PlainTower, steps=steps)
        counts = [int(v) for name, v in mine.buffers.items() if name.endswith("num_batches_tracked")]
        want_true(max(counts) <= steps, "statistics twice", f"After {steps} step(s) the BatchNorms have "
                  f"counted {max(counts)} batches: the recompute updates their statistics again (B62). You "
                  "have a context for that.")  # fmt: skip
        want_true(all(close(v, plain.buffers[name], 1e-11) for name, v in mine.buffers.items()),
                  "statistics lost",
                  f"After {steps} step(s) the running statistics are not PlainTower's. The first run must "
                  "update them.")  # fmt: skip


register(Exercise(
    id="05.9",
    title="The repair",
    prompt="Repair the tower: same outputs, gradients, statistics and random numbers as PlainTower, each "
    "block run again in backward whenever gradients are recorded, in any mode, and whatever happens to "
    "model.scale in between.",
    reference=f.Tower,
    hints=(
        "A rule that cures three of the five: a segment reads nothing but its parameters. "
        "`checkpoint(segment, x, block, ...)` hands over anything you like.",
        "Draw before the segment: whether a block is skipped can be decided outside.",
        "context_fn is a function that gives two contexts, for the first run and for the recompute: "
        "(nullcontext(), frozen_statistics(block)).",
        "The gate: torch's checkpoint runs plainly by itself where nothing is recorded. The first two lines "
        "can go.",
    ),
    checker=check_tower,
    wrong=(
        Wrong("as given", f.TowerInReview, "late-bound closure", "B73"),
        Wrong("the gate is left", f.GateLeft, "eval gate", "B77"),
        Wrong("randomness is left", f.RandomLeft, "foreign randomness", "B61"),
        Wrong("the closure is left", f.LateLeft, "late-bound closure", "B73"),
        Wrong("the scale is left", f.StateLeft, "state read late", "B66"),
        Wrong("the statistics are left", f.StatisticsLeft, "statistics twice", "B62"),
        Wrong("no statistics at all", f.StatisticsLost, "statistics lost"),
        Wrong("a decision looked up late", f.DecidesLate, "late-bound closure", "B73"),
        Wrong("the reentrant kind", f.ReentrantTower, "no input requires grad", "B52"),
        Wrong("no checkpoint", f.NoCheckpoint, "no checkpoint"),
        Wrong("skips nothing", f.NeverSkips, "wrong output"),
    ),
    unusual=(
        Unusual("one segment around all", f.OneForAll),
        Unusual("the course's checkpoint", f.ByTheCourse),
    ),
))  # fmt: skip
