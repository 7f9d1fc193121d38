"""The checkpoint that a benchmark runs on: the user's, or a synthetic one that is gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from overtone import _core
from overtone.cli.progress import byte_progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """`CKPT` and `--arch`."""
    parser.add_argument("checkpoint", metavar="CKPT", nargs="?", type=Path, help="without it, a synthetic one is made")
    parser.add_argument("--arch", choices=_core.ARCHITECTURES, default="qwen3-tts-0.6b", help="of the synthetic one")


@contextlib.contextmanager
def given_or_synthetic(checkpoint: Path | None, architecture: str, frames: int = 1, streams: int = 1) -> Iterator[Path]:
    """The checkpoint directory, for as long as the benchmark runs; a synthetic one has a file of frames, too."""
    if checkpoint is not None:
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="overtone-benchmark-") as directory:
        with byte_progress("writing a checkpoint") as progress:
            _core.make_checkpoint(directory, architecture, 0, frames, streams, progress)
        yield Path(directory)
