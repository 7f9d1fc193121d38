"""The fit: ridge regression of the next hidden row, folded into one head and one table for each codebook.

A stream whose ``code_j`` is pending has the final-norm row h_j [H] that made it, and e_j = P(E[j - 1][code_j]) [H],
the row that the next step is fed. For each j = 1 … R - 1 the fit finds W_h, W_e [H, H] and an offset [H] such that

    h_{j + 1} ≈ W_h h_j + W_e e_j + offset,

and folds them into what gives the draft's logits in one product and one row of a table:

    D[j] = Head[j] W_h  [V, H],        T[j][code] = Head[j] (W_e P(E[j - 1][code]) + offset)  [V, V].

The ridge pulls W_h towards the identity and W_e towards zero, where the draft is the next head on the same row: what a
speculative round does without a fit. Few frames make a cautious draft rather than a bad one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from overtone import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from overtone._typing import Path

__all__ = ["RIDGES", "DraftFit", "Drafts", "FitWeights"]

RIDGES = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Strengths that are tried where none is given; 1 weighs as much as the frames."""

_ROUNDING = 1e-9
"""Well above the relative error of a sum of products in float64."""


@dataclass(frozen=True)
class FitWeights:
    """The weights that drafts are made of.

    Args:
        heads: ``Head[0]`` … ``Head[R - 1]``, each [V, H].
        embeddings: P(E[0]) … P(E[R - 1]), each [V, H]: the rows that a step is fed for the codes of a codebook.
    """

    heads: list[NDArray[np.float32]]
    embeddings: list[NDArray[np.float32]]

    @classmethod
    def read(cls, artifact_dir: Path, checkpoint_dir: Path | None = None) -> FitWeights:
        """Read them from a checkpoint.

        Raises:
            CheckpointError: The checkpoint is missing, incomplete or damaged.
            ConfigError: Its configuration is.
        """
        heads, tables, projection = _core.read_fit_weights(artifact_dir, checkpoint_dir)
        embeddings = [table.numpy().astype(np.float32, copy=False) for table in tables]
        if projection:
            weight, bias = (tensor.numpy().astype(np.float32, copy=False) for tensor in projection)
            embeddings = [table @ weight.T + bias for table in embeddings]
        return cls([head.numpy().astype(np.float32, copy=False) for head in heads], embeddings)

    @property
    def codebooks(self) -> int:
        """R."""
        return len(self.heads)


