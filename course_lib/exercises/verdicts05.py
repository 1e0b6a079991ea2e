"""What the four witnesses say about a checkpoint, worst first. Each rule raises a Fault or lets the next "
"one look."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .faults import Fault
from .witnesses import SLACK, Seen, apart, close, tensors_in, with_gradient_one


class Case(NamedTuple):
    """A run through a learner's checkpoint, beside the run without one."""

    seen: Seen
    right: Seen
    least: int  # bytes alive after a forward that keeps nothing
    told: str  # "With dropout in the segment,"
    stops_early: bool

    @property
    def rel(self):
        return 1e-11 if self.seen.scene.dtype == torch.float64 else 1e-4

    def fail(self, diagnosis, words):
        raise Fault(diagnosis, f"{self.told} {words}")


def output_is_right(case):
    for got, needed in zip(case.seen.outputs, case.right.outputs):
        for a, b in zip(tensors_in(got), tensors_in(needed)):
            if close(a, b, case.rel):
                continue
            if case.seen.scene.random:
                case.fail("other random numbers in forward", "the output is not eager's for the same seed. "
                          "The first run must draw what plain code would draw: no seed of your "
                          "own.")  # fmt: skip
            case.fail("wrong output", "the output is not what the segment gives. In the forward pass a "
                      "checkpoint runs the segment on its inputs as they are.")  # fmt: skip


def ran_once_in_forward(case):
    for label in case.right.calls("forward"):
        n = len(case.seen.calls("forward").get(label, ()))
        if n == 0:
            case.fail("segment not run", f"the {label} never ran in the forward pass.")
        if n > len(case.right.calls("forward")[label]):
            case.fail("recomputed in forward", f"the {label} ran {n} times before backward began. Once is "
                      "the forward; the second run belongs into the backward pass, or its intermediates wait "
                      "there all the time.")  # fmt: skip


def graph_is_there(case):
    for got, needed in zip(case.seen.outputs, case.right.outputs):
        for a, b in zip(tensors_in(got), tensors_in(needed)):
            if b.requires_grad and not a.requires_grad and _all_inputs_need(case):
                case.fail("output without graph", "the inputs require a gradient, and the output does not: "
                          "it was computed under no_grad, or detached, and nothing has put a graph in that "
                          "place. An autograd.Function does so, or recording with hooks.")  # fmt: skip
            if b.requires_grad and not a.requires_grad:
                case.fail("output without graph", "the output does not require a gradient, so nothing in the "
                          "segment or before it will ever get one. (B52: an `autograd.Function` looks at the "
                          "tensors that `apply` was given, not at the weights inside the segment; tensors in "
                          "a list or dict it does not see.)")  # fmt: skip
            if a.requires_grad and not b.requires_grad:
                case.fail("marked for nothing", "the output requires a gradient, though nothing in the "
                          "segment and no input does. Backward would run for nothing, and a caller who asks "
                          "`requires_grad` is misled.")  # fmt: skip


def _all_inputs_need(case):
    first = [call for call in case.seen.scene.probe.calls if call.phase == "forward"]
    return all(call.needs and all(call.needs) for call in first)


def segment_got_its_inputs(case):
    for label, first in case.right.calls("forward").items():
        for call in case.seen.calls("forward").get(label, []) + case.seen.calls("backward").get(label, []):
            if call.given != first[0].given:
                when = "the forward pass" if call.phase == "forward" else "the recompute"
                case.fail("inputs lost", f"the {label} got other arguments in {when}: {_words(call.given)}, "
                          f"and should get {_words(first[0].given)}.")  # fmt: skip


def _words(given):
    return ", ".join(map(str, given)) or "none"


def recompute_records(case):
    backward = [call for calls in case.seen.calls("backward").values() for call in calls]
    if backward and not any(call.grad for call in backward):
        case.fail("no grad mode", "the segment ran again in backward, but with recording switched off: the "
                  "backward pass runs under no_grad. Put the recompute under "
                  "`torch.enable_grad()`.")  # fmt: skip


