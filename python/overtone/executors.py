"""Which executor runs the frames, and what this version has of what may be asked for."""

from __future__ import annotations

import logging

from overtone.arguments import whole_number
from overtone.errors import CudaUnavailableError, InputError, UnsupportedError

__all__ = ["EXECUTORS", "choose_executor", "decline_speculation", "type_name"]

_logger = logging.getLogger("overtone")

EXECUTORS = ("auto", "cpu", "cuda", "tensorrt", "onnxruntime")
"""Names that ``executor=`` takes."""


def choose_executor(executor: str, device: str | None) -> str:
    """The executor to use, checked against what this version has."""
    if executor not in EXECUTORS:
        names = ", ".join(EXECUTORS)
        raise InputError(
            f"executor: found {executor!r}, expected one of {names}", key="executor", found=executor, expected=names
        )
    if executor == "cuda":
        raise CudaUnavailableError('this version has no cuda executor yet; use executor="cpu"')
    if executor in ("tensorrt", "onnxruntime"):
        raise UnsupportedError(f'this version has no {executor} executor yet; use executor="cpu"', key="executor")
    if device is not None and str(device) not in ("cpu", "cpu:0"):
        raise InputError(
            f"device: found {device!r}, expected None or 'cpu' on the cpu executor",
            key="device",
            found=str(device),
            expected="cpu",
        )
    if executor == "auto":
        _logger.info("executor auto: cpu, the only one this version has")
    return "cpu"


def type_name(dtype: object) -> str:
    """The plain name of a type given as text, as a torch type or as a NumPy type."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    return name.removeprefix("torch.")


def decline_speculation(spec_verify_size: int) -> None:
    """Say that a window of verified codes leaves the step-by-step loop in place."""
    rows = whole_number("spec_verify_size", spec_verify_size)
    if rows < 0:
        raise InputError(
            f"spec_verify_size: found {rows}, expected 0 (off) or above",
            key="spec_verify_size",
            found=str(rows),
            expected="0 or above",
        )
    if rows > 1:
        _logger.warning(
            "spec_verify_size=%d: this version has no speculation; frames run step by step, with the same codes", rows
        )
