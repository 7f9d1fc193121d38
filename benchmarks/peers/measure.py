"""Contenders take turns on one GPU, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from overtone.cli.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARMUP_ROUNDS = 5
CALLS_IN_FLIGHT = 4
"""Calls between two waits while the host's cost is measured: a queue that never fills does not block the caller."""


def nothing() -> None:
    """What a contender without a check does."""


@dataclass(frozen=True)
class Contender:
    """One way to compute a frame.

    Args:
        name: Its name in tables.
        launch: Computes a frame of the same inputs on torch's current stream; may return before it has completed.
        check: Called once after everything was timed; raises when a frame went wrong.
        keeps: What a captured graph uses without owning it.
    """

    name: str
    launch: Callable[[], object]
    check: Callable[[], object] = nothing
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True)
class Samples:
    """Milliseconds of each round.

    Args:
        device: Between two CUDA events around the call, on a stream that was idle before. A host that is slower than
            the device is part of it: the device waits then.
        host: Until the call returned.
        wall: Until the device had finished.
    """

    device: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def times(self, other: Samples) -> float:
        """How many times the other's device time this takes: the median over rounds of the ratio within a round."""
        return float(np.median(np.array(self.device) / np.array(other.device)))


def summary(values: Sequence[float]) -> Timing:
    """Median, 5th and 95th percentile."""
    p05, median, p95 = (float(value) for value in np.percentile(values, (5, 50, 95)))
    return Timing(median, p05, p95)


def take_turns(contenders: Sequence[Contender], rounds: int) -> dict[str, Samples]:
    """Run each contender once per round. The order rotates: none follows the same other one every time."""
    import torch  # noqa: PLC0415

    samples = {contender.name: Samples() for contender in contenders}
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(-WARMUP_ROUNDS, rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            before.record()
            contender.launch()
            after.record()
            returned = time.perf_counter_ns()
            torch.cuda.synchronize()
            finished = time.perf_counter_ns()
            if number >= 0:
                taken = samples[contender.name]
                taken.device.append(before.elapsed_time(after))
                taken.host.append((returned - started) / 1e6)
                taken.wall.append((finished - started) / 1e6)
    for contender in contenders:
        contender.check()
    return samples


def host_microseconds(call: Callable[[], object], calls: int) -> Timing:
    """Microseconds until a call returns. The waits that keep the queue short are outside what is timed."""
    import torch  # noqa: PLC0415

    microseconds: list[float] = []
    for number in range(-CALLS_IN_FLIGHT, calls):
        if number % CALLS_IN_FLIGHT == 0:
            torch.cuda.synchronize()
        started = time.perf_counter_ns()
        call()
        returned = time.perf_counter_ns()
        if number >= 0:
            microseconds.append((returned - started) / 1e3)
    torch.cuda.synchronize()
    return summary(microseconds)
