"""Timing that is fair to what it compares.

Everything takes turns in one process, so that a busy moment of the machine meets all alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Timing", "time_in_turns"]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of repeated runs.

    Args:
        median: Half of the runs were faster.
        p05: One in twenty was faster.
        p95: One in twenty was slower.
    """

    median: float
    p05: float
    p95: float


def time_in_turns(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    after_round: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Run each piece of work once per round, and time it.

    Args:
        work: What to time, by name.
        rounds: Rounds that count.
        warmup: Rounds before those, which do not.
        after_round: Called after each round that counts, outside what is timed.
    """
    milliseconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-warmup, rounds):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            if number >= 0:
                milliseconds[name].append((time.perf_counter() - started) * 1e3)
        if number >= 0:
            after_round()
    return {name: _timing(values) for name, values in milliseconds.items()}


def _timing(milliseconds: list[float]) -> Timing:
    p05, median, p95 = (float(value) for value in np.percentile(milliseconds, (5, 50, 95)))
    return Timing(median, p05, p95)
