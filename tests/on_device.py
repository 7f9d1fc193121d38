"""What the tests of the cuda executor share: torch on the device, predictors there, and outputs bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from golden import GoldenDirectory
from models import RandomModel, load
from overtone import CodePredictor, Frame, FramePlan, Tensor

torch = pytest.importorskip("torch")

Array = npt.NDArray[Any]

MODEL = RandomModel()
"""Small, and of random weights."""

SLEEP_CYCLES = 2 * 10**8
"""Cycles of `torch.cuda._sleep` that take about a tenth of a second."""


def on_cuda(array: Array) -> Any:
    """A torch tensor with the array's elements."""
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def taken(tensor: Tensor) -> Any:
    """The tensor as torch's, without a copy."""
    return torch.from_dlpack(tensor)


def cuda_model(max_batch: int = 8, **options: Any) -> CodePredictor:
    """The small model on the device, in float32 unless told otherwise."""
    return MODEL.load(**{"executor": "cuda", "dtype": "float32", "max_batch": max_batch, **options})


def cuda_golden(golden: GoldenDirectory, **options: Any) -> CodePredictor:
    """A golden directory on the device, in float32 unless told otherwise."""
    return load(golden, **{"executor": "cuda", "dtype": "float32", **options})


def inputs(batch: int, seed: int = 0) -> tuple[Any, Any]:
    """Hidden rows and codes of the small model, on the device."""
    hidden, code_zero = MODEL.inputs(batch, seed)
    return on_cuda(hidden), on_cuda(code_zero)


def plan(batch: int, **changes: Any) -> FramePlan:
    """A frame of the small model, all of it on the device."""
    hidden, code_zero = inputs(batch)
    arguments = {"active_batch_size": batch, "code_zero": code_zero, "talker_last_hidden": hidden} | changes
    return FramePlan(**arguments)


def codes_of(frame: Frame) -> Array:
    """The codes, once they are there."""
    return frame.codes.numpy()
