"""Which executor runs the frames, and what this version has of what may be asked for.

Executors have one face (:class:`Executor`); this module is the only one that knows them apart.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overtone import _core
from overtone.arguments import refused
from overtone.errors import CudaUnavailableError, DeviceError, InputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from overtone._typing import Executor

__all__ = ["EXECUTORS", "Choice", "choose_executor", "type_name"]

_logger = logging.getLogger("overtone")

EXECUTORS = ("auto", "cpu", "cuda", "tensorrt", "onnxruntime")
"""Names that ``executor=`` takes."""

_DEVICE = re.compile(r"cuda(?::([0-9]{1,4}))?|cpu(?::0)?")


@dataclass(frozen=True)
class Choice:
    """An executor that was asked for.

    Args:
        name: ``cpu`` or ``cuda``.
        ordinal: Which CUDA device.
        or_cpu: Whether the CPU may take over what the device has not.
    """

    name: str
    ordinal: int = 0
    or_cpu: bool = False

    def make(self, load: Callable[[Any, int | None], Executor], *, threads: int | None) -> tuple[Executor, str]:
        """Make the executor.

        Args:
            load: Calls the loading method of a class of executors, with the class and its own last argument: threads
                on the CPU, a device's ordinal on CUDA.
            threads: Threads of the CPU executor.

        Returns:
            The executor and its name.
        """
        if self.name == "cuda":
            try:
                return load(_core.CudaExecutor, self.ordinal), "cuda"
            except UnsupportedError as error:
                if not self.or_cpu:
                    raise
                _logger.info("executor auto: cpu, because cuda cannot run this: %s", error)
        return load(_core.CpuExecutor, threads), "cpu"


def choose_executor(executor: str, device: object) -> Choice:
    """The executor to use, checked against what this version and this machine have."""
    if executor not in EXECUTORS:
        names = ", ".join(EXECUTORS)
        raise InputError(
            f"executor: found {executor!r}, expected one of {names}", key="executor", found=executor, expected=names
        )
    if executor in ("tensorrt", "onnxruntime"):
        raise UnsupportedError(
            f'this version has no {executor} executor yet; use executor="cuda" or "cpu"', key="executor"
        )
    kind, ordinal = _device(device)
    if executor == "cpu":
        if kind == "cuda":
            raise refused("device", str(device), "None or 'cpu' on the cpu executor")
        return Choice("cpu")
    if executor == "cuda":
        if kind == "cpu":
            raise refused("device", str(device), "None or a CUDA device, such as 'cuda:0', on the cuda executor")
        _core.check_cuda(ordinal or 0)
        return Choice("cuda", ordinal or 0)
    if kind == "cpu":
        return Choice("cpu")
    try:
        _core.check_cuda(ordinal or 0)
    except (CudaUnavailableError, DeviceError) as error:
        if kind == "cuda":
            raise
        _logger.info("executor auto: cpu, because cuda cannot run here: %s", error)
        return Choice("cpu")
    _logger.info("executor auto: cuda, device %d", ordinal or 0)
    return Choice("cuda", ordinal or 0, or_cpu=kind is None)


def _device(device: object) -> tuple[str | None, int | None]:
    """Kind and ordinal of a device: an ordinal, ``cuda``, ``cuda:1``, ``cpu``, or an object that prints so."""
    if device is None:
        return None, None
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return "cuda", device
    found = _DEVICE.fullmatch(str(device))
    if found is None:
        raise refused("device", str(device), "None, 'cpu', 'cuda', or a CUDA device such as 'cuda:0'")
    if found[0].startswith("cpu"):
        return "cpu", None
    return "cuda", int(found[1] or 0)


def type_name(dtype: object) -> str:
    """The plain name of a type given as text, as a torch type or as a NumPy type."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    return name.removeprefix("torch.")
