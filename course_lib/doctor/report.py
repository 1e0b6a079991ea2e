"""What the doctor found, as plain values: for a notebook, a terminal and JSON."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass, field

SHOWN = 6  # windows in a table


@dataclass(frozen=True)
class Diagnosis:
    """One fault: its name, what shows it, and what to do. kind: "wrong", "limit", "cost" or "log" (see names.py)."""

    name: str
    evidence: str
    cure: str
    kind: str = "wrong"

    def __str__(self):
        return f"{self.name}: {self.evidence} {self.cure}"


@dataclass(frozen=True)
class Window:
    """One update. used, needed: a weight for each of `micro_batches` (numbers in the loader's order).

    residual: the part of the gradient, relative to its norm, that no weights explain. NaN where it is not finite.
    stale: weights of micro-batches of earlier windows.
    """

    number: int
    epoch: int
    micro_batches: tuple
    used: tuple
    needed: tuple
    residual: float
    stale: dict = field(default_factory=dict)
    right: bool = True


@dataclass(frozen=True)
class Report:
    """The result of `examine`. ok: nothing to say. counts: how often the loop called what. memory: {K: peak bytes}."""

    diagnoses: tuple = ()
    windows: tuple = ()
    counts: dict = field(default_factory=dict)
    memory: dict = field(default_factory=dict)
    notes: tuple = ()
    accumulation_steps: int = 1
    on: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True where no fault of any kind was found."""
        return not self.diagnoses

    @property
    def names(self) -> tuple:
        """The names of the diagnoses, worst first."""
        return tuple(diagnosis.name for diagnosis in self.diagnoses)

    def to_json(self) -> str:
        """Everything, as JSON. Numbers that are not finite become null."""
        data = {"ok": self.ok, **asdict(self)}
        return json.dumps(_finite(data), ensure_ascii=False)

    def __str__(self):
        lines = [self._headline()]
        for diagnosis in self.diagnoses:
            lines += ["", f"  {diagnosis.name}", f"    what: {diagnosis.evidence}", f"    cure: {diagnosis.cure}"]
        if self.windows:
            lines += ["", "  update  micro-batches        used -> needed"]
        for window in self.windows[:SHOWN]:
            mark = " " if window.right else "x"
            lines.append(f"  {mark} {window.number:<5} {_span(window.micro_batches):<20} {_pairs(window)}")
        if len(self.windows) > SHOWN:
            lines.append(f"  ... and {len(self.windows) - SHOWN} more")
        lines += ["", "  calls: " + ", ".join(f"{name} {count}" for name, count in self.counts.items() if count)]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _headline(self):
        what = f"accumulation_steps={self.accumulation_steps}, on {self.on}"
        if self.ok:
            return f"Nothing to say: every update got the gradient of its window ({what})."
        return f"{len(self.diagnoses)} finding{'s' if len(self.diagnoses) > 1 else ''} ({what}):"

    def _repr_html_(self):
        parts = [f"<p><b>{html.escape(self._headline())}</b></p>"]
        for diagnosis in self.diagnoses:
            parts.append(
                f"<p><b>{html.escape(diagnosis.name)}</b><br>{html.escape(diagnosis.evidence)}<br>"
                f"<i>Cure:</i> {html.escape(diagnosis.cure)}</p>"
            )
        if self.windows:
            parts.append(_table(self.windows))
        calls = ", ".join(f"{name} {count}" for name, count in self.counts.items() if count)
        parts.append(f"<p>Calls: {html.escape(calls)}</p>")
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return f'<div style="color: var(--jp-ui-font-color1, inherit); max-width: 60em">{"".join(parts)}</div>'


def _table(windows) -> str:
    rows = []
    for window in windows[:SHOWN]:
        cells = "".join(_cell(u, n) for u, n in zip(window.used, window.needed))
        mark = "right" if window.right else "wrong"
        rows.append(
            f"<tr><th scope='row' style='text-align: left'>{window.number}</th><td>{mark}</td>"
            f"<td style='text-align: left; white-space: nowrap'>{cells}</td></tr>"
        )
    more = f"<p>... and {len(windows) - SHOWN} more updates.</p>" if len(windows) > SHOWN else ""
    return (
        "<table><caption style='text-align: left'>The weight of each micro-batch: used / needed. A full bar is what is "
        "needed.</caption><thead><tr><th scope='col'>update</th><th scope='col'></th><th scope='col' style='text-align: left'>"
        f"micro-batches</th></tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
    )


def _cell(used: float, needed: float) -> str:
    """One micro-batch: a bar as long as used/needed (at most twice the needed one), and the two numbers."""
    ratio = 0.0 if not needed or used != used else max(0.0, min(used / needed, 2.0))
    width = 2.6  # em, of a bar that is right
    bar = (
        f"<span style='display: inline-block; height: 0.5em; width: {width * ratio:.2f}em; "
        "background: var(--jp-brand-color1, #1976d2)'></span>"
    )
    frame = (
        f"<span style='display: inline-block; width: {2 * width}em; "
        f"border-left: 1px solid currentColor; background: linear-gradient(to right, transparent {width}em, currentColor "
        f"{width}em, currentColor calc({width}em + 1px), transparent calc({width}em + 1px))'>{bar}</span>"
    )
    return (
        "<span style='display: inline-block; margin-right: 1em; vertical-align: top'>"
        f"{frame}<br>{used:.3g} / {needed:.3g}</span>"
    )


def _span(numbers) -> str:
    numbers = list(numbers)
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers[:6]) + (" ..." if len(numbers) > 6 else "")


def _pairs(window, most: int = 6) -> str:
    pairs = [f"{used:.3g} -> {needed:.3g}" for used, needed in zip(window.used, window.needed)]
    if len(set(pairs)) == 1 and len(pairs) > 1:
        return f"{len(pairs)} x ({pairs[0]})"
    return ", ".join(pairs[:most]) + (" ..." if len(pairs) > most else "")


def _finite(value):
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
