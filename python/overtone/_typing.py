"""Types that appear in signatures only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from overtone.sampling import SamplingArrays, SamplingParams


class SupportsDLPack(Protocol):
    """Any producer of the DLPack protocol: torch, CuPy, JAX, NumPy and overtone tensors."""

    def __dlpack__(self, *, stream: Any = ...) -> Any:
        """Export a capsule."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Device kind and index."""


class SupportsCudaArray(Protocol):
    """Any array in CUDA memory that speaks the CUDA array interface: numba's, for example."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe the memory."""


TensorLike: TypeAlias = "SupportsDLPack | SupportsCudaArray | NDArray[Any]"
Path: TypeAlias = "str | PathLike[str]"
Progress: TypeAlias = Callable[[int, int], object]
Sampling: TypeAlias = "SamplingParams | Sequence[SamplingParams] | SamplingArrays | None"


class FrameArguments(TypedDict):
    """What the compiled module is told of a frame."""

    batch: int
    exact_rows: bool
    talker_last_hidden: TensorLike
    code_zero: TensorLike | Sequence[int]
    sampling_rows: list[tuple[float, int, float, int]] | None
    sampling_arrays: tuple[TensorLike, TensorLike, TensorLike, TensorLike] | None
    frame_idx: int | TensorLike
    advance_frame_idx: bool
    active: TensorLike | None
    codes: TensorLike
    codec_sum: TensorLike
    codec_hiddens: TensorLike
    status: TensorLike
    logits: TensorLike | None
