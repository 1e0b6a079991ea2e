"""The exercises of notebook 02: accumulation from scratch."""

from fractions import Fraction

import torch

from . import answers02 as a
from . import odd02 as b
from .faults import Fault
from .guard import source_of
from .loops import want_right_loop, want_window_losses
from .registry import Exercise, Unusual, Wrong, register
from .want import shown, want_close, want_int, want_number, want_sequence, want_tensor, want_true

# -- 02.1 the weights ----------------------------------------------------------------------------------------------


def check_weights(answer):
    for sizes in ([4, 4, 4, 4], [8], [4, 4, 2], [1, 3, 12], [7, 5, 3, 2, 1]):
        what = f"window_weights({sizes})"
        got = want_sequence(answer.call(list(sizes)), what, len(sizes))
        got = [want_number(w, f"a weight of {what}") for w in got]
        right, k = [Fraction(n, sum(sizes)) for n in sizes], len(sizes)
        if _close(got, right):
            continue
        if _close(got, [Fraction(1, k)] * k):
            raise Fault("mean of means", f"For sizes {sizes} you weigh every micro-batch 1/{k}. That is right only when "
                        "all have the same number of samples.")  # fmt: skip
        if _close(got, sizes):
            raise Fault("not normalised", f"For sizes {sizes} your weights add up to {sum(sizes)}, not to 1: the result "
                        "would be a sum, not a mean.")  # fmt: skip
        if _close(got, [Fraction(n, max(sizes)) for n in sizes]):
            raise Fault("share of the largest", f"For sizes {sizes} you divide by the largest micro-batch. Divide by the "
                        "samples of the whole window.")  # fmt: skip
        if _close(got, [Fraction(1, n) for n in sizes]):
            raise Fault("one over size", f"For sizes {sizes}: 1/n_i turns a sum into this micro-batch's own mean, but the "
                        "micro-batches already give means.")  # fmt: skip
        raise Fault("wrong weights", f"For sizes {sizes} the weights should be each size over their sum.")


def _close(got, right):
    return all(abs(Fraction(x) - Fraction(y)) < Fraction(1, 10**6) for x, y in zip(got, right))


register(Exercise(
    id="02.1",
    title="The weights of a window",
    prompt="Return the list of weights that makes the micro-batches' mean gradients add up to the window's mean gradient.",
    reference=a.window_weights,
    hints=(
        "Write the mean over all samples of the window as a sum over micro-batches. What stands before each mean?",
        "A micro-batch's mean is its sum divided by n_i. You need that sum divided by N.",
        "The weight is n_i / N, where N = sum(sizes).",
    ),
    checker=check_weights,
    wrong=(
        Wrong("all equal", a.weights_equal, "mean of means", "B16"),
        Wrong("sizes themselves", a.weights_sizes, "not normalised"),
        Wrong("share of the largest", a.weights_largest, "share of the largest"),
        Wrong("one over size", a.weights_inverse, "one over size"),
    ),
    unusual=(Unusual("exact fractions in a tuple", a.weights_fractions), Unusual("a tensor", a.weights_tensor),
             Unusual("a float32 tensor", b.weights_float32)),
))  # fmt: skip

# -- 02.2 the gradient ---------------------------------------------------------------------------------------------


def check_gradient(answer):
    draw = torch.Generator().manual_seed(1)
    for sizes in ((4, 4, 4), (5, 2, 1), (3,), (6, 6, 6, 1)):
        gradients = [torch.randn(4, 3, generator=draw, dtype=torch.float64) for _ in sizes]
        right = sum(g * n for g, n in zip(gradients, sizes)) / sum(sizes)
        what = f"the gradient for sizes {list(sizes)}"
        got = answer.call([g.clone() for g in gradients], list(sizes))
        # a second call on tensors that are watched: adding in place into the first one is a fault of its own
        answer.call(gradients, list(sizes), unchanged=(gradients,))
        got = want_tensor(got, what, shape=(4, 3), dtype=torch.float64).detach()
        if len(sizes) > 1:
            if torch.allclose(got, sum(gradients)):
                raise Fault("not divided", f"{what} is the plain sum: {len(sizes)} times too long for equal sizes.")
            if not torch.allclose(got, right) and torch.allclose(got, sum(gradients) / len(sizes)):
                raise Fault("mean of means", f"{what} is the plain mean of the means. A micro-batch of 1 sample pulls as "
                            "hard as one of 6.")  # fmt: skip
            if torch.allclose(got, right * sum(sizes)):
                raise Fault("not normalised", f"{what} is weighted by the sizes, but not divided by their sum.")
        want_close(got, right, what, "wrong gradient", "weigh each gradient by its share of the samples and add.")


