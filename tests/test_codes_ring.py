"""A ring of codes: what frames put in comes out once, in order, and what was lost is said."""

from __future__ import annotations

import numpy as np
import pytest

from contract import CODES, MODEL, plan
from overtone import CodePredictor, InputError, SamplingParams, Tensor

SAMPLED = SamplingParams(temperature=0.9, top_k=10, seed=3)


def test_codes_come_out_once_and_in_order(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    expected = [
        predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=index).codes.numpy()
        for index in range(12)
    ]
    ring = predictor.codes_ring(5, 3)
    bound = predictor.bind_frame(plan(3, sampling=SAMPLED, frame_idx=0, advance_frame_idx=True, codes_ring=ring))
    assert bound.frame.codes.shape == (5, 3, CODES)
    first = 0
    for count in (3, 5, 0, 4):
        for _ in range(count):
            bound.launch()
        drained = ring.drain()
        assert drained.shape == (count, 3, CODES)
        for codes, right in zip(drained, expected[first : first + count], strict=True):
            np.testing.assert_array_equal(codes, right)
        first += count


def test_what_was_overwritten_is_said_and_the_ring_goes_on(predictor: CodePredictor) -> None:
    ring = predictor.codes_ring(2, 3)
    given = plan(3, codes_ring=ring)
    for _ in range(3):
        predictor.run_frame(given)
    with pytest.raises(InputError, match="found 3 frames, expected at most 2 between two drains") as raised:
        ring.drain()
    assert raised.value.key == "codes_ring"
    codes = predictor.run_frame(given).codes.numpy()[3 % 2]
    np.testing.assert_array_equal(ring.drain(), codes[np.newaxis])


def test_rows_left_out_and_rows_beyond_the_batch_are_left_alone(predictor: CodePredictor) -> None:
    ring = predictor.codes_ring(2, 4)
    predictor.run_frame(plan(3, codes_ring=ring, active=np.array([True, False, True])))
    (codes,) = ring.drain()
    assert not codes[[1, 3]].any()
    assert codes[[0, 2]].any(axis=1).all()


def test_a_ring_that_does_not_fit_is_refused(predictor: CodePredictor) -> None:
    with pytest.raises(InputError, match="frames: found 0, expected 1 or above"):
        predictor.codes_ring(0, 3)
    with pytest.raises(InputError, match="batch: found 9 rows, expected 1 to 5"):
        predictor.codes_ring(2, 9)
    ring = predictor.codes_ring(2, 2)
    with pytest.raises(InputError, match="codes_ring: shape"):
        predictor.run_frame(plan(3, codes_ring=ring))
    with pytest.raises(InputError, match="output_codes: found a tensor, expected None"):
        predictor.run_frame(plan(2, codes_ring=ring), Tensor.zeros([2, CODES], "int32"))
