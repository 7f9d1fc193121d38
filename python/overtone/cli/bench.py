"""`overtone bench`: time per frame on this machine, beside the time that only reading the same weights takes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import overtone
from overtone import Binding, CodePredictor, FramePlan, SamplingParams, Tensor
from overtone.cli.machine import processor_name
from overtone.cli.options import (
    WORKING_TYPES,
    checkpoint_argument,
    checkpoint_dir_option,
    device_option,
    drafts_choice,
    executor_option,
    json_option,
    path_type,
    speculation_options,
    threads_option,
)
from overtone.cli.output_file import check_destination, write_whole
from overtone.cli.progress import byte_progress, count_progress
from overtone.cli.timing import Timing, time_in_turns
from overtone.speculation import SpecParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from overtone import BoundFrame
    from overtone.speculation import DraftShape

__all__ = ["Measurement", "bench", "benchmark_frame"]

_FRAME_MILLISECONDS = 80.0
"""How long the audio of a frame lasts."""
_LARGEST_BATCH = 4096
_SAMPLING = SamplingParams(temperature=0.9, top_k=50, seed=7)


@dataclass(frozen=True)
class Measurement:
    """Times of one batch size in one working type, in milliseconds.

    Args:
        dtype: Working type.
        batch: Streams of each frame.
        threads: Threads that ran it; 0 where a device did.
        frame: Of one frame, sampling included, until its codes are there.
        floor: Of only reading the weights that a frame reads, with the same threads; None on a device.
        frame_bytes: Bytes of those weights.
        rounds_per_frame: Speculative rounds of a stream in a frame, those of the warm-up included; None without them.
        codes_per_round: Codes that a round drew.
    """

    executor: str
    dtype: str
    batch: int
    threads: int
    frame: Timing
    floor: Timing | None
    frame_bytes: int
    rounds_per_frame: float | None = None
    codes_per_round: float | None = None

    @property
    def real_time_factor(self) -> float:
        """How many seconds of audio a stream gains in one second."""
        return _FRAME_MILLISECONDS / self.frame.median

    @property
    def floor_ratio(self) -> float | None:
        """Time per frame over the time that reading its weights takes."""
        return None if self.floor is None else self.frame.median / self.floor.median

    def as_json(self, frames: int) -> dict[str, Any]:
        """An entry of `results`."""
        entry: dict[str, Any] = {
            "executor": self.executor,
            "dtype": self.dtype,
            "batch": self.batch,
            "threads": self.threads,
            "frames": frames,
            "ms_per_frame": round(self.frame.median, 4),
            "p05": round(self.frame.p05, 4),
            "p95": round(self.frame.p95, 4),
            "real_time_factor": round(self.real_time_factor, 4),
            "frame_bytes": self.frame_bytes,
            "floor_ms": None if self.floor is None else round(self.floor.median, 4),
            "floor_ratio": None if self.floor_ratio is None else round(self.floor_ratio, 4),
        }
        if self.rounds_per_frame is not None and self.codes_per_round is not None:
            entry["rounds_per_frame"] = round(self.rounds_per_frame, 4)
            entry["codes_per_round"] = round(self.codes_per_round, 4)
        return entry


def _read_batches(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Batch sizes between commas."""
    parts = [part.strip() for part in value.split(",")]
    sizes = tuple(int(part) if part.isdecimal() and len(part) <= len(str(_LARGEST_BATCH)) else 0 for part in parts)
    if not all(1 <= size <= _LARGEST_BATCH for size in sizes):
        raise click.BadParameter(f"{value!r} is not a list like 1,2,4,8 of numbers from 1 to {_LARGEST_BATCH}")
    return tuple(dict.fromkeys(sizes))


