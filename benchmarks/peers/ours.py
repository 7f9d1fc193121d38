"""overtone's frames with torch tensors: a call, a bound frame, and a bound frame inside the caller's own CUDA graph."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from benchmarks.peers.measure import Contender

from overtone import FramePlan, SamplingArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from benchmarks.peers.body import Inputs

    from overtone import BoundFrame, CodePredictor, SamplingParams

BOUND = "overtone, bound frame"
CALLED = "overtone, predict_frame"
CAPTURED = "overtone in the caller's graph"


def overtone_contenders(
    predictor: CodePredictor, recorded: CodePredictor, inputs: Inputs, sampling: SamplingParams
) -> list[Contender]:
    """The three of them, the one that others are compared with first.

    The caller's graph gets a predictor of its own: one whose frames were recorded cannot know what the device holds
    when such a graph is launched, and brings the parameters of every other frame anew.
    """
    bound = bound_frame(predictor, inputs, sampling)
    return [
        Contender(BOUND, bound.launch, check=bound.frame.wait),
        Contender(CALLED, predicted_frame(predictor, inputs, sampling)),
        _captured_contender(recorded, inputs, sampling),
    ]


def bound_frame(predictor: CodePredictor, inputs: Inputs, sampling: SamplingParams) -> BoundFrame:
    """A frame whose index the host counts."""
    return predictor.bind_frame(
        FramePlan(
            inputs.batch,
            inputs.code_zero,
            inputs.talker_last_hidden,
            sampling,
            frame_idx=0,
            advance_frame_idx=True,
        )
    )


def predicted_frame(predictor: CodePredictor, inputs: Inputs, sampling: SamplingParams) -> Callable[[], object]:
    """Calls of `predict_frame`, each with the next frame index."""
    indices = count()

    def frame() -> object:
        return predictor.predict_frame(
            inputs.talker_last_hidden, inputs.code_zero, sampling=sampling, frame_idx=next(indices)
        )

    return frame


def greedy_codes(predictor: CodePredictor, inputs: Inputs) -> torch.Tensor:
    """Codes [B, R + 1] int64."""
    import torch  # noqa: PLC0415

    frame = predictor.predict_frame(inputs.talker_last_hidden, inputs.code_zero)
    return torch.from_dlpack(frame.wait().codes).long()


def _captured_contender(predictor: CodePredictor, inputs: Inputs, sampling: SamplingParams) -> Contender:
    """What changes from replay to replay lies on the device: the index, which each frame advances."""
    import torch  # noqa: PLC0415

    def rows(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((inputs.batch,), value, dtype=dtype, device="cuda")

    arrays = SamplingArrays(
        temperature=rows(sampling.temperature, torch.float32),
        top_k=rows(sampling.top_k, torch.int32),
        top_p=rows(sampling.top_p, torch.float32),
        seed=rows(sampling.seed, torch.int64),
    )
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    bound = predictor.bind_frame(
        FramePlan(inputs.batch, inputs.code_zero, inputs.talker_last_hidden, arrays, index, advance_frame_idx=True)
    )
    bound.launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()

    def check() -> None:
        before = int(index.item())
        graph.replay()
        if int(index.item()) != before + 1:
            raise RuntimeError(
                f"{CAPTURED}: a replay left the frame index at {int(index.item())}, expected {before + 1}"
            )
        if bound.frame.status.numpy().any():
            raise RuntimeError(f"{CAPTURED}: status {bound.frame.status.tolist()}")

    return Contender(CAPTURED, graph.replay, check=check, keeps=(bound, arrays, index, graph))
