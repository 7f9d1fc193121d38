"""The exceptions that overtone raises.

Every one derives from :class:`OvertoneError`. Those that blame a value the caller gave are also ``ValueError``.
A message carries the whole chain of causes; what a program may want to act on is in the attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BindingError",
    "CaptureError",
    "CheckpointError",
    "ConfigError",
    "CudaUnavailableError",
    "DeviceError",
    "EngineError",
    "FrameError",
    "InputError",
    "OutOfMemoryError",
    "OvertoneError",
    "UnsupportedError",
]


class OvertoneError(Exception):
    """Root of everything overtone raises; raised itself for an internal error, and for a call before ``preallocate``.

    Each attribute is ``None`` when it does not apply:

    * ``file``: path of the file at fault,
    * ``tensor``: name of the tensor at fault, an argument or a checkpoint key,
    * ``key``: name of the configuration key or plain argument at fault,
    * ``found`` and ``expected``: what was there, and what should have been.
    """

    file: str | None
    tensor: str | None
    key: str | None
    found: str | None
    expected: str | None

    def __init__(
        self,
        message: str = "",
        *,
        file: str | None = None,
        tensor: str | None = None,
        key: str | None = None,
        found: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.tensor = tensor
        self.key = key
        self.found = found
        self.expected = expected


class ConfigError(OvertoneError, ValueError):
    """A model or engine configuration is wrong, or contradicts itself."""


class CheckpointError(OvertoneError, ValueError):
    """A checkpoint is missing, incomplete, damaged, or not what it claims to be."""


class BindingError(OvertoneError, ValueError):
    """A tensor handed to ``bind`` does not fit the artifacts."""


class InputError(OvertoneError, ValueError):
    """An argument of a call is wrong: its device, type, shape, strides, range, or overlap with another."""


class DeviceError(OvertoneError):
    """A device failed, or did not do what it was told."""


class CudaUnavailableError(OvertoneError):
    """CUDA was asked for and cannot run here; the message says what is missing and how to get it."""


class OutOfMemoryError(OvertoneError):
    """Host or device memory ran out."""


class CaptureError(OvertoneError):
    """A frame inside a stream capture was given host values, or work that a capture does not allow."""


class EngineError(OvertoneError):
    """An engine could not be built, loaded or run."""


class FrameError(OvertoneError):
    """Some rows of a frame, or of a step, failed; the others are good.

    ``rows`` holds the indices of the failed rows, ``statuses`` the status of each, in the same order: of a frame j > 0
    when the draw of codebook j failed first, -1 when ``code_0`` was out of range; of a step its ``RaggedFault``.
    """

    rows: tuple[int, ...]
    statuses: tuple[int, ...]

    def __init__(self, message: str = "", rows: Iterable[int] = (), statuses: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)
        self.statuses = tuple(statuses)


class UnsupportedError(OvertoneError):
    """A feature that this build, executor or checkpoint does not have."""
