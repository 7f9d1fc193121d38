"""Memory of the CPU executor: the peak while loading against the bytes kept, and its growth over many frames.

Each measurement has a process of its own. The peak is the process's largest resident size, the mapped checkpoint
included, less what it had before. Exits with 1 when it is above what overtone promises. Linux only.

    python -m benchmarks.memory [CKPT] [--frames N] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypedDict

import numpy as np
from benchmarks.synthetic_checkpoint import add_checkpoint_arguments, given_or_synthetic

from overtone import CodePredictor, SamplingParams, estimate_memory

PEAK_AT_MOST = 1.3
"""Peak while loading over the bytes of weights and context kept."""
GROWTH_AT_MOST = 1 << 20
"""Bytes that the process may grow by over all frames: allocators keep some pages, a leak would take more."""
SETTLING_FRAMES = 100


class Loading(TypedDict):
    """Bytes."""

    dtype: str
    kept: int
    peak: int
    ratio: float


class Running(TypedDict):
    """Bytes over frames."""

    frames: int
    growth: int


def resident(field: str) -> int:
    """`VmRSS`, the resident bytes of this process, or `VmHWM`, their peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"^{field}:\s*(\d+) kB$", status, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(match[1]) * 1024


def load(checkpoint: Path, dtype: str, max_batch: int) -> Loading:
    """Load once."""
    before = resident("VmRSS")
    predictor = CodePredictor.from_pretrained(checkpoint, "cpu", dtype=dtype, max_batch=max_batch)
    peak = resident("VmHWM") - before
    # The estimate is an upper bound where tables are stored narrower than the working type.
    kept = min(estimate_memory(predictor.spec, dtype, max_batch).total, resident("VmRSS") - before)
    return Loading(dtype=dtype, kept=kept, peak=peak, ratio=round(peak / kept, 4))


def run(checkpoint: Path, frames: int) -> Running:
    """Predict frames into fresh tensors."""
    predictor = CodePredictor.from_pretrained(checkpoint, "cpu", max_batch=2)
    hidden = np.random.default_rng(0).standard_normal((2, predictor.spec.talker_hidden_size), np.float32)
    sampling = SamplingParams(temperature=0.9, top_k=50, seed=7)
    settled = 0
    for index in range(SETTLING_FRAMES + frames):
        if index == SETTLING_FRAMES:
            settled = resident("VmRSS")
        predictor.predict_frame(hidden, [0, 1], sampling=sampling, frame_idx=index).to_host()
    return Running(frames=frames, growth=resident("VmRSS") - settled)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkpoint_arguments(parser)
    parser.add_argument("--frames", type=int, default=1000, help="frames to run, of a small architecture")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    def alone() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    loadings = []
    with given_or_synthetic(arguments.checkpoint, arguments.arch) as checkpoint:
        for dtype in ("float32", "bfloat16", "int8"):
            with alone() as process:
                loadings.append(process.submit(load, checkpoint, dtype, 8).result())
    with given_or_synthetic(None, "tiny") as checkpoint, alone() as process:
        running = process.submit(run, checkpoint, arguments.frames).result()
    if arguments.json:
        print(json.dumps({"loading": loadings, "running": running}, indent=2))
    else:
        for each in loadings:
            print(
                f"{each['dtype']:10}kept {each['kept'] / 1e6:>8.1f} MB, peak {each['peak'] / 1e6:>8.1f} MB: "
                f"{each['ratio']:.2f}, at most {PEAK_AT_MOST}"
            )
        print(f"growth over {running['frames']} frames: {running['growth']} bytes, at most {GROWTH_AT_MOST}")
    good = all(each["ratio"] < PEAK_AT_MOST for each in loadings) and running["growth"] <= GROWTH_AT_MOST
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
