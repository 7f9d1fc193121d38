"""Frames on the device are right: as the reference has them, in every batch, with every kind of argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from golden import SAMPLING_SETS, GoldenDirectory
from models import bits, row_bits, sampling_rows
from on_device import MODEL, codes_of, cuda_golden, cuda_model, inputs, on_cuda, plan, taken, torch
from overtone import (
    Binding,
    BindingError,
    CodePredictor,
    FrameError,
    FramePlan,
    InputError,
    SamplingArrays,
    SamplingParams,
    Tensor,
    UnsupportedError,
)

pytestmark = pytest.mark.gpu

SAMPLED = SamplingParams(temperature=0.9, top_k=10, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def predictor() -> CodePredictor:
    return cuda_model(20)


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_every_golden_code_is_equal_in_float32(golden: GoldenDirectory, sampling_set: str) -> None:
    predictor = cuda_golden(golden)
    rows = sampling_rows(golden, sampling_set)
    expected = golden.expected(sampling_set, "codes")
    sums = golden.expected(sampling_set, "codec_sum")
    for index, (hidden, code_zero) in enumerate(zip(golden.talker_last_hidden, golden.code_zero, strict=True)):
        frame = predictor.predict_frame(
            on_cuda(hidden), on_cuda(code_zero), sampling=rows, frame_idx=index, logits=True
        )
        host = frame.to_host()
        np.testing.assert_array_equal(host.codes, expected[index])
        assert np.all(np.abs(host.codec_sum - sums[index]) <= np.spacing(np.abs(sums[index])))
        if sampling_set == "greedy":
            residual = predictor.num_rvq_layers
            hiddens = golden.expected("greedy", "codec_hiddens")[index].astype(host.codec_hiddens.dtype)
            assert bits(host.codec_hiddens[:, 1:residual]) == bits(hiddens[:, 1:residual])
            assert host.logits is not None
            error = np.abs(host.logits - golden.expected("greedy", "logits")[index])
            assert error.max() < 1e-4 * np.abs(host.logits).max()


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_a_bound_frame_counts_its_index_on_the_device(golden: GoldenDirectory, sampling_set: str) -> None:
    predictor = cuda_golden(golden, max_batch=3)
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    hidden, code_zero = on_cuda(golden.talker_last_hidden[0]), on_cuda(golden.code_zero[0])
    rows = sampling_rows(golden, sampling_set)
    bound = predictor.bind_frame(FramePlan(3, code_zero, hidden, rows, index, advance_frame_idx=True))
    for number, expected in enumerate(golden.expected(sampling_set, "codes")):
        hidden.copy_(on_cuda(golden.talker_last_hidden[number]))
        code_zero.copy_(on_cuda(golden.code_zero[number]))
        np.testing.assert_array_equal(codes_of(bound.launch().wait()), expected)
    assert index.tolist() == [len(golden.code_zero)]


@pytest.mark.parametrize("batch", [1, 3, 17, 20])
def test_cuda_and_cpu_draw_the_same_codes_in_float32(predictor: CodePredictor, batch: int) -> None:
    host = MODEL.load(executor="cpu", dtype="float32", max_batch=20)
    for number, sampling in enumerate((None, SAMPLED)):
        arrays = MODEL.inputs(batch, seed=number)
        expected = host.predict_frame(*arrays, sampling=sampling, frame_idx=number).codes.numpy()
        frame = predictor.predict_frame(*map(on_cuda, arrays), sampling=sampling, frame_idx=number)
        np.testing.assert_array_equal(codes_of(frame), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_stream_alone_is_the_same_in_any_slot_of_any_batch(dtype: str) -> None:
    predictor = cuda_model(20, dtype=dtype)
    hidden, code_zero = inputs(20)
    rows = [SamplingParams(temperature=0.5 + 0.1 * row, top_k=row, seed=row) for row in range(20)]
    alone = [
        row_bits(
            predictor.predict_frame(hidden[[row]], code_zero[[row]], sampling=rows[row], frame_idx=5, logits=True),
            0,
        )
        for row in range(20)
    ]
    for order in (list(range(20)), list(range(19, -1, -1)), [7, 3, 12], [4, 4, 4, 4, 4, 9], list(range(2, 19))):
        frame = predictor.predict_frame(
            hidden[order], code_zero[order], sampling=[rows[row] for row in order], frame_idx=5, logits=True
        )
        assert [row_bits(frame, slot) for slot in range(len(order))] == [alone[row] for row in order]


def as_pinned(values: list[int], dtype: Any) -> Any:
    return torch.tensor(values, dtype=dtype).pin_memory()


@pytest.mark.parametrize("kind", ["list", "numpy", "pinned", "int64 on the device", "strided on the device"])
def test_code_zero_may_be_anywhere(predictor: CodePredictor, kind: str) -> None:
    hidden, code_zero = inputs(4)
    values = code_zero.tolist()
    given = {
        "list": values,
        "numpy": np.array(values, np.int64),
        "pinned": as_pinned(values, torch.int32),
        "int64 on the device": code_zero.long(),
        "strided on the device": torch.stack([code_zero, code_zero + 1], 1)[:, 0],
    }[kind]
    expected = codes_of(predictor.predict_frame(hidden, code_zero))
    np.testing.assert_array_equal(codes_of(predictor.predict_frame(hidden, given)), expected)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_sampling_arrays_say_the_same_as_numbers(predictor: CodePredictor, place: str) -> None:
    hidden, code_zero = inputs(3)
    rows = [SAMPLED, SamplingParams.greedy(), SamplingParams(temperature=1.3, top_p=0.5, seed=2**64 - 1)]
    arrays = SamplingArrays(
        torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=place),
        torch.tensor([row.top_k for row in rows], dtype=torch.int64, device=place),
        torch.tensor([row.top_p for row in rows], dtype=torch.float32, device=place),
        torch.tensor([row.seed - (row.seed >> 63 << 64) for row in rows], dtype=torch.int64, device=place),
    )
    expected = codes_of(predictor.predict_frame(hidden, code_zero, sampling=rows, frame_idx=9))
    found = predictor.predict_frame(hidden, code_zero, sampling=arrays, frame_idx=9)
    np.testing.assert_array_equal(codes_of(found), expected)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("per_row", [False, True])
def test_the_frame_index_counts_wherever_it_is(predictor: CodePredictor, place: str, *, per_row: bool) -> None:
    index = torch.full((3 if per_row else 1,), 7, dtype=torch.int64, device=place)
    bound = predictor.bind_frame(plan(3, sampling=SAMPLED, frame_idx=index, advance_frame_idx=True))
    numbered = predictor.bind_frame(plan(3, sampling=SAMPLED, frame_idx=7, advance_frame_idx=True))
    hidden, code_zero = inputs(3)
    for number in range(7, 11):
        expected = codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=number))
        np.testing.assert_array_equal(codes_of(bound.launch().wait()), expected)
        np.testing.assert_array_equal(codes_of(numbered.launch().wait()), expected)
    assert set(index.tolist()) == {11}


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_holes_are_not_written_and_their_neighbours_are_as_alone(predictor: CodePredictor, place: str) -> None:
    hidden, code_zero = inputs(5)
    active = torch.tensor([True, False, True, False, True], device=place)
    whole = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=1)
    holed = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=1, active=active)
    for row in range(5):
        if active[row]:
            assert row_bits(holed, row) == row_bits(whole, row)
        else:
            assert not any(map(any, row_bits(holed, row)))
    index = torch.zeros(5, dtype=torch.int64, device="cuda")
    codes = torch.full((5, MODEL.residual_codebooks + 1), -7, dtype=torch.int32, device="cuda")
    given = plan(5, sampling=SAMPLED, frame_idx=index, active=active.cuda(), advance_frame_idx=True)
    predictor.run_frame(given, codes).wait()
    assert index.tolist() == [1, 0, 1, 0, 1]
    assert codes[[1, 3]].eq(-7).all()
    np.testing.assert_array_equal(
        codes[[0, 2, 4]].cpu(),
        codes_of(predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=0))[[0, 2, 4]],
    )


def test_a_failing_row_fails_alone_and_the_next_frame_is_sound(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(4)
    sound = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=3, logits=True).wait()
    broken, outside = hidden.clone(), code_zero.clone()
    broken[1] = float("nan")
    outside[2] = MODEL.code_zero_size
    frame = predictor.predict_frame(broken, outside, sampling=SAMPLED, frame_idx=3, logits=True)
    with pytest.raises(FrameError) as failed:
        frame.wait()
    assert (failed.value.rows, failed.value.statuses) == ((1, 2), (1, -1))
    for row in (0, 3):
        assert row_bits(frame, row) == row_bits(sound, row)
    assert torch.isfinite(taken(frame.codec_sum)).all()
    again = predictor.predict_frame(hidden, code_zero, sampling=SAMPLED, frame_idx=3, logits=True).wait()
    assert [row_bits(again, row) for row in range(4)] == [row_bits(sound, row) for row in range(4)]


def test_device_parameters_out_of_range_fail_their_row(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(3)
    arrays = SamplingArrays(
        torch.tensor([1.0, -1.0, 1.0], device="cuda"),
        torch.zeros(3, dtype=torch.int32, device="cuda"),
        torch.tensor([1.0, 1.0, 0.0], device="cuda"),
        torch.zeros(3, dtype=torch.int64, device="cuda"),
    )
    with pytest.raises(FrameError) as failed:
        predictor.predict_frame(hidden, code_zero, sampling=arrays, frame_idx=0).wait()
    assert failed.value.rows == (1, 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("place", ["cuda", "pinned"])
def test_codes_go_to_strided_tensors_of_either_width(predictor: CodePredictor, dtype: Any, place: str) -> None:
    wide = torch.full((6, 2 * (MODEL.residual_codebooks + 1)), -1, dtype=dtype)
    wide = wide.cuda() if place == "cuda" else wide.pin_memory()
    frame = predictor.run_frame(plan(4), wide[::1, ::2])
    frame.wait()
    expected = codes_of(predictor.predict_frame(*inputs(4)))
    np.testing.assert_array_equal(wide[:4, ::2].cpu(), expected)
    np.testing.assert_array_equal(frame.codes.numpy()[:4], expected)
    assert wide[4:].eq(-1).all()
    assert wide[:, 1::2].eq(-1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hidden_rows_of_any_float_type_and_stride(predictor: CodePredictor, dtype: Any) -> None:
    hidden, code_zero = inputs(3)
    narrow = hidden.to(dtype)
    strided = torch.zeros(3, 2 * MODEL.hidden_size, dtype=dtype, device="cuda")[:, 1::2]
    strided.copy_(narrow)
    frame = predictor.predict_frame(narrow, code_zero)
    assert taken(frame.codec_sum).dtype == dtype
    same = predictor.predict_frame(strided, code_zero)
    wide = predictor.predict_frame(narrow.float(), code_zero)
    assert torch.equal(taken(same.codec_sum), taken(frame.codec_sum))
    np.testing.assert_array_equal(codes_of(same), codes_of(frame))
    np.testing.assert_array_equal(codes_of(wide), codes_of(frame))
    assert torch.equal(taken(wide.codec_sum).to(dtype), taken(frame.codec_sum))


def test_a_talkers_table_and_hiddens_are_used(tts_tiny_projected: GoldenDirectory) -> None:
    golden = tts_tiny_projected
    predictor = cuda_golden(golden)
    spec = predictor.spec
    hidden, code_zero = on_cuda(golden.talker_last_hidden[0]), on_cuda(golden.code_zero[0])
    before = predictor.predict_frame(hidden, code_zero).to_host()
    assert spec.code_zero_size is not None
    table = torch.randn(spec.code_zero_size, spec.talker_hidden_size, device="cuda")
    hiddens = torch.zeros(
        8,
        spec.codes_per_frame,
        spec.talker_hidden_size,
        dtype=taken(predictor.codec_embed_table(0)).dtype,
        device="cuda",
    )
    predictor.bind(Binding(spec.talker_hidden_size, spec.codes_per_frame, 8, table, hiddens))
    bound = predictor.run_frame(FramePlan(len(code_zero), code_zero, hidden)).to_host()
    assert not np.array_equal(bound.codes, before.codes)
    frame = predictor.run_frame(FramePlan(len(code_zero), code_zero, hidden))
    frame.wait()
    for row, codes in enumerate(codes_of(frame)):
        for k in range(1, spec.residual_codebooks):
            assert torch.equal(hiddens[row, k], taken(predictor.codec_embed_table(k - 1))[int(codes[k])])
    assert hiddens[:, [0, spec.residual_codebooks]].eq(0).all()
    predictor.bind(Binding(spec.talker_hidden_size, spec.codes_per_frame, 8))
    after = predictor.predict_frame(hidden, code_zero).to_host()
    np.testing.assert_array_equal(after.codes, before.codes)


def test_what_does_not_fit_is_named(predictor: CodePredictor) -> None:
    hidden, code_zero = inputs(3)
    on_host = hidden.cpu()
    refused: list[tuple[str, Any]] = [
        (
            "talker_last_hidden: on cpu, expected a tensor on cuda:0",
            lambda: predictor.predict_frame(on_host, code_zero),
        ),
        ("talker_last_hidden: type float64", lambda: predictor.predict_frame(hidden.double(), code_zero)),
        ("talker_last_hidden: shape", lambda: predictor.predict_frame(hidden[:, 1:], code_zero)),
        ("active_batch_size: found 21 rows", lambda: predictor.predict_frame(*inputs(21))),
        ("code_zero: type float32", lambda: predictor.predict_frame(hidden, code_zero.float())),
        ("frame_idx is unset", lambda: predictor.predict_frame(hidden, code_zero, sampling=SAMPLED)),
        ("output_codes: on cpu", lambda: predictor.run_frame(plan(3), torch.zeros(3, 4, dtype=torch.int32))),
        ("stream: found", lambda: predictor.predict_frame(hidden, code_zero, stream="fast")),
        ("overlaps", lambda: overlapping(predictor)),
    ]
    for message, call in refused:
        with pytest.raises(InputError, match=message):
            call()
    spec = predictor.spec
    wrong = Tensor.zeros([8, 1, spec.talker_hidden_size], "float32", "cuda:0")
    with pytest.raises(BindingError, match="codec_hiddens: shape"):
        predictor.bind(Binding(spec.talker_hidden_size, spec.codes_per_frame, 8, None, wrong))
    with pytest.raises(UnsupportedError, match="int8"):
        cuda_model(dtype="int8")


def overlapping(predictor: CodePredictor) -> None:
    memory = torch.zeros(3, MODEL.residual_codebooks + 1, dtype=torch.int32, device="cuda")
    predictor.run_frame(plan(3, code_zero=memory[:, 0]), memory)


def test_weights_on_the_device_load_as_those_on_the_host(predictor: CodePredictor) -> None:
    tensors = {name: on_cuda(tensor) for name, tensor in MODEL.tensors.items()}
    loaded = CodePredictor.from_tensors(MODEL.config, tensors, "cuda", dtype="float32")
    np.testing.assert_array_equal(
        codes_of(loaded.predict_frame(*inputs(3))), codes_of(predictor.predict_frame(*inputs(3)))
    )


def test_a_predictor_says_what_and_where_it_is(predictor: CodePredictor) -> None:
    assert (predictor.executor, predictor.device, predictor.dtype) == ("cuda", "cuda:0", "float32")
    assert predictor.device_name == torch.cuda.get_device_name(0)
    assert predictor.frame_bytes > 0
    before = predictor.stats()
    predictor.predict_frame(*inputs(3)).wait()
    after = predictor.stats()
    assert (after["frames"] - before["frames"], after["rows"] - before["rows"]) == (1, 3)
    assert CodePredictor.from_tensors(MODEL.config, MODEL.tensors, "auto").executor == "cuda"
    assert CodePredictor.from_tensors(MODEL.config, MODEL.tensors, "auto", dtype="int8").executor == "cpu"
    assert CodePredictor.from_tensors(MODEL.config, MODEL.tensors, device=torch.device("cuda", 0)).device == "cuda:0"