register(Exercise(
    id="02.2",
    title="The large batch's gradient from micro-gradients",
    prompt="Combine the micro-batches' mean gradients into the gradient of the whole window, and leave them unchanged.",
    reference=a.big_batch_gradient,
    hints=(
        "You have the weights already: window_weights(sizes).",
        "sum(...) over zip(weights, micro_gradients) needs no special first case.",
        "sum(w * g for w, g in zip(window_weights(sizes), micro_gradients)); an in-place += would change a micro-gradient.",
    ),
    checker=check_gradient,
    wrong=(
        Wrong("sum", a.gradient_sum, "not divided", "B04"),
        Wrong("mean of means", a.gradient_mean, "mean of means", "B16"),
        Wrong("weighted sum", a.gradient_sizes, "not normalised"),
        Wrong("adds into the first one", a.gradient_in_place, "mutated input"),
        Wrong("empties the list", b.gradient_pops, "mutated input"),
    ),
    unusual=(Unusual("einsum over a stack", a.gradient_einsum), Unusual("back to sums first", a.gradient_sums)),
))  # fmt: skip

# -- 02.3 the loop -------------------------------------------------------------------------------------------------


def check_loop(answer):
    for batches, k in ((8, 4), (4, 1), (6, 3), (4, 4)):
        want_right_loop(answer, [4] * batches, k, seed=batches)


register(Exercise(
    id="02.3",
    title="The loop",
    prompt="Make one update for every `accumulation_steps` micro-batches, with the mean gradient of all their samples. "
    "All micro-batches have the same size and fill whole windows.",
    reference=a.accumulate,
    hints=(
        "`backward()` adds to .grad. What must happen once per window, and what once per micro-batch?",
        "Once per micro-batch: forward, divide the loss, backward. Once per window: step, then zero_grad.",
        "Count from one with enumerate(batches, 1); a window is full when i % accumulation_steps == 0.",
        "loss = loss_fn(model(inputs), targets) / accumulation_steps, then backward, then the test.",
    ),
    checker=check_loop,
    wrong=(
        Wrong("no division", a.loop_no_division, "not divided", "B04"),
        Wrong("clears in the window", a.loop_clears, "cleared too early", "B01"),
        Wrong("steps every time", a.loop_steps, "update every micro-batch", "B09"),
        Wrong("divides loss and gradient", a.loop_twice, "divided twice", "B05"),
        Wrong("never clears", a.loop_never_clears, "not cleared"),
        Wrong("off by one", a.loop_off_by_one, "wrong window", "B08"),
        Wrong("running division", a.loop_running, "running division", "B07"),
        Wrong("no backward", a.loop_no_backward, "no gradient"),
        Wrong("test outside the loop", a.loop_outside, "no update"),
        Wrong("clips each micro-batch", a.loop_clips, "clipped in the window", "B30"),
        Wrong("clears before the step", b.loop_clears_first, "cleared before the step"),
        Wrong("clears between windows only", b.loop_stale_epoch, "not cleared"),
        Wrong("changes the learning rate", b.loop_learning_rate, "learning rate changed"),
        Wrong("shuffles the list it was given", b.loop_shuffles, "mutated input"),
        Wrong("empties the list it was given", b.loop_pops, "mutated input"),
        Wrong("sorts a copy", b.loop_other_order, "other micro-batches"),
        Wrong("divides by the number of batches", b.loop_all_batches, "all scaled"),
        Wrong("yields", b.loop_yields, "generator"),
        Wrong("goes to float32", b.loop_float32, "model changed"),
    ),
    unusual=(
        Unusual("sum, then one division of .grad", a.loop_divides_grad),
        Unusual("autograd.grad and a list", a.loop_autograd),
        Unusual("grad = None instead of zero_grad", a.loop_none),
        Unusual("one concatenated batch", a.loop_concatenates),
        Unusual("a closure for the optimizer", a.loop_closure),
        Unusual("a hook on each gradient", b.loop_hooks),
        Unusual("a hook before the step", b.loop_step_hook),
        Unusual("freezes the model at the end", b.loop_freezes),
    ),
))  # fmt: skip

