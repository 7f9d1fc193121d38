"""The arena a talker lends: how large, in which state, and that nothing in it has to survive a frame."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from golden import GoldenDirectory
from models import RandomModel, load, row_bits, sampling_rows
from overtone import Binding, BoundFrame, CodePredictor, FramePlan, InputError, Tensor

MODEL = RandomModel()


def arena(predictor: CodePredictor, *, extra: int = 0, offset: int = 0) -> np.ndarray:
    """`required_context_memory` + `extra` bytes of 0xFF (float NaN), `offset` bytes past a multiple of 64."""
    size = predictor.required_context_memory + extra
    memory = np.full(size + 128, 0xFF, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size]


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 31, 63])
def test_a_lent_arena_may_be_scribbled_on_between_frames(golden: GoldenDirectory, offset: int) -> None:
    predictor = load(golden, max_batch=3)
    memory = arena(predictor, offset=offset)
    assert predictor.set_context_memory(memory) is True
    rows = sampling_rows(golden, "mixed")
    noise = np.random.default_rng(0)
    for index, expected in enumerate(golden.expected("mixed", "codes")):
        frame = predictor.predict_frame(
            golden.talker_last_hidden[index], golden.code_zero[index], sampling=rows, frame_idx=index
        )
        np.testing.assert_array_equal(frame.wait().codes, expected)
        memory[:] = noise.integers(0, 256, memory.size) if index % 2 else 0xFF


def test_every_batch_size_runs_in_stale_nan(golden: GoldenDirectory) -> None:
    predictor = load(golden, max_batch=3)
    memory = arena(predictor)
    predictor.set_context_memory(memory)
    for batch in (3, 1, 2, 3, 1):
        memory[:] = 0xFF
        frame = predictor.predict_frame(golden.talker_last_hidden[0, :batch], golden.code_zero[0, :batch]).wait()
        np.testing.assert_array_equal(frame.codes, golden.expected("greedy", "codes")[0, :batch])


@pytest.mark.parametrize("offset", [0, 1, 33])
def test_frames_stay_inside_the_arena(offset: int) -> None:
    predictor = MODEL.load(max_batch=4)
    size = predictor.required_context_memory
    around = np.full(size + 512, 0xAB, np.uint8)
    start = 128 + -around.ctypes.data % 64 + offset
    predictor.set_context_memory(around[start : start + size])
    predictor.predict_frame(*MODEL.inputs(4), logits=True).wait()
    assert (around[:start] == 0xAB).all()
    assert (around[start + size :] == 0xAB).all()
    assert (around[start : start + size] != 0xAB).any()


def test_an_arena_too_small_is_declined_and_changes_nothing() -> None:
    predictor = MODEL.load(max_batch=2)
    small = np.full(predictor.required_context_memory - 1, 0xAB, np.uint8)
    own = row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0)
    assert predictor.set_context_memory(small) is False
    assert predictor.set_context_memory(small[:0]) is False
    assert row_bits(predictor.predict_frame(*MODEL.inputs(1)), 0) == own
    assert (small == 0xAB).all()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "float16", "bool"])
def test_an_arena_may_be_of_any_type(dtype: str) -> None:
    predictor = MODEL.load(max_batch=2)
    size = predictor.required_context_memory
    memory = np.zeros(-(-size // np.dtype(dtype).itemsize), dtype)
    assert predictor.set_context_memory(memory) is True
    expected = MODEL.load().predict_frame(*MODEL.inputs(2)).codes
    np.testing.assert_array_equal(predictor.predict_frame(*MODEL.inputs(2)).codes, expected)
    assert memory.any()


def test_an_arena_that_cannot_be_used_is_refused() -> None:
    predictor = MODEL.load(max_batch=2)
    size = predictor.required_context_memory
    read_only = np.zeros(size, np.uint8)
    read_only.flags.writeable = False
    for memory, message in (
        (read_only, "memory: a read-only tensor, expected a writable one"),
        (np.zeros(2 * size, np.uint8)[::2], "memory: a strided tensor, expected a contiguous one"),
        (bytearray(size), "memory: bytearray, expected a tensor"),
        (predictor.codec_embed_table(0), "memory: a read-only tensor"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            predictor.set_context_memory(memory)  # type: ignore[arg-type]
        assert refused.value.tensor == "memory"
    predictor.predict_frame(*MODEL.inputs(2)).wait()


def test_none_returns_to_an_arena_of_our_own_and_lets_go() -> None:
    class Watched(np.ndarray):
        pass

    predictor = MODEL.load(max_batch=2)
    memory = arena(predictor).view(Watched)
    gone = weakref.ref(memory)
    predictor.set_context_memory(memory)
    del memory
    gc.collect()
    assert gone() is not None
    assert predictor.set_context_memory(None) is True
    gc.collect()
    assert gone() is None
    predictor.predict_frame(*MODEL.inputs(2)).wait()


def test_lending_an_arena_releases_our_own() -> None:
    model = RandomModel(codebook_size=2048, mlp_width=2048)
    predictor = model.load(max_batch=2048)
    size = predictor.required_context_memory
    assert size > 100_000_000
    memory = np.zeros(size, np.uint8)
    before = resident_bytes()
    predictor.set_context_memory(memory)
    assert before - resident_bytes() > 0.8 * size


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_frame_whose_tensors_lie_in_the_arena_is_refused() -> None:
    predictor = MODEL.load(max_batch=2)
    memory = np.zeros(predictor.required_context_memory // 4 + 4096, np.float32)
    hidden, code_zero = MODEL.inputs(2)
    inside = memory[: hidden.size].reshape(hidden.shape)
    codes_inside = memory[-8:].view(np.int32).reshape(2, 4)
    frames: list[tuple[str, BoundFrame]] = [
        ("talker_last_hidden", predictor.bind_frame(FramePlan(2, code_zero, inside))),
        ("output_codes", predictor.bind_frame(FramePlan(2, code_zero, hidden), codes_inside)),
    ]
    for _, frame in frames:
        frame.launch()
    predictor.set_context_memory(memory)
    for name, frame in frames:
        with pytest.raises(InputError, match=f"memory overlaps {name} in memory"):
            frame.launch()
    table = memory[:1600].reshape(50, 32)
    predictor.bind(Binding(32, 4, 2, code_zero_embed_table=table))
    with pytest.raises(InputError, match="memory overlaps code_zero_embed_table in memory"):
        predictor.predict_frame(hidden, code_zero)
    predictor.bind(Binding(32, 4, 2))
    predictor.predict_frame(hidden, code_zero).wait()


def test_two_predictors_may_share_an_arena_by_turns(omni_tiny: GoldenDirectory) -> None:
    predictors = [load(omni_tiny, max_batch=3), load(omni_tiny, max_batch=3, dtype="bfloat16"), MODEL.load(max_batch=3)]
    memory = Tensor.zeros([max(predictor.required_context_memory for predictor in predictors)], "uint8")
    expected = [predict(predictor, omni_tiny) for predictor in predictors]
    for predictor in predictors:
        assert predictor.set_context_memory(memory)
    for _ in range(2):
        assert [predict(predictor, omni_tiny) for predictor in predictors] == expected


def predict(predictor: CodePredictor, golden: GoldenDirectory) -> list[list[int]]:
    inputs = golden.talker_last_hidden[0], golden.code_zero[0]
    if predictor.spec.talker_hidden_size == MODEL.hidden_size:
        inputs = MODEL.inputs(3)
    codes: list[list[int]] = predictor.predict_frame(*inputs).codes.tolist()
    return codes


def test_the_required_bytes_grow_with_the_batch(omni_tiny: GoldenDirectory) -> None:
    sizes = [load(omni_tiny, max_batch=batch).required_context_memory for batch in (1, 2, 8, 64)]
    assert sizes == sorted(set(sizes))


def test_freeing_a_lent_arena_may_come_back_to_the_predictor() -> None:
    predictor = MODEL.load(max_batch=2)
    answers: list[object] = []

    class Talkative(np.ndarray):
        def __del__(self) -> None:
            answers.append(predictor.stats()["frames"])
            answers.append(predictor.predict_frame(*MODEL.inputs(1)).codes.tolist())

    for _ in range(2):
        memory = arena(predictor).view(Talkative)
        assert predictor.set_context_memory(memory)
        del memory
    predictor.set_context_memory(None)
    gc.collect()
    assert len(answers) >= 4
