"""Memory stays as it is over a thousand frames, whichever call predicts them."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models import RandomModel
from overtone import CodePredictor, FrameError, FramePlan, InputError, SamplingArrays, SamplingParams

MODEL = RandomModel(layers=1)
BATCH = 4
FRAMES = 1000


def predict(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)
    params = [SamplingParams(seed=row) for row in range(BATCH)]
    return lambda index: predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=index, logits=True)


def run(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)
    codes = np.zeros((BATCH, 4), np.int64)
    return lambda index: predictor.run_frame(FramePlan(BATCH, code_zero, hidden, SamplingParams(), index), codes)


def launch(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)
    arrays = SamplingArrays(np.ones(4, "f4"), np.zeros(4, "i4"), np.ones(4, "f4"), np.arange(4))
    frame_idx = np.zeros(1, np.int64)
    bound = predictor.bind_frame(FramePlan(BATCH, code_zero, hidden, arrays, frame_idx, advance_frame_idx=True))
    return lambda index: bound.launch()


def export(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)

    def frame(index: int) -> object:
        frame = predictor.predict_frame(hidden, code_zero)
        return np.from_dlpack(frame.codec_sum), frame.codes.__dlpack__(), predictor.codec_embed_table(0).numpy()

    return frame


def fail(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)
    hidden[0] = np.nan

    def frame(index: int) -> None:
        with pytest.raises(FrameError):
            predictor.predict_frame(hidden, code_zero).to_host()
        with pytest.raises(InputError):
            predictor.predict_frame(hidden[:, :-1], code_zero)

    return frame


def lend(predictor: CodePredictor) -> Callable[[int], object]:
    hidden, code_zero = MODEL.inputs(BATCH)

    def frame(index: int) -> object:
        predictor.set_context_memory(np.zeros(predictor.required_context_memory, np.uint8))
        return predictor.predict_frame(hidden, code_zero)

    return frame


@pytest.mark.parametrize("way", [predict, run, launch, export, fail, lend])
def test_a_thousand_frames_take_no_more_memory_than_a_few(
    way: Callable[[CodePredictor], Callable[[int], object]],
) -> None:
    frame = way(MODEL.load(max_batch=BATCH))
    for index in range(200):
        frame(index)
    gc.collect()
    tracemalloc.start()
    try:
        frame(0)
        traced, resident, blocks = tracemalloc.get_traced_memory()[0], resident_bytes(), sys.getallocatedblocks()
        for index in range(FRAMES):
            frame(index)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - traced < 50_000
    finally:
        tracemalloc.stop()
    assert sys.getallocatedblocks() - blocks < 300
    assert resident_bytes() - resident < 1_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
