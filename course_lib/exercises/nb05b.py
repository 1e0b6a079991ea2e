"""The exercises of notebook 05: versions 3 and 4. Traps and their repair follow in nb05c.py."""

from __future__ import annotations

import torch

from . import answers05 as a
from . import answers05c as c
from . import answers05d as d
from . import scenes05, scenes05b
from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .want import want_true
from .verdicts05 import (
    RULES,
    Case,
    memory_is_freed,
    output_is_right,
    ran_as_often_as_needed,
    recomputed_at_all,
)
from .witnesses import (
    close,
    expected,
    observe,
    raise_own,
    same_kind_of_output,
    testify,
    want_own_work,
    watch_for_ready_made,
)

# -- 05.5 version 3 ----------------------------------------------------------------------------------------


def check_my_checkpoint(answer):
    testify(answer, scenes05.Functional)
    want_own_work(answer, scenes05.Functional)
    for kind in (*scenes05.FIRST[1:], *scenes05b.SECOND, *scenes05.SURROUNDED):
        testify(answer, kind)
    for kind in (scenes05b.Long, scenes05.Functional, scenes05b.Nested):
        testify(answer, kind, stops_early=True)
    places = (
        (scenes05.Functional, "An input"),
        (scenes05b.Keywords, "A keyword argument"),
        (scenes05b.Nested, "A tensor in a dict"),
    )
    for kind, where in places:
        want_change_noticed(answer, kind, where)
    want_plain_without_recording(answer)


def want_change_noticed(run, kind, where):
    """An input that is changed in place between forward and backward: an error, or the right gradient."""

    class Changed(kind):
        def backward(self, loss):
            tensor = getattr(self, "half", self.held)
            with torch.no_grad():
                tensor.mul_(2)
            loss.backward()

    right, seen = expected(kind)[0].gradients, observe(Changed(), run)
    same = seen.error is None and all(close(seen.gradients[name], g, 1e-9) for name, g in right.items())
    want_true(seen.error is not None or same, "change not noticed",
              f"{where} was multiplied by 2 in place between forward and backward, and the gradient came out "
              "wrong without a word. Note `x._version` of every tensor among the inputs; it goes up with "
              "each change in place. Compare before you recompute.")  # fmt: skip


def want_plain_without_recording(run):
    """Under no_grad there is nothing to do twice."""
    scene = scenes05.Functional()
    with torch.no_grad():
        loss = scene.forward(run)
    want_true(len(scene.probe.calls) == 1 and not loss.requires_grad, "inference", "Under `torch.no_grad()` "
              "the segment should run once, plainly, and the result should not require a "
              "gradient.")  # fmt: skip


