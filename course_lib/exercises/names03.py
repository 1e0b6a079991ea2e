"""How a learner of notebook 03 says what is wrong with a loop: the names to choose from, and `@diagnosis`."""

from __future__ import annotations

import difflib
from fractions import Fraction

from .faults import Fault, NotStarted
from .want import shown, want_number, want_sequence

# name -> how one would notice it. The doctor's own names, but for the last two, which are about models.
FAULTS = {
    "no backward": "losses are computed, and no gradient ever comes of them",
    "no update": "gradients come and go, the weights never move",
    "update every micro-batch": "one update for each micro-batch instead of one for each window",
    "wrong window": "the updates come, but at other places than after every K micro-batches",
    "forced update at the end": "the last loader batch gets one update for each of its slices",
    "cleared before the step": "every update finds an empty `.grad`",
    "cleared too early": "`.grad` is emptied again and again inside a window",
    "cleared on the wrong side": "one clear a window, and it falls between two of its backward calls",
    "not cleared": "an update still holds micro-batches of the windows before",
    "partial window lost": "what `.grad` held is gone, although nobody cleared it",
    "data skipped": "some micro-batches never reach backward()",
    "stops early": "fewer epochs are trained than were asked for",
    "tail dropped": "the short window at the end of an epoch reaches no update",
    "tail leaks": "the short window joins the first window of the next epoch",
    "tail too small": "the short window makes its update, with too little weight",
    "not divided": "each micro-batch counts K times too much",
    "divided twice": "each micro-batch counts 1/K of what it should",
    "running division": "the weights of a window fall like 1, 1/2, 1/3, ...",
    "repeated division": "what is in `.grad` is divided again with each new micro-batch",
    "mean of means": "small micro-batches count as much as large ones",
    "clipped in the window": "a part of the sum is cut before the rest is there",
    "clipped before unscale": "the norm that is cut is not the gradient's own",
    "unscaled twice": "one update divides by the loss scale two times",
    "scaler updated in the window": "scaled and unscaled gradients are added up",
    "gradient of another loss": "`.grad` holds something that comes from no micro-batch's own loss",
    "low precision sum": "`.grad` has 16 bits, and small addends vanish in it",
    "NaN never cleared": "one bad gradient stays for ever",
    "schedule per micro-batch": "the learning rate moves K times as fast as planned",
    "EMA per micro-batch": "the averaged weights follow K times as fast as planned",
    "one backward for the window": "the right gradient, with the memory of the large batch",
    "graph kept": "the right gradient, and memory that grows with every micro-batch",
    "logged loss divided": "training is right, the number in the log is too small",
    "logged loss of the last micro-batch": "training is right, the log shows one micro-batch of the window",
    "another function": "the model computes something else than the one it stands for",
    "one segment": "a checkpoint that saves nothing where the memory peaks",
}

NEAR = 2e-2  # a proof may be rounded: 0.45, 2.08; a whole number may not


def diagnosis(fault, proof):
    """Say what is wrong with the loop below. fault: a name out of FAULTS. proof: a number or a list."""

    def write_down(loop):
        loop.fault, loop.proof = fault, proof
        return loop

    return write_down


def claim_of(loop):
    """(fault, proof) as written above `loop`; None where there is no `@diagnosis`. Never raises."""
    try:
        return loop.fault, loop.proof
    except Exception:
        return None


def is_blank(value) -> bool:
    """Still `...`, or a list of such."""
    return value is ... or (
        type(value) in (list, tuple) and len(value) > 0 and all(item is ... for item in value)
    )


def want_name(claim, right, against, near) -> None:
    """Raise a Fault unless `claim` is one of the names in `right`.

    against: a fact about this loop that no other name fits. near: {name: what speaks against this very name}.
    """
    if issubclass(type(claim), (list, tuple)) and len(claim) == 1:
        claim = claim[0]
    if not issubclass(type(claim), str):
        raise Fault(
            "wrong type", 'The fault should be one name, in quotes, out of the list: `fault="no update"`.'
        )
    claim = " ".join(str.__str__(claim).split())
    names = {name.lower(): name for name in FAULTS}
    if claim.lower() not in names:
        close = difflib.get_close_matches(claim.lower(), names, n=2, cutoff=0.6)
        near_by = " Did you mean " + " or ".join(f'"{names[name]}"' for name in close) + "?" if close else ""
        raise Fault("unknown name", f"{shown(claim)} is not in the list of names (FAULTS).{near_by}")
    claim = names[claim.lower()]
    if claim not in right:
        why = near.get(claim, against)
        raise Fault("wrong name", f'"{claim}" would look like this: {FAULTS[claim]}. {why}')


def want_proof(proof, right, asks: str, nudge: str) -> None:
    """Raise a Fault unless `proof` is the number, or the list of numbers, that `right` is."""
    what = "The proof"
    wrong = Fault("wrong proof", f"The name fits, the proof does not yet. Asked for: {asks}. {nudge}")
    if is_blank(proof) or proof is None:
        raise Fault("no proof", f"The fault has a name. Now prove it with numbers; asked for: {asks}.")
    if not isinstance(right, (list, tuple)):
        if issubclass(type(proof), (list, tuple)) and len(proof) == 1:
            proof = proof[0]
        if not _near(want_number(proof, what), right):
            raise wrong
        return
    items = want_sequence(proof, what, len(right))
    for number, (item, expected) in enumerate(zip(items, right), 1):
        if expected is None:
            if item is not None and shown(item) != "'None'":
                raise wrong
        elif item is None or not _near(want_number(item, f"Number {number} of the proof"), expected):
            raise wrong


def _near(value, right) -> bool:
    right = Fraction(right)
    return abs(Fraction(value) - right) <= (abs(right) * Fraction(NEAR) if right.denominator > 1 else 0)


def want_diagnosis(answer, right, proof, against, near, asks, nudge, probe) -> None:
    """The claim: written at all, the name, the proof. `probe()` calls the answer: a TODO comes first."""
    claimed = claim_of(answer)
    if claimed is None:
        probe()
        raise Fault(
            "no diagnosis",
            "Keep the line `@diagnosis(fault=..., proof=...)` above the `def`, and fill it in: first say "
            "what is wrong, then mend it.",
        )
    fault, given = claimed
    if is_blank(fault) and is_blank(given):
        raise NotStarted("not written yet: the diagnosis")
    if is_blank(fault):
        raise Fault(
            "no diagnosis", "A proof without a name: say which fault it proves, with a name out of FAULTS."
        )
    want_name(fault, right, against, near)
    want_proof(given, proof, asks, nudge)
