"""What is estimated before loading is what loading takes, and goes with the predictor."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import overtone
from models import RandomModel
from overtone import ModelSpec, estimate_memory

MEASURE = """
import gc, os, sys
sys.path[:0] = [{package!r}, {tests!r}]
import numpy as np
import overtone
from models import RandomModel

model = RandomModel(
    residual_codebooks=7, codebook_size=1024, code_zero_size=1024, hidden_size=512, layers=4, heads=8,
    key_value_heads=4, head_size=64, mlp_width=2048,
)

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

model.load(dtype={dtype!r}).predict_frame(*model.inputs(1))
gc.collect()
before = resident()
predictor = model.load(dtype={dtype!r}, max_batch=64)
held = resident() - before
estimate = overtone.estimate_memory(predictor.spec, {dtype!r}, max_batch=64)
assert estimate.context == predictor.required_context_memory
print(held, estimate.total, estimate.weights, predictor.frame_bytes)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_estimate_is_what_loading_takes(dtype: str) -> None:
    package = str(Path(overtone.__file__).parent.parent)
    code = MEASURE.format(package=package, tests=str(Path(__file__).parent), dtype=dtype)
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OPENBLAS_NUM_THREADS": "1"}
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert outcome.returncode == 0, outcome.stderr
    held, estimated, weights, _ = (int(word) for word in outcome.stdout.split())
    # The tables are float32 here, where the estimate takes them to be bfloat16 beside narrow weights.
    tables = 0 if dtype == "float32" else (7 + 1) * 1024 * 512 * 2
    assert weights > 10_000_000
    assert held == pytest.approx(estimated + tables, rel=0.05)


def test_memory_is_freed_with_the_predictor() -> None:
    model = RandomModel(codebook_size=2048, mlp_width=4096, hidden_size=128)
    model.load(max_batch=1)
    gc.collect()
    before = resident_bytes()
    for _ in range(8):
        predictor = model.load(max_batch=256)
        bound = predictor.predict_frame(*model.inputs(2))
        del predictor, bound
    gc.collect()
    size = estimate_memory(model.load(max_batch=1).spec, "float32", 256).total
    assert size > 20_000_000
    assert resident_bytes() - before < 2 * size


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_the_estimate_of_a_true_architecture_is_plausible() -> None:
    spec = ModelSpec.named("qwen3-tts-0.6b")
    narrow, wide, small = (estimate_memory(spec, dtype, 1).weights for dtype in ("bfloat16", "float32", "int8"))
    table = spec.parameters * 2
    assert table < narrow < 1.1 * table
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    assert small < narrow
    assert estimate_memory(spec, max_batch=64).context > 8 * estimate_memory(spec, max_batch=4).context