# -- 02.4 tails ----------------------------------------------------------------------------------------------------


def check_tail(answer):
    cases = (([4] * 8, 4), ([4] * 6, 4), ([4, 4, 4, 1], 4), ([4] * 9 + [2], 4), ([4, 2, 4], 5), ([3, 1, 2, 5, 4], 2))
    # All gradients before any loss: a wrong gradient is the greater fault, and explains a wrong loss.
    for seen in [want_right_loop(answer, sizes, k, seed=len(sizes)) for sizes, k in cases]:
        for returned, losses in seen.trained:
            want_window_losses(returned, losses)


register(Exercise(
    id="02.4",
    title="Tails, and the loss that a log should show",
    prompt="Now micro-batches may differ in size and the last window may be short. Weigh every micro-batch by its share, "
    "update the last window too, and return the list of the windows' losses.",
    reference=a.accumulate_any,
    hints=(
        "You cannot know a micro-batch's share before you know its window. Collect the window first.",
        "itertools.islice(iterator, accumulation_steps) takes up to that many; an empty list ends the loop.",
        "sizes = [len(targets) for _, targets in window]; each loss is multiplied by size / sum(sizes).",
        "The window's loss is the sum of the weighted losses; take loss.item() of each.",
    ),
    checker=check_tail,
    wrong=(
        Wrong("tail divided by K", a.tail_small, "tail too small", "B13"),
        Wrong("tail left in .grad", a.tail_dropped, "tail leaks", "B12"),
        Wrong("mean of means", a.tail_means, "mean of means", "B16"),
        Wrong("returns the last loss", a.tail_last_loss, "wrong logged loss", "B41"),
        Wrong("returns nothing", a.tail_no_losses, "returned nothing"),
        Wrong("losses after the update", b.tail_late_losses, "wrong logged loss"),
    ),
    unusual=(
        Unusual("summed gradients, divided by N at the end", a.tail_sums),
        Unusual("two passes over a list", a.tail_two_passes),
    ),
))  # fmt: skip

# -- 02.5 memory ---------------------------------------------------------------------------------------------------


