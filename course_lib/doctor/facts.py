"""What happened in terms of windows: the passes over the data, and the part of it that each update covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import torch

from .known import Known, relative
from .replay import Replay
from .updates import ZERO, Update

LOST = 0.005  # of a sum: more than a few additions in bfloat16 lose


@dataclass
class Pass:
    """One way through the data: `order` is the loader's, `updates` those that ended in it, `left` what came after."""

    order: list
    call: int = 0  # the call of the loop that it belongs to
    updates: list = field(default_factory=list)
    visited: list = field(default_factory=list)
    left: list = field(default_factory=list)
    ordered: bool = True  # as the loader gives them


class Facts:
    """A replay, put into windows. `spans[update.number]`: the micro-batches that the update should cover."""

    def __init__(self, log, known: Known, replay: Replay, accumulation_steps: int, asked_epochs: int | None = None):
        self.log, self.known, self.replay, self.k = log, known, replay, accumulation_steps
        self.asked_epochs = asked_epochs
        self.updates, self.rest = replay.updates, replay.rest
        self.near = max(1e-6, known.tolerance)
        self.orders: dict = {}
        served = {n for u in [*self.updates, self.rest] for n, event in u.visits if event.info.get("counts")}
        for micro in known.micro:
            if getattr(known, "loose", False) and micro.number not in served:
                continue
            self.orders.setdefault(micro.epoch, []).append(micro.number)
        self.spans: dict = {}
        self.memory: dict = {}
        self.passes: list = []
        self._walk()
        self.flush = self._chunks_of_passes()
        self.stream = [n for p in self.passes for n in p.order]
        self.carry = _chunks(self.stream, self.k)
        self.policy = self._policy()
        if self.policy == "drop":
            for before, after in zip(self.passes, self.passes[1:]):
                if after.updates:  # a lost tail is no part of the next window; one that leaks in shows as stale
                    first = after.updates[0].number
                    self.spans[first] = [n for n in self.spans[first] if n not in before.left]

    # -- passes ----------------------------------------------------------------------------------------------------

    def _walk(self):
        """Split the forwards into passes over the data, and give each update its span of the loader's order."""
        stream = []  # (pass, micro-batch, update) of each forward that counts
        for update in [*self.updates, self.rest]:
            before = None
            for number, epoch, part in self._counting(update):
                if before is not None and before[0] == number and before[1] != part:
                    before = number, part
                    continue  # the other half of a pair goes through the model, too
                before = number, part
                order = self.orders[self.known.micro[number].epoch]
                now = self.passes[-1] if self.passes else None
                again = now is not None and number in now.visited and number != now.visited[-1]
                if now is None or now.order is not order or epoch != now.call or again:
                    self.passes.append(Pass(order, epoch))
                self.passes[-1].visited.append(number)
                stream.append((self.passes[-1], number, update))
            self.spans[update.number] = []
            if self.passes and update is not self.rest:
                self.passes[-1].updates.append(update)
        for one in self.passes:
            one.ordered = one.visited == sorted(set(one.visited))
            if not one.ordered:  # another order is a finding of its own; windows are judged in the loop's order
                one.order = [*one.visited, *(n for n in one.order if n not in one.visited)]
        last: dict = {}
        for one, number, update in stream:
            place = one.order.index(number)
            gap = one.order[last.get(id(one), -1) + 1 : place] if one.ordered else []
            self.spans[update.number] += [*gap, number]
            last[id(one)] = place
        left = self.spans.pop(self.rest.number)
        for one, following in zip(self.passes, [*self.passes[1:], None]):
            # what no update of this pass covers: it waits for the next pass, or for ever
            later = self.span(following.updates[0]) if following and following.updates else left
            own = set(one.visited)
            covered = {n for u in one.updates for n in self.span(u)}
            one.left = [n for n in dict.fromkeys(later) if n in own and n not in covered]

    def _counting(self, update: Update):
        """The forwards of an update that lead to a gradient; a second look at a micro-batch (for a log) does not count."""
        reached = {n for u in [*self.updates, self.rest] for n, event in u.visits if event.info.get("counts")}
        once = set()
        trains = any(event.info["training"] for event in self.log.of("forward"))
        for number, event in update.visits:
            if trains and not event.info["training"] and not event.info.get("counts"):
                continue  # an evaluation in between
            if getattr(self.known, "loose", False) and not event.info.get("counts"):
                continue
            if event.info.get("counts") or (number not in reached and number not in once):
                once.add(number)
                yield number, event.info["epoch"], event.info.get("part", 0)

    def _chunks_of_passes(self) -> list:
        return [chunk for one in self.passes for chunk in _chunks(one.order, self.k)]

    def _chunks_of_loader_batches(self, steps: int) -> list:
        chunks = []
        for one in self.passes:
            batches = _chunks(list(dict.fromkeys(self.known.micro[n].batch for n in one.order)), steps)
            chunks += [[n for n in one.order if self.known.micro[n].batch in some] for some in batches]
        return chunks

    def _policy(self) -> str | None:
        """flush, carry (tails join the next pass), drop, or None where the windows are none of these."""
        spans = [span for span in self.spans.values() if span]
        if getattr(self.known, "taped", False) and any(len(span) > 1 for span in spans):
            sums = [sum(update.weights.values()) for update in self.updates]
            if self.known.blind or all(abs(total - 1) < self.near for total in sums):
                self.flush = self.carry = spans  # the loader cannot be seen: weights that add up to 1 make a window
                return "carry"
        if spans == self.flush:
            return "flush"
        if any(not micro.whole for micro in self.known.micro):
            for steps in (self.k, 1):  # K batches of the loader, or one, sent through in smaller parts
                whole = self._chunks_of_loader_batches(steps)
                if spans == whole:
                    self.flush = whole
                    return "flush"
        if self.asked_epochs and len(spans) > 1 and spans == self.carry[: len(spans)]:
            return "carry"  # a budget of steps may end anywhere
        if spans == [chunk for chunk in self.carry if len(chunk) == self.k]:
            return "carry" if len(self.stream) % self.k or len(self.passes) > 1 else "flush"
        if spans == self.carry:
            return "carry"
        for one in self.passes:
            own = set(one.order)
            mine = [[n for n in self.spans[u.number] if n in own] for u in one.updates if self.spans[u.number]]
            if mine != [chunk for chunk in _chunks(one.order, self.k) if len(chunk) == self.k]:
                return None
        return "drop" if any(len(one.order) % self.k for one in self.passes) else None

    def pass_of(self, update: Update) -> Pass:
        """The pass in which this update came."""
        return next(one for one in self.passes if update in one.updates)

    def tail_before(self, update: Update) -> list:
        """What the pass before left over, for the first update of a pass."""
        for before, after in zip(self.passes, self.passes[1:]):
            if update in after.updates:
                return before.left
        return []

    # -- short cuts ------------------------------------------------------------------------------------------------

    def span(self, update: Update) -> list:
        """The micro-batches between the update before and this one, in the loader's order."""
        return self.spans.get(update.number, [])

    def expected(self, update: Update) -> bool:
        """Is this update's window one that the right loop would have, too?"""
        return self.span(update) in self.flush or self.span(update) in self.carry

    def is_tail(self, update: Update) -> bool:
        """A short window at the end of a pass, as it should be."""
        span = self.span(update)
        return 0 < len(span) < self.k and any(one.order[-len(span) :] == span for one in self.passes)

    def used(self, update: Update) -> list:
        """The weights of the span's micro-batches; a clip when the window was full is left out."""
        span = self.span(update)
        return [update.weights.get(number, 0.0) / span.count(number) for number in span]

    def effective(self, update: Update) -> dict:
        """Weights without any clip: what divisions and clears made of them."""
        return update.clean

    def exact(self, update: Update) -> bool:
        """Is the gradient of this update that of the large batch, however it came about?"""
        span = tuple(self.span(update))
        right = self.known.window_gradient(span) if span else None
        if right is None or update.gradient is None or not update.finite:
            return False
        rest = update.gradient - right
        if update.mask is not None:
            rest, right = rest[update.mask], right[update.mask]
        return relative(rest, right) < max(1e-6, self.known.tolerance / 5)

    def clipped_by_hand(self, update: Update) -> bool:
        """The right shares, and a factor that a clip by hand may have made."""
        if not any(c.kind == "clip" and c.by == "hand" for c in update.changes) or update.residual > 1e-5:
            return False
        needed = self.known.needed(tuple(self.span(update)))
        ratios = [u / n for u, n in zip(self.used(update), needed) if n]
        return bool(ratios) and max(ratios) - min(ratios) < 1e-6 * max(ratios)

    @property
    def blind(self) -> bool:
        """Weights cannot be read off this run at all."""
        return getattr(self.known, "blind", False)

    def dull(self, update: Update) -> bool:
        """Nothing to say about this update's weights."""
        if self.blind:
            return True
        return self.exact(update) or update.unclear or not update.finite or bool(self.low_precision(update))

    def low_precision(self, update: Update):
        """(relative error of the sum, dtype) where `.grad` has 16 bits and lost too much; None elsewhere."""
        kinds = {p.dtype for p in self.known.parameters} & {torch.bfloat16, torch.float16}
        if not kinds or not update.added or update.gradient is None or not update.finite:
            return None
        each = median([weight for weight in update.added.values() if abs(weight) > ZERO] or [0.0])
        survivors = self.span(update)
        if update.changes and any(c.kind in ("clear", "scale", "clip") and c.at for c in update.changes):
            return None
        exact = sum((self.known.gradient(n) * each for n in survivors), torch.zeros_like(update.gradient))
        off = relative(update.gradient - exact, exact)
        return (off, str(kinds.pop()).replace("torch.", "")) if off > LOST else None

    def right_so_far(self) -> bool:
        """Are the windows right up to where the loop broke off?"""
        spans = [span for span in self.spans.values() if span]
        return spans == self.flush[: len(spans)] or spans == self.carry[: len(spans)]

    @property
    def evaluates(self) -> bool:
        """A loop that only looks: the model in evaluation mode, no backward, no gradient taken, no step."""
        forwards = self.log.of("forward")
        quiet = not self.log.of("backward", "taken", "step", "foreign step")
        return bool(forwards) and quiet and not any(event.info["training"] for event in forwards)

    def right_prefix(self) -> bool:
        """Are the windows right as far as each pass goes?"""
        spans = [[self.span(u) for u in one.updates if self.span(u)] for one in self.passes]
        return all(mine == _chunks(one.order, self.k)[: len(mine)] for mine, one in zip(spans, self.passes))

    @property
    def sizes(self) -> list:
        """How many micro-batches each update covers."""
        return [len(span) for span in self.spans.values()]


def _chunks(order: list, k: int) -> list:
    return [list(order[i : i + k]) for i in range(0, len(order), k)]


def numbers(values, digits: int = 3, most: int = 10) -> str:
    """1, 0.25, 0: a list of weights in words."""
    values = list(values)
    more = ", ..." if len(values) > most else ""
    return ", ".join(f"{value if abs(value) > 1e-9 else 0:.{digits}g}" for value in values[:most]) + more
