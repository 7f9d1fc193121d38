"""run_frame: into the caller's codes and bound tensors, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from contract import CODES, MODEL, WIDTH, binding, plan, predicted
from overtone import (
    CodePredictor,
    FramePlan,
    InputError,
    SamplingArrays,
    SamplingParams,
)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "view",
    [
        lambda codes: codes[:3],
        lambda codes: codes[:3, ::-1],
        lambda codes: codes[2::-1],
        lambda codes: codes[1:8:2],
        lambda codes: codes.reshape(CODES, 10).T[::-2],
    ],
    ids=["contiguous", "columns backwards", "rows backwards", "every other row", "transposed backwards"],
)
def test_codes_go_into_the_callers_tensor_whatever_its_strides(predictor: CodePredictor, dtype: str, view) -> None:
    around = np.full((10, CODES), -9, dtype)
    target = view(around)
    frame = predictor.run_frame(plan(3), target)
    np.testing.assert_array_equal(target[:3], predicted(predictor, 3))
    assert np.shares_memory(frame.codes.numpy(), around)
    assert frame.codes.dtype == dtype
    target[:3] = -9
    assert (around == -9).all()


def test_rows_beyond_the_batch_are_left_alone(predictor: CodePredictor) -> None:
    codes = np.full((5, CODES), -9, "int32")
    hidden, code_zero = MODEL.inputs(5)
    frame_idx = np.full(5, 3)
    arrays = SamplingArrays(np.ones(5, "f4"), np.zeros(5, "i4"), np.ones(5, "f4"), np.arange(5))
    hidden[2:], code_zero[2:], arrays.top_p[2:] = np.nan, -1, np.nan  # type: ignore[index]
    active = np.array([1, 1, 7, 7, 7])
    frame = predictor.run_frame(
        FramePlan(2, code_zero, hidden, arrays, frame_idx, active, advance_frame_idx=True), codes
    ).wait()
    params = [SamplingParams(seed=seed) for seed in range(2)]
    expected = predictor.predict_frame(hidden[:2], code_zero[:2], sampling=params, frame_idx=3).codes
    np.testing.assert_array_equal(codes[:2], expected)
    assert (codes[2:] == -9).all()
    assert frame.status.shape == (2,)
    assert frame_idx.tolist() == [4, 4, 3, 3, 3]


def test_rows_left_out_are_not_written(predictor: CodePredictor) -> None:
    codes = np.full((4, CODES), -9, "int64")
    hiddens = np.full((4, CODES, WIDTH), 5.0, "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    active = np.array([False, True, False, True])
    frame = predictor.run_frame(plan(4, active=active), codes, logits=True).wait()
    np.testing.assert_array_equal(codes[[1, 3]], predicted(predictor, 4)[[1, 3]])
    assert (codes[[0, 2]] == -9).all()
    assert (hiddens[[0, 2]] == 5).all()
    assert not frame.codec_sum.numpy()[[0, 2]].any()
    assert frame.logits is not None
    assert not frame.logits.numpy()[[0, 2]].any()


def test_a_finished_row_that_had_failed_no_longer_fails_the_frame(predictor: CodePredictor) -> None:
    failing = predictor.run_frame(plan(2, code_zero=[0, -1]))
    assert failing.status.tolist() == [0, -1]
    predictor.run_frame(plan(2, active=np.array([True, False]))).wait()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((3, CODES), "f4"), "output_codes: type float32, expected int32 or int64"),
        (np.zeros((3, CODES), "i2"), "output_codes: type int16, expected int32 or int64"),
        (np.zeros((2, CODES), "i4"), "output_codes: shape [2, 4], expected [3 or more, 4]"),
        (np.zeros((3, CODES + 1), "i4"), "output_codes: shape [3, 5], expected [3 or more, 4]"),
        (np.zeros(3 * CODES, "i4"), "output_codes: shape [12], expected [3 or more, 4]"),
        (np.broadcast_to(np.int32(0), (3, CODES)), "output_codes: a read-only tensor, expected a writable one"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(8, "i4"), (3, CODES), (4, 4)),
            "output_codes: elements that share memory, expected one place for every element",
        ),
        ([[0] * CODES] * 3, "output_codes: list, expected a tensor (a DLPack producer or a NumPy array)"),
    ],
)
def test_codes_that_cannot_be_written_are_refused(predictor: CodePredictor, codes: object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        predictor.run_frame(plan(3), codes)  # type: ignore[arg-type]
    assert str(refused.value) == message
    assert refused.value.tensor == "output_codes"


@pytest.mark.parametrize("batch", [0, -1, 6, 2**62])
def test_a_batch_out_of_range_is_refused(predictor: CodePredictor, batch: int) -> None:
    with pytest.raises(InputError, match=f"found {batch} rows, expected 1 to 5") as refused:
        predictor.run_frame(plan(3, active_batch_size=batch))
    assert refused.value.key == "active_batch_size"


@pytest.mark.parametrize("batch", [2.0, "2", None, 2**64, [2]])
def test_a_batch_that_is_no_number_is_refused(predictor: CodePredictor, batch: object) -> None:
    with pytest.raises(InputError, match=r"active_batch_size: found .*, expected a whole number of at most 64 bits"):
        predictor.run_frame(plan(3, active_batch_size=batch))


@pytest.mark.parametrize("name", ["talker_last_hidden", "code_zero", "active", "sampling", "frame_idx", "table"])
def test_codes_over_an_input_are_refused_and_nothing_is_written(predictor: CodePredictor, name: str) -> None:
    memory = np.zeros(4096, "int64")
    table = memory.view("f4")[: 50 * WIDTH].reshape(50, WIDTH)
    shared = {
        "talker_last_hidden": memory.view("f4")[: 2 * WIDTH].reshape(2, WIDTH),
        "code_zero": memory[:2],
        "active": memory[2:4],
        "sampling": SamplingArrays(np.ones(2, "f4"), memory.view("i4")[6:8], np.ones(2, "f4"), np.arange(2)),
        "frame_idx": memory[4:5],
        "table": None,
    }[name]
    if name == "table":
        predictor.bind(binding(code_zero_embed_table=table))
    changes = {} if shared is None else {name: shared}
    if name == "sampling":
        changes["frame_idx"] = 0
    codes = memory[: 2 * CODES].reshape(2, CODES)
    with pytest.raises(InputError, match=r"output_codes overlaps \w+ in memory") as refused:
        predictor.run_frame(plan(2, **changes), codes)
    assert refused.value.tensor == "output_codes"
    assert not memory.any()


def test_an_index_that_is_advanced_is_an_output(predictor: CodePredictor) -> None:
    memory = np.ones(2, "int64")
    with pytest.raises(InputError, match="frame_idx overlaps code_zero in memory"):
        predictor.run_frame(plan(2, code_zero=memory, frame_idx=memory, advance_frame_idx=True))
    predictor.run_frame(plan(2, code_zero=memory, frame_idx=memory))
    assert memory.tolist() == [1, 1]


def test_two_outputs_in_one_place_are_refused(predictor: CodePredictor) -> None:
    hiddens = np.zeros((4, CODES, WIDTH), "f4")
    predictor.bind(binding(codec_hiddens=hiddens))
    with pytest.raises(InputError, match="output_codes overlaps codec_hiddens in memory"):
        predictor.run_frame(plan(4), hiddens.view("i4").reshape(-1)[: 4 * CODES].reshape(4, CODES))


def test_outputs_that_are_not_given_are_reused(predictor: CodePredictor) -> None:
    first = predictor.run_frame(plan(2))
    kept = first.codes.tolist()
    second = predictor.run_frame(plan(2, code_zero=MODEL.inputs(2, seed=5)[1]))
    for name in ("codes", "codec_sum", "codec_hiddens", "status"):
        assert np.shares_memory(getattr(first, name).numpy(), getattr(second, name).numpy())
    assert first.codes.tolist() == second.codes.tolist() != kept
    assert not np.shares_memory(predictor.run_frame(plan(3)).codes.numpy(), second.codes.numpy())


def test_a_frame_that_is_refused_writes_nothing(predictor: CodePredictor) -> None:
    codes = np.full((2, CODES), -9, "i4")
    frame_idx = np.array([0])
    for changes in (
        {"sampling": SamplingArrays(np.array([1, -1], "f4"), np.zeros(2, "i4"), np.ones(2, "f4"), np.arange(2))},
        {"sampling": SamplingParams(), "frame_idx": np.array([-1])},
    ):
        with pytest.raises(InputError):
            predictor.run_frame(plan(2, **({"frame_idx": frame_idx, "advance_frame_idx": True} | changes)), codes)
    assert (codes == -9).all()
    assert frame_idx.tolist() == [0]
    assert predictor.stats()["frames"] == 0
