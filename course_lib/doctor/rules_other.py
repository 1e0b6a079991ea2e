"""Rules about what stands beside the gradient: counts, scaler, schedule, averages, log, graphs, the code itself."""

from __future__ import annotations

from itertools import accumulate

import torch

from .facts import Facts, numbers
from .leftovers import nodes_of
from .updates import ZERO
from .weigh import gradient_bytes


def counts(facts: Facts):
    """Things that should happen once per update."""
    log, updates = facts.log, len(facts.updates)
    visits = sum(len(one.visited) for one in facts.passes)
    for kind, name, what in (
        ("scheduler", "schedule per micro-batch", "The scheduler stepped"),
        ("ema", "EMA per micro-batch", "The averaged weights were updated"),
    ):
        by_owner: dict = {}
        for event in log.of(kind):
            by_owner[event.info.get("scheduler")] = by_owner.get(event.info.get("scheduler"), 0) + 1
        count = max(by_owner.values(), default=0)
        if updates and count >= 1.5 * updates and visits > updates and facts.k > 1:
            yield name, f"{what} {count} times for {updates} updates ({visits} micro-batches): {count / updates:.3g} times each."


def average_by_hand(facts: Facts):
    """Copies of the weights that are written between two micro-batches of one window."""
    for update in facts.updates:
        events = [event.info for _, event in update.visits if "averages" in event.info and event.info["training"]]
        pairs = list(zip(events, events[1:]))
        names = {name for a, b in pairs for name in a["averages"].keys() & b["averages"].keys()}
        for name in names:
            written = sum(a["averages"].get(name) != b["averages"].get(name) for a, b in pairs)
            if len(pairs) > 1 and written == len(pairs):
                yield "EMA per micro-batch", f"`{name}` holds averaged weights, and is written after every micro-batch."
                return


def rate_by_hand(facts: Facts):
    """A learning rate that changes between two micro-batches of one window."""
    if facts.log.of("scheduler") or facts.k < 2:
        return
    for update in facts.updates:
        rates = [event.info.get("lr") for _, event in update.visits if event.info.get("lr")]
        if len(rates) > 2 and all(a != b for a, b in zip(rates, rates[1:])):
            shown = numbers([rate[0] for rate in rates[:4]], 5)
            yield "schedule per micro-batch", f"The loop sets another learning rate for each micro-batch of a window: {shown}."
            return


def learning_rate(facts: Facts):
    """A learning rate that the loop itself multiplied."""
    start = facts.log.first_lr
    if facts.log.of("scheduler") or not facts.updates or not start:
        return
    if any(event.info["optimizer"] != facts.log.optimizer for event in facts.log.of("step")):
        return  # an optimizer of the loop's own
    first = [update for update in facts.updates if update.epoch == 0]  # a second call may start from what the first left
    factors = [now / was for update in first for now, was in zip(update.lr, start) if was]
    k = facts.k
    telling = k > 1 and factors and any(abs(factors[0] / fit - 1) < 1e-6 for fit in (k, 1 / k))
    if telling and all(abs(f - factors[0]) < 1e-9 * abs(factors[0]) for f in factors):
        yield "learning rate changed", (
            f"The loop multiplies the learning rate by {factors[0]:.4g}. With Adam, clipping or momentum that is not the same as "
            "dividing the loss."
        )


def scaler(facts: Facts):
    """The order scale, backward, unscale, step, update."""
    steps, unscales = 0, {}
    backward = False
    for event in facts.log.events:
        if event.kind == "backward":
            backward = True
        elif event.kind == "step":
            steps += 1  # past the scaler: another fault
        elif event.kind == "unscale":
            mine = event.info.get("optimizer")
            unscales[mine] = unscales.get(mine, 0) + 1
            if unscales[mine] == 2 and not event.info.get("inside"):
                yield "unscaled twice", "unscale_() was called a second time before the update it belongs to."
        elif event.kind == "scaler step":
            steps += 1
            unscales.pop(event.info.get("optimizer"), None)
        elif event.kind == "scaler update":
            if not steps and backward:
                yield "scaler updated in the window", (
                    "scaler.update() ran with no scaler.step() since the update before: what comes later in this window is "
                    "added to gradients of another scale."
                )
                return
            steps, unscales, backward = 0, {}, False


def none_gradients(facts: Facts):
    """Parameters whose gradient is None at a step although their loss has one."""
    for update in facts.updates:
        right = facts.known.window_gradient(tuple(facts.span(update))) if facts.span(update) else None
        if not update.missing or right is None or not update.backwards:
            continue
        if any(c.kind == "other" and c.at == update.backwards for c in update.changes):
            continue  # the loop took them away itself when the window was full
        if not bool(update.gradient.any()) and any(c.kind == "clear" and c.wiped for c in update.changes):
            continue
        place, dead = 0, []
        for name, parameter in zip(facts.log.names, facts.known.parameters):
            block = right[place : place + parameter.numel()]
            place += parameter.numel()
            if name in update.missing and bool(block.any()) and facts.log.names.index(name) not in update.frozen:
                dead.append(name)
        if dead:
            yield "no gradient", f"At update {update.number} the gradient of {dead[0]} is None, and {len(dead) - 1} more."
            return


