"""The exercises of notebook 04 about the schedule (04.7) and about sums in bf16 (04.8)."""

import copy
import math

import torch
from torch import nn

from course_lib.doctor.problems import drawn, regression

from . import answers04c as a
from .faults import Fault
from .loops import want_healthy
from .registry import Exercise, Unusual, Wrong, register
from .watch import Mistake, equal, micro_gradients, want_updates, watch
from .want import want_int, want_sequence, want_tensor, want_true

# -- 04.7 --------------------------------------------------------------------------------------------------


def check_schedule(answer):
    for n, k, epochs in ((10, 4, 2), (5, 2, 10), (8, 4, 3), (3, 4, 4), (4, 1, 1)):
        _check_schedule(answer, n, k, epochs)


def _check_schedule(answer, n, k, epochs):
    problem = regression([4] * n, k, seed=n)
    batches, model = problem.batches(0), problem.model()
    micro = micro_gradients(model, [lambda m, b=batch: problem.loss_fn(m(b[0]), b[1]) for batch in batches])
    windows = [micro[start : start + k] for start in range(0, n, k)]
    per_epoch, due, asked = len(windows), epochs * len(windows), []
    told = f"{n} micro-batches, accumulation_steps={k}, {epochs} epochs:"

    def make(optimizer, updates):
        updates = want_int(updates, "the number of updates for make_schedule")
        lasts = max(1, updates)
        made = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda u: max(0.0, 1 - u / lasts))
        asked.append((updates, made))
        return made

    def call(optimizer):
        given = (model, optimizer, problem.loss_fn, list(batches), k, epochs, make)
        return answer.call(*given, unchanged=(batches,))

    def run(divisor):
        return [sum(window) / divisor(window) for window in windows] * epochs

    def ask_doctor():
        def five(model, optimizer, loss_fn, batches, k):
            still = torch.optim.lr_scheduler.LambdaLR
            constant = lambda optimizer, updates: still(optimizer, lambda u: 1.0)  # noqa: E731
            return answer.call(model, optimizer, loss_fn, batches, k, 1, constant)

        want_healthy(five, problem)

    seen = watch(model, call, scheduled=True)
    want_true(asked, "no schedule", f"{told} make_schedule(optimizer, updates) was never called. Call it "
              "once, before the first update.")  # fmt: skip
    want_true(len(asked) == 1, "schedule made anew", f"{told} make_schedule was called {len(asked)} times. A "
              "new schedule starts from the beginning: make one for the whole training.")  # fmt: skip
    short = n % k
    mistakes = [
        Mistake("tail too small", run(lambda w: k), f"{told} the last window of an epoch has {short} "
                f"micro-batches and is divided by {k}."),
        Mistake("tail dropped", [sum(w) / k for w in windows if len(w) == k] * epochs, f"{told} the last "
                f"{short} micro-batches of each epoch reach no update."),
    ]  # fmt: skip
    want_updates(seen, run(len), mistakes, ask_doctor)
    updates, made = asked[0]
    if updates != due:
        _name_total(updates, due, n, k, epochs, per_epoch, told)
    _want_rates(seen.rates, made.last_epoch, due, n, epochs, told)


