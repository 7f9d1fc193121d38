"""Codes, sums, embeddings and logits equal the float64 reference on every golden checkpoint, through the public API."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from golden import SAMPLING_SETS, GoldenDirectory
from models import Array, bits, load, sampling_rows
from overtone import CodePredictor, Frame, FramePlan, Tensor


@pytest.fixture(scope="module")
def predictor(golden: GoldenDirectory) -> CodePredictor:
    return load(golden)


def frames(predictor: CodePredictor, golden: GoldenDirectory, sampling_set: str) -> list[Frame]:
    return [
        predictor.predict_frame(hidden, code_zero, sampling=rows, frame_idx=index, logits=True).wait()
        for rows in [sampling_rows(golden, sampling_set)]
        for index, (hidden, code_zero) in enumerate(zip(golden.talker_last_hidden, golden.code_zero, strict=True))
    ]


def stacked(tensors: list[Tensor]) -> Array:
    return np.stack([tensor.numpy() for tensor in tensors])


def rounding(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """One unit in the last place of each value."""
    return np.spacing(np.abs(values))


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_every_golden_code_is_equal(predictor: CodePredictor, golden: GoldenDirectory, sampling_set: str) -> None:
    found = stacked([frame.codes for frame in frames(predictor, golden, sampling_set)])
    np.testing.assert_array_equal(found, golden.expected(sampling_set, "codes"))


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_the_sum_is_within_one_rounding(predictor: CodePredictor, golden: GoldenDirectory, sampling_set: str) -> None:
    found = stacked([frame.codec_sum for frame in frames(predictor, golden, sampling_set)])
    expected = golden.expected(sampling_set, "codec_sum")
    assert found.dtype == np.float32
    assert np.all(np.abs(found - expected) <= rounding(expected))


def test_the_embeddings_are_the_stored_rows_and_the_talkers_rows_are_not_written(
    predictor: CodePredictor, golden: GoldenDirectory
) -> None:
    found = stacked([frame.codec_hiddens for frame in frames(predictor, golden, "greedy")])
    expected = golden.expected("greedy", "codec_hiddens").astype(found.dtype)
    residual = predictor.num_rvq_layers
    assert bits(found[:, :, 1:residual]) == bits(expected[:, :, 1:residual])
    assert not found[:, :, [0, residual]].any()


def test_the_logits_are_within_a_ten_thousandth_of_the_largest(
    predictor: CodePredictor, golden: GoldenDirectory
) -> None:
    found = stacked([frame.logits for frame in frames(predictor, golden, "greedy") if frame.logits is not None])
    expected = golden.expected("greedy", "logits")
    assert found.shape == expected.shape
    error = np.abs(found - expected).max(axis=-1) / np.abs(expected).max(axis=-1)
    assert error.max() < 1e-4


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_the_full_contract_gives_the_same_frames(golden: GoldenDirectory, sampling_set: str) -> None:
    predictor = CodePredictor("cpu", dtype="float32")
    predictor.preallocate(golden.path, "", max_batch=3, code_zero_table=golden.code_zero_table_file)
    frame_idx = np.zeros(1, np.int64)
    hidden, code_zero = golden.talker_last_hidden[0].copy(), golden.code_zero[0].copy()
    plan = FramePlan(3, code_zero, hidden, sampling_rows(golden, sampling_set), frame_idx, advance_frame_idx=True)
    bound = predictor.bind_frame(plan)
    for index, expected in enumerate(golden.expected(sampling_set, "codes")):
        hidden[:], code_zero[:] = golden.talker_last_hidden[index], golden.code_zero[index]
        np.testing.assert_array_equal(bound.launch().wait().codes, expected)
    assert frame_idx.tolist() == [len(golden.code_zero)]


def test_rows_alone_draw_what_the_batch_draws(predictor: CodePredictor, golden: GoldenDirectory) -> None:
    rows = sampling_rows(golden, "mixed")
    for row, params in enumerate(rows):
        for index in range(len(golden.code_zero)):
            hidden, code_zero = golden.talker_last_hidden[index, [row]], golden.code_zero[index, [row]]
            frame = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=index)
            np.testing.assert_array_equal(frame.codes.numpy()[0], golden.expected("mixed", "codes")[index, row])


def test_the_projected_model_keeps_its_bfloat16_weights_exactly(tts_tiny_projected: GoldenDirectory) -> None:
    default, wide = load(tts_tiny_projected), load(tts_tiny_projected, dtype="float32")
    assert (default.dtype, wide.dtype) == ("bfloat16", "float32")
    for narrow, full in zip(
        frames(default, tts_tiny_projected, "greedy"), frames(wide, tts_tiny_projected, "greedy"), strict=True
    ):
        assert narrow.logits is not None
        assert full.logits is not None
        assert bits(narrow.logits) == bits(full.logits)


@pytest.mark.parametrize(("dtype", "agreement"), [("bfloat16", 0.97), ("int8", 0.85)])
def test_narrow_weights_stay_close_to_the_reference(golden: GoldenDirectory, dtype: str, agreement: float) -> None:
    """Logits of the first codebook, whose context no earlier pick changes, agree in most picks; errors are small."""
    predictor = load(golden, dtype=dtype)
    assert predictor.dtype == dtype
    found = stacked([frame.logits for frame in frames(predictor, golden, "greedy") if frame.logits is not None])
    expected = golden.expected("greedy", "logits")
    first, reference = found[:, :, 0], expected[:, :, 0]
    error = np.linalg.norm(first - reference, axis=-1) / np.linalg.norm(reference, axis=-1)
    assert error.max() < (0.02 if dtype == "bfloat16" else 0.08)
    agreeing = (first.argmax(axis=-1) == reference.argmax(axis=-1)).mean()
    assert agreeing >= agreement


@pytest.mark.parametrize("hidden_type", ["float16", "bfloat16"])
def test_the_sum_is_rounded_once_to_the_hidden_type(
    predictor: CodePredictor, golden: GoldenDirectory, hidden_type: str
) -> None:
    hidden = Tensor.zeros(golden.talker_last_hidden[0].shape, hidden_type)
    narrow = predictor.predict_frame(hidden, golden.code_zero[0])
    wide = predictor.predict_frame(np.zeros_like(golden.talker_last_hidden[0]), golden.code_zero[0])
    assert narrow.codec_sum.dtype == hidden_type
    np.testing.assert_array_equal(narrow.codes, wide.codes)
    exact = wide.codec_sum.numpy()
    rounded = exact.astype(np.float16) if hidden_type == "float16" else to_bfloat16(exact)
    assert bits(narrow.codec_sum) == bits(rounded)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 rounded to bfloat16, ties to even, as float32."""
    words = values.view(np.uint32).astype(np.int64)
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)