@click.command()
@checkpoint_argument
@checkpoint_dir_option
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(WORKING_TYPES),
    help="Working type; may be given several times. Without it the stored weights, exactly.",
)
@click.option(
    "--batch",
    "batches",
    callback=_read_batches,
    default="1,2,4,8",
    show_default=True,
    metavar="B,B,…",
    help="Batch sizes.",
)
@click.option("--frames", "frame_count", type=click.IntRange(1), default=20, show_default=True, help="Frames to time.")
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, help="Frames before those.")
@executor_option
@device_option
@threads_option
@speculation_options
@json_option
@click.option("--plot", type=path_type(), metavar="FILE.png", help="Draw the result, too.")
def bench(
    checkpoint: Path,
    checkpoint_dir: Path | None,
    dtypes: tuple[str, ...],
    batches: tuple[int, ...],
    frame_count: int,
    warmup: int,
    executor: str,
    device: str | None,
    threads: int | None,
    spec_verify_size: int,
    draft: DraftShape,
    drafts: Path | None,
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure milliseconds per frame, sampling included, for each batch size.

    On the CPU, the floor is the time that the same threads take to read the weights of a frame and do nothing else;
    frames and reads take turns. The real-time factor is 80 ms, the audio of a frame, over the time per frame.
    """
    if plot is not None:
        _check_plot(plot)
    measured: list[Measurement] = []
    for dtype in dict.fromkeys(dtypes) if dtypes else (None,):
        with byte_progress("loading") as progress:
            predictor = CodePredictor(executor, device, dtype, threads=threads)
            predictor.preallocate(
                checkpoint,
                checkpoint_dir,
                max_batch=max(batches),
                spec_verify_size=spec_verify_size,
                spec_params=SpecParams(draft=draft, off_below=0, drafts=drafts_choice(drafts)),
                progress=progress,
            )
        label = f"{predictor.dtype}, batch"
        for batch in batches:
            with count_progress(f"{label} {batch}", frame_count, "frame") as advance:
                measured.append(_measure(predictor, batch, frame_count, warmup, advance))
    name = predictor.device_name or f"{processor_name()}, {predictor.threads} threads, {predictor.instructions}"
    if as_json:
        results = [each.as_json(frame_count) for each in measured]
        report = {"version": overtone.__version__, "device": name, "spec_verify_size": spec_verify_size}
        if spec_verify_size:
            report |= {"draft": draft, "drafts": None if drafts is None else str(drafts)}
        click.echo(json.dumps(report | {"results": results}, indent=2))
    else:
        _print(name, measured)
    if plot is not None:
        from overtone.cli.plot import draw  # noqa: PLC0415 - matplotlib is slow to import, and optional

        write_whole(plot, draw(name, measured))
        click.echo(f"wrote {click.format_filename(plot)}", err=as_json)


def benchmark_frame(predictor: CodePredictor, batch: int) -> BoundFrame:
    """A frame with made-up inputs of usual size, drawn anew at each launch; sampled at 0.9 / 50."""
    spec = predictor.spec
    noise = np.random.default_rng(0)
    hidden = noise.standard_normal((batch, spec.talker_hidden_size), np.float32)
    if spec.code_zero_size is None:
        # The checkpoint has no talker. What its table holds does not change the time.
        table = Tensor.zeros([1, spec.talker_hidden_size], "float32", predictor.device)
        predictor.bind(Binding(spec.talker_hidden_size, spec.codes_per_frame, predictor.max_batch, table))
    code_zero = noise.integers(0, spec.code_zero_size or 1, batch, np.int32)
    place = predictor.device
    plan = FramePlan(
        batch,
        Tensor.from_dlpack(code_zero).to(place),
        Tensor.from_dlpack(hidden).to(place),
        _SAMPLING,
        frame_idx=Tensor.zeros([1], "int64", place),
        advance_frame_idx=True,
    )
    return predictor.bind_frame(plan)


def _measure(
    predictor: CodePredictor, batch: int, frames: int, warmup: int, advance: Callable[[], object]
) -> Measurement:
    frame = benchmark_frame(predictor, batch)

    def run() -> None:
        frame.launch().completion.wait()

    work: dict[str, Callable[[], object]] = {"frame": run}
    if predictor.executor == "cpu":
        work["floor"] = predictor.read_weights
    before = predictor.stats()
    timings = time_in_turns(work, frames, warmup, after_round=advance)
    frame.frame.wait()
    after = predictor.stats()
    rows, rounds, codes = (after[key] - before[key] for key in ("rows", "spec_rounds", "spec_codes"))
    return Measurement(
        predictor.executor,
        predictor.dtype,
        batch,
        predictor.threads,
        timings["frame"],
        timings.get("floor"),
        predictor.frame_bytes,
        rounds / rows if rounds else None,
        codes / rounds if rounds else None,
    )


def _check_plot(plot: Path) -> None:
    """Find out before measuring whether a plot can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib, not installed here: pip install 'overtone[cli]'")
    if plot.suffix.lower() != ".png":
        raise click.UsageError(f"--plot: {plot} does not end in .png")
    check_destination("--plot", plot)


def _print(device: str, measured: list[Measurement]) -> None:
    click.echo(f"overtone {overtone.__version__} on {device}")
    click.echo(
        f"{'dtype':10}{'batch':>6}{'ms/frame':>11}{'p05':>9}{'p95':>9}{'real time':>11}{'floor ms':>10}{'ratio':>7}"
    )
    for each in measured:
        floor = "" if each.floor is None else f"{each.floor.median:>10.2f}{each.floor_ratio:>7.2f}"
        rounds = "" if each.rounds_per_frame is None else f"  {each.rounds_per_frame:.2f} rounds per frame"
        click.echo(
            f"{each.dtype:10}{each.batch:>6}{each.frame.median:>11.2f}{each.frame.p05:>9.2f}{each.frame.p95:>9.2f}"
            f"{each.real_time_factor:>10.2f}x{floor}{rounds}"
        )
