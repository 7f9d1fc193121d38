"""The model that the tests of the talker's contract share, and how they call it."""

from __future__ import annotations

import numpy as np

from models import RandomModel
from overtone import Binding, CodePredictor, FramePlan

__all__ = ["CODES", "MODEL", "WIDTH", "binding", "plan", "predicted"]

MODEL = RandomModel()
CODES = MODEL.residual_codebooks + 1
WIDTH = MODEL.hidden_size


def plan(batch: int, **changes: object) -> FramePlan:
    hidden, code_zero = MODEL.inputs(batch)
    arguments = {"active_batch_size": batch, "code_zero": code_zero, "talker_last_hidden": hidden} | changes
    return FramePlan(**arguments)  # type: ignore[arg-type]


def predicted(predictor: CodePredictor, batch: int, **options: object) -> np.ndarray:
    return predictor.predict_frame(*MODEL.inputs(batch), **options).codes.numpy()  # type: ignore[arg-type]


def binding(**changes: object) -> Binding:
    arguments = {"talker_hidden_size": WIDTH, "num_codes_per_frame": CODES, "max_batch_size": 4} | changes
    return Binding(**arguments)  # type: ignore[arg-type]