def inputs_are_detached(case):
    """A recompute on the original inputs, in a Function: its inner backward runs on into the graph before."""
    if case.seen.error is None or "second time" not in str(case.seen.error):
        return
    if any(call.graph for calls in case.seen.calls("backward").values() for call in calls):
        case.fail("not detached", "the recompute runs on inputs that still have their graph behind them. The "
                  "inner backward then goes on into the layers before the segment, and the outer one finds "
                  "their graph used up. Detach the inputs first.")  # fmt: skip


def memory_is_freed(case):
    if not case.seen.scene.counts_memory:
        return
    seen, excess = case.seen, case.seen.alive - case.least
    if excess <= SLACK:
        return
    kept = case.right.alive - case.least
    never = not seen.calls("backward") and seen.error is None and case.right.gradients
    names = f" ({', '.join(seen.names[:3])})" if seen.names else ""
    if never:
        case.fail("never recomputed", "the segment ran once and never again: the graph of the first "
                  f"run{names} was kept, {excess:,} bytes. The gradients may be right, but this is plain "
                  "autograd, and no memory is saved.")  # fmt: skip
    case.fail("intermediates alive", f"after the forward pass {excess:,} bytes are alive that need not "
              f"be{names}; without a checkpoint it would be {kept:,}. Look for what holds them: a variable "
              "of a closure, an attribute of ctx, an output that was kept with its graph, a "
              "copy.")  # fmt: skip


def inputs_still_need_gradients(case):
    """A second run on constants: then autograd saves other tensors, or finds nothing to record."""
    if case.seen.error is None:
        return
    for label, again in case.seen.calls("backward").items():
        first = case.seen.calls("forward")[label][0]
        for call in again:
            if call.grad and call.needs != first.needs and not all(call.needs):
                case.fail("inputs without gradient", f"in the recompute the {label}'s inputs do not require "
                          "a gradient, and in the forward pass they did. Autograd then saves other tensors "
                          "than before. Where you detach an input, put its flag back: "
                          "`x.detach().requires_grad_(x.requires_grad)`.")  # fmt: skip


def backward_ran(case):
    """Known exceptions out of the engine, in words."""
    error = case.seen.error
    text = str(error or "")
    if type(error).__name__ == "Enough":
        case.fail("not caught", "the exception that ends your second run came out of the backward pass. "
                  "Catch it around the second run alone: `with suppress(Enough): ...`.")  # fmt: skip
    if isinstance(error, LookupError) and case.seen.calls("backward"):
        case.fail("ticket without tensor", "backward came with a ticket for which the second run has brought "
                  f"no tensor ({type(error).__name__}: {error}). Is pack called in the second run, too "
                  "(hooks around it)? Do both runs count from 0, in the same order, for this call alone? "
                  "Does the second run stop too early? Is a tensor asked for twice?")  # fmt: skip
    if "shapes cannot be multiplied" in text or "size of tensor" in text or "must match" in text:
        case.fail("tensors mixed up", "backward got another tensor than the one that was saved "
                  f"({text[:90]}). The tensors come in the same order in both runs: number i of the second "
                  "answers ticket i of the first.")  # fmt: skip
    if "implicitly created only for scalar" in text:
        case.fail("incoming gradient ignored", "`output.backward()` does not know what to begin with. The "
                  "gradient that `backward` was given is the beginning: `torch.autograd.backward(output, "
                  "gradient)`.")  # fmt: skip
    if "expected Variable or None" in text:
        case.fail("wrong number of gradients", "`backward` returned a list inside of its tuple. Unpack it: "
                  "`return None, *gradients`.")  # fmt: skip
    if "incorrect number of gradients" in text:
        case.fail("wrong number of gradients", "`backward` must return one value for each argument of "
                  "`forward` after ctx, in their order: None for the segment, then one for each "
                  "input.")  # fmt: skip
    if "implement either the backward" in text:
        case.fail("no backward", "the Function has no `backward`.")
    if error is not None and "one of the variables needed" in text:
        case.fail("changed in place", "autograd finds a tensor changed in place between forward and "
                  "backward.")


