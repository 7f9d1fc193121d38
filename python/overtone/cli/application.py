"""The command with its subcommands, and the one place where a run of it ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

import overtone
from overtone.cli.bench import bench
from overtone.cli.doctor import doctor
from overtone.cli.failures import INTERRUPTED, PIPE_CLOSED, TERMINATED, describe
from overtone.cli.fit_drafts import fit_drafts
from overtone.cli.info import info
from overtone.cli.make_checkpoint import make_checkpoint
from overtone.cli.predict import predict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType
    from typing import NoReturn

__all__ = ["application", "run"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(overtone.__version__, message="overtone %(version)s")
def application() -> None:
    """The code predictor of speech talkers: residual codes of Qwen3-Omni and Qwen3-TTS.

    Exit codes: 0; 2 for bad input or usage; 1 for any other failure.
    """


for _command in (predict, info, make_checkpoint, bench, fit_drafts, doctor):
    application.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command line to its end, report what failed, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may hold bytes, and a locale lack characters, that would otherwise end in a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        with _leaving_on_sigterm():
            code = _invoke(arguments)
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_standard_output()
        code = PIPE_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last stop of every failure
        if not _flushed():
            _forget_standard_output()
        code, line = describe(error)
        click.echo(line, err=True)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    """Run without click's own ending, which prints several lines and knows other exit codes."""
    try:
        with application.make_context("overtone", list(arguments)) as context:
            application.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return 0


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind the stack, so that unfinished files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _flushed() -> bool:
    """Whether all that was printed has arrived, or can."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _forget_standard_output() -> None:
    """Let the interpreter's last flush, which would complain again about the same failure, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
