"""Frames of a file through one predictor, a frame at a time, and what tells the time that each takes."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from overtone import FramePlan, Tensor
from overtone.speculation import SpecCounters, read_counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from overtone import BoundFrame, CodePredictor, SamplingParams
    from overtone.cli.frames_file import Frames

    Clock: TypeAlias = Callable[[BoundFrame], float]
    """Launches a frame whose inputs are in place, waits until it is done, and tells the milliseconds that it took."""


def clock_of(predictor: CodePredictor) -> tuple[Clock, str]:
    """What tells the time of a predictor's frames, and its name: CUDA events where torch has them, else the wall."""
    if predictor.executor == "cuda" and importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415 - slow to import, and optional

        if torch.cuda.is_available():
            return _event_clock(), "times of the device"
    return _wall_clock, "times of the wall clock"


def _wall_clock(bound: BoundFrame) -> float:
    started = time.perf_counter()
    bound.launch().completion.wait()
    return (time.perf_counter() - started) * 1e3


def _event_clock() -> Clock:
    import torch  # noqa: PLC0415

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def clock(bound: BoundFrame) -> float:
        torch.cuda.synchronize()
        before.record()
        bound.launch()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after))

    return clock


class FrameRunner:
    """A bound frame that takes its inputs from a file.

    Args:
        predictor: Who predicts.
        frames: What; streams beyond those of the file are its streams at other times.
        batch: B.
        sampling: Of every stream, each with a seed of its own.
    """

    def __init__(self, predictor: CodePredictor, frames: Frames, batch: int, sampling: SamplingParams) -> None:
        place = predictor.device
        self._predictor, self._frames, self._batch = predictor, frames, batch
        self._hidden = Tensor.zeros([batch, predictor.spec.talker_hidden_size], "float32", place)
        self._code_zero = Tensor.zeros([batch], "int32", place)
        self._index = Tensor.zeros([1], "int64", place)
        rows = [replace(sampling, seed=sampling.seed + row) for row in range(batch)]
        self._bound = predictor.bind_frame(FramePlan(batch, self._code_zero, self._hidden, rows, self._index))

    @property
    def steps(self) -> int:
        """R - 1, the steps after the prefill."""
        return self._predictor.num_rvq_layers - 1

    def run(self, number: int, clock: Clock) -> float:
        """Predict a frame; milliseconds."""
        frames, rows = self._frames, np.arange(self._batch)
        copies = -(-self._batch // frames.streams)
        apart = max(1, frames.count // copies)
        place = ((number + rows // frames.streams * apart) % frames.count, rows % frames.streams)
        self._hidden.copy_from(np.ascontiguousarray(frames.talker_last_hidden[place], np.float32))
        self._code_zero.copy_from(np.ascontiguousarray(frames.code_zero[place], np.int32))
        self._index.copy_from(np.array([number % frames.count]))
        return clock(self._bound)

    def codes(self) -> NDArray[np.int32]:
        """[B, C] of the frame before."""
        codes: NDArray[np.int32] = self._bound.frame.codes.numpy()
        return codes

    def counters(self) -> list[SpecCounters]:
        """What rounds have counted for each row, once the frame before is done."""
        return read_counters(self._predictor._loaded)  # noqa: SLF001 - those of single rows are not public
