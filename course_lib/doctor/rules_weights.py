"""Rules about weights: how much each micro-batch counts where it counts at all."""

from __future__ import annotations

from statistics import median

from .facts import Facts, numbers
from .updates import ZERO


def same(values, right, near) -> bool:
    """All values equal to the right ones, relative to their size."""
    return len(values) == len(right) and all(abs(a - b) <= near * max(abs(b), 1e-12) for a, b in zip(values, right))


def constant(values, near) -> bool:
    """All values the same."""
    return same(values, [values[0]] * len(values), near)


def scales(facts: Facts):
    """Divisions that are missing, doubled, or of the wrong number."""
    full = [update for update in facts.updates if len(facts.span(update)) >= facts.k]
    for some in (full, [update for update in facts.updates if update not in full]):
        found: dict = {}
        for update in some:
            for name, words in _of_update(facts, update):
                found.setdefault(name, words)
        yield from found.items()
        if found:
            return  # a short window shows the same fault less clearly


def _of_update(facts: Facts, update):
    span = facts.span(update)
    if not span or facts.dull(update) or not update.finite:
        return
    if facts.policy != "carry" and len({id(facts.orders[facts.known.micro[n].epoch]) for n in span}) > 1:
        here = set(facts.pass_of(update).order)  # what leaked in from the pass before is named elsewhere
        span = [n for n in span if n in here]
    k, m, near = facts.k, len(span), facts.near
    needed = facts.known.needed(tuple(span))
    weights = facts.effective(update)
    alive = [i for i, n in enumerate(span) if abs(weights.get(n, 0.0)) > ZERO]
    if not alive:
        return
    c = [weights[span[i]] / span.count(span[i]) for i in alive]
    need = [needed[i] for i in alive]
    if min(abs(x) for x in need) < ZERO:
        return
    shown = f"Update {update.number} used the weights {numbers(facts.used(update))}; needed are {numbers(needed)}."
    f = [a / b for a, b in zip(c, need)]
    unequal = not constant(needed, near)
    if same(f, [1.0] * len(f), near):
        return
    if update.scale and constant(f, near) and update.scale > 1:
        rest = f[0] / update.scale
        if any(abs(rest - fit) < near * fit for fit in (1.0, k, m, 1 / k, m / k)):
            yield "not unscaled", f"{shown} The loss scale {update.scale:g} is still in the gradient at the step."
            f, c = [x / update.scale for x in f], [x / update.scale for x in c]
            if same(f, [1.0] * len(f), near):
                return
    elif update.scale and any(abs(x / update.scale - 1) < near for x in f):
        late = sum(abs(x / update.scale - 1) < near for x in f)
        yield "not unscaled", f"{shown} {late} micro-batches still carry the loss scale {update.scale:g}: they came after the unscale."
        return
    if not facts.expected(update):
        meant = next((len(chunk) for chunk in facts.flush if span[0] in chunk), k)
        if same(f, [m / meant] * len(f), near):
            return  # divided by the window that it should have been part of
    if same(f, [m / k] * len(f), near):
        if facts.is_tail(update) and facts.expected(update) and facts.policy != "carry":
            yield "tail too small", (
                f"{shown} The last window has {m} micro-batches and is still divided by {k}: {m}/{k} of its gradient."
            )
        elif m < k and facts.expected(update):
            yield "all scaled", shown
        return  # a wrong window divided by K: the window is named elsewhere
    sizes = [facts.known.size(span[i]) for i in alive]
    for name, words in _patterns(facts, update, c, f, need, sizes, m, alive, unequal):
        yield name, f"{shown} {words}"


