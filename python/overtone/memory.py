"""What a predictor will take, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone import _core
from overtone.arguments import whole_number

if TYPE_CHECKING:
    from overtone._core import ModelSpec

__all__ = ["MemoryEstimate", "estimate_memory"]


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of host memory of a predictor on the CPU.

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


def estimate_memory(spec: ModelSpec, dtype: str = "bfloat16", max_batch: int = 8) -> MemoryEstimate:
    """Estimate the memory of a CPU predictor from its architecture alone.

    Args:
        spec: The architecture, from :meth:`ModelSpec.from_directory` or :meth:`ModelSpec.named`.
        dtype: Working type: ``float32``, ``bfloat16`` or ``int8``. Tables are taken to be stored in bfloat16 unless
            it is ``float32``.
        max_batch: Largest batch.

    Raises:
        InputError: ``max_batch`` is not positive, or the type is unknown.

    >>> spec = _core.ModelSpec.named("qwen3-tts-0.6b")
    >>> estimate_memory(spec, "bfloat16", max_batch=1).weights // 1_000_000
    289
    """
    weights, context = _core.estimate_memory(spec, dtype, whole_number("max_batch", max_batch))
    return MemoryEstimate(weights, context)
