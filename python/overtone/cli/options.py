"""Arguments and options that several subcommands share, so that they are spelled and described the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from overtone.executors import EXECUTORS
from overtone.speculation import DRAFT_SHAPES, LARGEST_WINDOW, SpecParams

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "WORKING_TYPES",
    "checkpoint_argument",
    "checkpoint_dir_option",
    "code_zero_table_option",
    "device_option",
    "executor_option",
    "json_option",
    "path_type",
    "speculation_options",
    "threads_option",
]

WORKING_TYPES = ("float32", "bfloat16", "float16", "int8")
"""Working types of this version, widest first; float16 is the cuda executor's, int8 the CPU's."""

_MAX_THREADS = 1024

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def path_type() -> click.Path:
    """A path that is checked where it is used, by whoever can say what is wrong with it."""
    return click.Path(path_type=Path)


def checkpoint_argument(command: _Command) -> _Command:
    """The positional checkpoint directory."""
    return click.argument("checkpoint", metavar="CKPT", type=path_type())(command)


def checkpoint_dir_option(command: _Command) -> _Command:
    """`--checkpoint-dir`."""
    return click.option(
        "--checkpoint-dir",
        type=path_type(),
        metavar="DIR",
        help="Original checkpoint that supplies what CKPT lacks, where CKPT holds exported artifacts.",
    )(command)


def code_zero_table_option(command: _Command) -> _Command:
    """`--code-zero-table`."""
    return click.option(
        "--code-zero-table",
        type=path_type(),
        metavar="FILE",
        help="Safetensors file whose only two-dimensional tensor is the talker's codec table, where CKPT lacks it.",
    )(command)


def executor_option(command: _Command) -> _Command:
    """`--executor`."""
    return click.option(
        "--executor", type=click.Choice(EXECUTORS), default="auto", show_default=True, help="What runs the frames."
    )(command)


def device_option(command: _Command) -> _Command:
    """`--device`."""
    return click.option("--device", metavar="DEVICE", help="Where they run: cpu, cuda, or cuda:1 for example.")(command)


def threads_option(command: _Command) -> _Command:
    """`--threads`."""
    return click.option(
        "--threads",
        type=click.IntRange(1, _MAX_THREADS),
        help="Threads of the CPU executor; without it OVERTONE_NUM_THREADS, else every core.",
    )(command)


DRAFTS_FILE = "drafts.safetensors"
"""Name of a checkpoint's fitted drafts, beside its weights."""


def drafts_choice(given: Path | None) -> Path | bool | None:
    """What `--drafts` means to `SpecParams`."""
    return False if given is not None and str(given) == "none" else given


def speculation_options(command: _Command) -> _Command:
    """`--spec-verify-size`, `--draft` and `--drafts`, handed over as `spec_verify_size`, `draft` and `drafts`."""
    size = click.option(
        "--spec-verify-size",
        type=click.IntRange(0, LARGEST_WINDOW),
        default=0,
        show_default=True,
        help="Rows of a speculative verify pass, from 2 on; 0 predicts step by step. The codes are the same.",
    )
    draft = click.option(
        "--draft",
        type=click.Choice(DRAFT_SHAPES),
        default=SpecParams().draft,
        show_default=True,
        help="What speculation verifies: the best draws for the next code, or the best draw of each of the next codes.",
    )
    drafts = click.option(
        "--drafts",
        type=path_type(),
        metavar="FILE|none",
        help=f"Fitted drafts for speculation. Without it, on the CPU {DRAFTS_FILE} in CKPT if it is there.",
    )
    return size(draft(drafts(command)))


def json_option(command: _Command) -> _Command:
    """`--json`, handed over as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