def _patterns(facts, update, c, f, need, sizes, m, alive, unequal):
    k, near = facts.k, facts.near
    many = m > 1 or k > 1
    if unequal and constant(c, near):
        value = c[0]
        if same([value], [1 / m], near) or same([value], [1 / k], near):
            yield "mean of means", _means_words(facts, sizes)
            return
        if same([value], [1.0], near) and many:
            yield "not divided", "Nothing turns the sum of the means into a mean."
            yield "mean of means", _means_words(facts, sizes)
            return
        if same([value], [1 / k**2], near) or same([value], [1 / (k * m)], near):
            yield "divided twice", "The mean is taken twice."
            yield "mean of means", _means_words(facts, sizes)
            return
    if constant(f, near) and any(c.kind == "clip" and c.by == "hand" for c in update.changes):
        return  # a clip by hand may hold the division, too: its factor cannot be taken apart
    if constant(f, near):
        yield from _constant(facts, update, f[0], sizes, m)
        return
    if same(c, sizes, near):
        yield "not divided", "Each micro-batch counts its number of rows: a summed loss that nothing divides."
        return
    repeated = [x for x in update.changes if x.kind == "scale" and x.at < update.backwards and abs(x.scale) < 1]
    if len(repeated) > 1 or (repeated and m == 2):
        yield "repeated division", (
            f"`.grad` was multiplied by {repeated[0].scale:.3g} after each backward: early micro-batches are divided again "
            "and again."
        )
        return
    place = [i + 1 for i in alive]
    if update.again and len(c) > 1 and constant([a / (m - i) for a, i in zip(c, alive)], near):
        yield "running total", "The first micro-batch counts as often as there are micro-batches after it."
        return
    if len(c) > 1 and constant([a * p for a, p in zip(c, place)], near):
        yield "running division", f"The weights fall like 1, 1/2, 1/3, ...; their sum is {sum(c):.4g}."
        if same([c[0] * place[0]], [1 / k], near) and k > 1:
            yield "divided twice", "They are divided by the number of micro-batches, too."
        return
    if len(c) > 2 and constant([a / (m - i) for a, i in zip(c, alive)], near):
        yield "running total", "The first micro-batch counts as often as there are micro-batches after it."
        return
    if _one_is_other(c, need, near):
        yield "wrong weights", "One micro-batch of the window is weighted unlike the others."
        return
    yield "wrong weights", "Each micro-batch should weigh its share of the window."


def _constant(facts, update, factor, sizes, m):
    k, near, n = facts.k, facts.near, len(facts.passes[0].order) if facts.passes else 0
    rows = sum(sizes)

    def is_(*values):
        return any(abs(factor - value) <= near * value for value in values)

    if update.again and update.backwards == m * round(factor) and is_(round(factor)):
        yield "all scaled", f"backward() ran {round(factor)} times for each micro-batch, and each time it adds."
    elif is_(m) and m > 1 or is_(k) and k > 1:
        yield "not divided", f"backward() adds up; nothing makes a mean of the sum. Each update is {factor:.4g} times too long."
    elif is_(rows) and rows > 1:
        yield "not divided", f"A loss that is summed over rows: {factor:.4g} times too long."
    elif k > 1 and is_(1 / k, 1 / m, m / k / k):
        yield "divided twice", f"The mean is taken twice: {factor:.4g} of what it should be."
    elif n and is_(m / n, k / n):
        yield "all scaled", f"The loss is divided by the {n} micro-batches of the epoch, not by the {k} of the window."
    elif is_(k / rows, m / rows, 1 / rows, k / sizes[0], 1 / sizes[0], m / (k * sizes[0])):
        yield "all scaled", f"{factor:.4g} of what it should be: a mean that was divided by the number of rows again."
    else:
        yield "all scaled", f"The shares are right; all of them are {factor:.4g} times what they should be."


def _means_words(facts, sizes):
    if len(set(sizes)) > 1:
        return f"The micro-batches have {numbers(sizes)} rows; a plain mean of their means favours the small ones."
    return "The micro-batches hold different numbers of targets; a mean of their means favours the short ones."


def _one_is_other(c, need, near):
    f = [a / b for a, b in zip(c, need)]
    middle = median(f)
    return sum(abs(x - middle) > near * abs(middle) for x in f) == 1


def halves(facts: Facts):
    """Two optimizers in one update, whose shares are not alike."""
    for update in [] if facts.blind else facts.updates:
        if update.half != 1.0:
            scaled = update.scale and abs(abs(update.half / update.scale) - 1) < 1e-3
            yield "not unscaled" if scaled else "all scaled", (
                f"In update {update.number} the second optimizer's gradient is {update.half:.4g} times as long as the first one's."
            )
            return