def untouched(facts: Facts):
    """Parameters that no optimizer of the loop moves."""
    if not facts.updates:
        return
    moved = frozenset().union(*(update.parameters | update.frozen for update in facts.updates))
    left = [name for i, name in enumerate(facts.log.names) if i not in moved]
    if left:
        yield "parameters never updated", f"No optimizer that steps holds {left[0]}" + (
            f" and {len(left) - 1} more." if len(left) > 1 else "."
        )


def changed_model(facts: Facts):
    """Another dtype, another device."""
    for event in facts.log.of("changed"):
        yield "model changed", f"{event.info['name']} became {event.info['dtype']} on {event.info['device']} inside the loop."
        return


def by_hand(facts: Facts):
    """Weights that the loop moves itself."""
    if facts.log.of("moved") and not facts.updates:
        yield "steps by hand", "The weights change, but optimizer.step() never runs: momentum, decay and schedule are left out."


def not_finite(facts: Facts):
    """NaN or infinity in the gradient where every micro-batch's own gradient is finite."""
    for update in facts.updates:
        span = facts.span(update)
        if not update.finite and all(bool(facts.known.gradient(n).isfinite().all()) for n in span):
            yield "not finite", f"The gradient of update {update.number} holds NaN or infinity; that of its data does not."
            return


def _calls(facts: Facts):
    """For each call of the loop: the last forward of every window (all forwards where there is no update)."""
    events, latest = [], None
    for event in [*facts.log.events, None]:
        if event is None or event.kind in ("epoch", "step"):
            if latest is not None:
                events.append(latest)
            latest = None
            if event is None or event.kind == "epoch":
                yield events
                events = []
        elif event.kind == "forward" and not facts.updates:
            events.append(event)
        elif event.kind == "forward" and event.info["training"]:
            latest = event


def graphs(facts: Facts):
    """Variables that hold on to the graph of earlier micro-batches."""
    for events in _calls(facts):
        series: dict = {}
        for event in events:
            for name, nodes in event.info["graphs"].items():
                series.setdefault(name, []).append(nodes)
        for name, values in series.items():
            if len(values) < 2 or any(b < a + 3 for a, b in zip(values, values[1:])):
                continue
            words = f"`{name}` still has a grad_fn, and its graph grows: {numbers(values[:4], 6)} nodes."
            if facts.evaluates:
                yield "evaluation keeps the graph", f"{words} No backward() frees it: activations pile up."
            else:
                yield "graph kept", words
            return
    for returned in facts.log.returned:
        if isinstance(returned, (list, tuple)) and len(returned) > 1 and nodes_of(returned) and not facts.evaluates:
            if all(isinstance(item, torch.Tensor) and item.grad_fn is not None for item in returned):
                yield "graph kept", f"The {len(returned)} losses that the loop returns still have their graphs."
                return


def looks_with_graphs(facts: Facts):
    """An evaluation after some training, whose total holds all its graphs."""
    series: dict = {}
    for event in [] if facts.evaluates else facts.log.events:
        if event.kind in ("backward", "step", "epoch") or event.kind == "forward" and event.info["training"]:
            series = {}
        elif event.kind == "forward" and event.info["grad"]:
            for name, nodes in event.info["graphs"].items():
                series.setdefault(name, []).append(nodes)
            for name, values in series.items():
                grown = values[-4:]
                if len(grown) == 4 and all(b >= a + 3 for a, b in zip(grown, grown[1:])):
                    yield "evaluation keeps the graph", (
                        f"`{name}` collects the graphs of an evaluation: {numbers(grown, 6)} nodes. Activations pile up."
                    )
                    return


def one_backward(facts: Facts):
    """A window in one backward: right gradients, and the memory of the large batch."""
    full = [u for u in facts.updates if len(facts.span(u)) > 1 and all(abs(u.added.get(n, 0.0)) > ZERO for n in facts.span(u))]
    if not full or any(u.backwards != 1 for u in full):
        return
    if any(c.kind == "written" for u in full for c in u.changes):
        return
    words = "One backward() for a whole window: the activations of all its micro-batches are alive at once."
    if facts.memory:
        table = "; ".join(f"K={k}: {peak / 2**20:.2f} MiB" for k, peak in facts.memory.items())
        words += f" Measured peak of live tensors: {table}."
    yield "one backward for the window", words


