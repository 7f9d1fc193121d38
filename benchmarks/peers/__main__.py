"""overtone's frames on one GPU against every other way to run the same weights there, side by side in one process.

    python -m benchmarks.peers [CKPT] [--batch 1,8,32] [--rounds N] [--without PEER] [--json FILE] [--plot FILE.png]

The same bfloat16 weights, the same inputs, the family's own sampling (for Qwen3-Omni 1.0 / 50 / 0.8). Peers are
transformers' `generate`, the same decoder in plain PyTorch with its whole frame in one CUDA graph, and the compiled
decoder in one CUDA graph, which is the strongest. A peer whose package is not installed is skipped with a line. Exits
with 1 when a promise is missed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.peers import ours
from benchmarks.peers.body import greedy_agreement, random_inputs
from benchmarks.peers.first_frame import measure_elsewhere
from benchmarks.peers.floor import floor_contenders
from benchmarks.peers.hugging_face import GENERATE, generate_contender, generated_frame, published_model
from benchmarks.peers.measure import host_microseconds, take_turns
from benchmarks.peers.pytorch import COMPILED, PLAIN, compiled_contender, plain_contender, plain_frame
from benchmarks.peers.report import Report
from benchmarks.peers.weights import build_weights, read_state
from benchmarks.synthetic_checkpoint import add_checkpoint_arguments, given_or_synthetic

import overtone
from overtone import CodePredictor, SamplingParams
from overtone.cli.output_file import check_destination, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from benchmarks.peers.body import Inputs
    from benchmarks.peers.measure import Contender
    from benchmarks.peers.weights import Weights

Made = TypeVar("Made")
PEERS = {"transformers": GENERATE, "graph": PLAIN, "compiled": COMPILED}
"""What `--without` takes."""
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")
AGREEMENT_FRAMES = 16
AGREEMENT_ROWS = 8
"""Frames, and rows of each at most, whose greedy codes are compared with the float32 reference's."""


def main() -> int:
    arguments = _parser().parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("error: this compares with PyTorch, not installed here: pip install torch")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file is not None:
            check_destination(option, file)
    warnings.filterwarnings("ignore")  # of transformers and the compiler, about themselves
    with given_or_synthetic(arguments.checkpoint, arguments.arch) as checkpoint:
        report = _Run(checkpoint, arguments).finish()
    if arguments.json is not None:
        write_whole(arguments.json, (json.dumps(report.as_json(), indent=2) + "\n").encode())
    if arguments.plot is not None:
        _plot(arguments.plot, report)
    return 0 if all(promise.found <= promise.at_most for promise in report.promises()) else 1


