"""`overtone make-checkpoint`: a checkpoint of a true architecture with random weights, and frames for it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from overtone import ModelSpec, _core
from overtone.cli.options import path_type
from overtone.cli.progress import byte_progress

__all__ = ["make_checkpoint"]

_MOST_FRAMES = 1_000_000
_MOST_STREAMS = 4096


@click.command("make-checkpoint")
@click.argument("directory", metavar="DIR", type=path_type())
@click.option("--arch", required=True, type=click.Choice(_core.ARCHITECTURES), help="Architecture to make.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Seed of all values.")
@click.option(
    "--frames",
    "frame_count",
    type=click.IntRange(1, _MOST_FRAMES),
    default=16,
    show_default=True,
    help="Frames to make.",
)
@click.option(
    "--batch", type=click.IntRange(1, _MOST_STREAMS), default=1, show_default=True, help="Streams of each frame."
)
def make_checkpoint(directory: Path, arch: str, seed: int, frame_count: int, batch: int) -> None:
    """Make a synthetic checkpoint, and frames for it.

    The weights are random and the codes mean nothing; sizes, types and files are those of a released checkpoint.
    Equal arguments make equal files. A checkpoint that is there already is not overwritten.
    """
    with byte_progress("writing") as progress:
        _core.make_checkpoint(directory, arch, seed, frame_count, batch, progress)
    spec = ModelSpec.named(arch)
    place = click.format_filename(directory)
    for name in ("config.json", "model.safetensors", "frames.safetensors"):
        click.echo(f"wrote {Path(place) / name} ({(directory / name).stat().st_size:,} bytes)")
    click.echo(f"{arch}: {spec.parameters / 1e6:,.1f} million parameters, bfloat16, seed {seed}")
    frames, codes = (shlex.quote(str(Path(place) / name)) for name in ("frames.safetensors", "codes.safetensors"))
    click.echo(f"next: overtone predict {shlex.quote(place)} --frames {frames} --out {codes}")
