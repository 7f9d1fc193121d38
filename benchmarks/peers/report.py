"""What was measured, as tables and as JSON, and the promises that it keeps or misses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.peers.floor import FLOORS
from benchmarks.peers.measure import Samples, summary
from benchmarks.peers.ours import BOUND, CALLED

if TYPE_CHECKING:
    from benchmarks.peers.first_frame import FirstFrame

    from overtone.cli.timing import Timing

PROMISED_CARD = "H200"
"""The card whose name has this is the one that milliseconds are promised for."""
MOST_MILLISECONDS = {1: 1.4, 32: 2.6}
"""Of a bound frame, by batch."""
MOST_MICROSECONDS = {BOUND: 5.0, CALLED: 25.0}
"""Of the host, until a call returns."""
MOST_SECONDS = 3.0
"""From `from_pretrained` to the end of the first frame."""


@dataclass(frozen=True)
class Promise:
    """A figure, and the most it may be."""

    name: str
    found: float
    at_most: float

    def line(self) -> str:
        """The promise and whether it was kept."""
        verdict = "kept" if self.found <= self.at_most else "MISSED"
        return f"{self.name:56}{self.found:>9.3f}, at most {self.at_most}: {verdict}"


@dataclass
class Report:
    """Everything that one run has found so far.

    Args:
        header: Versions, device, checkpoint, sampling, rounds.
        samples: By batch and contender.
        skipped: Why a peer is absent, by name.
        agreement: Fraction of greedy codes that the float32 reference picks too, by contender.
        host: Microseconds until a call returns, by contender, at batch 1.
        first_frame: Seconds, in a fresh process.
    """

    header: dict[str, Any]
    samples: dict[int, dict[str, Samples]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)
    host: dict[str, Timing] = field(default_factory=dict)
    first_frame: FirstFrame | None = None

    def floor_share(self, batch: int) -> float:
        """The share of a bound frame's time that moving its weights' bytes takes: 1 is the memory's limit."""
        found = self.samples[batch]
        floor = min(summary(found[name].device).median for name in FLOORS)
        return floor / summary(found[BOUND].device).median

    def promises(self) -> list[Promise]:
        """The promises that this run can judge."""
        found = []
        if PROMISED_CARD in self.header["device"]:
            for batch, most in MOST_MILLISECONDS.items():
                if batch in self.samples:
                    median = summary(self.samples[batch][BOUND].device).median
                    found.append(Promise(f"{BOUND}, batch {batch}: ms on an {PROMISED_CARD}", median, most))
        for name, most in MOST_MICROSECONDS.items():
            if name in self.host:
                found.append(Promise(f"{name}: µs of the host", self.host[name].median, most))
        if self.first_frame is not None:
            seconds = self.first_frame["load"] + self.first_frame["frame"]
            found.append(Promise("from_pretrained and the first frame: s", seconds, MOST_SECONDS))
        return found

    def as_json(self) -> dict[str, Any]:
        """Milliseconds are `device_ms`, `host_ms`, `wall_ms`; see `measure.Samples`."""
        results = [
            {
                "contender": name,
                "batch": batch,
                "device_ms": asdict(summary(each.device)),
                "host_ms": asdict(summary(each.host)),
                "wall_ms": asdict(summary(each.wall)),
                "times_ours": each.times(found[BOUND]),
            }
            for batch, found in self.samples.items()
            for name, each in found.items()
        ]
        return {
            **self.header,
            "results": results,
            "floor_share": {str(batch): self.floor_share(batch) for batch in self.samples},
            "skipped": self.skipped,
            "greedy_agreement_with_float32": self.agreement,
            "host_microseconds": {name: asdict(timing) for name, timing in self.host.items()},
            "first_frame_seconds": self.first_frame,
            "promises": [asdict(promise) for promise in self.promises()],
        }

    def title(self) -> str:
        """One line about the run."""
        told = self.header
        return (
            f"overtone {told['overtone']}, torch {told['torch']}, transformers {told['transformers']} on "
            f"{told['device']}, bfloat16"
        )

    def batch_table(self, batch: int) -> str:
        """Milliseconds of every contender at one batch size."""
        found = self.samples[batch]
        lines = [f"batch {batch:<32}{'ms':>9}{'p05':>9}{'p95':>9}{'host ms':>10}{'wall ms':>10}{'to ours':>9}"]
        for name, each in found.items():
            device, host, wall = (summary(values) for values in (each.device, each.host, each.wall))
            lines.append(
                f"{name:38}{device.median:>9.3f}{device.p05:>9.3f}{device.p95:>9.3f}{host.median:>10.4f}"
                f"{wall.median:>10.3f}{each.times(found[BOUND]):>9.2f}"
            )
        lines.append(f"{BOUND} runs at {self.floor_share(batch):.0%} of the memory's limit")
        return "\n".join(lines)

    def closing(self) -> str:
        """Agreement, cost on the host, the first frame, what was skipped, and the promises."""
        lines = [
            f"greedy codes that the float32 reference picks too, {name}: {share:.4f}"
            for name, share in self.agreement.items()
        ]
        lines += [
            f"host until the call returns, {name}: {timing.median:.2f} µs ({timing.p05:.2f} to {timing.p95:.2f})"
            for name, timing in self.host.items()
        ]
        if self.first_frame is not None:
            load, frame = self.first_frame["load"], self.first_frame["frame"]
            lines.append(f"from_pretrained {load:.2f} s, then the first frame {frame * 1e3:.1f} ms")
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [promise.line() for promise in self.promises()]
        return "\n".join(lines)