def surroundings_are_the_same(case):
    for label, again in case.seen.calls("backward").items():
        first = case.seen.calls("forward")[label][0]
        for call in again:
            if call.autocast != first.autocast:
                case.fail("autocast lost", f"the {label} ran under {_cast(first.autocast)} in the forward "
                          f"pass and under {_cast(call.autocast)} in the recompute, so other numbers come "
                          "back than were there.")  # fmt: skip
            if case.seen.scene.random and call.random != first.random:
                case.fail("other random numbers", f"the {label} drew other random numbers in the recompute "
                          "than in the forward pass: another dropout mask. The gradient belongs to a network "
                          "that never gave this output.")  # fmt: skip


def _cast(dtype):
    return "no autocast" if dtype is None else f"autocast to {str(dtype).removeprefix('torch.')}"


def outer_stream_is_untouched(case):
    if not case.seen.scene.random:
        return
    for when, mine, right in zip(("forward", "backward"), case.seen.stream, case.right.stream):
        if not torch.equal(mine, right):
            case.fail("stream shifted", f"after the {when} pass the random stream is not where eager leaves "
                      "it. Whatever is drawn next differs from a run without checkpoint. A recompute must "
                      "put back the state that it found.")  # fmt: skip


def recomputed_at_all(case):
    missing = [label for label in case.right.calls("forward") if not case.seen.calls("backward").get(label)]
    stuck = case.seen.error is not None and "does not require grad" not in str(case.seen.error)
    if missing and not stuck and _runs(case, missing[0]) > 1:
        case.fail("never recomputed", f"the {missing[0]} never ran again in the backward pass. A checkpoint "
                  "keeps no intermediates, so it has to.")  # fmt: skip


def every_gradient_is_there(case):
    if case.seen.error is not None:
        return
    needed = [name for name, gradient in case.right.gradients.items() if gradient is not None]
    missing = [name for name in needed if case.seen.gradients[name] is None]
    if not missing:
        return
    names = ", ".join(missing[:4])
    inner = [name for name in missing if name.startswith("segment")]
    if len(inner) == len(missing):
        case.fail("parameters without gradient", f"the gradient of {names} is None. The inputs got theirs, "
                  "but the weights of the segment did not: ask for *all* gradients of the recomputed output, "
                  "`torch.autograd.backward` puts them into .grad.")  # fmt: skip
    case.fail("inputs without gradient", f"the gradient of {names} is None: what flows back through the "
              "segment's inputs is lost. The recompute needs inputs that require a gradient, and backward "
              "must return what they get.")  # fmt: skip


def every_gradient_is_right(case):
    if case.seen.error is not None:
        return
    right, got = case.right.gradients, case.seen.gradients
    needed = {name: gradient for name, gradient in right.items() if gradient is not None}
    wrong = [name for name, gradient in needed.items() if not close(got[name], gradient, case.rel)]
    if not wrong:
        return
    if any(call.graph for calls in case.seen.calls("backward").values() for call in calls) and all(
        name.startswith(("x", "before")) for name in wrong
    ):
        case.fail("not detached", f"the gradient of {wrong[0]} is wrong: the recompute ran on inputs that "
                  "still hang on the graph before the segment, so its backward ran on into it. Detach the "
                  "inputs first.")  # fmt: skip
    if all(close(got[name], 2 * right[name], case.rel) for name in wrong):
        case.fail("counted twice", f"the gradient of {wrong[0]} is exactly twice what it should be: it "
                  "arrives on two ways. Was an input not detached, or backward called twice?")  # fmt: skip
    if _same(got, with_gradient_one(type(case.seen.scene)), case.rel):
        case.fail("incoming gradient ignored", f"the gradient of {wrong[0]} is what it would be if the "
                  "segment's output were summed up and that were the loss. Start the inner backward from the "
                  "gradient that `backward` was given.")  # fmt: skip
    case.fail("wrong gradient", f"the gradient of {', '.join(wrong[:3])} is wrong; {apart(got, right)}. Is "
              "the gradient that comes in from above used as it is, and does the recompute see the same "
              "inputs?")  # fmt: skip


