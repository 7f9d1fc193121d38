"""`overtone predict`: frames in, codes out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from overtone import CodePredictor, ModelSpec, Tensor, _core
from overtone.cli.frames_file import Frames, read_frames
from overtone.cli.options import (
    DRAFTS_FILE,
    WORKING_TYPES,
    checkpoint_argument,
    checkpoint_dir_option,
    code_zero_table_option,
    device_option,
    drafts_choice,
    executor_option,
    path_type,
    speculation_options,
    threads_option,
)
from overtone.cli.output_file import check_destination
from overtone.cli.progress import byte_progress, count_progress
from overtone.cli.sampling_choice import choose_sampling, describe_sampling, sampling_options
from overtone.errors import FrameError
from overtone.speculation import SpecParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from overtone import SamplingParams
    from overtone.speculation import DraftShape

__all__ = ["predict"]

_FRAME_MILLISECONDS = 80.0
"""How long the audio of a frame lasts."""
_STREAMS_AT_ONCE = 64
"""Streams that share a pass over the weights; beyond some dozens arithmetic is the limit and sharing gains nothing."""
_STREAMS_SHOWN = 4


@dataclass(frozen=True)
class _Outputs:
    """`codes` [T, B, C] int32, `codec_sum` [T, B, Ht] in the hidden rows' type, and the time of each frame."""

    codes: NDArray[np.int32]
    codec_sum: NDArray[Any]
    milliseconds: list[float]


@click.command()
@checkpoint_argument
@click.option(
    "--frames",
    "frames_file",
    required=True,
    type=path_type(),
    metavar="FILE",
    help="Safetensors file with talker_last_hidden [T, B, Ht] and code_zero [T, B].",
)
@click.option(
    "--out",
    required=True,
    type=path_type(),
    metavar="FILE",
    help="Safetensors file to write: codes [T, B, C] int32 and codec_sum [T, B, Ht].",
)
@sampling_options
@click.option("--dtype", type=click.Choice(WORKING_TYPES), help="Working type; without it the stored weights, exactly.")
@executor_option
@device_option
@threads_option
@speculation_options
@code_zero_table_option
@checkpoint_dir_option
def predict(
    checkpoint: Path,
    frames_file: Path,
    out: Path,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    sampling_file: Path | None,
    dtype: str | None,
    executor: str,
    device: str | None,
    threads: int | None,
    spec_verify_size: int,
    draft: DraftShape,
    drafts: Path | None,
    code_zero_table: Path | None,
    checkpoint_dir: Path | None,
) -> None:
    """Predict the residual codes of frames.

    The frame index, part of the noise, is a frame's place in the file. codec_sum has the hidden rows' type; for
    bfloat16 rows it is float32.

    Without sampling options the largest logit is drawn. With any of --temperature, --top-k and --top-p, those not given
    are 1.0, 0 and 1.0, and --seed is 0. With --seed alone the parameters are those of the checkpoint's family: 0.9 / 50
    / 1.0 for Qwen3-TTS, 1.0 / 50 / 0.8 for Qwen3-Omni.
    """
    spec = ModelSpec.from_directory(checkpoint, checkpoint_dir)
    sources, _ = _core.describe_checkpoint(checkpoint, checkpoint_dir)
    directories = [directory for directory in (checkpoint, checkpoint_dir) if directory is not None]
    fitted = [directory / DRAFTS_FILE for directory in directories]
    given = [file for file in (frames_file, sampling_file, code_zero_table, drafts) if file is not None]
    check_destination("--out", out, [*given, *sources, *fitted])
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
    predictor = CodePredictor(executor, device, dtype, threads=threads)
    with byte_progress("loading") as progress:
        predictor.preallocate(
            checkpoint,
            checkpoint_dir,
            max_batch=min(frames.streams, _STREAMS_AT_ONCE),
            spec_verify_size=spec_verify_size,
            spec_params=SpecParams(draft=draft, drafts=drafts_choice(drafts)),
            code_zero_table=code_zero_table,
            progress=progress,
        )
    outputs = _predict_all(predictor, frames, sampling)
    _core.write_tensors(out, {"codes": outputs.codes, "codec_sum": outputs.codec_sum})
    _report(predictor, outputs, sampling, out)


def _predict_all(predictor: CodePredictor, frames: Frames, sampling: list[SamplingParams] | None) -> _Outputs:
    spec = predictor.spec
    outputs = _Outputs(
        np.empty((frames.count, frames.streams, spec.codes_per_frame), np.int32),
        np.empty_like(frames.talker_last_hidden),
        [],
    )
    with count_progress("predicting", frames.count, "frame") as advance:
        for index in range(frames.count):
            started = time.perf_counter()
            for first in range(0, frames.streams, _STREAMS_AT_ONCE):
                _predict_streams(predictor, frames, sampling, outputs, index, slice(first, first + _STREAMS_AT_ONCE))
            outputs.milliseconds.append((time.perf_counter() - started) * 1e3)
            advance()
    return outputs


def _predict_streams(
    predictor: CodePredictor,
    frames: Frames,
    sampling: list[SamplingParams] | None,
    outputs: _Outputs,
    index: int,
    streams: slice,
) -> None:
    """Predict one frame of some streams."""
    frame = predictor.predict_frame(
        Tensor.from_dlpack(frames.talker_last_hidden[index, streams]).to(predictor.device),
        frames.code_zero[index, streams],
        sampling=None if sampling is None else sampling[streams],
        frame_idx=index,
    )
    try:
        host = frame.to_host()
    except FrameError as error:
        failed = ", ".join(str(streams.start + row) for row in error.rows)
        raise FrameError(f"frame {index}, stream {failed}: {error}", error.rows, error.statuses) from error
    outputs.codes[index, streams] = host.codes
    outputs.codec_sum[index, streams] = host.codec_sum


def _report(predictor: CodePredictor, outputs: _Outputs, sampling: list[SamplingParams] | None, out: Path) -> None:
    count, streams, _ = outputs.codes.shape
    for stream in range(min(streams, _STREAMS_SHOWN)):
        click.echo(f"frame 0, stream {stream}: {' '.join(map(str, outputs.codes[0, stream]))}")
    median = float(np.median(outputs.milliseconds))
    click.echo(f"{_counted(count, 'frame')} of {_counted(streams, 'stream')}, {describe_sampling(sampling)}")
    click.echo(
        f"{median:.2f} ms per frame (median) with {predictor.dtype} on the {predictor.executor} executor"
        f"{_on(predictor.device_name)}: "
        f"real-time factor {_FRAME_MILLISECONDS / median:.2f}"
    )
    stats = predictor.stats()
    if rounds := stats["spec_rounds"]:
        switch = "" if stats["speculating"] else "; it did not pay and was switched off"
        click.echo(
            f"speculation: {stats['spec_codes'] / rounds:.2f} codes per round, {stats['spec_accepted']} of "
            f"{stats['spec_drafted']} drafts accepted{switch}"
        )
    click.echo(f"wrote {click.format_filename(out)}")


def _on(device_name: str | None) -> str:
    return "" if device_name is None else f", {device_name}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
