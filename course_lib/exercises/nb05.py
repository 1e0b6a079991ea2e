"""The exercises of notebook 05: what autograd keeps, versions 1 and 2. The others live in nb05b.py and "
"nb05c.py."""

from __future__ import annotations

import functools
import inspect
from fractions import Fraction

import torch

from . import answers05 as a
from . import answers05a as small
from . import answers05b as b
from . import answers05e as e
from . import scenes05
from .faults import Fault
from .guard import GuardedAnswer
from .registry import Exercise, Unusual, Wrong, register
from .want import shown, want_int, want_number, want_true
from .witnesses import close, expected, observe, testify, want_own_work

# -- 05.1 --------------------------------------------------------------------------------------------------


def check_kept(answer):
    for batch, width, hidden in ((32, 64, 256), (7, 5, 3), (1, 16, 16), (128, 8, 40)):
        for activation, shared in (("gelu", False), ("relu", True), ("tanh", True), ("silu", False)):
            what = f"kept_bytes({batch}, {width}, {hidden}, {activation!r})"
            got = want_int(answer.call(batch, width, hidden, activation), what)
            x, h = 4 * batch * width, 4 * batch * hidden
            needed = x + (h if shared else 2 * h)
            weights = 4 * (2 * width * hidden)
            typical = {
                "numbers, not bytes": ({needed // 4}, "That is a count of numbers; each takes 4 bytes."),
                "weights counted": ({needed + weights, needed + weights + 4 * (width + hidden)}, "The "
                "weights are saved too, but as references: they are alive anyway, and cost nothing more."),
                "output counted": ({needed + x}, "The last Linear's output is not needed for its own "
                "gradient."),
                "input forgotten": ({needed - x}, "The first Linear's weight gradient needs its input, so x "
                "is kept."),
                "kept twice": ({x + 2 * h} if shared else set(), f"{activation} saves its result, and the "
                "second Linear saves its input: that is one tensor, kept once."),
                "one of two": ({x + h} if not shared else set(), f"{activation} saves what goes *in*; the "
                "second Linear saves what comes out. Those are two tensors."),
            }  # fmt: skip
            if got == needed:
                continue
            for diagnosis, (values, say) in typical.items():
                want_true(got not in values, diagnosis, f"{what} gives {got:,}. {say}")
            raise Fault("wrong sum", f"{what} gives {got:,}. Go along the chain and ask of each operation: "
                        "which tensors does its derivative need? Add their bytes, each tensor "
                        "once.")  # fmt: skip


register(Exercise(
    id="05.1",
    title="What autograd keeps",
    prompt="Return the bytes that autograd keeps for backward in Linear(width, hidden), activation, "
        "Linear(hidden, width) on a "
    'float32 input (batch, width). activation is "relu", "tanh", "gelu" or "silu". Weights do not count.',
    reference=small.kept_bytes,
    hints=(
        "y = x @ W: the gradient of W needs x. So each Linear keeps what goes in.",
        "The derivative of tanh is 1 - tanh(x)^2: it can be had from the result. Which of the four can be "
        "had from the result?",
        "relu and tanh save their result, which is what the second Linear keeps as well. gelu and silu need "
        "their input.",
        "4 * batch * (width + hidden), and one more hidden for gelu and silu.",
    ),
    checker=check_kept,
    wrong=(
        Wrong("numbers", small.kept_numbers, "numbers, not bytes"),
        Wrong("with the weights", small.kept_weights, "weights counted"),
        Wrong("with the output", small.kept_output, "output counted"),
        Wrong("without the input", small.kept_no_input, "input forgotten"),
        Wrong("relu like gelu", small.kept_twice, "kept twice"),
        Wrong("gelu like relu", small.kept_once, "one of two"),
        Wrong("a float", small.kept_float, "wrong type"),
    ),
    unusual=(Unusual("asks autograd", small.kept_measured), Unusual("a table of factors", small.kept_table)),
))  # fmt: skip

# -- 05.2 version 1 ----------------------------------------------------------------------------------------


def runner(answer):
    """How an answer is run on (segment, *inputs): an autograd.Function through its `apply`."""
    given = answer._function
    if not isinstance(given, type):
        answer(torch.sin, torch.ones(1))  # a TODO in it may be reached
        raise Fault("wrong type", "`Recompute` should be a class, and yours is a function: `class "
                    "Recompute(torch.autograd.Function)` with `forward` and `backward`. Version 3 will be a "
                    "function.")  # fmt: skip
    want_true(issubclass(given, torch.autograd.Function), "wrong type", "`Recompute` should be a subclass of "
              "`torch.autograd.Function`, with `forward` and `backward` as static methods.")  # fmt: skip
    for name in ("forward", "backward"):
        method = inspect.getattr_static(given, name)
        bound = not isinstance(method, staticmethod) and "self" in inspect.signature(method).parameters
        want_true(not bound, "not static",
                  f"Write `@staticmethod` above `{name}`, and no `self`: a Function is never made, its "
                  "methods are called with ctx.")  # fmt: skip
    # a partial, since `apply` itself has a source file, and that is torch's
    run = GuardedAnswer(functools.partial(given.apply), answer.name, answer._world)
    run.answer = answer
    return run


def check_recompute(answer):
    run = runner(answer)
    testify(run, scenes05.Functional)
    want_own_work(run, scenes05.Functional)
    for kind in scenes05.FIRST[1:]:
        testify(run, kind)
    want_changes_noticed(run)


def want_changes_noticed(run):
    """An input that is changed in place between forward and backward: an error, or the right gradient."""

    class Changed(scenes05.Functional):
        def backward(self, loss):
            with torch.no_grad():
                self.held.mul_(2)
            loss.backward()

    right = expected(scenes05.Functional)[0].gradients
    seen = observe(Changed(), run)
    if seen.error is None and not all(close(seen.gradients[name], g, 1e-9) for name, g in right.items()):
        raise Fault("change not noticed", "Between forward and backward the segment's input was multiplied "
                    "by 2 in place, and the gradient came out wrong without a word. Plain autograd raises an "
                    "error then. `ctx.save_for_backward` notices such changes; an attribute of ctx does "
                    "not.")  # fmt: skip


register(Exercise(
    id="05.2",
    title="Version 1: run the segment twice",
    prompt="Write an autograd.Function for `Recompute.apply(segment, *inputs)`, where segment(*inputs) gives "
    "one tensor: nothing but the inputs is kept in forward; backward runs the segment again and gives all "
    "gradients, those of the weights inside too.",
    reference=a.Recompute,
    hints=(
        "Forward: what will backward need? The segment, and its inputs. Tensors go through "
        "ctx.save_for_backward.",
        "Backward has to build a graph of its own: from inputs without a past (`x.detach()`), with recording "
        "switched on (`torch.enable_grad()`), since backward runs without.",
        "`torch.autograd.backward(output, gradient)` goes through that graph and leaves gradients in .grad: "
        "of the weights, where they belong, and of your detached inputs, from where you return them.",
        "A detached input needs the flag of the original: x.detach().requires_grad_(x.requires_grad). Return "
        "None for the segment, then one gradient for each input.",
    ),
    checker=check_recompute,
    wrong=(
        Wrong("inputs not detached", b.NotDetached, "not detached"),
        Wrong("detached inputs without the flag", b.Constants, "inputs without gradient"),
        Wrong("gradients of the inputs only", b.OnlyInputs, "parameters without gradient", "B52"),
        Wrong("keeps the graph of the first run", b.KeepsGraph, "never recomputed", "B55"),
        Wrong("keeps the output with its graph", b.KeepsOutput, "intermediates alive", "B55"),
        Wrong("recompute without recording", b.NoRecording, "no grad mode"),
        Wrong("once for inputs, once for weights", b.AgainForParameters, "recomputed too often"),
        Wrong("starts from ones", b.Ones, "incoming gradient ignored"),
        Wrong("recomputes in forward", b.RunsAgainAtOnce, "recomputed in forward"),
        Wrong("inputs as attributes", b.OnCtx, "change not noticed", "B75"),
        Wrong("one gradient short", b.OneShort, "wrong number of gradients"),
        Wrong("backward twice", b.BackwardTwice, "counted twice"),
        Wrong("does not say where to begin", b.NoStart, "incoming gradient ignored"),
        Wrong("a list of gradients", b.GivesAList, "wrong number of gradients"),
        Wrong("no static methods", b.NotStatic, "not static"),
        Wrong("no backward", b.ForwardOnly, "no backward"),
        Wrong("a ready-made one", b.ByTorch, "built by torch"),
        Wrong("no Function", int, "wrong type"),
        Wrong("a function with hooks", b.by_hooks, "wrong type"),
    ),
    unusual=(
        Unusual("setup_context", b.ApartContext),
        Unusual("a product instead of backward(output, gradient)", b.DotProduct),
        Unusual("finds the weights in the graph", b.WalksTheGraph),
    ),
))  # fmt: skip

# -- 05.3 --------------------------------------------------------------------------------------------------


def check_ratio(answer):
    # the first case is one in which all the typical mistakes give different numbers
    cases = [(layers, segments, early, free) for layers, segments in ((32, 4), (12, 3), (12, 12), (12, 1))
             for early in (True, False) for free in (True, False)]  # fmt: skip
    for layers, segments, early, free in cases:
        what = f"step_ratio({layers}, {segments}, stops_early={early}, last_is_free={free})"
        got = Fraction(want_number(answer.call(layers, segments, stops_early=early, last_is_free=free), what))

        def ratio(early=early, free=free, total=3, segments=segments):
            again = segments - free
            return 1 + Fraction(again * (layers // segments - early), total * layers)

        def same(value):
            return abs(got - value) < Fraction(1, 10**9)

        if same(ratio()):
            continue
        told = f"{what} gives {shown(float(got))}."
        typical = {
            "backward counted once": (ratio(total=2), "A Linear's backward is two products, one for its "
            "input and one for its weight: backward costs two forwards, so a plain step costs three."),
            "extra only": (ratio() - 1, "That is the extra work alone. The ratio is of the whole step to the "
            "plain step."),
            "always a third more": (Fraction(4, 3), "A third more is right if everything runs twice, to its "
            "end."),
            "early stop ignored": (ratio(early=False), "With an early stop the last product of each "
            "recompute is left out."),
            "stops once": (1 + Fraction((segments - free) * (layers // segments) - 1, 3 * layers), "*Each* "
            "segment that is recomputed leaves out one product, not only one of them."),
            "last one counted": (ratio(free=False), "The last segment is not recomputed here."),
            "always early": (ratio(early=True), "Without an early stop every layer of a recomputed segment "
            "runs again."),
            "always free": (ratio(free=True), "Here the last segment is checkpointed as well."),
        }  # fmt: skip
        for diagnosis, (value, say) in typical.items():
            want_true(not same(value), diagnosis, f"{told} {say}")
        raise Fault("wrong ratio", f"{told} Count matrix products: forward, backward, and what runs again; "
                    "divide by those of a plain step.")  # fmt: skip


register(Exercise(
    id="05.3",
    title="The price in FLOPs",
    prompt="A chain of `layers` equal Linears in `segments` equal segments, each checkpointed. Return the "
    "FLOPs of a step over those of a plain step. stops_early: a recompute leaves out its last product. "
    "last_is_free: the last segment is not checkpointed.",
    reference=small.step_ratio,
    hints=(
        "One Linear in a plain step: one product forward. How many in backward?",
        "Three products per layer. A recomputed layer costs a fourth.",
        "How many segments are recomputed? How many products does each of them run again?",
        "1 + (segments recomputed) * (products each) / (3 * layers)",
    ),
    checker=check_ratio,
    wrong=(
        Wrong("backward like forward", small.ratio_half, "backward counted once"),
        Wrong("the extra only", small.ratio_extra, "extra only"),
        Wrong("four thirds", small.ratio_four_thirds, "always a third more"),
        Wrong("no early stop", small.ratio_late, "early stop ignored"),
        Wrong("one early stop", small.ratio_stops_once, "stops once"),
        Wrong("all segments", small.ratio_all, "last one counted"),
    ),
    unusual=(Unusual("exact", small.ratio_exact), Unusual("counts layer by layer", small.ratio_counted)),
))  # fmt: skip

# -- 05.4 version 2 ----------------------------------------------------------------------------------------


def check_replayed(answer):
    for device in _devices():
        _check_replays(answer, device)

    def run(segment, *inputs):
        return a.Recompute.apply(_want_function(answer.call(segment, *inputs)), *inputs)

    run.answer = answer
    for kind in (scenes05.Functional, *scenes05.SURROUNDED):
        testify(run, kind)


def _want_function(got):
    want_true(not isinstance(got, torch.Tensor), "not a function", "`replayed` should return a *function* "
              "that runs the segment when it is called; yours returns a tensor, so it has run the segment "
              "itself.")  # fmt: skip
    want_true(callable(got), "not a function", "`replayed` should return a function that runs the segment.")
    return got


def _devices():
    """The CPU, and an accelerator where there is one: its random numbers have a state of their own."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [torch.device("cpu"), *([found] if found else [])]


def _random_states(device):
    """Everything that random numbers on a device hang on, as one tensor."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device).cpu())
    return torch.cat(states)


def _check_replays(answer, device):
    """The function on its own: every later call gives the first one's numbers and leaves no trace."""
    seen, fail, on = [], False, "" if device.type == "cpu" else f" (inputs on {device.type})"

    def draw():
        return torch.rand(3, device=device) + torch.rand(3).to(device)

    def segment(x, factor=1.0):
        seen.append((x, factor))
        if fail:
            raise ArithmeticError("a segment may raise")
        return x * factor + draw()

    x, y = (torch.full((3,), value, device=device) for value in (1.0, 2.0))
    torch.manual_seed(11)
    drawn = draw()
    behind = _random_states(device)
    torch.manual_seed(11)
    run = _want_function(answer.call(segment, x))
    want_true(not seen, "runs at once", "`replayed` ran the segment when it was called. It should only note "
              "the state of now, and return a function; the segment runs when *that* is called.")  # fmt: skip
    first = run(x)
    want_true(isinstance(first, torch.Tensor), "returned nothing", "The function that `replayed` returns "
              f"gives {shown(first)}, and should give what the segment gives.")  # fmt: skip
    same = torch.equal(first, x * 1.0 + drawn) and torch.equal(_random_states(device), behind)
    want_true(same, "other random numbers in forward", "The first run must be as if nothing were around "
              f"it{on}: the random numbers that plain code would draw, and the stream goes on behind "
              "them.")  # fmt: skip
    draw()
    outside = _random_states(device)
    for number, (value, factor) in ((2, (x, 1.0)), (3, (x, 1.0)), (4, (y, 3.0))):
        before = len(seen)
        again = run(value, factor=factor) if factor != 1.0 else run(value)
        want_true(len(seen) > before, "never recomputed", f"Call {number} of your function did not run the "
                  "segment. A second run is the point: the first one's result is not to be "
                  "kept.")  # fmt: skip
        want_true(seen[-1][0] is value and seen[-1][1] == factor, "inputs lost", f"Call {number} of your "
                  "function ran the segment on other inputs than it was given. Pass on what *this* call "
                  "gets, keywords too.")  # fmt: skip
        want_true(isinstance(again, torch.Tensor), "returned nothing", f"Call {number} of your function "
                  f"gives {shown(again)}, and should give what the segment gives.")  # fmt: skip
        want_true(torch.equal(again, value * factor + drawn), "other random numbers", f"Call {number} of "
                  f"your function drew other random numbers than call 1{on}. Set the state that was there "
                  "before call 1, each time (backward may ask more than once).")  # fmt: skip
        want_true(torch.equal(_random_states(device), outside), "stream shifted", f"After call {number} the "
                  f"random stream is not where it was before{on}. Put back the state that you found, not "
                  "the one that you set.")  # fmt: skip
    fail = True
    try:
        run(x)
    except ArithmeticError:
        pass
    same = torch.equal(_random_states(device), outside)
    want_true(same, "not put back after an error", "The segment raised an exception in a second run, and the "
              "random state was not put back. Use `try: ... finally: ...`; version 3 will leave a segment by "
              "an exception on purpose.")  # fmt: skip


register(Exercise(
    id="05.4",
    title="Version 2: the same random numbers, the same autocast",
    prompt="Return a function that runs `segment`. Its first call runs it plainly; each later call runs it "
    "under the random state (CPU, and the devices of the inputs) and the autocast state of now, and puts the "
    "random state back that it found.",
    reference=a.replayed,
    hints=(
        "`replayed` itself only takes notes: torch.get_rng_state(), torch.is_autocast_enabled(kind), "
        "torch.get_autocast_dtype(kind). Then it returns an inner function.",
        "The inner function counts its calls (`nonlocal`). From the second on: note the state outside, set "
        "the old one, run, set the outside one again, whatever happens in between (`finally`).",
        "torch.autocast(kind, dtype=..., enabled=...) as a context switches autocast on *or off*.",
        "For a device: torch.get_device_module(device).get_rng_state(device), and set_rng_state(state, "
        "device). On a CPU there is nothing more to do than the CPU's state.",
    ),
    checker=check_replayed,
    wrong=(
        Wrong("runs it as it is", e.as_it_is, "other random numbers", "B59"),
        Wrong("does not put back", e.not_put_back, "stream shifted"),
        Wrong("puts back its own state", e.put_back_too_far, "stream shifted"),
        Wrong("a seed of its own", e.own_seed, "other random numbers in forward"),
        Wrong("forks without setting", e.forks_only, "other random numbers", "B59"),
        Wrong("notes the state after the run", e.notes_too_late, "other random numbers"),
        Wrong("forgets autocast", e.no_autocast, "autocast lost", "B67"),
        Wrong("bfloat16 whatever was on", e.always_bfloat16, "autocast lost", "B67"),
        Wrong("never switches autocast off", e.never_switches_off, "autocast lost", "B67"),
        Wrong("keeps the result", e.gives_the_first_again, "never recomputed"),
        Wrong("not after an exception", e.not_after_an_error, "not put back after an error"),
        Wrong("right one more time only", e.only_one_more, "other random numbers"),
        Wrong("drops keywords", e.drops_keywords, "inputs lost", "B57"),
        Wrong("runs it at once", e.calls_it, "not a function"),
        Wrong("returns only the first time", e.returns_once, "returned nothing"),
        Wrong("always the first inputs", e.uses_the_first_inputs, "inputs lost"),
    ),
    unusual=(
        Unusual("a class with a call", e.Replayed),
        Unusual("a context made of a generator", e.with_a_generator),
    ),
))  # fmt: skip

from . import nb05b  # noqa: E402, F401  the exercises that follow
