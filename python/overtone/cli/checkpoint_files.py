"""Which files of a checkpoint directory a predictor comes from, and how they store it.

This follows the names that `docs/checkpoints.md` lists, for directories that the compiled module has accepted already;
it checks nothing itself.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["checkpoint_files", "storage"]

_ARTIFACTS = ("codec_embeddings.safetensors", "lm_heads.safetensors", "small_to_mtp_projection.safetensors")
_INDEX = "model.safetensors.index.json"
_PREDICTOR = "code_predictor."
_TYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}


def checkpoint_files(directory: Path) -> list[Path]:
    """The files of a directory that loading it may read: configuration, index, weights."""
    described = [directory / "config.json", directory / _INDEX]
    return [file for file in [*described, *_weights(directory)] if file.is_file()]


def storage(directories: Iterable[Path]) -> dict[str, int]:
    """Bytes of the predictor's tensors by their storage type. The talker's codec table is not among them.

    Raises:
        OSError: A file vanished, or changed into something else.
        ValueError: Likewise.
    """
    tensors: dict[str, tuple[str, int]] = {}
    for file in (file for directory in directories for file in _weights(directory)):
        for name, stored in _headers(file):
            tensors.setdefault(name, stored)
    count: Counter[str] = Counter()
    for name in _of_predictor(tensors):
        type_name, size = tensors[name]
        count[type_name] += size
    return dict(count)


def _of_predictor(names: Iterable[str]) -> list[str]:
    """Names of the predictor's own tensors: around it, other parts of a whole model have layers of the same names."""
    inside = [name for name in names if _PREDICTOR in name]
    return inside or [name for name in names if not name.startswith("talker.")]


def _weights(directory: Path) -> list[Path]:
    whole, index = directory / "model.safetensors", directory / _INDEX
    artifacts = [directory / name for name in _ARTIFACTS if (directory / name).is_file()]
    if whole.is_file():
        return [whole, *artifacts]
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        # Other shards of a large model need not be there.
        return [*sorted({directory / shards[name] for name in _of_predictor(shards)}), *artifacts]
    return artifacts or sorted(directory.glob("*.safetensors"))


def _headers(file: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Name, storage type and size of each floating-point tensor of a safetensors file."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    for name, info in header.items():
        if name != "__metadata__" and info["dtype"] in _TYPES:
            type_name, size = _TYPES[info["dtype"]]
            yield name, (type_name, size * math.prod(info["shape"]))
