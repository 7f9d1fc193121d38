"""Frames of every kind, and whether two predictors agree on them bit by bit, wherever their tensors are.

Cases are drawn from a seed as NumPy arrays; a test places them where its predictors work. Nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from overtone import BoundFrame, CodePredictor, Frame, FramePlan, SamplingArrays, Tensor

TEMPERATURES = (0.0, 0.5, 0.9, 1.2, 5.0, 1000.0)
"""Greedy, usual ones, and one at which the noise decides alone, so that whatever drafts are right nearly always."""
SELDOM = 0.1
"""Share of frames with a hole, and of frames with a row that fails."""


@dataclass(frozen=True)
class FrameCase:
    """Inputs of one frame, all of them tensors.

    Args:
        talker_last_hidden: [B, Ht] float32.
        code_zero: [B] int32.
        temperature: [B] float32.
        top_k: [B] int32.
        top_p: [B] float32.
        seed: [B] int64, any bits.
        frame_idx: [1] int64.
        active: [B] bool.
    """

    talker_last_hidden: Any
    code_zero: Any
    temperature: Any
    top_k: Any
    top_p: Any
    seed: Any
    frame_idx: Any
    active: Any

    @property
    def batch(self) -> int:
        return len(self.code_zero)

    @property
    def sampling(self) -> SamplingArrays:
        return SamplingArrays(self.temperature, self.top_k, self.top_p, self.seed)

    def placed(self, place: Callable[[Any], Any]) -> FrameCase:
        """The same with every tensor passed through `place`."""
        return FrameCase(*(place(getattr(self, each.name)) for each in fields(self)))

    def take(self, other: FrameCase) -> None:
        """Write another case of as many rows into these tensors."""
        for each in fields(self):
            getattr(self, each.name)[...] = getattr(other, each.name)

    def plan(self) -> FramePlan:
        return FramePlan(
            self.batch, self.code_zero, self.talker_last_hidden, self.sampling, self.frame_idx, self.active
        )


def frame_cases(
    hidden_size: int, code_zero_size: int, batches: Sequence[int], count: int, seed: int
) -> Iterator[FrameCase]:
    """Random frames: every batch size in turn, each row with sampling of its own, failing rows and holes seldom."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        batch = batches[number % len(batches)]
        hidden = generator.standard_normal((batch, hidden_size)).astype(np.float32)
        code_zero = generator.integers(code_zero_size, size=batch, dtype=np.int32)
        active = np.ones(batch, bool)
        if generator.random() < SELDOM:
            hidden[generator.integers(batch)] = generator.choice([np.nan, np.inf, 1e38])
        if generator.random() < SELDOM:
            code_zero[generator.integers(batch)] = generator.choice([-1, code_zero_size])
        if generator.random() < SELDOM:
            active = generator.random(batch) < 0.5
        yield FrameCase(
            hidden,
            code_zero,
            generator.choice(TEMPERATURES, batch).astype(np.float32),
            generator.choice([0, 0, 1, 10, 50, 200], batch).astype(np.int32),
            generator.choice([1.0, 1.0, 0.95, 0.5], batch).astype(np.float32),
            generator.integers(-(2**63), 2**63, batch),
            generator.integers(2**40, size=1),
            active,
        )


class Ways:
    """The ways to give a predictor a frame. Bound frames are made once for each batch size.

    Args:
        predictor: Who predicts.
        place: Copies an array to where the predictor works.
    """

    def __init__(self, predictor: CodePredictor, place: Callable[[Any], Any]) -> None:
        self.predictor = predictor
        self._place = place
        self._bound: dict[int, tuple[FrameCase, BoundFrame]] = {}

    def call(self, case: FrameCase) -> Frame:
        """`predict_frame`."""
        return self.predictor.predict_frame(
            case.talker_last_hidden,
            case.code_zero,
            sampling=case.sampling,
            frame_idx=case.frame_idx,
            active=case.active,
            logits=True,
        )

    def launch(self, case: FrameCase) -> Frame:
        """`bind_frame` once, and `launch`."""
        own, bound = self.bound(case)
        own.take(case)
        return bound.launch()

    def bound(self, case: FrameCase) -> tuple[FrameCase, BoundFrame]:
        """The bound frame of the case's batch size, and its inputs."""
        if case.batch not in self._bound:
            own = case.placed(self._place)
            self._bound[case.batch] = own, self.predictor.bind_frame(own.plan(), logits=True)
        return self._bound[case.batch]


def differing(
    found: Frame, expected: Frame, words: Callable[[Tensor], Any], rows: Any = slice(None)
) -> dict[str, list[int]]:
    """Names of the outputs whose bits differ, each with the places, among the rows compared, where they do.

    Args:
        found: One frame.
        expected: The other.
        words: A tensor's elements as integers of the same bits, in an array of any library.
        rows: The rows whose outputs are compared; statuses are compared of all.
    """
    result = {}
    for name in ("codes", "codec_sum", "codec_hiddens", "logits", "status"):
        pair = [words(getattr(frame, name)) for frame in (found, expected)]
        if name == "codec_hiddens":  # rows 0 and R are the talker's
            pair = [each[:, 1:-1] for each in pair]
        if name != "status":
            pair = [each[rows] for each in pair]
        different = pair[0] != pair[1]
        if different.any():
            by_row = different.reshape(len(different), -1).any(1).tolist()
            result[name] = [row for row, differs in enumerate(by_row) if differs]
    return result


def host_words(tensor: Tensor) -> Any:
    """For `differing`, of a tensor on the CPU."""
    array = tensor.numpy()
    return array.view(f"i{array.itemsize}")
