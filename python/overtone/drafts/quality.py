"""What drafts are worth: how often they hold the code that is drawn, and the rounds that a frame then takes.

A draft's draws are made under the noise of the code that they guess, by the sampler that the executors use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from overtone import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from overtone.drafts.fit import Drafts, FitWeights

__all__ = ["SIBLINGS", "DraftQuality", "DraftScore", "rounds_per_frame"]

SIBLINGS = 7
"""Drafts of the widest round."""


def rounds_per_frame(hits: NDArray[np.bool_]) -> float:
    """Mean verify passes of a frame after its prefill, when each round guesses the next code alone.

    Args:
        hits: [N, R - 2]; entry j - 1 tells whether the drafts made at a pending ``code_j`` hold ``code_{j + 1}``. A
            draft of ``code_R`` would save nothing: the round that verified it draws it anyway.
    """
    frames, drafted = hits.shape
    last = drafted + 2
    # Nothing is drafted at a pending code_{R - 1}, nor when all is drawn.
    hits = np.pad(hits, ((0, 0), (0, 2)))
    pending, rounds = np.ones(frames, np.intp), 0
    while (live := pending < last).any():
        rounds += int(live.sum())
        pending += live * (1 + hits[np.arange(frames), pending - 1])
    return rounds / int(frames)


@dataclass(frozen=True)
class DraftScore:
    """What one kind of draft is worth.

    Args:
        best: [R - 2]; share of frames in which the best draft of ``code_2`` … ``code_{R - 1}`` is the code drawn.
        siblings: [R - 2]; in which it is among the :data:`SIBLINGS` best.
        chain_rounds: Rounds per frame with one draft a round.
        sibling_rounds: Rounds per frame with :data:`SIBLINGS` drafts of the next code a round.
    """

    best: NDArray[np.float64]
    siblings: NDArray[np.float64]
    chain_rounds: float
    sibling_rounds: float


class DraftQuality:
    """Judges drafts on frames that the fit did not see, beside those of the plain next head.

    Args:
        weights: The predictor's; R is at least 3.
        drafts: Fitted to them.
    """

    def __init__(self, weights: FitWeights, drafts: Drafts) -> None:
        self._weights = weights
        self._drafts = drafts
        self._hits: list[NDArray[np.bool_]] = []

    def add(
        self,
        hidden_rows: NDArray[np.float32],
        codes: NDArray[np.int32],
        sampling: Sequence[tuple[float, int, float, int]],
        frame_idx: Sequence[int],
    ) -> None:
        """Judge frames.

        Args:
            hidden_rows: [N, R, H], as :meth:`overtone.drafts.fit.DraftFit.add` takes them.
            codes: [N, C].
            sampling: (temperature, top_k, top_p, seed) that each frame was drawn with.
            frame_idx: Its index.
        """
        hits = np.empty((2, 2, len(codes), self._weights.codebooks - 2), bool)
        for pending in range(1, self._weights.codebooks - 1):
            rows = hidden_rows[:, pending - 1]
            plain = rows @ self._weights.heads[pending].T
            fitted = self._drafts.logits(pending, rows, codes[:, pending])
            for kind, logits in enumerate((plain, fitted)):
                for width, count in enumerate((1, SIBLINGS)):
                    proposed = _core.propose_drafts(logits, sampling, frame_idx, pending + 1, count).numpy()
                    hits[kind, width, :, pending - 1] = (proposed == codes[:, pending + 1, None]).any(1)
        self._hits.append(hits)

    def scores(self) -> tuple[DraftScore, DraftScore]:
        """What the plain drafts and the fitted ones are worth on the frames so far; there is at least one."""
        plain, fitted = (
            DraftScore(best.mean(0), siblings.mean(0), rounds_per_frame(best), rounds_per_frame(siblings))
            for best, siblings in np.concatenate(self._hits, 2)
        )
        return plain, fitted