@dataclass(frozen=True)
class Drafts:
    """Fitted drafts; entry j - 1 of each list is for a pending ``code_j``, j = 1 … R - 1.

    Args:
        heads: D, each [V, H].
        tables: T, each [V, V]; row ``code_j``.
        frames: Frames of one stream that the fit saw.
        ridge: Strength of the ridge.
    """

    heads: list[NDArray[np.float32]]
    tables: list[NDArray[np.float32]]
    frames: int
    ridge: float

    def logits(self, pending: int, hidden_rows: NDArray[np.float32], codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Draft logits [N, V] of ``code_{pending + 1}``, from the rows [N, H] that made ``codes`` [N] before it."""
        logits: NDArray[np.float32] = hidden_rows @ self.heads[pending - 1].T + self.tables[pending - 1][codes]
        return logits

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """The tensors of a file of drafts, by name."""
        heads = {f"draft_head.{pending}.weight": head for pending, head in enumerate(self.heads, 1)}
        return heads | {f"draft_table.{pending}": table for pending, table in enumerate(self.tables, 1)}


class DraftFit:
    """Takes frames in, in as many pieces as they come; its memory does not depend on their number.

    Args:
        weights: The predictor's.
    """

    def __init__(self, weights: FitWeights) -> None:
        self._weights = weights
        width = weights.heads[0].shape[1]
        self._equations = [_NormalEquations(width) for _ in range(1, weights.codebooks)]

    def add(self, hidden_rows: NDArray[np.float32], codes: NDArray[np.int32]) -> None:
        """Take frames in.

        Args:
            hidden_rows: [N, R, H]; row j - 1 is the final-norm row that made ``code_j``.
            codes: [N, C].
        """
        for pending, equations in enumerate(self._equations, 1):
            embedded = self._weights.embeddings[pending - 1][codes[:, pending]]
            equations.add(hidden_rows[:, pending - 1], embedded, hidden_rows[:, pending])

    @property
    def frames(self) -> int:
        """Frames taken in."""
        return self._equations[0].count

    def choose_ridge(self, hidden_rows: NDArray[np.float32], codes: NDArray[np.int32]) -> float:
        """The ridge of :data:`RIDGES` whose maps come closest to other frames, in three codebooks.

        Args:
            hidden_rows: [N, R, H] of frames that were not taken in.
            codes: [N, C] of them.
        """
        last = len(self._equations)

        def error(ridge: float) -> float:
            return sum(self._error(pending, ridge, hidden_rows, codes) for pending in {1, (1 + last) // 2, last})

        return min(RIDGES, key=error)

    def _error(self, pending: int, ridge: float, hidden_rows: NDArray[np.float32], codes: NDArray[np.int32]) -> float:
        """Mean square of what a map misses of the next hidden row."""
        to_hidden, to_embedded, offset = self._equations[pending - 1].solve(ridge)
        embedded = self._weights.embeddings[pending - 1][codes[:, pending]]
        found = hidden_rows[:, pending - 1] @ to_hidden.T + embedded @ to_embedded.T + offset
        return float(np.square(found - hidden_rows[:, pending]).mean())

    def solve(self, pending: int, ridge: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """D[pending] [V, H] and T[pending] [V, V].

        Args:
            pending: j.
            ridge: Strength of the ridge, above 0; 1 weighs as much as the data.
        """
        to_hidden, to_embedded, offset = self._equations[pending - 1].solve(ridge)
        head, embeddings = self._weights.heads[pending], self._weights.embeddings[pending - 1]
        fed: NDArray[np.float32] = embeddings @ to_embedded.T + offset
        return head @ to_hidden, fed @ head.T


class _NormalEquations:
    """Sums over frames of the regression of a row on two others, each [H], in float64."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.count = 0
        self._inputs = np.zeros(2 * width)
        self._target = np.zeros(width)
        self._gram = np.zeros((2 * width, 2 * width))
        self._cross = np.zeros((2 * width, width))

    def add(self, hidden: NDArray[np.float32], embedded: NDArray[np.float32], target: NDArray[np.float32]) -> None:
        inputs = np.concatenate([hidden, embedded], 1, dtype=np.float64)
        wide_target = target.astype(np.float64)
        self.count += len(inputs)
        self._inputs += inputs.sum(0)
        self._target += wide_target.sum(0)
        self._gram += inputs.T @ inputs
        self._cross += inputs.T @ wide_target

    def solve(self, ridge: float) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """W_h [H, H], W_e [H, H] and the offset [H]."""
        width = self._width
        gram = self._gram - np.outer(self._inputs, self._inputs) / self.count
        # What is left of the target once the hidden row is taken away: the regression's pull is towards zero.
        cross = self._cross - np.outer(self._inputs, self._target) / self.count - gram[:, :width]
        for block in (slice(width), slice(width, None)):
            diagonal = np.einsum("ii->i", gram[block, block])
            # Of inputs that never vary, rounding errors are left: what they seem to explain is pulled to nothing.
            rounding = _ROUNDING * np.einsum("ii->i", self._gram[block, block]).mean()
            diagonal += max(ridge * diagonal.mean(), rounding) or 1.0
        found = np.linalg.solve(gram, cross)
        to_hidden, to_embedded = np.eye(width) + found[:width].T, found[width:].T
        offset = (self._target - to_hidden @ self._inputs[:width] - to_embedded @ self._inputs[width:]) / self.count
        return to_hidden.astype(np.float32), to_embedded.astype(np.float32), offset.astype(np.float32)
