"""Replay the events of a run and keep account: with which weight is each micro-batch in `.grad` right now?

A backward adds the gradient of the micro-batch that went forward before it, times some factor: the factor is solved
for. A clear sets all weights to 0. A scaling (a division of `.grad`, an unscale, a clip by norm) multiplies them. What
the account cannot explain stays as a rest. At each step the weights of the account are what this update used.
"""

from __future__ import annotations

import torch

from .known import Known, relative, tensor_of
from .observe import Event
from .updates import ZERO, Change, Update
from .vectors import Nothing, clamped, factor_between, finite, hand_clips, norm

RECENT = 40  # micro-batches that are tried where a gradient is not that of the latest


class Replay:
    """updates: all updates of the run; rest: what came after the last one (an Update that never was)."""

    def __init__(self, log, known: Known):
        self.log, self.known = log, known
        self.hand_clips = hand_clips(log)
        self.updates: list = []
        self.epoch = -1
        self.w: dict = {}
        self.clean: dict = {}
        self.since: list = []  # forward events since the last backward
        self.visits: dict = {}  # micro-batch -> its latest forward event
        self.current = Update(1, 0)
        self.boundary, self.kept = 1.0, None
        self.mask = None  # which numbers of a gradient are looked at; None for all
        for event in log.events:
            getattr(self, "_" + event.kind.replace(" ", "_"), self._nothing)(event)
        self.rest = self.current

    def _nothing(self, event):
        pass

    def _epoch(self, event):
        self.epoch = event.info["number"]

    def _forward(self, event):
        rows = event.info["rows"]
        if rows is None:
            return
        event.info["epoch"] = self.epoch
        numbers = self.known.number_of(rows)
        self.current.visits += [(number, event) for number in numbers]
        if event.info["grad"]:
            self.since.append((numbers, event))
        for number in numbers:
            self.visits[number] = event

    def _backward(self, event):
        update = self.current
        update.backwards += 1
        self.mask = self._mask(event.info.get("live"))
        self._end_of_clip()
        change = event.after - event.before
        if not finite(event.after):
            update.finite = False
            self.since = []
            return
        if not bool(change.any()):
            if getattr(self.known, "loose", False):
                self.since = []  # another network's backward: these forwards were for it
                return
            seen = {n for u in [*self.updates, update] for n, event in u.visits if event.info.get("counts")}
            new = [n for numbers, _ in self.since for n in numbers if n not in seen]  # a dummy batch comes again
            self._count(new, [1.0] * len(new))
            self.since = []
            return
        groups = [numbers for numbers, _ in self.since] or [tuple(update.own)]
        columns = list(dict.fromkeys(number for numbers in groups for number in numbers))
        solved, off = self._solve(change, columns)
        if off > self.known.tolerance:
            recent = list(self.visits)[-RECENT:]
            whole, off2 = self._solve(change, recent)
            if off2 < min(self.known.tolerance, off):
                columns, solved, off = recent, whole, off2
        if off > self.known.tolerance:
            update.strange.append((update.backwards, off))
            if len(columns) == 1:
                update.parts.append((columns[0], change))
            self._count(columns, [1.0] * len(columns) if self.since else [])
            if not self.since:
                update.foreign += 1
                solved = []
            else:
                update.unclear = True
        for number, weight in zip(columns, solved):
            update.again += abs(weight) > ZERO and abs(update.added.get(number, 0.0)) > ZERO
            self.w[number] = self.w.get(number, 0.0) + weight
            self.clean[number] = self.clean.get(number, 0.0) + weight
            update.added[number] = update.added.get(number, 0.0) + weight
        self._count(columns, solved)
        self.since = []

    def _mask(self, live):
        """The numbers of a gradient that belong to these parameters, as a mask; None for all of them."""
        if live is None:
            return None
        return torch.cat([torch.full((base.numel(),), bool(on)) for base, on in zip(self.log.base, live)])

    def _count(self, columns, weights):
        """Mark the forwards that led to a gradient."""
        used = {number for number, weight in zip(columns, weights) if abs(weight) > ZERO}
        for number in used:
            for there, event in reversed(self.current.visits):
                if there == number:
                    event.info["counts"] = True
                    break

    def _solve(self, change, columns) -> tuple:
        """(weights, relative rest) of a gradient as a sum over these micro-batches."""
        if not columns:
            return [], 1.0
        matrix = torch.stack([self.known.gradient(n, self.visits.get(n)) for n in columns], dim=1)
        if not bool(torch.isfinite(matrix).all()):
            return [], 1.0
        if self.mask is not None:
            matrix, change = matrix[self.mask], change[self.mask]
        if len(columns) == 1:
            column = matrix[:, 0]
            square = float((column.conj() @ column).real)
            weights = [float((column.conj() @ change).real) / square] if square > 0 else [0.0]
        else:
            weights = [float(x.real) for x in torch.linalg.lstsq(matrix, change.unsqueeze(1), driver="gelsd").solution]
        return weights, relative(change - matrix @ tensor_of(weights, matrix), change)

    # -- what changes .grad ----------------------------------------------------------------------------------------

    def _note(self, kind, event, scale=1.0, **more):
        self.current.changes.append(
            Change(kind, self.current.backwards, scale, before=norm(event.before), after=norm(event.after), **more)
        )

    def _clear(self, event):
        wiped = bool(event.before.any()) or not finite(event.before)
        if event.after is not None and bool(event.after.any()):
            if bool(((event.after == event.before) | (event.after == 0)).all()):
                self._note("partial clear", event)  # the rest may follow: two optimizers clear one after the other
                return
            self._other(event) if wiped and not torch.equal(event.before, event.after) else None
            return
        self._note("clear", event, by=event.info.get("by", ""), wiped=wiped)
        self.w, self.clean, self.boundary, self.kept = {}, {}, 1.0, None

    def _unscale(self, event):
        self._scaled("unscale", event)

    def _clip(self, event):
        self._scaled("clip", event)

    def _hand(self, event):
        self._scaled("clip" if id(event) in self.hand_clips else "scale", event, by="hand")

    def _scaled(self, kind, event, **more):
        if not finite(event.after) or not finite(event.before):
            self.current.finite = False
            return
        if torch.equal(event.before, event.after):
            self._note(kind, event, 1.0, **more)
            return
        factor = factor_between(event.before, event.after)
        if factor is None and kind == "unscale" and self._partly(event):
            self._note(kind, event, 1.0, **more)
            return  # one optimizer's share: judged when that optimizer steps
        if factor is None:
            if kind == "clip" or clamped(event.before, event.after):
                self._note("clip", event, norm(event.after) / max(norm(event.before), 1e-300), **more)
                if self.kept is None:
                    self.kept = event.before
            else:
                self._other(event)
            return
        self._note(kind, event, factor, **more)
        if kind == "clip":
            if self.kept is None:
                self.kept = event.before
            self.boundary *= factor
            return
        for account in (self.w, self.clean):
            for number in account:
                account[number] *= factor
        if self.kept is not None:
            self.kept = self.kept * factor

    def _other(self, event):
        """The loop wrote something into `.grad`: perhaps gradients that it took itself."""
        self.mask = None
        columns = list(dict.fromkeys(self.current.own)) or list(self.visits)[-RECENT:]
        solved, off = self._solve(event.after, columns)
        if off > self.known.tolerance:
            columns = list(self.visits)[-RECENT:]
            solved, off = self._solve(event.after, columns)
        if off < self.known.tolerance:
            self.w, self.clean = dict(zip(columns, solved)), dict(zip(columns, solved))
            self._note("written", event)
            self._count(columns, solved)
            for number, weight in zip(columns, solved):
                if abs(weight) > ZERO and number not in self.current.added:
                    self.current.added[number] = weight
            self.since = []
            self.boundary, self.kept = 1.0, None
        else:
            self._note("other", event)
            # a window that is full may be rewritten (masks, decay, noise): what it held before is judged
            self.kept = event.before if self.kept is None else self.kept

    def _partly(self, event) -> bool:
        """Were some parameters scaled by one factor, and the others left alone?"""
        changed = event.before != event.after
        factor = factor_between(event.before[changed], event.after[changed])
        return factor is not None and not bool(changed.all())

    def _end_of_clip(self):
        """Another backward after a clip: the clip was inside the window and counts."""
        if self.boundary != 1.0:
            for number in self.w:
                self.w[number] *= self.boundary
        self.boundary, self.kept = 1.0, None

    def _replaced(self, event):
        self._note("replaced", Nothing)
        self.w, self.clean, self.boundary, self.kept = {}, {}, 1.0, None

    # -- counts ----------------------------------------------------------------------------------------------------

    def _moved(self, event):
        # between two windows the weights are the loop's own; between two micro-batches of one they are not
        self.current.moved |= event.info["inside"] and self.current.backwards > 0

    def _scale(self, event):
        self.current.scale = event.info["scale"]

    def _scheduler(self, event):
        target = self.current
        target.scheduler += 1

    # -- the step --------------------------------------------------------------------------------------------------

    def _step(self, event):
        update = self.current
        known = event.info["parameters"]
        last = self.updates[-1] if self.updates else None
        if last is not None and not update.visits and not update.backwards and not (last.parameters & known):
            last.parameters |= known  # the other half of the same update, by a second optimizer
            self._judge_half(last, event, known)
            update.changes.clear()
            return
        gradient = self.kept if self.kept is not None else event.before
        live = event.info.get("live") or [True] * len(self.log.base)
        active = [on and i in known for i, on in enumerate(live)]
        update.frozen = frozenset(i for i, on in enumerate(live) if not on)
        self.mask = update.mask = None if all(active) else self._mask(active)
        if not update.visits and bool(gradient.any()) and finite(gradient):
            self._unseen(update, gradient)
        if update.mask is not None:
            self._rescale(event.before)
        update.weights = {n: w for n, w in self.w.items() if abs(w) > ZERO}
        update.clean = {n: w for n, w in self.clean.items() if abs(w) > ZERO}
        update.gradient, update.parameters = gradient, known
        update.missing, update.lr = event.info["missing"], event.info["lr"]
        update.finite = update.finite and finite(gradient)
        update.number, update.epoch = len(self.updates) + 1, max(self.epoch, 0)
        if update.unclear and update.finite:
            self._common_part(update)
        update.residual = self._rest_of(update.gradient, update.weights) if update.finite else float("nan")
        self.updates.append(update)
        self.current = Update(update.number + 1, update.epoch)
        self.since = []

    def _rest_of(self, gradient, weights) -> float:
        if not weights:
            return 1.0 if bool(gradient.any()) else 0.0
        if not bool(gradient.any()):
            return 0.0
        numbers = list(weights)
        matrix = torch.stack([self.known.gradient(n, self.visits.get(n)) for n in numbers], dim=1)
        rest = gradient - matrix @ tensor_of(weights.values(), matrix)
        return relative(rest, gradient) if self.mask is None else relative(rest[self.mask], gradient[self.mask])

    def _rescale(self, gradient) -> None:
        """A scaler has unscaled only what this optimizer holds: see by how much."""
        if not self.w or not any(c.kind == "unscale" and c.scale == 1.0 for c in self.current.changes):
            return
        matrix = torch.stack([self.known.gradient(n, self.visits.get(n)) for n in self.w], dim=1)
        held = (matrix @ tensor_of(self.w.values(), matrix))[self.mask]
        factor = factor_between(held, gradient[self.mask])
        for account in (self.w, self.clean):
            for number in account:
                account[number] *= factor or 1.0

    def _judge_half(self, update, event, known) -> None:
        """The second optimizer's share must carry the same weights as the first one's."""
        if not update.weights or not finite(event.before) or any(c.kind in ("clip", "other") for c in self.current.changes):
            return
        mask = self._mask([i in known for i in range(len(self.log.base))])
        matrix = torch.stack([self.known.gradient(n, self.visits.get(n)) for n in update.weights], dim=1)
        factor = factor_between((matrix @ tensor_of(update.weights.values(), matrix))[mask], event.before[mask])
        if factor is not None and abs(factor - 1) > 1e-3 and update.residual < 1e-3:
            update.half = factor

    def _unseen(self, update, gradient) -> None:
        """No forward was seen (vmap, a traced model, ...): which micro-batches of this epoch is it made of?"""
        if any(event.info["rows"] for event in self.log.of("forward")):
            return
        columns = [m.number for m in self.known.micro if m.epoch == max(self.epoch, 0)][:RECENT]
        solved, off = self._solve(gradient, columns)
        if off > self.known.tolerance:
            return
        for number, weight in zip(columns, solved):
            if abs(weight) > 1e-7:
                self.w[number] = self.clean[number] = update.added[number] = weight
                info = {"rows": None, "training": True, "grad": True, "counts": True, "epoch": self.epoch, "part": 0}
                update.visits.append((number, Event("forward", info=info)))

    def _common_part(self, update) -> None:
        """A part that is the same in every micro-batch's gradient, such as a penalty's: take it out."""
        numbers = [number for number, _ in update.parts]
        if len(numbers) < 2 or len(numbers) != update.backwards or any(c.at and c.kind != "clip" for c in update.changes):
            return
        columns = [self.known.gradient(n, self.visits.get(n)) for n in numbers]
        size, many = columns[0].numel(), len(numbers)
        matrix = torch.zeros(many, size, many, dtype=columns[0].dtype)
        for i, column in enumerate(columns):
            matrix[i, :, i] = column
        right = torch.stack([change for _, change in update.parts])
        a, b = (matrix - matrix.mean(0)).reshape(many * size, many), (right - right.mean(0)).reshape(-1, 1)
        weights = torch.linalg.lstsq(a, b, driver="gelsd").solution
        if relative(a @ weights - b, b) > self.known.tolerance:
            return
        common = (right - (matrix @ weights).squeeze(-1)).mean(0) * many
        update.weights = dict(zip(numbers, (float(w.real) for w in weights)))
        update.clean, update.added = dict(update.weights), dict(update.weights)
        update.common, update.gradient = relative(common, update.gradient), update.gradient - common
        update.unclear, update.strange = False, []
