"""The frames that commands read: every check that needs no model, and those that need its sizes.

`talker_last_hidden` [T, B, Ht] float32, float16 or bfloat16, and `code_zero` [T, B] int32 or int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from overtone import _core
from overtone.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from overtone import ModelSpec
    from overtone._core import Tensor

__all__ = ["Frames", "read_frames"]


@dataclass(frozen=True)
class Frames:
    """Inputs of T frames of B streams.

    Args:
        file: Where they come from, for messages.
        talker_last_hidden: [T, B, Ht], finite; bfloat16 rows as float32.
        code_zero: [T, B] int32 or int64.
    """

    file: Path
    talker_last_hidden: NDArray[Any]
    code_zero: NDArray[Any]

    @property
    def count(self) -> int:
        """T."""
        return len(self.code_zero)

    @property
    def streams(self) -> int:
        """B."""
        return int(self.code_zero.shape[1])

    def check(self, spec: ModelSpec, code_zero_table: Path | None) -> None:
        """Check the rows and codes against the talker: its width, and its codec table, wherever that is.

        Raises:
            InputError: The rows are of another width; there is no such table, or a code is no row of it.
            CheckpointError: The file `code_zero_table` cannot be read.
        """
        self._check_hidden_size(spec.talker_hidden_size)
        size = spec.code_zero_size
        if code_zero_table is not None:
            shapes = [tensor.shape for tensor in _core.read_tensors(code_zero_table).values() if tensor.ndim == 2]
            if len(shapes) != 1:
                # Loading will say what is wrong with the file.
                return
            size = shapes[0][0]
        if size is None:
            raise InputError(
                "the checkpoint has no talker's codec table: name a file that has it with --code-zero-table"
            )
        self._check_code_zero(size)

    def _check_hidden_size(self, talker_hidden_size: int) -> None:
        if self.talker_last_hidden.shape[2] != talker_hidden_size:
            expected = [self.count, self.streams, talker_hidden_size]
            raise _refused(self.file, "talker_last_hidden", f"shape {[*self.talker_last_hidden.shape]}", str(expected))

    def _check_code_zero(self, code_zero_size: int) -> None:
        outside = (self.code_zero < 0) | (self.code_zero >= code_zero_size)
        if outside.any():
            position = _first(outside)
            found = f"{self.code_zero[tuple(position)]} at {position}"
            raise _refused(self.file, "code_zero", found, f"0 to {code_zero_size - 1}")


def read_frames(file: Path) -> Frames:
    """Read frames and check all that can be checked without a model.

    Raises:
        CheckpointError: The file cannot be read, or is no safetensors file.
        InputError: A tensor is missing, has the wrong type or shape, or holds something that is not a finite number.
    """
    tensors = _core.read_tensors(file)
    hidden = _tensor(file, tensors, "talker_last_hidden", "[T, B, Ht]", ("float32", "float16", "bfloat16"))
    code_zero = _tensor(file, tensors, "code_zero", "[T, B]", ("int32", "int64"))
    if hidden.shape[:2] != code_zero.shape:
        expected = f"[{hidden.shape[0]}, {hidden.shape[1]}] like talker_last_hidden {[*hidden.shape]}"
        raise _refused(file, "code_zero", f"shape {[*code_zero.shape]}", expected)
    # bfloat16, which NumPy lacks, comes widened.
    rows = hidden.numpy()
    unusable = ~np.isfinite(rows)
    if unusable.any():
        position = _first(unusable)
        raise _refused(file, "talker_last_hidden", f"{rows[tuple(position)]} at {position}", "finite values")
    return Frames(file, rows, code_zero.numpy())


def _tensor(file: Path, tensors: dict[str, Tensor], name: str, shape: str, types: tuple[str, ...]) -> Tensor:
    if name not in tensors:
        held = ", ".join(sorted(tensors)) or "nothing"
        raise InputError(
            f"{file}: no tensor `{name}`, expected one of shape {shape}; the file holds {held}",
            file=str(file),
            tensor=name,
            found=held,
            expected=shape,
        )
    tensor = tensors[name]
    if tensor.dtype not in types:
        raise _refused(file, name, f"type {tensor.dtype}", " or ".join(types))
    if tensor.ndim != shape.count(",") + 1 or 0 in tensor.shape:
        raise _refused(file, name, f"shape {[*tensor.shape]}", f"{shape}, each at least 1")
    return tensor


def _first(marked: NDArray[np.bool_]) -> list[int]:
    """The indices of the first element that is True."""
    return [int(index) for index in np.unravel_index(int(marked.argmax()), marked.shape)]


def _refused(file: Path, tensor: str, found: str, expected: str) -> InputError:
    return InputError(
        f"{file}: tensor `{tensor}`: {found}, expected {expected}",
        file=str(file),
        tensor=tensor,
        found=found,
        expected=expected,
    )