def bent(facts: Facts):
    """Gradients that are no weighted sum: clipping inside the window, strange losses, precision, coupling."""
    found: dict = {}
    for update in [] if facts.blind else facts.updates:
        scaled_clip = _clip_before_unscale(update) if update.finite else None
        if scaled_clip is not None:
            found.setdefault("clipped before unscale", (
                f"In update {update.number} the gradient was clipped while it was still multiplied by the loss scale: its norm "
                f"went from {scaled_clip.before:.4g} to {scaled_clip.after:.4g}, and only then came the unscale."
            ))  # fmt: skip
        if update.moved:
            found.setdefault("weights moved in the window", (
                f"Before update {update.number} the weights changed although the optimizer made no step."
            ))  # fmt: skip
        if not update.finite or (facts.exact(update) and not facts.low_precision(update)):
            continue
        clips = [c for c in update.changes if c.kind == "clip" and c.at < update.backwards]
        if clips and any(abs(c.before - c.after) > 1e-9 * c.before for c in clips):
            first = clips[0]
            found.setdefault("clipped in the window", (
                f"After backward {first.at} of update {update.number} the norm was cut from {first.before:.3g} to "
                f"{first.after:.3g}, and {len(clips)} times before the window was full: early micro-batches lose weight."
            ))  # fmt: skip
        name, words = _rest(facts, update, bool(clips))
        if name:
            found.setdefault(name, words)
    yield from found.items()


def _clip_before_unscale(update):
    for i, change in enumerate(update.changes):
        later = update.changes[i + 1 :]
        if change.kind == "clip" and any(c.kind == "unscale" and c.at == change.at for c in later):
            return change
    return None


def _rest(facts, update, clipped):
    if facts.low_precision(update):
        wrong, dtype = facts.low_precision(update)
        return "low precision sum", (
            f"`.grad` is {dtype}. After {update.backwards} backward calls the sum of update {update.number} is "
            f"{wrong:.2%} off what the same micro-gradients give in float64."
        )  # fmt: skip
    if update.foreign:
        return "gradient of another loss", (
            f"{update.foreign} of the {update.backwards} backward calls of update {update.number} put a gradient into these "
            "parameters that comes from no micro-batch of this model's loss."
        )  # fmt: skip
    span = tuple(facts.span(update))
    rewritten = [c for c in update.changes if c.kind == "other"]
    taped = getattr(facts.known, "taped", False)
    odd = (rewritten and not taped) or update.strange or update.residual > max(1e-5, facts.known.tolerance)
    if odd and not clipped and not update.moved:
        if rewritten and not taped:
            return "not a weighted sum", (
                f"Between two calls the loop rewrote `.grad` in update {update.number}, not by a mere factor."
            )
        off = max([r for _, r in update.strange], default=update.residual)
        return "not a weighted sum", (
            f"A part ({off:.1%}) of the gradient of update {update.number} comes from no micro-batch's loss: other data, "
            "another loss, noise, or a changed model."
        )
    if odd or clipped or len(span) < 2:
        return None, None
    coupled = facts.known.couples(span)
    if coupled > max(1e-5, facts.known.tolerance):
        layers = facts.known.batch_statistics
        if layers:
            return "layer couples samples", (
                f"The loop is right. {layers[0]} (BatchNorm) normalises over the rows it is given, so {len(span)} micro-batches "
                f"give another gradient than one large batch: {coupled:.1%} off. Its running statistics moved "
                f"{facts.log.tracked / len(facts.updates):.3g} times an update."
            )
        return "loss couples samples", (
            f"The loop is right. This loss compares the rows of a micro-batch with each other, so no weights make the sum equal "
            f"to the large batch's gradient: {coupled:.1%} off."
        )
    return None, None


def late_clip(facts: Facts):
    """A clip of gradients that the step has already used."""
    for update in [*facts.updates[1:], facts.rest]:
        for i, change in enumerate(update.changes):
            clipped = change.kind == "clip" and change.at == 0 and abs(change.before - change.after) > 1e-9 * change.before
            if clipped and any(c.kind == "clear" and c.wiped and c.at == 0 for c in update.changes[i:]):
                yield "clipped after the step", f"After update {update.number - 1} the norm is cut to {change.after:.3g}, then cleared."
                return


RULES = (scales, halves, bent, late_clip)
