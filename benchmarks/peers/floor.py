"""The least time a frame can take on this GPU: moving as many bytes as its weights have, by PyTorch's own kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.measure import Contender
from benchmarks.peers.pytorch import capture

if TYPE_CHECKING:
    from benchmarks.peers.weights import Weights

READ = "only reading the weights' bytes"
COPY = "only copying half as many"
FLOORS = (READ, COPY)


def floor_contenders(weights: Weights) -> list[Contender]:
    """Two ways to keep the memory busy for a frame's bytes: sums, which read, and copies, which read and write.

    A step's bytes are one buffer that every step goes through again, as it does through the weights; so the cache helps
    as much as it can help a frame.
    """
    import torch  # noqa: PLC0415

    steps, elements = weights.spec.residual_codebooks, weights.step_bytes() // 4
    source = torch.zeros(elements, device="cuda")
    half, copied = source[: elements // 2], torch.empty(elements // 2, device="cuda")

    def read() -> None:
        for _ in range(steps):
            source.sum()

    def copy() -> None:
        for _ in range(steps):
            copied.copy_(half)

    return [
        Contender(name, graph.replay, keeps=(source, copied, graph))
        for name, graph in ((READ, capture(read)), (COPY, capture(copy)))
    ]
