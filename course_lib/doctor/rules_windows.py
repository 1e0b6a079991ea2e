"""Rules about windows: when the update comes, what it covers, and what was lost on the way.

Each rule looks at the facts and yields (name, evidence). The names and their cures stand in names.py.
"""

from __future__ import annotations

from .facts import Facts, numbers
from .updates import ZERO


def no_update(facts: Facts):
    """Micro-batches came, no update did."""
    if facts.updates or facts.evaluates or facts.log.error or facts.log.generator:
        return
    if not facts.log.of("forward"):
        if facts.log.of("other thread"):
            yield "runs in another thread", "The loop works in a thread of its own, which the doctor does not see."
        else:
            yield "nothing went forward", "The loop never called the model on the batches that it was given."
        return
    if facts.log.of("foreign step"):
        yield "parameters never updated", "The optimizer that steps holds other tensors than the model's parameters."
        return
    count = len(facts.rest.own)
    if not facts.log.of("backward", "taken"):
        yield "no backward", f"{count} micro-batches went forward; neither backward() nor autograd.grad() was called."
        return
    shortest = min(len(one.order) for one in facts.passes) if facts.passes else 0
    why = ""
    if 0 < shortest < facts.k:
        why = f" A pass has {shortest} micro-batches: it never fills a window of {facts.k} if the count restarts."
    yield "no update", f"optimizer.step() never ran for {count} micro-batches with accumulation_steps={facts.k}.{why}"


def windows(facts: Facts):
    """Where the updates come."""
    if not facts.updates or facts.policy in ("flush", "carry") or (facts.blind and max(facts.sizes) < 2):
        return
    sizes = [size for size in facts.sizes if size]
    should = [len(chunk) for chunk in facts.flush]
    table = f"Micro-batches per update: {numbers(sizes)}; a window has {facts.k}: {numbers(should)}."
    if (facts.log.error is not None or facts.log.cut) and facts.right_so_far():
        return
    if facts.policy == "drop":
        yield from _tail(facts)
        return
    if facts.right_prefix() and any(set(one.order) - set(one.visited) for one in facts.passes):
        return  # a pass that ends early: `skipped` has the words for it
    if facts.k > 1 and sizes and all(size == 1 for size in sizes) and len(sizes) > len(facts.passes):
        yield "update every micro-batch", table
        return
    if _forced(facts):
        last = len(facts.known.micro) and facts.passes[0].order[-1]
        batch = facts.known.micro[last].batch
        parts = sum(1 for m in facts.known.micro if m.batch == batch)
        yield "forced update at the end", f"{table} Each of the {parts} slices of the last loader batch is a window of its own."
        return
    came = [len(set(facts.span(u)) & set(u.own)) for u in facts.updates if facts.span(u)]
    if came != sizes and all(count == facts.k for count in came[:-1]) and came[-1] <= facts.k:
        return  # whole windows of what came: what did not come is named elsewhere
    yield "wrong window", table


def _tail(facts: Facts):
    leaks = drops = 0
    for before, after in zip(facts.passes, facts.passes[1:]):
        tail = len(before.order) % facts.k
        if not tail or not before.left or not after.updates:
            drops += bool(tail)
            continue
        first = after.updates[0]
        stale = [first.weights.get(n, 0.0) for n in before.left]
        if any(abs(weight) > ZERO for weight in stale):
            leaks += 1
            count = len(facts.span(first)) + len(before.left)
            yield "tail leaks", (
                f"Update {first.number} holds {count} micro-batches: the {len(before.left)} left over from the epoch "
                f"before, and {count - len(before.left)} of its own, {count}/{facts.k} of a window."
            )
        else:
            drops += 1
    last = facts.passes[-1]
    if drops or (not leaks and last.left):
        r, n = len(last.order) % facts.k, len(last.order)
        lost = "never reach an update"
        yield "tail dropped", f"{r} of {n} micro-batches of an epoch fill no window of {facts.k} and {lost}."


def _forced(facts: Facts) -> bool:
    """Whole windows first, then one update for each slice of the loader's last batch."""
    for one in facts.passes:
        spans = [facts.span(update) for update in one.updates]
        last = facts.known.micro[one.order[-1]].batch
        slices = [n for n in one.order if facts.known.micro[n].batch == last]
        if len(slices) < 2 or spans[-len(slices) :] != [[n] for n in slices]:
            return False
        before = one.order[: -len(slices)]
        if spans[: -len(slices)] != [before[i : i + facts.k] for i in range(0, len(before), facts.k)]:
            return False
    return bool(facts.passes)


def order(facts: Facts):
    """Micro-batches in another order than the loader's, or others."""
    for one in facts.passes:
        asked = facts.orders[facts.known.micro[one.visited[0]].epoch] if one.visited else []
        chunks = range(0, len(asked), facts.k)
        alike = all(set(asked[i : i + facts.k]) == set(one.visited[i : i + facts.k]) for i in chunks)
        if not one.ordered and (not alike or len(one.visited) != len(asked)):
            start = min(one.order)
            words = numbers([n - start for n in one.visited[:8]])
            yield "other micro-batches", f"The loader gives 0, 1, 2, ...; the loop takes {words}: its windows hold other samples."
            return


