"""Frames bound once and launched many times: they read their tensors anew, and advance their index."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from contract import CODES, MODEL, WIDTH, plan, predicted
from overtone import (
    CodePredictor,
    FramePlan,
    InputError,
    SamplingArrays,
    SamplingParams,
    Tensor,
)


def test_a_bound_frame_reads_its_tensors_anew(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(2)
    codes = np.zeros((2, CODES), "i4")
    frame_idx, active = np.array([0], "u8"), np.ones(2, "i4")
    arrays = SamplingArrays(np.ones(2, "f4"), np.zeros(2, "i4"), np.ones(2, "f4"), np.array([1, 2], "u8"))
    bound = predictor.bind_frame(FramePlan(2, code_zero, hidden, arrays, frame_idx, active), codes)

    def expected() -> np.ndarray:
        rows = [
            SamplingParams(float(arrays.temperature[row]), int(arrays.top_k[row]), float(arrays.top_p[row]), int(seed))  # type: ignore[index]
            for row, seed in enumerate(arrays.seed)  # type: ignore[arg-type]
        ]
        return predictor.predict_frame(hidden, code_zero, sampling=rows, frame_idx=int(frame_idx[0])).codes.numpy()

    seen = set()
    for change in (
        lambda: None,
        lambda: hidden.__imul__(-1),
        lambda: code_zero.__iadd__(1),
        lambda: frame_idx.__iadd__(2**63),
        lambda: arrays.temperature.__imul__(3),  # type: ignore[union-attr]
        lambda: arrays.top_k.__iadd__(2),  # type: ignore[union-attr]
        lambda: arrays.top_p.__imul__(0.25),  # type: ignore[union-attr]
        lambda: arrays.seed.__iadd__(np.uint64(10**15)),  # type: ignore[union-attr]
    ):
        change()
        assert bound.launch() is bound.frame
        np.testing.assert_array_equal(codes, expected())
        seen.add(codes.tobytes())
    assert len(seen) >= 5
    active[0], codes[:] = 0, -9
    bound.launch()
    assert (codes[0] == -9).all()
    assert (codes[1] >= 0).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_the_index_advances_in_the_callers_tensor(predictor: CodePredictor, dtype: str) -> None:
    one, per_row = np.array([7], dtype), np.array([1, 5, 2], dtype)
    active = np.array([True, False, True])
    for frame_idx, expected in ((one, [10]), (per_row, [4, 5, 5])):
        bound = predictor.bind_frame(
            plan(3, sampling=SamplingParams(), frame_idx=frame_idx, active=active, advance_frame_idx=True)
        )
        for _ in range(3):
            bound.launch()
        assert frame_idx.tolist() == expected


def test_an_index_given_as_a_number_advances_from_launch_to_launch(predictor: CodePredictor) -> None:
    params = SamplingParams(temperature=3.0, seed=11)
    bound = predictor.bind_frame(plan(2, sampling=params, frame_idx=2**64 - 2, advance_frame_idx=True))
    still = predictor.bind_frame(plan(2, sampling=params, frame_idx=0), np.zeros((2, CODES), "i4"))
    for index in (2**64 - 2, 2**64 - 1, 0, 1):
        np.testing.assert_array_equal(bound.launch().codes, predicted(predictor, 2, sampling=params, frame_idx=index))
    for _ in range(3):
        np.testing.assert_array_equal(still.launch().codes, predicted(predictor, 2, sampling=params, frame_idx=0))


def test_a_wrong_value_in_a_parameter_tensor_names_row_and_parameter(predictor: CodePredictor) -> None:
    arrays = SamplingArrays(np.ones(3, "f4"), np.zeros(3, "i8"), np.ones(3, "f4"), np.arange(3))
    bound = predictor.bind_frame(plan(3, sampling=arrays, frame_idx=0))
    bound.launch()
    for array, wrong, message in (
        (arrays.temperature, np.nan, "row 1: temperature is NaN"),
        (arrays.top_k, -3, "row 1: top_k is -3"),
        (arrays.top_p, 0.0, "row 1: top_p is 0"),
    ):
        good = array[1]  # type: ignore[index]
        array[1] = wrong  # type: ignore[index]
        with pytest.raises(InputError, match=message):
            bound.launch()
        array[1] = good  # type: ignore[index]
    bound.launch().wait()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": np.ones(2)}, "temperature: type float64, expected float32"),
        ({"top_k": np.zeros(2, "f4")}, "top_k: type float32, expected int32 or int64"),
        ({"top_p": np.ones(1, "f4")}, r"top_p: shape \[1\], expected \[2 or more\]"),
        ({"seed": np.zeros(2, "i4")}, "seed: type int32, expected uint64 or int64"),
        ({"seed": [1, 2]}, "seed: list, expected a tensor"),
    ],
)
def test_parameter_tensors_of_another_kind_are_refused(
    predictor: CodePredictor, change: dict[str, Any], message: str
) -> None:
    arrays = {
        "temperature": np.ones(2, "f4"),
        "top_k": np.zeros(2, "i4"),
        "top_p": np.ones(2, "f4"),
        "seed": np.zeros(2, "u8"),
    } | change
    with pytest.raises(InputError, match=message):
        predictor.bind_frame(plan(2, sampling=SamplingArrays(**arrays), frame_idx=0))


def test_a_bound_frame_keeps_what_it_needs_alive() -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(3)
    expected = predictor.predict_frame(hidden, code_zero).codes.tolist()
    bound = predictor.bind_frame(FramePlan(3, code_zero, hidden), np.zeros((3, CODES), "i8"))
    del predictor, hidden, code_zero
    gc.collect()
    churn = [np.full((3, WIDTH), np.nan, "f4") for _ in range(200)]
    assert bound.launch().wait().codes.tolist() == expected
    del churn


def test_a_bound_frame_lets_go_of_its_tensors_with_itself(predictor: CodePredictor) -> None:
    class Watched(np.ndarray):
        pass

    tensors = [array.view(Watched) for array in (*MODEL.inputs(2), np.zeros((2, CODES), "i4"))]
    gone = [weakref.ref(tensor) for tensor in tensors]
    bound = predictor.bind_frame(FramePlan(2, tensors[1], tensors[0]), tensors[2])
    del tensors
    gc.collect()
    bound.launch()
    assert all(reference() is not None for reference in gone)
    del bound
    gc.collect()
    assert all(reference() is None for reference in gone)


def test_a_bound_frame_may_be_launched_from_many_threads(predictor: CodePredictor) -> None:
    frame_idx = np.array([0])
    bound = predictor.bind_frame(plan(1, frame_idx=frame_idx, advance_frame_idx=True))

    def launch() -> None:
        for _ in range(50):
            bound.launch()

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert frame_idx.tolist() == [200]


def test_plans_and_frames_with_arrays_compare_by_identity(predictor: CodePredictor) -> None:
    one, other = plan(2), plan(2)
    assert one == one  # the comparison itself must not raise
    assert one != other
    assert len({one, other, predictor.run_frame(one)}) == 3


def test_outputs_may_be_tensors_of_overtone(predictor: CodePredictor) -> None:
    codes = Tensor.zeros([3, CODES], "int64")
    frame = predictor.run_frame(plan(3), codes)
    np.testing.assert_array_equal(codes.numpy(), predicted(predictor, 3))
    assert np.shares_memory(frame.codes.numpy(), codes.numpy())
