"""Safetensors files as header and bytes, so that tests can write what no library would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Header = dict[str, dict[str, Any]]


def read(file: Path) -> tuple[Header, bytes]:
    """The header, metadata left out, and the data."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    return header, content[end:]


def write(file: Path, header: object, data: bytes) -> None:
    """Any JSON as the header of any data."""
    write_raw(file, json.dumps(header).encode(), data)


def write_raw(file: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    """Any bytes as the header, which may lie about its length."""
    file.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


def edit(file: Path, change: Callable[[Header], object]) -> None:
    """Change the header and leave the data alone."""
    header, data = read(file)
    change(header)
    write(file, header, data)


def tensors(file: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of each tensor."""
    header, data = read(file)
    return {name: (info["dtype"], info["shape"], data[slice(*info["data_offsets"])]) for name, info in header.items()}


def write_tensors(file: Path, contents: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A valid file of these tensors."""
    header, data = {}, b""
    for name, (dtype, shape, content) in contents.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    write(file, header, data)


def edit_tensors(file: Path, change: Callable[[dict[str, tuple[str, list[int], bytes]]], object]) -> None:
    """Change the tensors and write a valid file of them."""
    contents = tensors(file)
    change(contents)
    write_tensors(file, contents)
