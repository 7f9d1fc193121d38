"""The CPU executor against the time that only reading the same weights takes, with the same threads.

Frames and reads take turns in one process. What is compared are medians, as ratios: they hold on any machine whose
memory, not its arithmetic, is the limit. Exits with 1 when a ratio is above what overtone promises.

    python -m benchmarks.cpu_floor [CKPT] [--rounds N] [--threads N] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.synthetic_checkpoint import add_checkpoint_arguments, given_or_synthetic

import overtone
from overtone import CodePredictor
from overtone.cli.bench import benchmark_frame
from overtone.cli.machine import processor_name
from overtone.cli.timing import Timing, time_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE_BATCH = 8


@dataclass(frozen=True)
class Promise:
    """A ratio of two medians, and the most it may be."""

    name: str
    of: str
    to: str
    at_most: float


PROMISES = (
    Promise("bfloat16, batch 1, to its floor", "bfloat16 batch 1", "bfloat16 read", 1.3),
    Promise("int8, batch 1, to its floor", "int8 batch 1", "int8 read", 1.3),
    Promise(f"bfloat16, batch {LARGE_BATCH}, to batch 1", f"bfloat16 batch {LARGE_BATCH}", "bfloat16 batch 1", 2.5),
)


def measure(checkpoint: Path, rounds: int, threads: int | None) -> tuple[str, dict[str, Timing], dict[str, int]]:
    """The device, the time of each kind of work, and the bytes that a frame reads in each working type."""
    work: dict[str, Callable[[], object]] = {}
    frame_bytes: dict[str, int] = {}
    device = ""
    for dtype in ("bfloat16", "int8"):
        predictor = CodePredictor.from_pretrained(
            checkpoint, "cpu", dtype=dtype, max_batch=LARGE_BATCH, threads=threads
        )
        frame_bytes[dtype] = predictor.frame_bytes
        device = f"{processor_name()}, {predictor.threads} threads, {predictor.instructions}"
        work[f"{dtype} read"] = predictor.read_weights
        for batch in (1, LARGE_BATCH):
            work[f"{dtype} batch {batch}"] = benchmark_frame(predictor, batch).launch
    return device, time_in_turns(work, rounds), frame_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkpoint_arguments(parser)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with given_or_synthetic(arguments.checkpoint, arguments.arch) as checkpoint:
        device, timings, frame_bytes = measure(checkpoint, arguments.rounds, arguments.threads)
    ratios = {promise: timings[promise.of].median / timings[promise.to].median for promise in PROMISES}
    if arguments.json:
        document = {
            "version": overtone.__version__,
            "device": device,
            "frame_bytes": frame_bytes,
            "milliseconds": {name: asdict(timing) for name, timing in timings.items()},
            "ratios": [{**asdict(promise), "found": ratio} for promise, ratio in ratios.items()],
        }
        print(json.dumps(document, indent=2))
    else:
        print(f"overtone {overtone.__version__} on {device}")
        print(f"{'':22}{'median ms':>11}{'p05':>9}{'p95':>9}{'GB/s':>8}")
        for name, timing in timings.items():
            speed = frame_bytes[name.split()[0]] / timing.median / 1e6
            print(f"{name:22}{timing.median:>11.2f}{timing.p05:>9.2f}{timing.p95:>9.2f}{speed:>8.1f}")
        for promise, ratio in ratios.items():
            verdict = "kept" if ratio <= promise.at_most else "MISSED"
            print(f"{promise.name:34}{ratio:>6.2f}, at most {promise.at_most}: {verdict}")
    return 0 if all(ratio <= promise.at_most for promise, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
