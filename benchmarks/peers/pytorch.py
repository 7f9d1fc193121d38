"""Frames in PyTorch: the plain decoder, and the compiled one, each with its whole frame in one CUDA graph.

Both write the codes alone; overtone's frames also write `codec_hiddens`, `codec_sum` and `status`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.peers.body import empty_cache, prefill_rows, sampler, static_forward
from benchmarks.peers.measure import Contender

if TYPE_CHECKING:
    import torch
    from benchmarks.peers.body import Cache, Inputs
    from benchmarks.peers.weights import Weights

    from overtone import SamplingParams

PLAIN = "PyTorch, one CUDA graph"
COMPILED = "torch.compile, one CUDA graph"
Frame = Callable[[], object]


def plain_contender(weights: Weights, inputs: Inputs, sampling: SamplingParams | None) -> Contender:
    """The decoder as written, captured."""
    frame, _ = plain_frame(weights, inputs, sampling)
    graph = capture(frame)
    return Contender(PLAIN, graph.replay, keeps=(frame, graph))


def compiled_contender(
    weights: Weights, inputs: Inputs, sampling: SamplingParams | None, mode: str | None
) -> Contender:
    """The decoder with embedding, head and sampling, compiled for exactly these shapes, captured."""
    frame = compiled_frame(weights, inputs, sampling, mode)
    graph = capture(frame)
    return Contender(COMPILED, graph.replay, keeps=(frame, graph))


def plain_frame(weights: Weights, inputs: Inputs, sampling: SamplingParams | None) -> tuple[Frame, torch.Tensor]:
    """A frame that attends to the slots written so far, and the codes [B, R + 1] that it writes."""
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    forward, sample = static_forward(weights, masked=False), sampler(sampling)
    cache = empty_cache(weights, inputs.batch)
    codes = torch.zeros(inputs.batch, weights.spec.codes_per_frame, dtype=torch.int64, device="cuda")

    def frame() -> None:
        codes[:, 0] = inputs.code_zero
        rows, where = prefill_rows(weights, inputs), slice(0, 2)
        for codebook, head in enumerate(weights.heads, 1):
            if codebook > 1:
                rows = functional.embedding(codes[:, codebook - 1], weights.code_rows[codebook - 2])[:, None]
                where = slice(codebook, codebook + 1)
            hidden = forward(rows, cache, where)[:, -1]
            codes[:, codebook] = sample(functional.linear(hidden, head))

    return frame, codes


def compiled_frame(weights: Weights, inputs: Inputs, sampling: SamplingParams | None, mode: str | None) -> Frame:
    """A frame of compiled steps, each of which takes its tables as arguments: two compilations serve all steps."""
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    forward, sample = static_forward(weights, masked=True), sampler(sampling)
    cache = empty_cache(weights, inputs.batch)
    codes = torch.zeros(inputs.batch, weights.spec.codes_per_frame, dtype=torch.int64, device="cuda")
    positions = [torch.tensor([0, 1], device="cuda")]
    positions += [torch.tensor([codebook], device="cuda") for codebook in range(2, weights.spec.codes_per_frame)]

    def prefill(rows: torch.Tensor, head: torch.Tensor, cache: Cache, where: torch.Tensor) -> torch.Tensor:
        return sample(functional.linear(forward(rows, cache, where)[:, -1], head))

    def step(
        code: torch.Tensor, table: torch.Tensor, head: torch.Tensor, cache: Cache, where: torch.Tensor
    ) -> torch.Tensor:
        rows = functional.embedding(code, table)[:, None]
        return sample(functional.linear(forward(rows, cache, where)[:, -1], head))

    # Compilations of other batch sizes count towards a limit, beyond which nothing more would be compiled.
    torch.compiler.reset()
    fast_prefill, fast_step = (
        torch.compile(each, fullgraph=True, dynamic=False, mode=mode) for each in (prefill, step)
    )

    def frame() -> None:
        codes[:, 0] = inputs.code_zero
        code = fast_prefill(prefill_rows(weights, inputs), weights.heads[0], cache, positions[0])
        codes[:, 1] = code
        for codebook in range(2, weights.spec.codes_per_frame):
            table, head = weights.code_rows[codebook - 2], weights.heads[codebook - 1]
            code = fast_step(code, table, head, cache, positions[codebook - 1])
            codes[:, codebook] = code

    return frame


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the work, which is run a few times before: libraries set themselves up then."""
    import torch  # noqa: PLC0415

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.inference_mode():
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        work()
    return graph
