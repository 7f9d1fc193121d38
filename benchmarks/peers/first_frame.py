"""Seconds from `from_pretrained` to the first frame, in a process of its own that has done nothing with overtone yet.

    python -m benchmarks.peers.first_frame CKPT --batch N

Prints JSON. The file is read once before, so that the page cache is warm; torch has its CUDA context already, as where
a talker runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

from overtone import CodePredictor, SamplingParams, _core


class FirstFrame(TypedDict):
    """Seconds of loading, and of the first frame after it."""

    load: float
    frame: float


def measure_elsewhere(checkpoint: Path, max_batch: int) -> FirstFrame:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers.first_frame", str(checkpoint), "--batch", str(max_batch)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    taken = json.loads(finished.stdout.splitlines()[-1])
    return FirstFrame(load=taken["load"], frame=taken["frame"])


def measure_here(checkpoint: Path, max_batch: int) -> FirstFrame:
    """Load, predict one frame, wait for it."""
    import torch  # noqa: PLC0415

    files, _ = _core.describe_checkpoint(checkpoint)
    for file in files:
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    started = time.perf_counter()
    predictor = CodePredictor.from_pretrained(checkpoint, executor="cuda", dtype="bfloat16", max_batch=max_batch)
    loaded = time.perf_counter()
    hidden = torch.ones(1, predictor.spec.talker_hidden_size, dtype=torch.bfloat16, device="cuda")
    predictor.predict_frame(hidden, [0], sampling=SamplingParams.for_checkpoint(predictor.spec), frame_idx=0).wait()
    return FirstFrame(load=loaded - started, frame=time.perf_counter() - loaded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CKPT", type=Path)
    parser.add_argument("--batch", type=int, required=True, help="largest batch to load for")
    arguments = parser.parse_args()
    print(json.dumps(measure_here(arguments.checkpoint, arguments.batch)))


if __name__ == "__main__":
    main()