register(Exercise(
    id="05.5",
    title="Version 3: saved-tensor hooks",
    prompt="Checkpoint any function: tensors anywhere in args and kwargs, any output, weights that alone "
    "need a gradient, functional and second gradients, checkpoints inside. A recompute stops when the last "
    "saved tensor is there, and refuses changed inputs.",
    reference=a.my_checkpoint,
    hints=(
        "Under `saved_tensors_hooks(pack, unpack)` autograd calls pack(tensor) for each tensor it wants to "
        "save, and keeps what pack returns. Return something small: the number of the tensor.",
        "unpack(number) is called in backward. If the tensor is not there, run the function again, under "
        "other hooks whose pack puts tensor.detach() into a dict by its number. Same code, same order: "
        "number 5 is number 5.",
        "Backward runs with recording off, and without recording nothing is saved: torch.enable_grad() "
        "around the second run. And `replayed(function, *inputs)` gives the same random numbers and autocast "
        "to both runs.",
        "Early stop: when the dict holds as many tensors as the first run saved, raise Enough in pack; "
        "contextlib.suppress(Enough) around the second run. Give each tensor out once: dict.pop(number). "
        "Then a second backward finds it gone and recomputes.",
    ),
    checker=check_my_checkpoint,
    wrong=(
        Wrong("other random numbers", c.no_random, "other random numbers", "B59"),
        Wrong("runs to the end", c.runs_to_the_end, "ran to the end"),
        Wrong("never lets go", c.keeps_all, "kept through backward"),
        Wrong("keeps graphs, lets nothing go", c.keeps_graphs, "not freed after backward"),
        Wrong("keeps in a global", c.in_a_global, "not freed after backward"),
        Wrong("recompute without recording", c.not_recording, "no grad mode"),
        Wrong("does not look for changes", c.no_versions, "change not noticed", "B75"),
        Wrong("recomputes only once", c.only_once, "second backward", "B58"),
        Wrong("recomputes for each tensor", c.for_each_tensor, "recomputed too often"),
        Wrong("constants in the second run", c.on_constants, "inputs without gradient"),
        Wrong("nobody catches Enough", c.not_caught, "not caught"),
        Wrong("stops one too early", c.one_too_early, "ticket without tensor"),
        Wrong("no hooks in the second run", c.no_second_hooks, "ticket without tensor"),
        Wrong("one count for all calls", c.one_count, "ticket without tensor"),
        Wrong("from the end", c.from_the_end, "tensors mixed up"),
        Wrong("saves everything", c.saves_everything, "never recomputed", "B55"),
        Wrong("saves copies", c.saves_copies, "never recomputed", "B55"),
        Wrong("drops keywords", c.drops_keywords, "inputs lost", "B57"),
        Wrong("keywords in the first run only", c.keywords_of_first_run_only, "inputs lost", "B57"),
        Wrong("nested tensors as constants", c.nested_are_constants, "inputs without gradient", "B57"),
        Wrong("version 2 again", c.by_version_2, "output without graph", "B52"),
        Wrong("a dummy that requires a gradient", c.with_a_dummy, "marked for nothing", "B56"),
        Wrong("marks all outputs", c.marks_all, "marked for nothing", "B56"),
        Wrong("recomputes in forward", c.in_forward, "recomputed in forward"),
        Wrong("no graph at all", c.without_a_graph, "output without graph"),
        Wrong("leaves its hooks on", c.leaves_hooks_on, "hooks left on"),
        Wrong("one tensor out of many", c.one_output_only, "wrong output", "B57"),
        Wrong("a ready-made one", c.by_torch, "built by torch"),
    ),
    unusual=(
        Unusual("a class and weak references", c.with_a_class),
        Unusual("a context made of a generator", c.with_a_context),
        Unusual("inputs in the graph", c.inputs_in_the_graph),
    ),
))  # fmt: skip

# -- 05.6 version 4 ----------------------------------------------------------------------------------------


def check_my_sequential(answer):
    for blocks, segments in ((6, 3), (7, 3), (10, 4), (5, 5), (4, 1)):
        _check_cut(answer, blocks, segments)
    for blocks, segments in ((3, 0), (3, 4), (3, -1)):
        _want_refused(answer, blocks, segments)
    with watch_for_ready_made() as used:
        observe(scenes05b.chain(6, 3)(), _cutter(answer))
    want_true("checkpoint_sequential" not in used.functions, "built by torch", "This works, but it is "
              "torch's own `checkpoint_sequential` that cuts. Here you cut yourself.")  # fmt: skip


def _cutter(answer):
    """Runs a chain's blocks through the answer."""

    def run(function, x):
        scene = function.__self__
        blocks = torch.nn.Sequential(*scene.blocks) if scene.segments % 2 else list(scene.blocks)
        return answer.call(blocks, scene.segments, x)

    run.answer = answer
    return run


def _check_cut(answer, blocks, segments):
    kind = scenes05b.chain(blocks, segments)
    right, least = expected(kind)
    run = _cutter(answer)
    seen = observe(kind(), same_kind_of_output(run, right))
    case = Case(seen, right, least, f"With {blocks} blocks in {segments} segments,", False)
    forward = [call.label for call in seen.scene.probe.calls if call.phase == "forward"]
    for label in right.calls("forward"):
        want_true(label in forward, "blocks lost", f"{case.told} {label} never ran in the forward pass. A "
                  "remainder must go somewhere.")
        want_true(forward.count(label) == 1, "blocks run twice", f"{case.told} {label} ran "
                  f"{forward.count(label)} times in the forward pass. Where one segment ends the next one "
                  "begins: end = start + size, then start = end.")  # fmt: skip
    output_is_right(case)
    _want_cut(case, blocks, segments)
    for rule in RULES:
        if rule not in (memory_is_freed, recomputed_at_all, ran_as_often_as_needed):
            rule(case)
    if seen.error is not None:
        raise_own(seen.error, run, case.told)


