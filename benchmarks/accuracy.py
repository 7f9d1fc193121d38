"""On a GPU: the codes that the CUDA executor picks, against those of the published class in transformers.

float32 must pick what the class picks in float32, except where the class itself is undecided. bfloat16 and float16 must
agree with the float32 class no less often than the class does in the same type: both are judged on the same contexts,
our own codes, and compared pair by pair.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.hugging_face import published_body
from benchmarks.peers.weights import build_weights, read_state

from overtone import CodePredictor, _core

if TYPE_CHECKING:
    import torch
    from benchmarks.peers.weights import Weights

    from overtone import ModelSpec

UNDECIDED = 1e-4
"""Margin of the reference below which another order of adding may pick the other code."""
SIGNIFICANT = 0.01
"""Probability below which fewer agreements than the class's are no chance."""
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Judged:
    """Choices of the class in one type given the codes before each: picks [rows, R], and by how much each won."""

    picks: torch.Tensor
    margins: torch.Tensor


def judge(weights: Weights, body: torch.nn.Module, hidden: torch.Tensor, codes: torch.Tensor) -> Judged:
    """What the class picks after each prefix of `codes` [rows, R + 1]."""
    import torch  # noqa: PLC0415

    picks, margins = [], []
    for part_hidden, part in zip(hidden.split(ROWS_AT_ONCE), codes.split(ROWS_AT_ONCE), strict=True):
        fed = [table[part[:, number]] for number, table in enumerate(weights.code_rows[:-1], 1)]
        rows = [weights.project(part_hidden.to(weights.dtype)), weights.code_zero_rows[part[:, 0]], *fed]
        with torch.inference_mode():
            outputs = body(inputs_embeds=torch.stack(rows, 1), use_cache=False).last_hidden_state
            logits = [outputs[:, number] @ head.T for number, head in enumerate(weights.heads, 1)]
            best = torch.stack(logits, 1).float().topk(2, -1)
        picks.append(best.indices[..., 0])
        margins.append(best.values[..., 0] - best.values[..., 1])
    return Judged(torch.cat(picks), torch.cat(margins))


def our_codes(checkpoint: Path, dtype: str, hidden: torch.Tensor, code_zero: torch.Tensor) -> torch.Tensor:
    """Greedy codes [frames * batch, R + 1]."""
    import torch  # noqa: PLC0415

    predictor = CodePredictor.from_pretrained(checkpoint, executor="cuda", dtype=dtype, max_batch=code_zero.shape[1])
    frames = [
        torch.from_dlpack(predictor.predict_frame(rows, first).wait().codes).long()
        for rows, first in zip(hidden, code_zero, strict=True)
    ]
    return torch.cat(frames)


def probability_of_chance(worse: int, better: int) -> float:
    """That of `worse` or more out of both, were each as likely (McNemar's exact test, one-sided)."""
    pairs = worse + better
    ways: int = sum(comb(pairs, number) for number in range(worse, pairs + 1))
    return ways / (1 << pairs)


def check(name: str, checkpoint: Path) -> bool:
    """Prints one line for each type, and whether all promises held."""
    import torch  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = False
    spec: ModelSpec = _core.ModelSpec.from_directory(checkpoint)
    state = read_state(checkpoint, torch.float32)
    frames = _core.read_tensors(checkpoint / "frames.safetensors")
    hidden = torch.tensor(frames["talker_last_hidden"].numpy(), device="cuda")
    code_zero = torch.tensor(frames["code_zero"].numpy(), device="cuda").long()
    flat = hidden.reshape(-1, hidden.shape[-1])
    reference_weights = build_weights(spec, state, torch.float32)
    reference_body = published_body(spec, state, torch.float32)
    held = True
    for dtype, working in (("float32", None), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        codes = our_codes(checkpoint, dtype, hidden, code_zero)
        reference = judge(reference_weights, reference_body, flat, codes)
        ours = reference.picks == codes[:, 1:]
        line = f"{name} {dtype}: {int(ours.sum())} of {ours.numel()} codes as transformers in float32"
        if working is None:
            decided = int((~ours & (reference.margins >= UNDECIDED)).sum())
            good = decided == 0
            line += f"; {decided} of the others where its margin is at least {UNDECIDED}"
        else:
            theirs = judge(build_weights(spec, state, working), published_body(spec, state, working), flat, codes)
            agrees = theirs.picks == reference.picks
            worse, better = int((agrees & ~ours).sum()), int((ours & ~agrees).sum())
            chance = probability_of_chance(worse, better)
            good = chance >= SIGNIFICANT
            line += f"; transformers in {dtype}: {int(agrees.sum())}; ours alone right {better}, theirs alone {worse}"
            line += f", p = {chance:.3g}"
        print(line if good else f"{line}  MISSED", flush=True)
        held &= good
    return held


def main() -> int:
    """Checks the checkpoint given, or synthetic ones of the true architectures; 1 when a promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path, help="with frames.safetensors beside its weights")
    parser.add_argument("--frames", type=int, default=64, help="of a synthetic checkpoint")
    parser.add_argument("--batch", type=int, default=8, help="streams of a synthetic checkpoint")
    arguments = parser.parse_args()
    if arguments.checkpoint is not None:
        return 0 if check(arguments.checkpoint.name, arguments.checkpoint) else 1
    held = True
    for name in ("qwen3-omni-30b", "qwen3-tts-1.7b"):
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = Path(directory) / name
            _core.make_checkpoint(checkpoint, name, 1, arguments.frames, arguments.batch, None)
            held &= check(name, checkpoint)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
