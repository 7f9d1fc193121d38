"""`overtone fit-drafts`: drafts for speculative rounds, fitted to what a predictor does with frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from overtone import ModelSpec, SamplingParams, _core
from overtone.cli.frames_file import Frames, read_frames
from overtone.cli.options import (
    DRAFTS_FILE,
    checkpoint_argument,
    checkpoint_dir_option,
    code_zero_table_option,
    path_type,
    threads_option,
)
from overtone.cli.output_file import check_destination
from overtone.cli.progress import byte_progress, count_progress
from overtone.cli.sampling_choice import choose_sampling, describe_sampling, sampling_options
from overtone.drafts.fit import DraftFit, Drafts, FitWeights
from overtone.drafts.quality import SIBLINGS, DraftQuality, DraftScore
from overtone.errors import FrameError, InputError
from overtone.sampling import given_sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["fit_drafts"]

"""Where executors look for drafts in a checkpoint's directory."""
_DRAFT_TYPES = ("float32", "bfloat16", "float16")
_ROWS_AT_ONCE = 64
"""Frames that share a pass over the weights."""
_PIECE = 512
"""Frames whose hidden rows are held at a time."""
_LEAST_FRAMES = 10
_HELD_OUT = 10
"""One frame in so many is not fitted to, but judged on."""


@dataclass(frozen=True)
class _Rows:
    """Frames of single streams, in any order: no state goes from one to another.

    Args:
        talker_last_hidden: [N, Ht].
        code_zero: [N].
        frame_idx: [N] int64.
        stream: [N] int64.
        sampling: How each is drawn.
    """

    talker_last_hidden: NDArray[np.float32]
    code_zero: NDArray[np.int64]
    frame_idx: NDArray[np.int64]
    stream: NDArray[np.int64]
    sampling: list[SamplingParams]

    def __len__(self) -> int:
        return len(self.code_zero)

    def __getitem__(self, rows: slice) -> _Rows:
        return _Rows(
            self.talker_last_hidden[rows],
            self.code_zero[rows],
            self.frame_idx[rows],
            self.stream[rows],
            self.sampling[rows],
        )

    def pieces(self, size: int) -> Iterator[_Rows]:
        """All of them in pieces."""
        for first in range(0, len(self), size):
            yield self[first : first + size]


