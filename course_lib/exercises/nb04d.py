"""The last exercises of notebook 04: saving inside a window (04.9), the noise of a gradient (04.10)."""

import copy
import io
import math
import random

import torch

from course_lib.doctor.problems import drawn, regression

from . import answers04d as a
from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .watch import equal
from .want import want_close, want_int, want_number, want_sequence, want_true

# -- 04.9 --------------------------------------------------------------------------------------------------

MAKERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
}


def run(model, optimizer, problem, batches, first, last):
    """Micro-batches first..last-1 of a run; the gradients that its updates used."""
    used, k = [], problem.accumulation_steps
    for i in range(first, last):
        inputs, targets = batches[i]
        (problem.loss_fn(model(inputs), targets) / k).backward()
        if (i + 1) % k == 0:
            used.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            optimizer.step()
            optimizer.zero_grad()
    return used


def check_checkpoint(answer):
    for name, stop in (("momentum", 6), ("Adam", 11), ("momentum", 8), ("Adam", 5), ("momentum", 3)):
        _check_checkpoint(answer, name, stop)


def _started(problem, name):
    """A model and its optimizer, whose learning rate a schedule has moved already."""
    model = problem.model()
    optimizer = MAKERS[name](model.parameters())
    optimizer.param_groups[0]["lr"] = 0.02
    return model, optimizer


def _check_checkpoint(answer, name, stop):
    problem = regression([4] * 16, 4, seed=3)
    batches, what = problem.batches(0), f"Saved after {stop} micro-batches, K=4, {name}:"
    unbroken, model = _started(problem, name), _started(problem, name)
    right = run(*unbroken, problem, batches, 0, 16)[stop // 4 :]
    run(*model, problem, batches, 0, stop)
    held = copy.deepcopy(_everything(*model))
    saver = _instance(answer)
    state = _stored(saver.save(*model, stop, 4))
    want_true(_same_state(_everything(*model), held), "saving changed the run", f"{what} `save` changed "
              "weights, optimizer or `.grad` of the running training. Saving must only read: the run that "
              "saves and the run that does not end alike.")  # fmt: skip
    other = _started(problem, name)  # what `save` keeps in memory is of another run when it comes to resuming
    run(*other, problem, batches, 0, 1)
    _instance(answer).save(*other, 1, 4)
    fresh = drawn(problem.model(), seed=9)
    second = MAKERS[name](fresh.parameters())
    done = _instance(answer).resume(state, fresh, second)
    done = want_int(done, "what resume returns, the micro-batches that are done,")
    want_true(0 <= done <= 16, "no such place", f"{what} resume returns {done}; {stop} micro-batches were "
                                                "done.")
    found = _inspected(fresh, second, held, done, stop)
    got = run(fresh, second, problem, batches, done, 16)
    same = len(got) == len(right) and all(equal(x, y) for x, y in zip(got, right))
    after = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (fresh, unbroken[0])]
    if same and equal(*after):
        return
    raise Fault(found[0], f"{what} {found[1]}")


def _everything(model, optimizer):
    return [model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]]


def _instance(answer):
    made = answer.call()
    for method in ("save", "resume"):
        want_true(callable(getattr(made, method, None)), "wrong type", "`Checkpoint()` should give an object "
                  f"with the methods `save` and `resume`; `{method}` is missing.")  # fmt: skip
    return made


def _stored(state):
    """The state as it comes back from a file."""
    want_true(state is not None, "returned nothing", "`save` returned None: return what should be stored.")
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    except Exception as error:
        if isinstance(error, Fault):
            raise
        raise Fault("cannot be stored", "What `save` returns must survive torch.save and "
                    "torch.load(weights_only=True): tensors, numbers, strings, and dicts and lists of them. "
                    "Store state_dict()s, not whole objects.") from None  # fmt: skip


