"""What a predictor will take, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone import _core
from overtone.arguments import refused, whole_number
from overtone.speculation import given_speculation

if TYPE_CHECKING:
    from overtone._core import ModelSpec

__all__ = ["MemoryEstimate", "estimate_memory"]

_ESTIMATES = {"cpu": _core.estimate_memory, "cuda": _core.estimate_cuda_memory}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of memory of a predictor: the host's on the CPU, the device's on CUDA.

    Args:
        weights: Packed weights and embedding tables.
        context: The arena that :meth:`CodePredictor.set_context_memory` can replace.
    """

    weights: int
    context: int

    @property
    def total(self) -> int:
        """Weights and context together."""
        return self.weights + self.context


def estimate_memory(
    spec: ModelSpec, dtype: str = "bfloat16", max_batch: int = 8, executor: str = "cpu", spec_verify_size: int = 0
) -> MemoryEstimate:
    """Estimate the memory of a predictor from its architecture alone.

    Args:
        spec: The architecture, from :meth:`ModelSpec.from_directory` or :meth:`ModelSpec.named`.
        dtype: Working type: ``float32``, ``bfloat16``, ``int8`` on the CPU and ``float16`` on CUDA. Tables are taken to
            be stored in bfloat16 on the CPU unless it is ``float32``, and in the working type on CUDA.
        max_batch: Largest batch.
        executor: ``cpu`` or ``cuda``.
        spec_verify_size: As for :meth:`CodePredictor.preallocate`.

    Raises:
        InputError: ``max_batch`` is not positive, ``spec_verify_size`` is negative, the type is unknown, or there is no
            such executor.
        UnsupportedError: The executor does not have the type.

    >>> spec = _core.ModelSpec.named("qwen3-tts-0.6b")
    >>> estimate_memory(spec, "bfloat16", max_batch=1).weights // 1_000_000
    289
    """
    if executor not in _ESTIMATES:
        raise refused("executor", executor, " or ".join(_ESTIMATES))
    given = given_speculation(spec_verify_size, None)
    verify_rows = 1 if given is None else given[1]
    weights, context = _ESTIMATES[executor](spec, dtype, whole_number("max_batch", max_batch), verify_rows)
    return MemoryEstimate(weights, context)