def check_memory(answer):
    cases = [(120, 100, 200, 10, 64, k) for k in (1, 2, 4, 8, 64)] + [(7, 5, 0, 3, 10, 4), (7, 5, 9, 11, 10, 3)]
    for p, g, s, per_sample, batch, k in cases:
        what = f"peak_bytes({p}, {g}, {s}, {per_sample}, {batch}, {k})"
        got = answer.call(p, g, s, per_sample, batch, k)
        want_true(type(got) is not float, "not whole", f"{what} gives the float {shown(got)}. A micro-batch has a whole "
                  "number of samples: round up, with math.ceil(batch / accumulation_steps).")  # fmt: skip
        got = want_int(got, what)
        micro = -(-batch // k)
        typical = {
            "everything shrinks": ({(p + g + s + per_sample * batch) // k}, "Only the activations of one micro-batch shrink. "
                                   "Parameters, gradients and optimizer state are there in full."),
            "activations do not shrink": ({p + g + s + per_sample * batch}, "After backward() the activations of a "
                                          "micro-batch are freed; they never stand side by side."),
            "gradients pile up": ({p + k * g + s + per_sample * micro}, "backward() adds into one .grad; there is one "
                                  "set of gradients, not one for each micro-batch."),
            "parameters forgotten": ({g + s + per_sample * micro}, "The parameters are there all the time."),
            "gradients forgotten": ({p + s + per_sample * micro}, "The gradients stay alive through the whole window."),
            "rounded down": ({p + g + s + per_sample * (batch // k)}, "The largest micro-batch decides: round up."),
        }  # fmt: skip
        if got == p + g + s + per_sample * micro:
            continue
        for diagnosis, (values, say) in typical.items():
            want_true(got not in values, diagnosis, f"{what} gives {got}. {say}")
        raise Fault("wrong peak", f"{what} gives {got}. Add what stays, and the activations of the largest micro-batch.")


register(Exercise(
    id="02.5",
    title="Memory against K",
    prompt="Predict a step's peak in bytes: `batch` samples in `accumulation_steps` micro-batches as equal as possible, "
    "activations given per sample, everything else in bytes.",
    reference=a.peak_bytes,
    hints=(
        "Which of the four terms depend on how many samples are in flight?",
        "One micro-batch is alive at a time. How many samples has the largest one?",
        "-(-batch // accumulation_steps) rounds up.",
    ),
    checker=check_memory,
    wrong=(
        Wrong("everything over K", a.memory_all, "everything shrinks"),
        Wrong("activations of the whole batch", a.memory_none, "activations do not shrink"),
        Wrong("K sets of gradients", a.memory_piles, "gradients pile up"),
        Wrong("no gradients", a.memory_no_gradients, "gradients forgotten"),
        Wrong("no parameters", b.memory_no_parameters, "parameters forgotten"),
        Wrong("fractions of a sample", b.memory_float, "not whole"),
        Wrong("rounds down", a.memory_floor, "rounded down"),
    ),
    unusual=(Unusual("math.ceil", a.memory_ceil),),
))  # fmt: skip

# -- 02.6 fewest edits ---------------------------------------------------------------------------------------------


MOST_EDITS = 5


def check_edits(answer):
    for batches, k in ((8, 4), (6, 2), (3, 1)):
        want_right_loop(answer, [4] * batches, k, seed=batches)
    source = answer.source
    if source is None:
        return  # the code cannot be read here; the gradients were right
    new, old = a.plain_lines(source), a.plain_lines(source_of(a.train_plain))
    if new is None:
        return  # a lambda, say: right, and nothing to count
    kept = 0
    for line in old:
        if line in new:
            new.remove(line)
            kept += 1
    if len(new) > MOST_EDITS:
        raise Fault("too many edits", f"The loop is right, with {len(new)} new or changed lines; {MOST_EDITS} are enough. "
                    f"The first: `{new[0]}`.")  # fmt: skip
    want_true(kept >= 3, "not an edit", "The gradients are right, but the plain loop is gone. Edit its own lines: clearing, "
              "backward and step stay; what changes is when they run.")  # fmt: skip


register(Exercise(
    id="02.6",
    title="Convert a loop by the fewest edits",
    prompt=f"Turn this plain loop into one that accumulates, with at most {MOST_EDITS} new or changed lines.",
    reference=a.train,
    hints=(
        "The forward and backward lines stay where they are. Which lines must run less often?",
        "One line counts, one divides, one asks whether the window is full; clearing moves behind the update.",
        "`for i, (inputs, targets) in enumerate(batches, 1):` and `if i % accumulation_steps == 0:`",
    ),
    checker=check_edits,
    wrong=(
        Wrong("only the division", a.edit_division, "update every micro-batch"),
        Wrong("clears at the top", a.edit_clears, "cleared too early", "B01"),
        Wrong("no division", a.edit_no_division, "not divided", "B04"),
        Wrong("rewritten from nothing", a.edit_rewrite, "too many edits"),
        Wrong("calls another loop", b.edit_delegates, "not an edit"),
    ),
    unusual=(Unusual("another test for a full window", a.edit_other), Unusual("a lambda", b.edit_lambda)),
))  # fmt: skip