def _inspected(model, optimizer, held, done, stop):
    """(diagnosis, words): what differs right after `resume` from how it was when it was saved."""
    old, inner, _ = held
    start = stop - stop % 4
    if any(not torch.equal(a, b) for a, b in zip(model.state_dict().values(), old.values())):
        return "model forgotten", "the weights after resume are not those that were saved."
    if not _same_state(optimizer.state_dict(), inner):
        return ("optimizer forgotten", "the optimizer after resume has other moments or another learning "
                                       "rate. Its state_dict holds both; the next updates depend on "
                                       "them.")  # fmt: skip
    mine = [None if p.grad is None or not p.grad.any() else p.grad for p in model.parameters()]
    empty = all(g is None for g in mine)
    if done > stop:
        return "micro-batches skipped", f"resume goes on at micro-batch {done}: data in between never count."
    if done < start or (done < stop and done != start):
        return ("position lost", f"resume returns {done}. {stop} micro-batches were done, and their windows "
                                 f"have been used up to {start}: others would be used twice.")  # fmt: skip
    if done == stop and empty and stop % 4:
        return ("partial window lost", f"the weights are right, but the gradients of the {stop % 4} "
                                       "micro-batches since the last update are gone: the next update gets "
                                       f"{4 - stop % 4}/4 of its window. Save `.grad`, too, or go back to "
                                       "the start of the window.")  # fmt: skip
    if done < stop and not empty:
        return ("counted twice", f"the run goes back to micro-batch {done}, and `.grad` still holds what "
                                 "came after it: these count twice.")  # fmt: skip
    return ("other gradients", "weights, optimizer and position are right, but `.grad` is not what it was: "
                               "put it back as it stood.")  # fmt: skip


def _same_state(one, other):
    def leaves(thing):
        if isinstance(thing, dict):
            return [leaf for key in sorted(thing, key=str) for leaf in leaves(thing[key])]
        if isinstance(thing, (list, tuple)):
            return [leaf for item in thing for leaf in leaves(item)]
        return [thing]

    a, b = leaves(one), leaves(other)

    def same(x, y):
        return torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y

    return len(a) == len(b) and all(map(same, a, b))


register(Exercise(
    id="04.9",
    title="Resume inside a window",
    prompt="Write a class with save(model, optimizer, done, accumulation_steps), which returns what is to be "
    "stored after `done` micro-batches, and resume(state, model, optimizer), which puts it into a fresh "
    "model and optimizer and returns how many micro-batches count as done. The run must go on as if it had "
    "never stopped.",
    reference=a.Checkpoint,
    hints=(
        "After micro-batch 6 of windows of 4, where do micro-batches 5 and 6 live? In which object, under "
        "which name?",
        "Weights and optimizer have a state_dict. `.grad` belongs to neither of them.",
        "Either store [p.grad for p in model.parameters()] and put each back, or return the start of the "
        "window: the weights do not move inside it.",
    ),
    checker=check_checkpoint,
    wrong=(
        Wrong("no gradients", a.NoGradients, "partial window lost", "B43"),
        Wrong("no optimizer", a.NoOptimizer, "optimizer forgotten", "B43"),
        Wrong("no model", a.NoModel, "model forgotten"),
        Wrong("starts over", a.StartsOver, "position lost"),
        Wrong("goes on at the next window", a.SkipsAhead, "micro-batches skipped", "B43"),
        Wrong("updates before it saves", a.UpdatesFirst, "saving changed the run", "B43"),
        Wrong("keeps the state in memory", a.KeepsInMemory, "model forgotten"),
        Wrong("goes back, keeps the gradients", a.CountsTwice, "counted twice", "B12"),
        Wrong("counts windows", a.CountsWindows, "position lost"),
        Wrong("scales the gradients", a.ScalesGradients, "other gradients"),
        Wrong("stores objects", a.StoresObjects, "cannot be stored"),
        Wrong("returns nothing", a.ReturnsNothing, "returned nothing"),
    ),
    unusual=(
        Unusual("goes back to the start of the window", a.Rewinds),
        Unusual("gradients by name", a.NamedGradients),
    ),
))  # fmt: skip

# -- 04.10 -------------------------------------------------------------------------------------------------


def check_noise(answer):
    seed = random.Random().randrange(10**6)
    for k, size, entries, spread in ((4, 8, 20, 1.0), (8, 1, 5, 3.0), (2, 32, 50, 0.5), (6, 5, 30, 2.0)):
        draw = torch.Generator().manual_seed(seed + k)
        center = torch.randn(entries, generator=draw, dtype=torch.float64)
        noise = [torch.randn(entries, generator=draw, dtype=torch.float64) for _ in range(k)]
        gradients = [center + spread * one for one in noise]
        what = f"gradient_noise of {k} micro-batches of {size}"
        got = answer.call([g.clone() for g in gradients], size)
        answer.call(gradients, size, unchanged=(gradients,))
        got = want_sequence(got, f"the result of {what}", 2)
        got = [float(want_number(v, f"a result of {what}")) for v in got]
        _name_noise(got, torch.stack(gradients), k, size, what)


