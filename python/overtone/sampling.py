"""How a stream draws its codes: temperature, top-k, top-p, and the seed of its noise.

A draw is a pure function of (logits, parameters, seed, frame index, codebook): the same on every executor and in every
place of a batch. The arithmetic is described in ``docs/sampling.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone import _core
from overtone.arguments import refused

if TYPE_CHECKING:
    from overtone._core import ModelSpec
    from overtone._typing import GivenSampling, Sampling, TensorLike

__all__ = ["SamplingArrays", "SamplingParams", "given_sampling"]


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one stream; they are rounded to float32 where they are used.

    Args:
        temperature: Logits are divided by it. 0 draws the largest logit, and then nothing else applies.
        top_k: Keep the k largest logits, and those equal to the k-th. 0 keeps all.
        top_p: Of what is kept, keep the most probable entries until their mass reaches this. 1 keeps all.
        seed: 64-bit key of the noise.

    Raises:
        InputError: A parameter is out of range; the message names it.

    >>> SamplingParams(temperature=-1.0)
    Traceback (most recent call last):
    overtone.errors.InputError: temperature is -1: expected a finite float32, 0 (greedy) or above
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _core.check_sampling(self.temperature, self.top_k, self.top_p, self.seed)

    @classmethod
    def greedy(cls) -> SamplingParams:
        """The largest logit, always."""
        return cls(temperature=0.0)

    @classmethod
    def for_checkpoint(cls, spec: ModelSpec, seed: int = 0) -> SamplingParams:
        """What the checkpoint's family uses: 0.9 / 50 / 1.0 for Qwen3-TTS, 1.0 / 50 / 0.8 for Qwen3-Omni.

        Args:
            spec: The checkpoint's architecture, ``CodePredictor.spec``.
            seed: 64-bit key of the noise.
        """
        temperature, top_k, top_p = spec.default_sampling
        return cls(temperature, top_k, top_p, seed)


@dataclass(frozen=True, eq=False)
class SamplingArrays:
    """Sampling parameters of every row in tensors that the caller owns and may change between frames.

    They are read when a frame runs, so a bound frame follows them. On the cuda executor all four are on the device, and
    read by the frame itself, or all four in host memory, and read when it is launched; a parameter out of range on the
    device fails its row.

    Args:
        temperature: [B] float32.
        top_k: [B] int32 or int64.
        top_p: [B] float32.
        seed: [B] uint64 or int64 (an int64's bits count as unsigned).
    """

    temperature: TensorLike
    top_k: TensorLike
    top_p: TensorLike
    seed: TensorLike


def given_sampling(sampling: Sampling) -> GivenSampling:
    """Sampling parameters as the compiled module takes them."""
    if sampling is None or isinstance(sampling, SamplingArrays):
        return sampling
    if isinstance(sampling, SamplingParams):
        return (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
    if not isinstance(sampling, Sequence) or not all(isinstance(row, SamplingParams) for row in sampling):
        raise refused("sampling", sampling, "SamplingParams, a sequence of them, SamplingArrays or None")
    return [(row.temperature, row.top_k, row.top_p, row.seed) for row in sampling]