def _want_cut(case, blocks, segments):
    """Read off which blocks ran again, and when, how the chain was cut."""
    again = [int(call.label.split()[1]) for call in case.seen.scene.probe.calls if call.phase == "backward"]
    twice = sorted({number for number in again if again.count(number) > 1})
    if twice:
        case.fail("late-bound closure", f"block {twice[0]} was recomputed {again.count(twice[0])} times, and "
                  "others not at all (B73). A function made in a loop looks its variables up when it is "
                  "*called*: by the time of backward they hold the last round's values. Bind them: as "
                  "parameters of a function that makes the segment, or as defaults.")  # fmt: skip
    free = [number for number in range(1, blocks + 1) if number not in again]
    cuts = []
    for number in again:
        if not cuts or number != cuts[-1][-1] + 1:
            cuts.append([])
        cuts[-1].append(number)
    sizes = [len(cut) for cut in reversed(cuts)] + [len(free)] * bool(free)
    if segments > 1 and not again:
        case.fail("never recomputed", "no block ran again in backward, so nothing was checkpointed.")
    if not free or blocks not in free:
        case.fail("last segment recomputed", "the last segment ran again, too. Its backward comes first, "
                  "right after its forward: its intermediates would be dropped and be back a moment later. "
                  "Run it plainly.")  # fmt: skip
    if len(sizes) != segments:
        case.fail("wrong number of segments", f"there are {len(sizes)}: of {sizes} blocks.")
    if max(sizes) - min(sizes) > 1:
        case.fail("unbalanced", f"the segments have {sizes} blocks. The longest decides the peak: no two "
                  "should differ by more than one (divmod gives the size and how many are "
                  "longer).")  # fmt: skip
    held = [name for name in case.seen.names if int(name.split()[1].rstrip("'s")) not in free]
    if held:
        case.fail("intermediates alive", f"after the forward pass {held[0]} is alive, and its segment is "
                  "checkpointed.")


def _want_refused(answer, blocks, segments):
    scene = scenes05b.chain(blocks, segments)()
    try:
        _cutter(answer)(scene.all_blocks, scene.hidden())
    except Fault as fault:
        if fault.diagnosis != "raised" or "`ValueError`" in fault.message:
            want_true(fault.diagnosis == "raised", fault.diagnosis, fault.message)
            return
        raise Fault("bad error", f"For {blocks} blocks in {segments} segments: {fault.message}. Say in a "
                    "ValueError of your own what is possible.") from None  # fmt: skip
    raise Fault("accepts anything", f"{blocks} blocks cannot make {segments} segments, and `my_sequential` "
                "says nothing. Raise a ValueError with one sentence.")  # fmt: skip


register(Exercise(
    id="05.6",
    title="Version 4: a whole chain in segments",
    prompt="Run `blocks` on x in `segments` stretches whose lengths differ by at most one, each but the last "
    "through `my_checkpoint`. A number of segments below 1 or above the number of blocks is a ValueError.",
    reference=a.my_sequential,
    hints=(
        "divmod(len(blocks), segments) gives the length of a segment, and how many of them must be one "
        "longer.",
        "A segment is a function of x that runs blocks[start:end]. It runs again in backward, when your loop "
        "has long gone on: which values do `start` and `end` have then?",
        "Let a function `run(start, end)` make and return the segment: each call of it has variables of its "
        "own.",
        "for number in range(segments - 1): x = my_checkpoint(run(start, end), x); and after the loop "
        "run(start, len(blocks))(x).",
    ),
    checker=check_my_sequential,
    wrong=(
        Wrong("looks the loop's variables up late", d.late_bound, "late-bound closure", "B73"),
        Wrong("the remainder to the last one", d.remainder_last, "unbalanced", "B76"),
        Wrong("the last one, too", d.last_too, "last segment recomputed", "B76"),
        Wrong("the first one instead", d.first_one_free, "last segment recomputed"),
        Wrong("each block by itself", d.block_by_block, "wrong number of segments", "B76"),
        Wrong("one around all", d.one_around_all, "last segment recomputed", "B76"),
        Wrong("none", d.none_at_all, "never recomputed"),
        Wrong("drops the remainder", d.drops_remainder, "blocks lost"),
        Wrong("ends that overlap", d.overlapping, "blocks run twice"),
        Wrong("takes any number", d.takes_anything, "accepts anything"),
        Wrong("divides by zero", d.divides_by_zero, "bad error"),
        Wrong("a ready-made one", d.by_torch, "built by torch"),
    ),
    unusual=(
        Unusual("defaults bind the bounds", d.defaults_bind),
        Unusual("longer ones last, recursively", d.recursively),
        Unusual("Sequential slices as modules", d.modules),
    ),
))  # fmt: skip

from . import nb05c  # noqa: E402, F401  the exercises that follow