def _name_noise(got, stack, k, size, what):
    between, entries = float(stack.var(0).sum()), stack.shape[1]
    variance, length = size * between, float(stack.mean(0).square().sum())
    squared = length - between / k

    def near(value, right):
        return abs(value - right) <= 1e-6 * max(abs(right), 1e-9)

    if near(got[0], variance) and near(got[1], squared):
        return
    want_true(not (near(got[0], squared) and near(got[1], variance)), "swapped", f"{what}: both numbers are "
              "right, in the wrong order. The variance comes first.")  # fmt: skip
    typical = {
        "variance of micro-batches": (between, "is the variance between means of micro-batches. A mean of n "
                                      "samples scatters n times less than one sample does: multiply by "
                                      "size."),
        "divided by K": (variance * (k - 1) / k, "divides by K. The mean was estimated from the same K "
                         "gradients, so divide by K - 1 (torch's default), or it comes out too small."),
        "mean over entries": (variance / entries, "is a mean over the entries of the gradient. Here it is "
                                                  "the sum over all of them."),
        "standard deviation": (math.sqrt(variance), "is a standard deviation. Variances add and shrink like "
            "1/n: keep it squared."),
        "divided by size": (between / size, "has the size on the wrong side: one sample scatters more than a "
                                            "mean of many."),
    }  # fmt: skip
    for diagnosis, (number, words) in typical.items():
        if not near(number, variance):
            want_true(not near(got[0], number), diagnosis, f"{what}: the variance {got[0]:.4g} {words}")
    want_close(got[0], variance, f"the variance from {what}", "wrong variance", "sum the entries' variances "
               "between the micro-gradients, times size.")  # fmt: skip
    signal = {
        "noise counted as signal": ({length, float(stack.square().sum(1).mean())}, "still holds noise: a "
                                    "mean of K random vectors has a length even where the true gradient is "
                                    "0. Subtract what noise adds to it, variance / (K * size)."),
        "noise of one micro-batch": ({length - between}, "is too small: the window's mean holds the noise of "
                                     "K micro-batches, not of one. Subtract variance / (K * size)."),
    }  # fmt: skip
    for diagnosis, (numbers, words) in signal.items():
        want_true(not any(near(got[1], number) for number in numbers), diagnosis, f"{what}: the squared "
            f"length {got[1]:.4g} {words}")
    want_close(got[1], squared, f"the squared length from {what}", "wrong squared length", "take the squared "
               "length of the mean, less variance / (K * size).")  # fmt: skip


register(Exercise(
    id="04.10",
    title="The noise of a gradient, for free",
    prompt="From the mean gradients of K micro-batches of `size` samples each, estimate two numbers without "
    "bias: the variance of a single sample's gradient (summed over its entries), and the squared length of "
    "the true gradient.",
    reference=a.gradient_noise,
    hints=(
        "A mean of n independent samples has 1/n of their variance. So how far do micro-gradients scatter, "
        "and one sample?",
        "stack.var(0).sum() is the variance between micro-gradients, with K - 1 below the line. Times size, "
        "it is that of one sample.",
        "The window's mean is the truth plus noise of variance / (K * size), and lengths add in squares.",
        "squared = (squared length of the mean) - variance / (K * size). It may come out negative: then "
        "noise is all there is.",
    ),
    checker=check_noise,
    wrong=(
        Wrong("divides by K", a.noise_population, "divided by K"),
        Wrong("between micro-batches", a.noise_of_means, "variance of micro-batches"),
        Wrong("length as it is", a.noise_uncorrected, "noise counted as signal"),
        Wrong("mean of the lengths", a.noise_mean_of_squares, "noise counted as signal"),
        Wrong("mean over entries", a.noise_per_entry, "mean over entries"),
        Wrong("a deviation", a.noise_deviation, "standard deviation"),
        Wrong("swapped", a.noise_swapped, "swapped"),
        Wrong("divides by size", a.noise_divided, "divided by size"),
        Wrong("subtracts too much", a.noise_too_much, "noise of one micro-batch"),
    ),
    unusual=(
        Unusual("from the mean of the lengths", a.noise_mean_square),
        Unusual("two batch sizes, two unknowns", a.noise_two_sizes),
        Unusual("a plain loop", a.noise_loop),
    ),
))  # fmt: skip