def _same(got, other, rel):
    return all(g is None or close(got[name], g, rel) for name, g in other.items())


def _runs(case, label):
    return case.seen.scene.runs.get(label, 2)


def ran_as_often_as_needed(case):
    if case.seen.error is not None or not case.right.gradients:
        return
    for label in case.right.calls("forward"):
        total, needed = sum(call.label == label for call in case.seen.scene.probe.calls), _runs(case, label)
        if total > needed:
            case.fail("recomputed too often", f"the {label} ran {total} times in forward and backward "
                      f"together; {needed} are enough. One recompute serves everything that the backward of "
                      "the segment asks for.")  # fmt: skip
        if total < needed and case.seen.scene.asks_twice:
            case.fail("kept through backward", f"the {label} ran {total} times, and should run {needed} "
                      "times: the second backward found what the first one had computed still there. Until "
                      "then it takes the memory that you wanted to save. Give each recomputed tensor out "
                      "once (`pop`).")  # fmt: skip
        if total < needed:
            case.fail("never recomputed", f"the {label} ran {total} times in forward and backward together, "
                      f"not {needed}.")


def freed_after_backward(case):
    if not case.seen.scene.counts_memory or case.seen.error is not None:
        return
    excess = case.seen.alive_after - case.right.alive_after
    if case.seen.names_after or excess > SLACK:
        names = ", ".join(case.seen.names_after[:3]) or f"{excess:,} bytes"
        case.fail("not freed after backward", f"the backward pass is over, and this is still alive: {names}. "
                  "What a recompute found must go as soon as autograd has taken it: `pop` it, and keep "
                  "`tensor.detach()`, not the tensor with its graph.")  # fmt: skip


def freed_on_the_way(case):
    """When backward is nearly through the segment, the later intermediates have done their work."""
    late, eager = case.seen.scene.late, case.right.scene.late
    if late is not None and case.seen.error is None and len(late) > len(eager):
        case.fail("kept through backward", f"when backward is nearly through the segment, {len(late)} of its "
                  f"intermediates are still alive ({late[-1]} is the last); without a checkpoint "
                  f"{len(eager)} are. Hand each recomputed tensor out once and let it go (`pop`), and keep "
                  "it without its graph (`detach`).")  # fmt: skip


def second_backward_ran(case):
    if case.seen.error is not None and case.seen.scene.asks_twice:
        case.fail("second backward", f"the second backward fails: {type(case.seen.error).__name__}: "
                  f"{str(case.seen.error)[:120]}. With retain_graph=True, or a gradient of a gradient, "
                  "autograd asks for the saved tensors once more: then the segment has to run once "
                  "more.")  # fmt: skip


def stopped_early(case):
    if not case.stops_early or not case.seen.scene.last_op_saves_only_inputs or case.seen.error is not None:
        return
    for label, again in case.seen.calls("backward").items():
        if all(call.finished for call in again):
            case.fail("ran to the end", f"the recompute of the {label} ran to its end. Its last operation "
                      "saves only what goes into it, so by then every saved tensor is there: leave with an "
                      "exception as soon as the last one is packed, before the operation's own work is "
                      "done.")  # fmt: skip


RULES = (
    segment_got_its_inputs,
    output_is_right,
    ran_once_in_forward,
    graph_is_there,
    recompute_records,
    inputs_are_detached,
    memory_is_freed,
    second_backward_ran,
    inputs_still_need_gradients,
    backward_ran,
    surroundings_are_the_same,
    outer_stream_is_untouched,
    recomputed_at_all,
    every_gradient_is_there,
    every_gradient_is_right,
    ran_as_often_as_needed,
    freed_after_backward,
    freed_on_the_way,
    stopped_early,
)
