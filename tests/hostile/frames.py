"""Frames that no predictor can run: each case changes good frames, those of `omni-tiny`: T 4, B 3, Ht 64, V0 128."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Tensors = dict[str, npt.NDArray[np.generic]]
HIDDEN, CODES = "talker_last_hidden", "code_zero"


@dataclass(frozen=True)
class HostileFrames:
    """One file of frames, made from good ones."""

    name: str
    write: Callable[[Path, Tensors], object]
    named: tuple[str, ...]


def _changed(change: Callable[[Tensors], Tensors]) -> Callable[[Path, Tensors], object]:
    return lambda file, tensors: save_file({n: np.ascontiguousarray(t) for n, t in change(tensors).items()}, file)


def _with(
    name: str, change: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]
) -> Callable[[Path, Tensors], object]:
    return _changed(lambda tensors: {**tensors, name: change(tensors[name].copy())})


def _both(change: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]) -> Callable[[Path, Tensors], object]:
    return _changed(lambda tensors: {name: change(tensor) for name, tensor in tensors.items()})


def _holding(position: tuple[int, ...], value: float) -> Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]:
    def change(tensor: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        tensor[position] = value
        return tensor

    return change


def _cut(file: Path, tensors: Tensors) -> None:
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:-4])


HOSTILE_FRAMES = [
    HostileFrames("missing", lambda _file, _tensors: None, ("no such file",)),
    HostileFrames("a directory", lambda file, _: file.mkdir(), ("not a regular file",)),
    HostileFrames("empty", lambda file, _: file.write_bytes(b""), ("safetensors",)),
    HostileFrames("not safetensors", lambda file, _: file.write_bytes(b"RIFF" * 100), ("safetensors",)),
    HostileFrames("cut short", _cut, ("safetensors",)),
    HostileFrames("of nothing", _changed(lambda _: {}), (HIDDEN, "nothing")),
    HostileFrames("without hidden rows", _changed(lambda t: {CODES: t[CODES]}), (HIDDEN, "the file holds code_zero")),
    HostileFrames("without codes", _changed(lambda t: {HIDDEN: t[HIDDEN]}), (CODES,)),
    HostileFrames("hidden rows of rank 2", _with(HIDDEN, lambda t: t[0]), (HIDDEN, "[T, B, Ht]")),
    HostileFrames("hidden rows of rank 4", _with(HIDDEN, lambda t: t[None]), (HIDDEN, "[T, B, Ht]")),
    HostileFrames("codes of rank 1", _with(CODES, lambda t: t[0]), (CODES, "[T, B]")),
    HostileFrames("no frame", _both(lambda t: t[:0]), (HIDDEN, "[0, 3, 64]")),
    HostileFrames("no stream", _both(lambda t: t[:, :0]), (HIDDEN, "[4, 0, 64]")),
    HostileFrames(
        "a frame more of codes", _with(CODES, lambda t: np.concatenate([t, t[:1]])), (CODES, "[5, 3]", "[4, 3]")
    ),
    HostileFrames("a stream less of codes", _with(CODES, lambda t: t[:, 1:]), (CODES, "[4, 2]", "[4, 3]")),
    HostileFrames("hidden rows too narrow", _with(HIDDEN, lambda t: t[..., :63]), (HIDDEN, "[4, 3, 63]", "[4, 3, 64]")),
    HostileFrames("hidden rows of no width", _with(HIDDEN, lambda t: t[..., :0]), (HIDDEN, "[4, 3, 0]")),
    HostileFrames("hidden rows of integers", _with(HIDDEN, lambda t: t.astype(np.int32)), (HIDDEN, "int32")),
    HostileFrames("hidden rows of float64", _with(HIDDEN, lambda t: t.astype(np.float64)), (HIDDEN, "float64")),
    HostileFrames("codes of floats", _with(CODES, lambda t: t.astype(np.float32)), (CODES, "float32")),
    HostileFrames("codes of bytes", _with(CODES, lambda t: t.astype(np.uint8)), (CODES, "uint8")),
    HostileFrames(
        "a hidden value that is NaN", _with(HIDDEN, _holding((2, 1, 5), np.nan)), (HIDDEN, "nan", "[2, 1, 5]")
    ),
    HostileFrames(
        "a hidden value that is infinite", _with(HIDDEN, _holding((0, 2, 63), -np.inf)), (HIDDEN, "-inf", "[0, 2, 63]")
    ),
    HostileFrames("a code below the table", _with(CODES, _holding((3, 0), -1)), (CODES, "-1 at [3, 0]", "0 to 127")),
    HostileFrames("a code past the table", _with(CODES, _holding((3, 2), 128)), (CODES, "128 at [3, 2]", "0 to 127")),
    HostileFrames(
        "a code past 32 bits",
        _with(CODES, lambda t: t.astype(np.int64) + (np.arange(t.size).reshape(t.shape) == 4) * 2**40),
        (CODES, "at [1, 1]", "0 to 127"),
    ),
]
"""Every way that is known to be wrong."""