class _Run:
    """One comparison, from loading to the last line."""

    def __init__(self, checkpoint: Path, arguments: argparse.Namespace) -> None:
        import torch  # noqa: PLC0415

        self.checkpoint, self.arguments = checkpoint, arguments
        self.batches: tuple[int, ...] = arguments.batch
        self.wanted = {name for peer, name in PEERS.items() if peer not in arguments.without}
        self.predictor, self.recorded = (
            CodePredictor.from_pretrained(checkpoint, executor="cuda", dtype="bfloat16", max_batch=max(self.batches))
            for _ in range(2)
        )
        self.spec = self.predictor.spec
        self.state = read_state(checkpoint, torch.bfloat16)
        self.weights = build_weights(self.spec, self.state, torch.bfloat16)
        self.sampling = SamplingParams.for_checkpoint(self.spec, seed=7)
        self.report = Report(
            {
                "overtone": overtone.__version__,
                "torch": torch.__version__,
                "transformers": _version("transformers"),
                "device": torch.cuda.get_device_name(),
                "dtype": "bfloat16",
                "sampling": asdict(self.sampling),
                "rounds": arguments.rounds,
                "compile_mode": arguments.compile_mode,
            }
        )
        self.model = self._attempt(GENERATE, lambda: published_model(self.spec, self.state, torch.bfloat16))

    def finish(self) -> Report:
        """Measure everything; tables appear as they are finished."""
        sampling = self.sampling
        drawn = f"temperature {sampling.temperature}, top_k {sampling.top_k}, top_p {sampling.top_p}"
        print(f"{self.report.title()}; {drawn}; {self.arguments.rounds} rounds", flush=True)
        self.report.first_frame = measure_elsewhere(self.checkpoint, max(self.batches))
        for batch in self.batches:
            self.report.samples[batch] = take_turns(self._contenders(batch), self.arguments.rounds)
            print(f"\n{self.report.batch_table(batch)}", flush=True)
        self._measure_host()
        self._compare_codes()
        print(f"\n{self.report.closing()}", flush=True)
        return self.report

    def _contenders(self, batch: int) -> list[Contender]:
        inputs = random_inputs(self.spec, batch, seed=batch, dtype=self.weights.dtype)
        found = ours.overtone_contenders(self.predictor, self.recorded, inputs, self.sampling)
        mode = None if self.arguments.compile_mode == "default" else self.arguments.compile_mode
        ways: dict[str, Callable[[], Contender]] = {
            COMPILED: lambda: compiled_contender(self.weights, inputs, self.sampling, mode),
            PLAIN: lambda: plain_contender(self.weights, inputs, self.sampling),
        }
        if self.model is not None:
            ways[GENERATE] = lambda: generate_contender(self.model, self.weights, inputs, self.sampling)
        peers = [self._attempt(name, way) for name, way in ways.items()]
        return [*found, *(peer for peer in peers if peer is not None), *floor_contenders(self.weights)]

    def _attempt(self, name: str, make: Callable[[], Made]) -> Made | None:
        """A peer, or None where it is not wanted or cannot be had: its absence is told, the others are measured."""
        if name not in self.wanted:
            return None
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - whatever a peer trips over must not cost the others their figures
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.report.skipped[name] = reason
            print(f"skipped {name}: {reason}", flush=True)
            return None

    def _measure_host(self) -> None:
        inputs = random_inputs(self.spec, 1, seed=1, dtype=self.weights.dtype)
        calls = self.arguments.host_calls
        for contender in ours.overtone_contenders(self.predictor, self.recorded, inputs, self.sampling):
            self.report.host[contender.name] = host_microseconds(contender.launch, calls)

    def _compare_codes(self) -> None:
        """Greedy codes of ours and of the peers' own bfloat16, against the same decoder in float32."""
        import torch  # noqa: PLC0415

        reference = build_weights(self.spec, self.state, torch.float32)
        self._agree("overtone", reference, lambda inputs: ours.greedy_codes(self.predictor, inputs))
        if PLAIN in self.wanted:
            self._agree("PyTorch", reference, self._plain_codes)
        if self.model is not None:
            self._agree(GENERATE, reference, lambda inputs: generated_frame(self.model, self.weights, inputs, None)())

    def _plain_codes(self, inputs: Inputs) -> torch.Tensor:
        import torch  # noqa: PLC0415

        frame, codes = plain_frame(self.weights, inputs, None)
        with torch.inference_mode():
            frame()
        return codes

    def _agree(self, name: str, reference: Weights, greedy: Callable[[Inputs], torch.Tensor]) -> None:
        shares, batch = [], min(AGREEMENT_ROWS, max(self.batches))
        for seed in range(AGREEMENT_FRAMES):
            inputs = random_inputs(self.spec, batch, seed=1000 + seed, dtype=self.weights.dtype)
            shares.append(greedy_agreement(reference, inputs, greedy(inputs)))
        self.report.agreement[name] = sum(shares) / len(shares)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkpoint_arguments(parser)
    parser.set_defaults(arch="qwen3-omni-30b")
    parser.add_argument("--batch", type=_batches, default=(1, 8, 32), metavar="B,B,…", help="default: 1,8,32")
    parser.add_argument("--rounds", type=_positive, default=50, help="of each batch size; default: 50")
    parser.add_argument("--host-calls", type=_positive, default=2000, help="calls to time on the host; default: 2000")
    parser.add_argument("--without", action="append", choices=PEERS, default=[], help="may be given several times")
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, default=COMPILE_MODES[0], help="of torch.compile")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from 1 up")
    return int(text)


def _batches(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_positive(part) for part in text.split(",")))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plot(file: Path, report: Report) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {file}: matplotlib is not installed")
        return
    from benchmarks.peers.plot import draw  # noqa: PLC0415 - matplotlib is slow to import, and optional

    write_whole(file, draw(report))
    print(f"wrote {file}")


if __name__ == "__main__":
    sys.exit(main())