@click.command("fit-drafts")
@checkpoint_argument
@click.option(
    "--frames",
    "frames_file",
    required=True,
    type=path_type(),
    metavar="FILE",
    help="Safetensors file with talker_last_hidden [T, B, Ht] and code_zero [T, B]: thousands of frames of speech.",
)
@click.option(
    "--out", type=path_type(), metavar="FILE", help=f"File to write; without it {DRAFTS_FILE} in the directory CKPT."
)
@click.option(
    "--ridge",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Pull towards the drafts of the plain next head; 1 weighs as much as the frames. Without it, what suits the "
    "last tenth best.",
)
@click.option(
    "--max-frames",
    type=click.IntRange(_LEAST_FRAMES),
    metavar="N",
    help="Use N of the T x B frames, spread evenly over the file; without it all.",
)
@click.option("--dtype", type=click.Choice(_DRAFT_TYPES), help="Type of the drafts; without it that of the heads.")
@sampling_options
@threads_option
@code_zero_table_option
@checkpoint_dir_option
def fit_drafts(
    checkpoint: Path,
    frames_file: Path,
    out: Path | None,
    ridge: float | None,
    max_frames: int | None,
    dtype: str | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    sampling_file: Path | None,
    threads: int | None,
    code_zero_table: Path | None,
    checkpoint_dir: Path | None,
) -> None:
    """Fit drafts for speculative rounds, and store them beside the weights.

    The CPU predicts the frames; each draft is fitted to nine tenths of them and judged on the last tenth. Drafts change
    how soon a frame is done, never its codes.

    Sampling options are those of predict, except that stream b draws with seed + b, and that without any of them the
    parameters are those of the checkpoint's family.
    """
    spec = ModelSpec.from_directory(checkpoint, checkpoint_dir)
    if spec.residual_codebooks < 3:
        raise InputError(
            f"{spec.residual_codebooks} residual codebooks, expected at least 3: fewer leave nothing to draft"
        )
    if ridge is not None and math.isnan(ridge):
        raise InputError("--ridge: nan, expected a number above 0", key="--ridge", found="nan", expected="above 0")
    out = checkpoint / DRAFTS_FILE if out is None else out
    sources, _ = _core.describe_checkpoint(checkpoint, checkpoint_dir)
    given = [file for file in (frames_file, sampling_file, code_zero_table) if file is not None]
    check_destination("--out", out, [*given, *sources])
    frames = read_frames(frames_file)
    frames.check(spec, code_zero_table)
    sampling = choose_sampling(
        spec,
        frames.streams,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        sampling_file=sampling_file,
    )
    sampling = sampling or [SamplingParams.for_checkpoint(spec)] * frames.streams
    rows = _rows(frames, sampling if sampling_file else _own_seeds(sampling), max_frames)
    weights = FitWeights.read(checkpoint, checkpoint_dir)
    with byte_progress("loading") as progress:
        executor = _core.CpuExecutor.load(
            fspath(checkpoint),
            None if checkpoint_dir is None else fspath(checkpoint_dir),
            None if code_zero_table is None else fspath(code_zero_table),
            None,
            min(len(rows), _ROWS_AT_ONCE),
            threads,
            None,
            progress,
        )
    held_out = max(len(rows) // _HELD_OUT, 1)
    fit = _take_in(executor, weights, rows[: len(rows) - held_out])
    others = rows[len(rows) - held_out :]
    judged = _predict(executor, others)
    drafts = _solve(fit, weights, fit.choose_ridge(*judged) if ridge is None else ridge)
    plain, fitted = _judge(weights, drafts, others, *judged)
    _core.write_drafts(out, checkpoint, checkpoint_dir, drafts.tensors(), dtype, drafts.frames, drafts.ridge)
    click.echo(
        f"fitted to {drafts.frames} frames with ridge {drafts.ridge:g}, {describe_sampling(sampling)}; "
        f"judged on {held_out} others"
    )
    _report(plain, fitted)
    if fitted.sibling_rounds >= plain.sibling_rounds and fitted.chain_rounds >= plain.chain_rounds:
        click.echo("warning: these drafts save no rounds: fit more frames, or delete the file")
    click.echo(f"wrote {click.format_filename(out)} ({out.stat().st_size:,} bytes)")


def _own_seeds(sampling: list[SamplingParams]) -> list[SamplingParams]:
    """A seed for each stream: equal noise in all of them would let the fit see few draws many times."""
    return [replace(params, seed=(params.seed + stream) % 2**64) for stream, params in enumerate(sampling)]


def _rows(frames: Frames, sampling: list[SamplingParams], most: int | None) -> _Rows:
    """The frames of every stream, in the order of time."""
    count = frames.count * frames.streams
    if count < _LEAST_FRAMES:
        raise InputError(
            f"{frames.file}: {frames.count} frames of {frames.streams} streams, "
            f"expected at least {_LEAST_FRAMES} frames in all",
            file=str(frames.file),
            found=str(count),
            expected=f"at least {_LEAST_FRAMES}",
        )
    chosen = np.arange(count)
    if most is not None and most < count:
        chosen = np.linspace(0, count - 1, most).astype(np.int64)
    frame_idx, stream = np.divmod(chosen, frames.streams)
    return _Rows(
        frames.talker_last_hidden[frame_idx, stream].astype(np.float32, copy=False),
        frames.code_zero[frame_idx, stream].astype(np.int64),
        frame_idx,
        stream,
        [sampling[index] for index in stream],
    )


def _predict(executor: _core.CpuExecutor, rows: _Rows) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Final-norm hidden rows [N, R, H] and codes [N, C] of frames."""
    hidden_rows, codes = [], []
    for some in rows.pieces(_ROWS_AT_ONCE):
        sampling = given_sampling(some.sampling)
        drawn, status, made = executor.predict_hidden_rows(
            some.talker_last_hidden, some.code_zero, sampling, some.frame_idx
        )
        failed = np.flatnonzero(status.numpy())
        if failed.size:
            row, found = int(failed[0]), status.numpy()[failed].tolist()
            place = f"frame {some.frame_idx[row]}, stream {some.stream[row]}"
            raise FrameError(f"{place}: codebook {found[0]} could not be drawn", failed.tolist(), found)
        hidden_rows.append(made.numpy())
        codes.append(drawn.numpy())
    return np.concatenate(hidden_rows), np.concatenate(codes)


def _take_in(executor: _core.CpuExecutor, weights: FitWeights, rows: _Rows) -> DraftFit:
    fit = DraftFit(weights)
    with count_progress("predicting", len(rows), "frame") as advance:
        for piece in rows.pieces(_PIECE):
            fit.add(*_predict(executor, piece))
            advance(len(piece))
    return fit


def _solve(fit: DraftFit, weights: FitWeights, ridge: float) -> Drafts:
    heads, tables = [], []
    with count_progress("fitting", weights.codebooks - 1, "codebook") as advance:
        for pending in range(1, weights.codebooks):
            head, table = fit.solve(pending, ridge)
            heads.append(head)
            tables.append(table)
            advance()
    return Drafts(heads, tables, fit.frames, ridge)


def _judge(
    weights: FitWeights, drafts: Drafts, rows: _Rows, hidden_rows: NDArray[np.float32], codes: NDArray[np.int32]
) -> tuple[DraftScore, DraftScore]:
    quality = DraftQuality(weights, drafts)
    with count_progress("judging", len(rows), "frame") as advance:
        for first in range(0, len(rows), _PIECE):
            some = slice(first, first + _PIECE)
            sampling = [(each.temperature, each.top_k, each.top_p, each.seed) for each in rows.sampling[some]]
            quality.add(hidden_rows[some], codes[some], sampling, rows.frame_idx[some].tolist())
            advance(len(sampling))
    return quality.scores()


def _report(plain: DraftScore, fitted: DraftScore) -> None:
    click.echo()
    click.echo(f"{'the code drawn is':24}{'the best draft':>24}{f'among the {SIBLINGS} best':>24}")
    click.echo(f"{'drafts of':24}{'next head':>12}{'fitted':>12}{'next head':>12}{'fitted':>12}")
    columns = (plain.best, fitted.best, plain.siblings, fitted.siblings)
    for codebook, shares in enumerate(zip(*columns, strict=True), 2):
        click.echo(f"{f'code_{codebook}':24}" + "".join(f"{share:>12.1%}" for share in shares))
    click.echo(f"{'all':24}" + "".join(f"{shares.mean():>12.1%}" for shares in columns))
    rounds = (plain.chain_rounds, fitted.chain_rounds, plain.sibling_rounds, fitted.sibling_rounds)
    click.echo(f"{'rounds per frame':24}" + "".join(f"{each:>12.2f}" for each in rounds))
    click.echo(f"({len(plain.best) + 1} rounds without drafts)")
    click.echo()
