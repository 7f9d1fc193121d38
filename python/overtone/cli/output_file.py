"""Files that a command writes: where it may write them, found out before the work begins, and how they appear."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_destination", "write_whole"]


def check_destination(option: str, file: Path, inputs: Iterable[Path | None] = ()) -> None:
    """Check that a file can be written later, and that this destroys nothing that the command reads.

    Args:
        option: The option that names the file, for the message.
        file: Where it will be.
        inputs: Files that the command reads; None stands for one that was not given.

    Raises:
        InputError: The directory is missing or not writable, the file is an input, or something is there already that
            is not a regular file.
    """
    directory = file.parent
    if not directory.is_dir():
        raise InputError(f"{option}: {directory} is no directory", key=option, file=str(file))
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{option}: {directory} is not writable", key=option, file=str(file))
    if not file.exists():
        return
    if not file.is_file():
        raise InputError(f"{option}: {file} exists and is not a regular file", key=option, file=str(file))
    for taken in inputs:
        if taken is not None and taken.exists() and taken.samefile(file):
            raise InputError(f"{option}: {file} is an input of this command", key=option, file=str(file))


def write_whole(file: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, replacing one that is there."""
    handle, name = tempfile.mkstemp(prefix=".overtone-", suffix=".part", dir=file.parent)
    pending = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        pending.chmod(0o666 & ~_file_mask())
        pending.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            pending.unlink()
        raise


def _file_mask() -> int:
    """The process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
