"""Speculation against the step-by-step loop of the same process: what rounds cost, what they draw, where they pay.

    python -m benchmarks.speculation [CKPT] [--frames FILE] [--batch 1,2,4,8] [--window 2,4,6,8]
        [--draft siblings,chain] [--frames-per-cell N] [--drafts FILE|none] [--executor cuda|cpu] [--dtype TYPE]
        [--sampling family|greedy|T,k,p] [--json FILE]

Every cell of the table is one batch size, rows of a verify pass and shape of drafts. Its frames run once in rounds and
once step by step, in turns, from the same inputs; the codes must be equal, or it exits with 1. Streams beyond those of
the file are its streams at other times. On a GPU with torch, times are those between two CUDA events on a stream that
was idle; elsewhere, those until the codes are there.

rounds      of a stream, per frame
passes      over the weights per frame after the prefill: the rounds of its slowest stream
codes       per round
accepted    share of the drafts that were verified
ms, plain   medians, in rounds and step by step
ratio       median over the frames of one to the other; below 1 speculation pays
break-even  the codes per round at which it would be 1

With t and s the times of a frame in rounds and step by step, R - 1 the steps after the prefill, and a prefill taken to
cost 1.1 steps: a plain step takes step = median(s) / (R - 1 + 1.1), and a round takes round = the median over the
frames of (t - 1.1 step) / passes. A frame of (R - 1) step / round passes takes as long as the plain loop. A stream has
rounds / passes as many rounds as its frame has passes, which is taken to stay so. Hence

    break-even = (round / step) (passes / rounds),

which at batch 1 is what a round costs in plain steps. `SpecParams(off_below=…)` takes such a number.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speculation.cell import HEADER, WARMUP_FRAMES, Cell, measure
from benchmarks.speculation.frames import FrameRunner, clock_of
from benchmarks.synthetic_checkpoint import add_checkpoint_arguments, given_or_synthetic

import overtone
from overtone import CodePredictor, InputError, OvertoneError, SamplingParams, SpecParams, UnsupportedError
from overtone.cli.frames_file import read_frames
from overtone.cli.machine import processor_name
from overtone.cli.output_file import check_destination, write_whole
from overtone.speculation import DRAFT_SHAPES, LARGEST_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from overtone import ModelSpec


def sweep(checkpoint: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Cell]]:
    """The run in words, and every cell; lines of the table appear as they are finished."""
    frames = read_frames(arguments.frames or checkpoint / "frames.safetensors")
    options: dict[str, Any] = {
        "executor": arguments.executor,
        "dtype": arguments.dtype,
        "max_batch": max(arguments.batch),
        "code_zero_table": arguments.code_zero_table,
    }
    plain = CodePredictor.from_pretrained(checkpoint, **options)
    spec = plain.spec
    frames.check(spec, arguments.code_zero_table)
    sampling = choose_sampling(arguments.sampling, spec)
    clock, times = clock_of(plain)
    header = {
        "version": overtone.__version__,
        "device": plain.device_name or f"{processor_name()}, {plain.threads} threads, {plain.instructions}",
        "executor": plain.executor,
        "dtype": plain.dtype,
        "sampling": asdict(sampling),
        "times": times,
    }
    print(
        f"overtone {header['version']} on {header['device']}, {plain.dtype}; temperature {sampling.temperature:g}, "
        f"top_k {sampling.top_k}, top_p {sampling.top_p:g}; {arguments.frames_per_cell} frames per cell, {times}"
    )
    print(HEADER, flush=True)
    cells = []
    for draft in arguments.draft:
        for window in arguments.window:
            params = SpecParams(draft=draft, off_below=0, drafts=arguments.drafts)
            rounds = CodePredictor.from_pretrained(checkpoint, spec_verify_size=window, spec_params=params, **options)
            if not rounds.stats()["speculating"]:
                raise UnsupportedError(f"the {rounds.executor} executor cannot speculate with {checkpoint}")
            for batch in arguments.batch:
                ours, step_by_step = (FrameRunner(each, frames, batch, sampling) for each in (rounds, plain))
                found = measure(ours, step_by_step, arguments.frames_per_cell, clock)
                cells.append(Cell(batch=batch, window=window, draft=draft, **found))
                print(cells[-1].line(), flush=True)
    return header, cells


def choose_sampling(text: str, spec: ModelSpec) -> SamplingParams:
    """What `--sampling` says.

    Raises:
        InputError: It cannot be understood, or a parameter is out of range.
    """
    if text == "family":
        return SamplingParams.for_checkpoint(spec, seed=7)
    if text == "greedy":
        return SamplingParams.greedy()
    try:
        temperature, top_k, top_p = text.split(",")
        return SamplingParams(float(temperature), int(top_k), float(top_p), seed=7)
    except ValueError as error:
        raise InputError(f"--sampling: found {text!r}, expected family, greedy or T,k,p: {error}") from error


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.checkpoint is None and arguments.frames is not None:
        parser.error("--frames needs the checkpoint that the frames are for")
    try:
        if arguments.json is not None:
            check_destination("--json", arguments.json)
        count, streams = arguments.frames_per_cell, max(arguments.batch)
        with given_or_synthetic(arguments.checkpoint, arguments.arch, count, streams) as checkpoint:
            header, cells = sweep(checkpoint, arguments)
    except OvertoneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = sum(cell.frames_of_other_codes for cell in cells)
    frames = sum(cell.frames + WARMUP_FRAMES for cell in cells)
    print(f"codes in rounds and step by step: {'equal' if wrong == 0 else f'NOT EQUAL in {wrong}'} of {frames} frames")
    if arguments.json is not None:
        document = {**header, "results": [asdict(cell) for cell in cells]}
        write_whole(arguments.json, (json.dumps(document, indent=2) + "\n").encode())
    return 0 if wrong == 0 else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkpoint_arguments(parser)
    parser.add_argument("--frames", type=Path, metavar="FILE", help="default: frames.safetensors beside the weights")
    parser.add_argument("--batch", type=_numbers(1, 4096), default=(1, 2, 4, 8), metavar="B,B,…")
    parser.add_argument("--window", type=_numbers(2, LARGEST_WINDOW), default=(2, 4, 6, 8), metavar="N,N,…")
    parser.add_argument("--draft", type=_shapes, default=DRAFT_SHAPES[::-1], metavar="SHAPE,…", help="siblings, chain")
    parser.add_argument("--frames-per-cell", type=_count, default=100, metavar="N")
    parser.add_argument(
        "--drafts", type=_drafts, default=True, metavar="FILE|none", help="default: those beside the weights"
    )
    parser.add_argument("--executor", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--dtype", help="working type; default: the one that keeps the stored weights")
    parser.add_argument("--sampling", default="family", metavar="family|greedy|T,k,p")
    parser.add_argument("--code-zero-table", type=Path, metavar="FILE", help="for a checkpoint without its talker")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def _numbers(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Numbers between commas, each once."""

    def read(text: str) -> tuple[int, ...]:
        numbers = tuple(int(part) if part.isdecimal() else -1 for part in text.split(","))
        if not all(least <= number <= most for number in numbers):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected numbers from {least} to {most} between commas")
        return tuple(dict.fromkeys(numbers))

    return read


def _count(text: str) -> int:
    return _numbers(1, 10**6)(text)[0]


def _shapes(text: str) -> tuple[str, ...]:
    if not set(text.split(",")) <= set(DRAFT_SHAPES):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {' or '.join(DRAFT_SHAPES)}, or both")
    return tuple(dict.fromkeys(text.split(",")))


def _drafts(text: str) -> str | bool:
    return False if text == "none" else text


if __name__ == "__main__":
    sys.exit(main())
