"""A talker's engine in NumPy: a tiny decoder with a KV cache, which is told of a step by its published layout alone.

It works as attention engines for ragged batches do: projections token by token over all places, keys and values written
to the cache by state and position, attention row by row between offsets, up to the row's total length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overtone import CodePredictor, Phase, RaggedBatch, RaggedConfig, RaggedIo, RaggedStep, Tensor

Array = npt.NDArray[Any]

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 16, 2, 23


@dataclass(frozen=True)
class Layout:
    """A published step, on the host."""

    query_offsets: Array
    query_lengths: Array
    past_lengths: Array
    total_lengths: Array
    last_token_indices: Array
    positions: Array
    state_indices: Array

    @classmethod
    def of(cls, step: RaggedStep) -> Layout:
        """What a step published, once it is there."""
        batch = step.wait().batch
        names = cls.__dataclass_fields__
        return cls(**{name: Tensor.from_dlpack(getattr(batch, name)).numpy().copy() for name in names})


class TalkerEngine:
    """Weights, and the cache [layers, states, positions, 2, width], of NaN where nothing was written."""

    def __init__(self, states: int, positions: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)

        def matrix(*shape: int) -> Array:
            return generator.standard_normal(shape) / np.sqrt(shape[-2])

        self.embedding = generator.standard_normal((VOCABULARY, WIDTH))
        self.position_embedding = generator.standard_normal((positions, WIDTH))
        self.projections = matrix(LAYERS, 4, WIDTH, WIDTH)
        self.up, self.down = matrix(LAYERS, WIDTH, 2 * WIDTH), matrix(LAYERS, 2 * WIDTH, WIDTH)
        self.head = matrix(WIDTH, VOCABULARY)
        self.cache = np.full((LAYERS, states, positions, 2, WIDTH), np.nan)

    def step(self, layout: Layout, tokens: Array, places: int) -> Array:
        """Logits [places, vocabulary] of the tokens at the step's places; NaN at padding."""
        states, positions = layout.state_indices[:places], layout.positions[:places]
        real = np.flatnonzero(states >= 0)
        hidden = np.full((places, WIDTH), np.nan)
        hidden[real] = self.embedding[tokens[real]] + self.position_embedding[positions[real]]
        for layer in range(LAYERS):
            query, key, value, output = self.projections[layer]
            normed = hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)
            self.cache[layer, states[real], positions[real], 0] = (normed @ key)[real]
            self.cache[layer, states[real], positions[real], 1] = (normed @ value)[real]
            attended = self._attend(layer, layout, normed @ query)
            hidden = hidden + attended @ output
            hidden = hidden + np.tanh(hidden @ self.up[layer]) @ self.down[layer]
        return np.asarray(hidden @ self.head)

    def _attend(self, layer: int, layout: Layout, queries: Array) -> Array:
        attended = np.full_like(queries, np.nan)
        for row, length in enumerate(layout.query_lengths):
            if length == 0:
                continue
            begin = layout.query_offsets[row]
            rows = slice(begin, begin + length)
            (state,) = set(layout.state_indices[rows].tolist())
            total = layout.total_lengths[row]
            keys, values = np.moveaxis(self.cache[layer, state, :total], 1, 0)
            split = (-1, HEADS, WIDTH // HEADS)
            scores = np.einsum("qhd,khd->hqk", queries[rows].reshape(split), keys.reshape(split))
            visible = np.arange(total) <= layout.past_lengths[row] + np.arange(length)[:, np.newaxis]
            weights = np.where(visible, np.exp(scores / np.sqrt(WIDTH // HEADS)), 0)
            weights /= weights.sum(axis=-1, keepdims=True)
            attended[rows] = np.einsum("hqk,khd->qhd", weights, values.reshape(split)).reshape(length, WIDTH)
        return attended


class Talker:
    """Streams that share an engine; each is stepped by the rows that a caller names.

    Args:
        predictor: Publishes the steps.
        config: Of the steps.
        state_indices: KV state of each row, where the predictor works; None for the rows' own.
    """

    def __init__(self, predictor: CodePredictor, config: RaggedConfig, state_indices: Any = None) -> None:
        self.predictor = predictor
        self.config = config
        self.batch = RaggedBatch.zeros(config, predictor.device)
        self.io = RaggedIo(state_indices)
        self.engine = TalkerEngine(config.max_states or config.max_batch, config.max_positions)
        self.lengths = [0] * config.max_batch

    def step(self, phase: Phase, tokens: list[list[int]]) -> list[Array]:
        """Bring tokens of each row; returns the logits [query length, vocabulary] of each row's tokens."""
        lengths = [len(row) for row in tokens]
        width = 1 if phase is Phase.DECODE else max(lengths)
        pasts = self.lengths[: len(tokens)]
        step = self.predictor.prepare_ragged_step(
            self.batch, self.io, self.config, lengths, pasts, len(tokens), width, phase
        )
        layout = Layout.of(step)
        places = len(tokens) * width
        # Padding is no token's: whatever stands there is not to matter.
        placed = np.full(places, VOCABULARY + 99)
        for row, brought in enumerate(tokens):
            placed[layout.query_offsets[row] : layout.query_offsets[row] + len(brought)] = brought
        logits = self.engine.step(layout, placed, places)
        for row, length in enumerate(lengths):
            self.lengths[row] += length
            if length > 0:
                assert layout.last_token_indices[row] == layout.query_offsets[row] + length - 1
        return [logits[layout.query_offsets[row] :][:length] for row, length in enumerate(lengths)]

    def take_back(self, row: int, count: int) -> None:
        """Forget the last tokens of a row: drafts that were not accepted."""
        self.lengths[row] -= count