def _name_total(updates, due, n, k, epochs, per_epoch, told):
    typical = {
        "rounded down": ({epochs * (n // k), epochs * max(1, n // k)}, "rounded down. Each epoch makes "
                         f"{per_epoch} updates, the short one included, so the schedule ends too early."),
        "micro-batches counted": ({epochs * n}, "the number of micro-batches. The schedule then never gets "
                                  "far: it counts updates."),
        "one epoch": ({per_epoch}, "the updates of one epoch. The schedule is over long before the "
                                   "training."),
        "tails carried over": ({n * epochs // k, math.ceil(n * epochs / k)}, "what it would be if tails were "
                               f"carried over. Here every epoch ends with its own update: {per_epoch} in "
                               "each."),
        "epochs counted": ({epochs}, "the number of epochs."),
    }  # fmt: skip
    for diagnosis, (numbers, words) in typical.items():
        want_true(updates not in numbers, diagnosis, f"{told} the schedule was made for {updates} updates, "
                  f"and {due} are made. {updates} is {words}")  # fmt: skip
    raise Fault("wrong total", f"{told} the schedule was made for {updates} updates, and {due} are made.")


def _want_rates(rates, steps, due, n, epochs, told):
    right = [1 - u / due for u in range(due)]
    if all(abs(a - b) < 1e-9 for a, b in zip(rates, right)):
        return
    seen, due_rates = (", ".join(f"{rate:.3g}" for rate in some[:4]) for some in (rates, right))
    told = f"{told} the first learning rates were {seen}; right are {due_rates}."
    want_true(steps != epochs * n or n * epochs == due, "schedule per micro-batch", f"{told} The schedule "
              f"was stepped {steps} times for {due} updates, once per micro-batch: a warm-up is then over K "
              "times too soon.")  # fmt: skip
    want_true(steps != 0, "schedule never stepped", f"{told} The schedule was made, but never stepped.")
    want_true(steps != due, "schedule before the update", f"{told} The schedule is stepped before the "
              "update: the first rate is never used. First optimizer.step(), then "
              "schedule.step().")  # fmt: skip
    want_true(steps != epochs, "schedule per epoch", f"{told} The schedule was stepped once per epoch. It "
              f"was made for {due} updates: step it after each of them.")  # fmt: skip
    raise Fault("wrong learning rates", f"{told} The schedule was stepped {steps} times for {due} updates.")


register(Exercise(
    id="04.7",
    title="A schedule that counts updates",
    prompt="Train for `epochs` epochs over equal micro-batches; each epoch ends with an update of its own "
    "for what is left. Make the schedule once, with make_schedule(optimizer, number of all updates), and "
    "step it so that update u has rate u.",
    reference=a.train_scheduled,
    hints=(
        "How many updates does one epoch make, the short one included? Try 10 micro-batches with K = 4 on "
        "paper.",
        "3, not 2: math.ceil(len(batches) / accumulation_steps). Every epoch makes as many.",
        "schedule.step() belongs right behind optimizer.step(), so both are called equally often.",
        "The short window's divisor is its own length, len(window).",
    ),
    checker=check_schedule,
    wrong=(
        Wrong("rounds down", a.schedule_floor, "rounded down", "B39"),
        Wrong("total in micro-batches", a.schedule_total_micro, "micro-batches counted", "B37"),
        Wrong("total of one epoch", a.schedule_one_epoch, "one epoch"),
        Wrong("total as if carried", a.schedule_carried, "tails carried over", "B39"),
        Wrong("total in epochs", a.schedule_epochs, "epochs counted"),
        Wrong("a float", a.schedule_float, "wrong type"),
        Wrong("stepped per micro-batch", a.schedule_per_micro, "schedule per micro-batch", "B37"),
        Wrong("stepped per epoch", a.schedule_per_epoch, "schedule per epoch"),
        Wrong("never stepped", a.schedule_never, "schedule never stepped"),
        Wrong("stepped before the update", a.schedule_before, "schedule before the update", "B38"),
        Wrong("a new one each epoch", a.schedule_again, "schedule made anew"),
        Wrong("the tail over K", a.schedule_tail_over_k, "tail too small", "B13"),
        Wrong("no schedule", a.schedule_ignored, "no schedule"),
    ),
    unusual=(
        Unusual("a list of all windows", a.schedule_plans_windows),
        Unusual("one loop with a test", a.schedule_counts_along),
    ),
))  # fmt: skip

# -- 04.8 --------------------------------------------------------------------------------------------------


class Scale(nn.Module):
    """One weight: y = weight * x."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

    def forward(self, x):
        return self.weight * x


def output_mean(outputs, targets):
    return (outputs - targets).mean()


def check_bf16(answer):
    one = torch.ones(1, dtype=torch.bfloat16)
    _check_bf16(answer, Scale(), output_mean, [(one, one)] * 1024, "1024 micro-batches, each with gradient 1")
    for count, seed in ((64, 1), (16, 2)):
        problem = regression([4] * count, count, seed)
        batches = [(x.bfloat16(), y.bfloat16()) for x, y in problem.batches(0)]
        model = drawn(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)), seed).bfloat16()
        _check_bf16(answer, model, problem.loss_fn, batches, f"{count} random micro-batches")


def _check_bf16(answer, model, loss_fn, batches, what):
    parameters, k = list(model.parameters()), len(batches)
    if len(set(map(id, batches))) == 1:
        each = [torch.autograd.grad(loss_fn(model(batches[0][0]), batches[0][1]), parameters)] * k
    else:
        each = [torch.autograd.grad(loss_fn(model(x), y), parameters) for x, y in batches]
    right = [torch.stack(one).double().mean(0) for one in zip(*each)]
    low, running = [torch.zeros_like(p) for p in parameters], [torch.zeros(p.shape) for p in parameters]
    for gradients in each:
        for total, so_far, gradient in zip(low, running, gradients):
            total += gradient
            so_far += total / k
    given, before = list(batches), [p.detach().clone() for p in parameters]
    returned = answer.call(model, loss_fn, given, unchanged=(given,))
    want_true(all(p.dtype == torch.bfloat16 for p in model.parameters()), "model changed", "You cast the "
              "model itself: it stays float32 after the call, at twice the memory. Leave it in bf16, and "
              "cast the gradients.")  # fmt: skip
    want_true(all(torch.equal(p, q) for p, q in zip(parameters, before)), "steps by hand", "`mean_gradients` "
              "moved the weights. It should only return gradients.")  # fmt: skip
    returned = want_sequence(returned, "the returned gradients", len(right))
    what_is = "a returned gradient"
    got = [want_tensor(g, what_is, p.shape, torch.float32) for g, p in zip(returned, parameters)]
    got = [g.detach().double() for g in got]
    flat, exact = torch.cat([g.flatten() for g in got]), torch.cat([g.flatten() for g in right])
    if equal(flat, exact, 1e-5):
        return
    off = float((flat - exact).norm() / exact.norm())
    told = f"{off:.2%}" if off < 1 else f"{off:.3g} times its length"
    told = f"{what}: the mean is off by {told}."
    want_true(not equal(flat, exact * k, 1e-5), "not divided", f"{told} It is the sum: divide by {k}.")
    want_true(not equal(flat, torch.cat([g.flatten().double() for g in running]), 1e-2), "running sums",
              f"{told} `.grad` was not cleared, so it holds a running sum, and each one of these was added "
              "to the buffer.")  # fmt: skip
    wide = copy.deepcopy(model).float()
    losses = (loss_fn(wide(x.float()), y.float()) for x, y in batches[:64])
    floats = [torch.autograd.grad(loss, list(wide.parameters())) for loss in losses]
    wide_mean = torch.cat([torch.stack(one).double().mean(0).flatten() for one in zip(*floats)])
    want_true(not equal(flat, wide_mean, 1e-5), "another model", f"{told} These are the gradients of a "
              "float32 copy. The model stays in bf16, to save its memory; only the sum should be in "
              "float32.")  # fmt: skip
    summed = torch.cat([total.double().flatten() / k for total in low])
    near = float((flat - summed).norm() / exact.norm()) < max(0.02, off / 4)
    want_true(not near, "summed in bf16", f"{told} That is what a sum in bf16 gives: 8 bits of precision, so "
              "what is 256 times smaller than the sum adds nothing. The sum itself must be float32, not only "
              "what you return.")  # fmt: skip
    raise Fault("wrong gradient", f"{told} Add each micro-batch's gradient, as float32, to a float32 buffer; "
                                  "divide once.")


register(Exercise(
    id="04.8",
    title="Sum in float32",
    prompt="The model is bf16, and so are its gradients. Return the mean of the micro-batches' gradients, "
    "one float32 tensor for each parameter in order, added up in float32. Leave the model as it is.",
    reference=a.mean_gradients,
    hints=(
        "`backward()` adds into `.grad`, in the dtype of the parameter. So a sum of many must not live "
        "there.",
        "Keep one float32 tensor of zeros for each parameter, and move each micro-batch's gradient into it.",
        "Clear .grad before each backward; then buffer += p.grad.float(). Divide by len(batches) at the end.",
    ),
    checker=check_bf16,
    wrong=(
        Wrong("sums in .grad", a.bf16_divides_late, "summed in bf16", "B25"),
        Wrong("divides, sums in .grad", a.bf16_plain, "summed in bf16", "B25"),
        Wrong("a buffer in bf16", a.bf16_buffer_too, "summed in bf16", "B25"),
        Wrong("casts the loss only", a.bf16_float_loss, "summed in bf16", "B25"),
        Wrong("does not clear", a.bf16_running, "running sums", "B01"),
        Wrong("does not divide", a.bf16_not_divided, "not divided", "B04"),
        Wrong("returns bf16", a.bf16_returns_bf16, "wrong dtype", "B25"),
        Wrong("casts the model", a.bf16_casts_model, "model changed"),
        Wrong("a float32 copy", a.bf16_copies_model, "another model"),
    ),
    unusual=(
        Unusual("all gradients apart, float64", a.bf16_autograd),
        Unusual("hooks", a.bf16_hooks),
    ),
))  # fmt: skip

from . import nb04d  # noqa: E402, F401  the exercises that follow