def empty_updates(facts: Facts):
    """A step with nothing new since the step before."""
    if facts.rest and facts.updates:
        empty = [u for u in facts.updates if not u.visits and not u.backwards]
        if empty:
            yield "wrong number of updates", f"Update {empty[0].number} comes with no micro-batch since the update before."


def lost(facts: Facts):
    """Micro-batches of a window that do not count, and why."""
    names: dict = {}
    for update in facts.updates:
        span = facts.span(update)
        dead = [n for n in span if abs(update.weights.get(n, 0.0)) < ZERO]
        if not dead or facts.dull(update):
            continue
        table = f"Update {update.number} used the weights {numbers(facts.used(update))}; needed are {numbers(facts.known.needed(tuple(span)))}."
        wiped = [n for n in dead if abs(update.added.get(n, 0.0)) > ZERO]
        here = set(facts.pass_of(update).order)
        idle = [n for n in dead if n not in wiped and n in here and bool(facts.known.gradient(n).any())]
        if wiped and any(c.kind in ("replaced", "written") or c.wiped and c.at for c in update.changes):
            names.setdefault(*_who_wiped(facts, update, span, wiped, table))
        if idle and len(dead) == len(span) and not update.backwards:
            names.setdefault("no gradient", f"{table} No backward() ran before this step.")
        elif idle and not facts.low_precision(update):
            names.setdefault("data skipped", f"{table} {len(idle)} of {len(span)} micro-batches never reached backward().")
    for update in [facts.rest] if not facts.updates and not facts.log.of("foreign step") else []:
        wiped = [c for c in update.changes if c.kind == "clear" and c.wiped]
        gaps = [b.at - a.at for a, b in zip(wiped, wiped[1:])]
        if gaps and sorted(gaps)[len(gaps) // 2] < facts.k:
            names.setdefault("cleared too early", f"The gradients were cleared {len(wiped)} times with no update in between.")
    yield from names.items()


def _who_wiped(facts, update, span, wiped, table):
    alive = [n for n in span if n not in wiped]
    clears = [c for c in update.changes if c.kind == "clear" and c.wiped]
    if any(c.kind == "replaced" for c in update.changes):
        return "partial window lost", (
            f"{table} The model or optimizer was rebuilt inside the window: what .grad held until then is gone."
        )
    if not any(abs(update.weights.get(n, 0.0)) > ZERO for n in alive) and clears and clears[-1].at == update.backwards:
        return "cleared before the step", f"{table} The gradients were cleared between the last backward() and the step."
    count = sum(1 for c in clears if c.at)
    if not count and any(c.kind == "written" for c in update.changes):
        return "cleared too early", f"{table} The loop writes over `.grad` where it should add to it."
    if _new_pass_clear(facts, update, wiped):
        return "tail dropped", f"{table} The clear at the start of a pass throws {len(wiped)} micro-batches away."
    if count == 1 and len(span) > 2 and clears[-1].at == update.backwards - 1:
        return "cleared on the wrong side", (
            f"{table} There is one clear in the window, and it comes right before the last backward()."
        )
    return "cleared too early", f"{table} {count} clear{'s' if count != 1 else ''} inside the window; only what came after the last one is left."


def _new_pass_clear(facts, update, wiped) -> bool:
    """Did only the tail of the pass before go, when the next one began?"""
    for before, after in zip(facts.passes, facts.passes[1:]):
        if update in after.updates and set(wiped) <= set(before.left):
            return True
    return False


def stale(facts: Facts):
    """Gradients of an earlier window that are still there."""
    for update in facts.updates:
        span = set(facts.span(update))
        tail = facts.tail_before(update)
        old = [n for n, w in update.weights.items() if n not in span and n not in tail and abs(w) > facts.near]
        if old:
            clears = [c for u in facts.updates for c in u.changes if c.kind == "clear" and c.wiped]
            often = "The gradients are never cleared." if not clears else "The clear comes too late or not always."
            yield "not cleared", f"Update {update.number} still holds {len(old)} micro-batches of earlier updates. {often}"
            return


def skipped(facts: Facts):
    """Passes that end before their data does."""
    if facts.log.error is not None or facts.log.cut or not facts.passes:
        return
    rows_seen = sum(len(set(one.visited)) for one in facts.passes)
    missing = [one for one in facts.passes if one.visited and one.order[-1] not in one.visited]
    asked = facts.asked_epochs
    done = rows_seen / max(1, len(facts.passes[0].order))
    if asked and done >= asked:
        return
    if asked and len(facts.passes) < asked:
        yield "stops early", f"{asked} epochs were asked for; the loop saw {done:.2f} epochs of data."
    elif missing and facts.policy is None:
        one = missing[-1]
        gone = len(one.order) - 1 - one.order.index(one.visited[-1])
        if asked:
            yield "stops early", f"{asked} epochs were asked for; the loop saw {rows_seen / len(one.order):.2f} epochs of data."
        elif gone:
            yield "data skipped", f"The last {gone} of {len(one.order)} micro-batches of a pass never went forward."


RULES = (no_update, windows, order, empty_updates, lost, stale, skipped)
