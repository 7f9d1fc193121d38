"""What a failed command leaves behind: an exit code and one line. No traceback, whatever happened."""

from __future__ import annotations

import re

import click

from overtone.errors import (
    BindingError,
    CheckpointError,
    ConfigError,
    CudaUnavailableError,
    FrameError,
    InputError,
    OvertoneError,
    UnsupportedError,
)

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "PIPE_CLOSED", "TERMINATED", "describe"]

BAD_INPUT = 2
"""The arguments, or a file they name, are at fault."""
FAILED = 1
"""Anything else went wrong."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""
PIPE_CLOSED = 141
"""Nobody reads the output any more: 128 + SIGPIPE."""
TERMINATED = 143
"""Asked to stop: 128 + SIGTERM."""

_BLAMES_INPUT = (
    BindingError,
    CheckpointError,
    ConfigError,
    CudaUnavailableError,
    FrameError,
    InputError,
    UnsupportedError,
)
_LONGEST_MESSAGE = 1000


def describe(error: Exception) -> tuple[int, str]:
    """The exit code and the line, without its newline, that report an exception."""
    if isinstance(error, click.ClickException):
        code, message = BAD_INPUT, _usage_message(error)
    elif isinstance(error, _BLAMES_INPUT):
        code, message = BAD_INPUT, str(error)
    elif isinstance(error, OvertoneError):
        code, message = FAILED, str(error)
    elif isinstance(error, MemoryError):
        code, message = FAILED, "out of memory"
    elif isinstance(error, OSError):
        code, message = FAILED, str(error)
    else:
        code, message = FAILED, f"internal error: {type(error).__name__}: {error}; please report it"
    return code, f"error: {_one_line(message)}"


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message}; see {context.command_path} --help"


def _one_line(message: str) -> str:
    """The message without line breaks and with control characters, which a file may have brought in, spelled out."""
    flat = re.sub(r"\s*[\r\n]\s*", " ", message.strip())
    if len(flat) > _LONGEST_MESSAGE:
        flat = flat[:_LONGEST_MESSAGE] + "…"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in flat
    )
