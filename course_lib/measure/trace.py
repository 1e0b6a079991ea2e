"""What a metered block of code did to memory: records over time, the peak, and what the peak was made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

PHASES = ("forward", "recompute", "backward", "optimizer")

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",  # existed before the block and belongs to none of the above: data, labels
    "activations",  # made in a forward phase and still alive when backward begins
    "recomputed",  # the same, made again by a checkpoint during backward
    "temporary",  # everything else
)

LIVE_TENSOR_BYTES = "live tensor bytes"
ALLOCATOR = "allocator"
PREDICTED = "predicted"  # nothing ran: tensors without data were counted


class Record(NamedTuple):
    """The state of memory just after one operator (or one free) was done. Bytes are integers."""

    t: float  # seconds since the block was entered
    phase: str  # one of PHASES
    op: str  # operator name, for example "aten.addmm"
    live_bytes: int
    peak_bytes: int  # highest live_bytes up to here
    by_category: dict  # {category: bytes}, sums to live_bytes


@dataclass(frozen=True)
class Trace:
    """A finished measurement of one block.

    `source` says what was counted: "live tensor bytes" are storages of tensors that are alive, to the byte; "allocator"
    are the device allocator's own counters, which also see scratch memory inside kernels; "predicted" are tensors without data. `hidden_bytes` is that
    difference at the peak (0 where only tensors are counted). `oracle_peak_bytes` is the allocator's exact peak as seen
    by the profiler, when the meter was asked for it, else None.
    """

    device: str
    source: str
    baseline_bytes: int  # live when the block was entered
    peak_bytes: int  # highest number of bytes alive at once
    records: tuple
    allocator_peak_by_phase: dict | None = None
    hidden_bytes: int = 0
    oracle_peak_bytes: int | None = None
    error: str | None = None  # the exception that ended the block, if one did
    warnings: tuple = ()

    @property
    def peak_record(self) -> Record:
        """The first record at which live bytes stood at their highest (categories sum to its `live_bytes`)."""
        return max(self.records, key=lambda record: record.live_bytes)

    @property
    def peak_by_category(self) -> dict:
        """{category: bytes} at the moment of the peak. On an allocator, scratch inside kernels counts as temporary."""
        parts = dict(self.peak_record.by_category)
        parts["temporary"] = parts.get("temporary", 0) + self.peak_bytes - self.peak_record.live_bytes
        return parts

    @property
    def peak_by_phase(self) -> dict:
        """{phase: highest live bytes in it}, only for phases that happened."""
        if self.allocator_peak_by_phase is not None:
            return dict(self.allocator_peak_by_phase)
        peaks: dict = {}
        for record in self.records:
            peaks[record.phase] = max(peaks.get(record.phase, 0), record.live_bytes)
        return {phase: peaks[phase] for phase in PHASES if phase in peaks}

    @property
    def end_bytes(self) -> int:
        """Live bytes when the block was left."""
        return self.records[-1].live_bytes

    def to_json(self) -> str:
        """One JSON object; `Trace.from_json` reads it back unchanged."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "records"}
        ops = sorted({record.op for record in self.records})
        place = {op: i for i, op in enumerate(ops)}
        fields["ops"] = ops
        fields["records"] = [
            [round(r.t, 7), PHASES.index(r.phase), place[r.op], *(r.by_category.get(c, 0) for c in CATEGORIES)]
            for r in self.records
        ]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        fields = json.loads(text)
        ops, peak, records = fields.pop("ops"), 0, []
        for t, phase, op, *parts in fields["records"]:
            live = sum(parts)
            peak = max(peak, live)
            by_category = {c: n for c, n in zip(CATEGORIES, parts) if n}
            records.append(Record(t, PHASES[phase], ops[op], live, peak, by_category))
        fields["records"] = tuple(records)
        fields["warnings"] = tuple(fields["warnings"])
        return cls(**fields)

    def __repr__(self) -> str:
        return (
            f"Trace({self.source} on {self.device}: peak {mib(self.peak_bytes)} in {self.peak_record.phase}, "
            f"started at {mib(self.baseline_bytes)}, {len(self.records)} records)"
        )


def mib(nbytes: int) -> str:
    """Bytes as text with a binary unit: "512 B", "48.0 KiB", "12.3 MiB", "2.61 GiB"."""
    size, sign = abs(nbytes), "-" if nbytes < 0 else ""
    if size < 2**10:
        return f"{sign}{size} B"
    for unit, scale, digits in (("KiB", 2**10, 1), ("MiB", 2**20, 1)):
        if size < scale * 2**10 * 0.99995:
            return f"{sign}{size / scale:.{digits}f} {unit}"
    return f"{sign}{size / 2**30:.2f} GiB"