def memory(facts: Facts):
    """Live bytes that grow with the window although each micro-batch has its own backward."""
    wide = any(len(facts.known.number_of(e.info["rows"] or ())) > 1 for e in facts.log.of("forward"))
    if len(facts.memory) < 2 or facts.log.of("taken") or wide:
        return
    (k1, low), (k2, high) = list(facts.memory.items())[0], list(facts.memory.items())[-1]
    copies = (k2 - k1) * gradient_bytes()  # a loop may keep one set of gradients for each micro-batch: its own choice
    if high > 1.6 * low and high - low > 1.5 * copies and any(u.backwards > 1 for u in facts.updates):
        yield "graph kept", (
            f"The peak of live tensors grows with the window: {low / 2**20:.2f} MiB for K={k1}, {high / 2**20:.2f} MiB for "
            f"K={k2}. Something holds on to earlier micro-batches."
        )


def logged(facts: Facts):
    """The loss that the loop reports, against the loss of its window."""
    values = asked = [event.info["value"] for event in facts.log.of("log")]
    if not values:
        values = [v for r in facts.log.returned if isinstance(r, (list, tuple)) for v in r]
        if any(isinstance(v, bool) or not isinstance(v, (int, float, torch.Tensor)) for v in values):
            return
    try:
        values = [float(v) for v in values]
    except Exception:
        return
    spans = [facts.span(update) for update in facts.updates if facts.span(update)]
    light = [n for one in facts.passes for n in one.visited]
    if not values or facts.k < 2:
        return
    known = facts.known
    if len(values) == len(spans) and len(spans) != len(light):
        right = [sum(w * known.loss(n) for w, n in zip(known.needed(tuple(s)), s)) for s in spans]
        last = [known.loss(s[-1]) for s in spans]
        divisors = [[facts.k] * len(spans), [len(s) for s in spans]]
        used = [sum(w * known.loss(n) for w, n in zip(facts.used(u), facts.span(u))) for u in facts.updates if facts.span(u)]
        if _all(values, right) or _all(values, used):
            return  # it tells what was done, right or wrong
        if any(_all(values, [r / d for r, d in zip(right, ds)]) for ds in divisors):
            yield "logged loss divided", _log_words(values, right, f"1/{facts.k} of it")
        elif _all(values, last):
            yield "logged loss of the last micro-batch", _log_words(values, right, "the last micro-batch's")
        elif any(_all(values, [x / d for x, d in zip(last, ds)]) for ds in divisors):
            yield "logged loss divided", _log_words(values, last, f"1/{facts.k} of it")
            yield "logged loss of the last micro-batch", _log_words(values, right, "a part of the last micro-batch's")
        elif asked:
            yield from _other_logs(known, values, right, spans, [u.epoch for u in facts.updates if facts.span(u)])
    elif len(values) == len(light):
        right = [known.loss(n) for n in light]
        if _all(values, [r / facts.k for r in right]):
            yield "logged loss divided", _log_words(values, right, f"1/{facts.k} of it")


def _running(values, epochs) -> list:
    """Running totals that start afresh in each epoch."""
    return [sum(v for v, e in zip(values[: i + 1], epochs) if e == epochs[i]) for i in range(len(values))]


def _other_logs(known, values, right, spans, epochs):
    """Only what is recognised is called wrong: a log may hold a smoothed loss, or no loss at all."""
    sums = [sum(known.loss(n) for n in s) for s in spans]
    likely = {
        "the sum of its losses": sums,
        "the plain mean of its micro-batches' means": [total / len(s) for total, s in zip(sums, spans)],
        "a total that is never set back": list(accumulate(right)),
        "a sum that is never set back": list(accumulate(sums)),
        "a total that is set back once per epoch": _running(right, epochs),
        "a sum that is set back once per epoch": _running(sums, epochs),
    }
    for words, made in likely.items():
        if _all(values, made):
            off = next(i for i, (a, b) in enumerate(zip(values, right)) if not _all([a], [b]))
            yield "wrong logged loss", _log_words(values[off:], right[off:], words)
            return


def _all(values, right) -> bool:
    return all(abs(a - b) <= 1e-4 * max(abs(b), 1e-9) for a, b in zip(values, right))


def _log_words(values, right, what) -> str:
    return f"The loop reports {values[0]:.4g} where the loss is {right[0]:.4g}: {what}. The gradient is not touched by this."


def code(facts: Facts):
    """What the loop's own code ran into."""
    if facts.log.generator:
        yield "generator", "The loop holds a `yield`: calling it runs nothing, it only makes a generator."
    if facts.log.error is not None:
        yield facts.log.error.diagnosis, facts.log.error.message


RULES = (code, changed_model, counts, average_by_hand, rate_by_hand, learning_rate, scaler, none_gradients, untouched, by_hand,
         not_finite, graphs, looks_with_graphs, one_backward, memory, logged)  # fmt: skip
