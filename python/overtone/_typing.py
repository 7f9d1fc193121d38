"""Types that appear in signatures only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from overtone._core import ModelSpec, Tensor
    from overtone.ragged import RaggedBatch, RaggedConfig, RaggedIo
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


GivenSampling: TypeAlias = "tuple[float, int, float, int] | list[tuple[float, int, float, int]] | SamplingArrays | None"
"""Sampling as the compiled module takes it: for all rows, for each row, in tensors, or greedy."""


GivenSpeculation: TypeAlias = "tuple[str, int, float | None, float | None, str | bool | None]"
"""Speculation as the compiled module takes it: shape of the drafts, rows of a verify pass, p_min, off_below, drafts."""


class FrameArguments(TypedDict):
    """What the compiled module is told of a frame that is prepared."""

    batch: int
    talker_last_hidden: TensorLike
    code_zero: TensorLike | Sequence[int]
    sampling: GivenSampling
    frame_idx: int | TensorLike
    advance_frame_idx: bool
    active: TensorLike | None
    output_codes: TensorLike | None
    codes_ring: tuple[TensorLike, TensorLike] | None
    logits: bool


class FrameCompletion(Protocol):
    """Whether a frame has completed."""

    def ready(self) -> bool:
        """Ask without waiting."""

    def wait(self) -> None:
        """Wait."""


class Prepared(Protocol):
    """A frame that an executor has prepared."""

    def launch(self, stream: object = None) -> None:
        """Run it, or give it to a stream."""

    def outputs(self) -> Any:
        """The arguments of its ``Frame``."""


class RaggedPlan(Protocol):
    """Tensors that an executor publishes steps in."""

    def prepare(
        self,
        query_lengths: TensorLike | Sequence[int],
        past_lengths: TensorLike | Sequence[int] | None,
        batch_size: int,
        query_width: int,
        phase: str,
        stream: object = None,
    ) -> FrameCompletion | None:
        """Publish a step, or give it to a stream."""


class Executor(Protocol):
    """What runs frames. A stream is for executors whose device has some; the others run before they return."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def dtype(self) -> str: ...
    @property
    def table_dtype(self) -> str: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def device_name(self) -> str | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def instructions(self) -> str: ...
    @property
    def frame_bytes(self) -> int: ...
    @property
    def required_context_memory(self) -> int: ...
    def set_context_memory(self, memory: Any) -> bool: ...
    def codec_embed_table(self, layer: int) -> Tensor: ...
    def bind(self, max_batch_size: int, code_zero_embed_table: Any, codec_hiddens: Any) -> None: ...
    def predict_frame(
        self,
        talker_last_hidden: Any,
        code_zero: Any,
        sampling: GivenSampling,
        frame_idx: Any,
        active: Any,
        logits: bool,
        stream: object,
    ) -> Any: ...
    def prepare_frame(self, arguments: FrameArguments, stream: object = None) -> Prepared: ...
    def bind_ragged_steps(
        self, batch: RaggedBatch, io: RaggedIo, config: RaggedConfig, stream: object = None
    ) -> RaggedPlan: ...
    def synchronize(self, stream: object = None) -> None: ...
    def capture_graphs(self) -> None: ...
    def read_frame_bytes(self) -> int: ...
    @property
    def speculating(self) -> bool: ...
    def spec_counters(self) -> list[tuple[int, int, int, int, int]]: ...
    def stats(self) -> dict[str, int | float]: ...
