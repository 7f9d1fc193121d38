"""One cell of the table: frames in rounds and step by step, in turns, and what follows from their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from overtone.speculation import SpecCounters

if TYPE_CHECKING:
    from benchmarks.speculation.frames import Clock, FrameRunner

    from overtone.speculation import DraftShape

PREFILL_STEPS = 1.1
"""What the prefill of two rows costs, in steps of one: the weights are read once for both."""
WARMUP_FRAMES = 5


@dataclass(frozen=True)
class Cell:
    """What one line of the table says; `python -m benchmarks.speculation --help` has the words."""

    batch: int
    window: int
    draft: DraftShape
    frames: int
    rounds_per_frame: float
    passes_per_frame: float
    codes_per_round: float
    accepted: float
    ms_per_frame: float
    plain_ms_per_frame: float
    ratio: float
    break_even: float
    frames_of_other_codes: int

    def line(self) -> str:
        """The cell in the table."""
        wrong = f"  OTHER CODES in {self.frames_of_other_codes} frames" if self.frames_of_other_codes else ""
        return (
            f"{self.batch:>5}{self.window:>7}  {self.draft:9}{self.rounds_per_frame:>7.2f}{self.passes_per_frame:>8.2f}"
            f"{self.codes_per_round:>7.2f}{self.accepted:>10.1%}{self.ms_per_frame:>10.3f}"
            f"{self.plain_ms_per_frame:>9.3f}{self.ratio:>7.2f}{self.break_even:>12.2f}{wrong}"
        )


HEADER = (
    f"{'batch':>5}{'window':>7}  {'draft':9}{'rounds':>7}{'passes':>8}{'codes':>7}{'accepted':>10}{'ms':>10}"
    f"{'plain':>9}{'ratio':>7}{'break-even':>12}"
)


def measure(rounds: FrameRunner, plain: FrameRunner, count: int, clock: Clock) -> dict[str, Any]:
    """Run frames both ways in turns.

    Returns:
        The fields of a cell that are measured.
    """
    milliseconds: dict[FrameRunner, list[float]] = {rounds: [], plain: []}
    passes: list[int] = []
    other_codes = 0
    total = SpecCounters()
    for number in range(-WARMUP_FRAMES, count):
        before = rounds.counters()
        taken = {runner: runner.run(number, clock) for runner in ((rounds, plain) if number % 2 else (plain, rounds))}
        other_codes += not np.array_equal(rounds.codes(), plain.codes())
        if number < 0:
            continue
        counted = [now.since(then) for now, then in zip(rounds.counters(), before, strict=True)]
        passes.append(max(row.rounds for row in counted))
        total = SpecCounters.total([total, *counted])
        for runner, values in milliseconds.items():
            values.append(taken[runner])
    in_rounds, step_by_step = (np.array(values) for values in milliseconds.values())
    step = float(np.median(step_by_step)) / (rounds.steps + PREFILL_STEPS)
    round_ms = float(np.median((in_rounds - PREFILL_STEPS * step) / passes))
    rounds_per_frame, passes_per_frame = total.rounds / total.frames, float(np.mean(passes))
    return {
        "frames": count,
        "rounds_per_frame": rounds_per_frame,
        "passes_per_frame": passes_per_frame,
        "codes_per_round": total.codes / total.rounds,
        "accepted": total.accepted / total.drafted if total.drafted else 0.0,
        "ms_per_frame": float(np.median(in_rounds)),
        "plain_ms_per_frame": float(np.median(step_by_step)),
        "ratio": float(np.median(in_rounds / step_by_step)),
        "break_even": round_ms / step * passes_per_frame / rounds_per_frame,
        "frames_of_other_codes": other_codes,
    }
