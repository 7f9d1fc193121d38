"""Types of the compiled module."""

from collections.abc import Sequence
from types import CapsuleType
from typing import Any, final

from numpy.typing import DTypeLike, NDArray

@final
class Tensor:
    """A tensor in host memory that speaks DLPack and NumPy's protocols."""

    @staticmethod
    def zeros(shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """A tensor of zeros, in any of overtone's types (bfloat16 among them)."""

    @staticmethod
    def from_dlpack(tensor: Any) -> Tensor:
        """A tensor over the memory of any DLPack producer or NumPy array, without a copy."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides, in elements."""

    @property
    def dtype(self) -> str:
        """Name of the element type, ``float32`` for example."""

    @property
    def device(self) -> str:
        """Where the memory is: ``cpu``."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""

    @property
    def readonly(self) -> bool:
        """Whether the memory must not be written."""

    def __len__(self) -> int: ...
    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""

    def numpy(self) -> NDArray[Any]:
        """A NumPy array that shares the memory; bfloat16 is widened into a fresh float32 array."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
