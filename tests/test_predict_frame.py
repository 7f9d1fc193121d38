"""predict_frame: what it takes, what it refuses, what a failing row does, and that the caller owns what it returns."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from golden import GoldenDirectory
from models import RandomModel, bits, load, row_bits
from overtone import BindingError, CodePredictor, FrameError, InputError, SamplingParams, Tensor

MODEL = RandomModel()


@pytest.fixture(scope="module")
def predictor() -> CodePredictor:
    return MODEL.load(max_batch=6)


def test_outputs_have_the_documented_shapes_and_types(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(2)
    frame = predictor.predict_frame(hidden, code_zero, logits=True)
    residual, width, size = MODEL.residual_codebooks, MODEL.hidden_size, MODEL.codebook_size
    described = [
        (output.shape, output.dtype)
        for output in (frame.codes, frame.codec_sum, frame.codec_hiddens, frame.status, frame.logits)
        if output is not None
    ]
    assert described == [
        ((2, residual + 1), "int32"),
        ((2, width), "float32"),
        ((2, residual + 1, width), "float32"),
        ((2,), "int32"),
        ((2, residual, size), "float32"),
    ]
    assert predictor.predict_frame(hidden, code_zero).logits is None
    assert frame.ready()
    assert frame.wait() is frame


def test_codes_start_with_code_zero_and_follow_the_logits(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(4)
    host = predictor.predict_frame(hidden, code_zero, logits=True).to_host()
    assert host.logits is not None
    np.testing.assert_array_equal(host.codes[:, 0], code_zero)
    np.testing.assert_array_equal(host.codes[:, 1:], host.logits.argmax(axis=-1))


def test_code_zero_may_be_a_list_or_any_integer_tensor(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    expected = bits(predictor.predict_frame(hidden, code_zero).codes)
    wide = np.repeat(code_zero.astype(np.int64), 2)[::2]
    for given in (code_zero.tolist(), tuple(code_zero), wide, Tensor.from_dlpack(code_zero), wide[::-1][::-1]):
        assert bits(predictor.predict_frame(hidden, given).codes) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_hidden_rows_may_be_strided_any_way(predictor: CodePredictor, dtype: str) -> None:
    hidden, code_zero = MODEL.inputs(3)
    hidden = hidden.astype(dtype)
    expected = predictor.predict_frame(hidden, code_zero)
    spread = np.zeros((6, 2 * MODEL.hidden_size), dtype)
    spread[::2, ::2] = hidden
    read_only = hidden.copy()
    read_only.flags.writeable = False
    offset = np.frombuffer(b"\0" + hidden.tobytes(), dtype, offset=1).reshape(hidden.shape)
    for given in (spread[::2, ::2], np.asfortranarray(hidden), hidden[::-1].copy()[::-1], read_only, offset):
        frame = predictor.predict_frame(given, code_zero)
        assert (bits(frame.codes), bits(frame.codec_sum)) == (bits(expected.codes), bits(expected.codec_sum))


def test_inputs_are_left_as_they_were(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    hidden[1, 0] = np.nan
    before = bits(hidden), bits(code_zero)
    predictor.predict_frame(hidden, code_zero, sampling=SamplingParams(), frame_idx=1)
    assert (bits(hidden), bits(code_zero)) == before


# Failing rows


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, np.float32(3e38)])
def test_a_failing_row_fails_alone_and_the_next_frame_is_sound(predictor: CodePredictor, poison: float) -> None:
    hidden, code_zero = MODEL.inputs(4)
    params = [SamplingParams(seed=seed) for seed in range(4)]
    sound = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=9, logits=True)
    broken = hidden.copy()
    broken[2] = poison
    frame = predictor.predict_frame(broken, code_zero, sampling=params, frame_idx=9, logits=True)
    for row in (0, 1, 3):
        assert row_bits(frame, row) == row_bits(sound, row)
    if np.isfinite(poison):  # the norm's sum overflows: the row is all zero there, and still finite
        return
    assert frame.status.tolist() == [0, 0, 1, 0]
    assert frame.codes.tolist()[2] == [code_zero[2], *[0] * MODEL.residual_codebooks]
    assert np.isfinite(frame.codec_sum).all()
    again = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=9, logits=True)
    assert [row_bits(again, row) for row in range(4)] == [row_bits(sound, row) for row in range(4)]


@pytest.mark.parametrize("wrong", [-1, MODEL.code_zero_size, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)])
def test_a_code_zero_out_of_range_fails_its_row_alone(predictor: CodePredictor, wrong: int) -> None:
    hidden, code_zero = MODEL.inputs(3)
    sound = predictor.predict_frame(hidden, code_zero)
    codes = code_zero.astype(np.int64)
    codes[1] = wrong
    for given in (codes, codes.tolist()):
        frame = predictor.predict_frame(hidden, given)
        assert frame.status.tolist() == [0, -1, 0]
        assert [row_bits(frame, row) for row in (0, 2)] == [row_bits(sound, row) for row in (0, 2)]
        assert np.isfinite(frame.codec_sum).all()


def test_the_last_row_of_the_talkers_table_is_in_range(predictor: CodePredictor) -> None:
    hidden, _ = MODEL.inputs(1)
    assert predictor.predict_frame(hidden, [MODEL.code_zero_size - 1]).status.tolist() == [0]


def test_waiting_names_every_failed_row_and_why(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    hidden[0] = np.nan
    frame = predictor.predict_frame(hidden, [int(code_zero[0]), int(code_zero[1]), -7])
    for wait in (frame.wait, frame.to_host):
        with pytest.raises(FrameError, match=r"row 0: codebook 1 .*; row 2: code_0 is outside") as failed:
            wait()
        assert (failed.value.rows, failed.value.statuses) == ((0, 2), (1, -1))
    assert frame.ready()


def test_a_draw_that_overflows_by_its_temperature_says_which_codebook() -> None:
    model = RandomModel(head_scale=1e30)
    predictor = model.load()
    hidden, code_zero = model.inputs(2)
    rows = [SamplingParams(temperature=1e-20), SamplingParams.greedy()]
    frame = predictor.predict_frame(hidden, code_zero, sampling=rows, frame_idx=0)
    assert frame.status.tolist() == [1, 0]
    with pytest.raises(FrameError, match=r"codebook 1 .* overflow when divided by temperature"):
        frame.wait()


# Rows left out


@pytest.mark.parametrize("mask_type", ["bool", "uint8", "int32", "int64"])
def test_rows_left_out_cost_nothing_and_stay_zero(predictor: CodePredictor, mask_type: str) -> None:
    hidden, code_zero = MODEL.inputs(4)
    hidden[1], code_zero[3] = np.nan, -5
    active = np.array([1, 0, 1, 0]).astype(mask_type)
    frame = predictor.predict_frame(hidden, code_zero, active=active, logits=True).wait()
    alone = predictor.predict_frame(hidden[[0, 2]], code_zero[[0, 2]], logits=True)
    assert [row_bits(frame, row) for row in (0, 2)] == [row_bits(alone, row) for row in (0, 1)]
    for row in (1, 3):
        assert not any(b"".join(row_bits(frame, row)))


def test_a_frame_of_no_active_row_is_a_frame(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(2)
    before = predictor.stats()
    frame = predictor.predict_frame(hidden, code_zero, active=np.zeros(2, bool)).wait()
    after = predictor.stats()
    assert not np.any(frame.codes)
    assert (after["frames"] - before["frames"], after["rows"] - before["rows"]) == (1, 0)


def test_the_counters_count_frames_rows_and_failures() -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(3)
    predictor.predict_frame(hidden, code_zero)
    predictor.predict_frame(hidden, [-1, 0, 0], active=np.array([1, 1, 0]))
    stats = predictor.stats()
    assert (stats["frames"], stats["rows"], stats["failed_rows"]) == (2, 5, 1)
    assert stats["busy_seconds"] > 0


# What is refused


def refused(predictor: CodePredictor, **changes: object) -> InputError:
    hidden, code_zero = MODEL.inputs(2)
    arguments = {"talker_last_hidden": hidden, "code_zero": code_zero} | changes
    with pytest.raises(InputError) as error:
        predictor.predict_frame(**arguments)  # type: ignore[arg-type]
    return error.value


@pytest.mark.parametrize(
    ("change", "message", "tensor"),
    [
        ({"talker_last_hidden": None}, "talker_last_hidden: NoneType, expected a tensor", "talker_last_hidden"),
        ({"talker_last_hidden": np.zeros((2, 32))}, "type float64, expected float32, float16", "talker_last_hidden"),
        ({"talker_last_hidden": np.zeros((2, 31), "f4")}, "shape [2, 31], expected [B, 32]", "talker_last_hidden"),
        ({"talker_last_hidden": np.zeros((2, 1, 32), "f4")}, "shape [2, 1, 32]", "talker_last_hidden"),
        ({"talker_last_hidden": np.zeros((2, 32), ">f4")}, "byte-swapped", "talker_last_hidden"),
        ({"code_zero": [1.5, 2]}, "code_zero: found [1.5, 2], expected a tensor of int32 or int64", "code_zero"),
        ({"code_zero": 3}, "code_zero: found 3", "code_zero"),
        ({"code_zero": "ab"}, "code_zero: found 'ab'", "code_zero"),
        ({"code_zero": [0, 2**63]}, "code_zero: found [0, 9223372036854775808]", "code_zero"),
        ({"code_zero": np.zeros(2, "f4")}, "type float32, expected int32 or int64", "code_zero"),
        ({"code_zero": np.zeros(3, "i4")}, "shape [3], expected [2]", "code_zero"),
        ({"code_zero": np.zeros((2, 1), "i4")}, "shape [2, 1], expected [2]", "code_zero"),
        ({"active": [True, False]}, "active: list, expected a tensor", "active"),
        ({"active": np.ones(2, "f4")}, "type float32, expected bool", "active"),
        ({"active": np.ones(1, bool)}, "shape [1], expected [2]", "active"),
        ({"frame_idx": np.zeros(2, "i4")}, "type int32, expected uint64 or int64", "frame_idx"),
        ({"frame_idx": np.zeros(3, "i8")}, "shape [3], expected [2]", "frame_idx"),
        ({"frame_idx": np.zeros((), "i8")}, "shape [], expected [2]", "frame_idx"),
    ],
)
def test_a_wrong_tensor_is_named_with_what_was_expected(
    predictor: CodePredictor, change: dict[str, Any], message: str, tensor: str
) -> None:
    error = refused(predictor, **change)
    assert message in str(error)
    assert error.tensor == tensor
    assert error.found
    assert error.expected


@pytest.mark.parametrize(
    ("change", "message", "key"),
    [
        ({"code_zero": [1]}, "code_zero: found 1 entries, expected 2, one per row", "code_zero"),
        ({"sampling": [SamplingParams()]}, "sampling: found 1 entries, expected 2", "sampling"),
        ({"sampling": "greedy"}, "sampling: found 'greedy', expected SamplingParams", "sampling"),
        ({"sampling": {"top_k": 5}}, "sampling: found {'top_k': 5}", "sampling"),
        ({"sampling": [SamplingParams(), None], "frame_idx": 0}, "sampling: found [SamplingParams(", "sampling"),
        ({"sampling": SamplingParams()}, "frame_idx is unset (-1)", "frame_idx"),
        ({"frame_idx": -2}, "frame_idx: found -2, expected a whole number from 0 to 2^64 - 1", "frame_idx"),
        ({"frame_idx": 2**64}, "frame_idx: found 18446744073709551616", "frame_idx"),
        ({"frame_idx": 1.0}, "frame_idx: found 1.0", "frame_idx"),
        ({"frame_idx": None}, "frame_idx: found None", "frame_idx"),
        ({"talker_last_hidden": np.zeros((0, 32), "f4"), "code_zero": []}, "found 0 rows", "active_batch_size"),
        ({"talker_last_hidden": np.zeros((7, 32), "f4"), "code_zero": [0] * 7}, "1 to 6", "active_batch_size"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(
    predictor: CodePredictor, change: dict[str, Any], message: str, key: str
) -> None:
    error = refused(predictor, **change)
    assert message in str(error)
    assert error.key == key


def test_a_long_wrong_argument_makes_a_short_message(predictor: CodePredictor) -> None:
    assert len(str(refused(predictor, code_zero=[0.5] * 100_000))) < 500
    assert len(str(refused(predictor, sampling=["x" * 100_000]))) < 500


def test_an_unset_index_of_a_row_matters_only_where_the_row_is_drawn(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(2)
    frame_idx = np.array([4, -1])
    mixed = [SamplingParams(), SamplingParams.greedy()]
    frame = predictor.predict_frame(hidden, code_zero, sampling=mixed, frame_idx=frame_idx).wait()
    left_out = predictor.predict_frame(
        hidden, code_zero, sampling=SamplingParams(), frame_idx=frame_idx, active=np.array([True, False])
    ).wait()
    assert row_bits(frame, 0) == row_bits(left_out, 0)
    error = refused(predictor, sampling=SamplingParams(), frame_idx=frame_idx)
    assert "frame_idx of row 1 is -1: a sampled frame needs its index" in str(error)


def test_a_checkpoint_without_the_talkers_table_says_how_to_get_one(standalone: GoldenDirectory) -> None:
    predictor = CodePredictor.from_pretrained(standalone.path)
    with pytest.raises(BindingError, match=r"no talker's codec table: bind one .* or load with code_zero_table"):
        predictor.predict_frame(standalone.talker_last_hidden[0], standalone.code_zero[0])


# Ownership


def test_returned_tensors_belong_to_the_caller(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    first = predictor.predict_frame(hidden, code_zero, logits=True)
    kept = [row_bits(first, row) for row in range(3)]
    other_hidden, other_code_zero = MODEL.inputs(3, seed=1)
    second = predictor.predict_frame(other_hidden, other_code_zero, logits=True)
    assert [row_bits(first, row) for row in range(3)] == kept
    assert [row_bits(second, row) for row in range(3)] != kept
    first.codes.numpy()[:] = -1
    assert not np.any(second.codes.numpy() == -1)


def test_outputs_outlive_the_frame_and_the_predictor() -> None:
    predictor = MODEL.load()
    hidden, code_zero = MODEL.inputs(2)
    frame = predictor.predict_frame(hidden, code_zero)
    expected = frame.codes.tolist(), frame.codec_sum.tolist()
    arrays = frame.codes.numpy(), np.from_dlpack(frame.codec_sum)
    table = predictor.codec_embed_table(0).numpy()
    first_row = table[0].tolist()
    del predictor, frame
    gc.collect()
    churn = [np.full(arrays[1].shape, 7.0, np.float32) for _ in range(200)]
    assert (arrays[0].tolist(), arrays[1].tolist()) == expected
    assert table[0].tolist() == first_row
    del churn


def test_inputs_are_let_go_after_the_frame(predictor: CodePredictor) -> None:
    class Watched(np.ndarray):
        pass

    hidden, code_zero = MODEL.inputs(2)
    watched = hidden.view(Watched)
    gone = weakref.ref(watched)
    frame = predictor.predict_frame(watched, code_zero)
    del watched
    gc.collect()
    predictor.predict_frame(hidden, code_zero)
    gc.collect()
    assert gone() is None
    assert frame.ready()


def test_the_default_types_of_a_golden_model_reach_the_outputs(tts_tiny_projected: GoldenDirectory) -> None:
    predictor = load(tts_tiny_projected)
    hidden = Tensor.zeros([2, predictor.spec.talker_hidden_size], "bfloat16")
    frame = predictor.predict_frame(hidden, [0, 1])
    assert (frame.codec_sum.dtype, frame.codec_hiddens.dtype) == ("bfloat16", "bfloat16")
    assert frame.to_host().codec_sum.dtype == np.float32
