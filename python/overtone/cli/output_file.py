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


def check_destination(option: str, file: Path, inputs: Iterable[Path] = ()) -> None:
    """Check that a file can be written later, and that this destroys nothing that the command reads.

    Args:
        option: The option that names the file, for the message.
        file: Where it will be.
        inputs: Files that the command reads.

    Raises:
        InputError: The directory is missing or not writable, the file is an input, or something is there already that
            is not a regular file.
    """
    try:
        problem = _problem(file, inputs)
    except OSError as error:
        problem = f"{file} cannot be written: {error.strerror}"
    if problem is not None:
        raise InputError(f"{option}: {problem}", key=option, file=str(file))


def _problem(file: Path, inputs: Iterable[Path]) -> str | None:
    directory = file.parent
    if not directory.is_dir():
        return f"{directory}: not a directory" if directory.exists() else f"{directory}: no such directory"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory}: not writable"
    if file.exists() and not file.is_file():
        return f"{file}: not a regular file"
    if file.exists() and any(taken.exists() and taken.samefile(file) for taken in inputs):
        return f"{file}: also an input of this command"
    return None


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
