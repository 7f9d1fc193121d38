"""Sampling at the boundary: what is refused, what is rounded, what a draw depends on and what it does not.

The 200 golden draws are compared in the Rust tests; the golden models' sampled codes in `test_goldens.py`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from golden import GoldenDirectory
from models import RandomModel, bits, load, row_bits
from overtone import CodePredictor, InputError, ModelSpec, SamplingArrays, SamplingParams

MODEL = RandomModel(residual_codebooks=2, codebook_size=24, layers=1)


@pytest.fixture(scope="module")
def predictor() -> CodePredictor:
    return MODEL.load(max_batch=8)


def drawn(predictor: CodePredictor, params: SamplingParams, frame_idx: int, rows: int = 4) -> list[list[int]]:
    hidden, code_zero = MODEL.inputs(rows)
    frame = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=frame_idx)
    codes: list[list[int]] = frame.wait().codes.tolist()
    return codes


# What is refused when given


@pytest.mark.parametrize(
    ("parameters", "message", "key"),
    [
        ({"temperature": -1.0}, "temperature is -1: expected a finite float32, 0 (greedy) or above", "temperature"),
        ({"temperature": -1e-30}, "temperature is -0.00", "temperature"),
        ({"temperature": math.nan}, "temperature is NaN", "temperature"),
        ({"temperature": math.inf}, "temperature is inf", "temperature"),
        ({"temperature": 1e39}, "temperature is 1000000000", "temperature"),
        ({"temperature": 10**400}, "expected a finite float32", "temperature"),
        ({"temperature": "hot"}, "temperature is 'hot': expected a finite float32", "temperature"),
        ({"temperature": None}, "temperature is None", "temperature"),
        ({"top_k": -1}, "top_k is -1: expected 0 (off) or above", "top_k"),
        ({"top_k": 2.5}, "top_k is 2.5: expected a whole number", "top_k"),
        ({"top_k": 2**63}, "top_k is 9223372036854775808", "top_k"),
        ({"top_p": 0.0}, "top_p is 0: expected a float32 above 0 and at most 1 (off)", "top_p"),
        ({"top_p": -0.5}, "top_p is -0.5", "top_p"),
        ({"top_p": 1.0000001}, "top_p is 1.0000001", "top_p"),
        ({"top_p": 1e-50}, "top_p is 0.0000", "top_p"),
        ({"top_p": math.nan}, "top_p is NaN", "top_p"),
        ({"top_p": [0.5]}, "top_p is [0.5]", "top_p"),
        ({"seed": -1}, "seed is -1: expected a whole number from 0 to 2^64 - 1", "seed"),
        ({"seed": 2**64}, "seed is 18446744073709551616", "seed"),
        ({"seed": 1.0}, "seed is 1.0", "seed"),
    ],
)
def test_a_parameter_out_of_range_is_refused_when_given(parameters: dict[str, Any], message: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        SamplingParams(**parameters)
    assert message in str(refused.value)
    assert refused.value.key == key
    with pytest.raises(InputError):
        dataclasses.replace(SamplingParams(), **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {"temperature": -0.0},
        {"temperature": 3.4e38},
        {"temperature": 5e-324},
        {"temperature": np.float32(0.5)},
        {"temperature": 1},
        {"top_k": 0},
        {"top_k": 2**62},
        {"top_k": np.int32(7)},
        {"top_p": 1.0},
        {"top_p": 1e-45},
        {"top_p": 1 + 1e-9},
        {"seed": 2**64 - 1},
        {"seed": np.uint64(2**64 - 1)},
    ],
)
def test_the_edges_of_the_ranges_draw(predictor: CodePredictor, parameters: dict[str, Any]) -> None:
    params = SamplingParams(**parameters)
    hidden, code_zero = MODEL.inputs(4)
    frame = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=0)
    assert frame.status.tolist() == [0, 0, 0, 0]


def test_defaults_are_the_plain_distribution() -> None:
    assert SamplingParams() == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=0)
    assert SamplingParams.greedy().temperature == 0


def test_the_family_decides_what_for_checkpoint_gives(
    omni_tiny: GoldenDirectory, tts_tiny_projected: GoldenDirectory
) -> None:
    omni = SamplingParams.for_checkpoint(load(omni_tiny).spec, seed=5)
    assert omni == SamplingParams(temperature=1.0, top_k=50, top_p=0.8, seed=5)
    tts = SamplingParams.for_checkpoint(ModelSpec.from_directory(tts_tiny_projected.path))
    assert tts == SamplingParams(temperature=0.9, top_k=50, top_p=1.0, seed=0)
    for name in ("qwen3-tts-0.6b", "qwen3-tts-1.7b"):
        assert SamplingParams.for_checkpoint(ModelSpec.named(name)) == tts
    assert SamplingParams.for_checkpoint(ModelSpec.named("qwen3-omni-30b"), 5) == omni


# What is rounded


def test_parameters_are_rounded_to_float32_first(predictor: CodePredictor) -> None:
    for exact in (SamplingParams(temperature=0.9, top_p=0.7, seed=3), SamplingParams(1 / 3, 5, 0.3, 8)):
        rounded = SamplingParams(
            float(np.float32(exact.temperature)), exact.top_k, float(np.float32(exact.top_p)), exact.seed
        )
        for frame_idx in range(8):
            assert drawn(predictor, exact, frame_idx) == drawn(predictor, rounded, frame_idx)


def test_a_temperature_that_rounds_to_zero_is_greedy(predictor: CodePredictor) -> None:
    greedy = drawn(predictor, SamplingParams.greedy(), 0)
    for temperature in (-0.0, 1e-50):
        assert drawn(predictor, SamplingParams(temperature=temperature, seed=9), 4) == greedy


def test_greedy_ignores_every_other_parameter_and_needs_no_index(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(3)
    plain = predictor.predict_frame(hidden, code_zero).codes.tolist()
    params = SamplingParams(temperature=0, top_k=1, top_p=0.01, seed=99)
    assert predictor.predict_frame(hidden, code_zero, sampling=params).codes.tolist() == plain
    assert predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=7).codes.tolist() == plain


def test_filters_that_keep_one_entry_are_greedy(predictor: CodePredictor) -> None:
    greedy = drawn(predictor, SamplingParams.greedy(), 0)
    for params in (SamplingParams(top_k=1, seed=4), SamplingParams(top_p=1e-6, seed=4), SamplingParams(1e-3, seed=4)):
        assert all(drawn(predictor, params, index) == greedy for index in range(10))


def test_filters_that_keep_everything_change_nothing(predictor: CodePredictor) -> None:
    plain = [drawn(predictor, SamplingParams(seed=6), index) for index in range(10)]
    for top_k in (MODEL.codebook_size, 10**6, 2**40):
        assert [drawn(predictor, SamplingParams(top_k=top_k, seed=6), index) for index in range(10)] == plain


# What a draw depends on


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_stream_draws_the_same_alone_and_in_any_slot(predictor: CodePredictor, top_p: float) -> None:
    hidden, code_zero = MODEL.inputs(8)
    params = [SamplingParams(1.2, 0 if row % 2 else 9, top_p, seed=row % 3) for row in range(8)]
    frame_idx = np.arange(8) * 2**40
    batch = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=frame_idx, logits=True)
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    shuffled = predictor.predict_frame(
        hidden[order],
        code_zero[order],
        sampling=[params[row] for row in order],
        frame_idx=frame_idx[order],
        logits=True,
    )
    for slot, row in enumerate(order):
        alone = predictor.predict_frame(
            hidden[[row]], code_zero[[row]], sampling=params[row], frame_idx=int(frame_idx[row]), logits=True
        )
        assert row_bits(batch, row) == row_bits(shuffled, slot) == row_bits(alone, 0)


def test_equal_streams_draw_equal_codes_in_every_slot(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(1)
    for index in range(5):
        frame = predictor.predict_frame(
            np.repeat(hidden, 8, axis=0),
            np.repeat(code_zero, 8),
            sampling=SamplingParams(temperature=2.0, seed=1),
            frame_idx=index,
        )
        assert len({tuple(codes) for codes in frame.codes.tolist()}) == 1


def test_parameters_in_arrays_draw_like_parameters_in_objects(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(5)
    seeds = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    params = [SamplingParams(0.5 * row, row, 1 - 0.1 * row, seed) for row, seed in enumerate(seeds)]
    expected = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=2**63).codes.tolist()
    unsigned = np.array(seeds, "u8")
    for top_k_type in ("i4", "i8"):
        for seed in (unsigned, unsigned.view("i8")):
            arrays = SamplingArrays(
                np.array([row.temperature for row in params], "f4"),
                np.array([row.top_k for row in params], top_k_type),
                np.array([row.top_p for row in params], "f4"),
                seed,
            )
            for frame_idx in (2**63, np.array([2**63], "u8"), np.full(5, 2**63, "u8")):
                frame = predictor.predict_frame(hidden, code_zero, sampling=arrays, frame_idx=frame_idx)
                assert frame.codes.tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2])
def test_every_bit_of_the_seed_counts(predictor: CodePredictor, seed: int) -> None:
    base = [drawn(predictor, SamplingParams(3.0, seed=seed), index) for index in range(8)]
    for bit in (0, 1, 31, 32, 33, 63):
        other = SamplingParams(3.0, seed=seed ^ (1 << bit))
        assert [drawn(predictor, other, index) for index in range(8)] != base


def test_every_bit_of_the_index_counts(predictor: CodePredictor) -> None:
    hidden, code_zero = MODEL.inputs(8)
    params = [SamplingParams(3.0, seed=seed) for seed in range(8)]
    indices = [0, *[1 << bit for bit in range(64)], 2**64 - 1]
    frames = [predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=index) for index in indices]
    assert len({bits(frame.codes) for frame in frames}) == len(indices)


def test_an_index_above_int64_needs_an_unsigned_tensor(predictor: CodePredictor) -> None:
    params = SamplingParams(3.0, seed=17)
    hidden, code_zero = MODEL.inputs(4)
    last = 2**64 - 1
    tensor = np.array([last], "u8")
    frame = predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=tensor)
    assert frame.codes.tolist() == drawn(predictor, params, last)
    with pytest.raises(InputError, match="frame_idx of row 0 is -1"):
        predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=tensor.view("i8"))


# How often


def chi_square_limit(degrees: int, sigmas: float = 5.0) -> float:
    """The value that chi-square exceeds as seldom as a normal variable exceeds `sigmas` (Wilson and Hilferty)."""
    shift = 2 / (9 * degrees)
    return degrees * (1 - shift + sigmas * math.sqrt(shift)) ** 3


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Chi-square and degrees of freedom; entries expected fewer than 10 times are taken together."""
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    rare = int(np.searchsorted(expected, 10.0))
    if rare:
        rare = max(rare, int(np.searchsorted(np.cumsum(expected), 10.0)) + 1)
        counts = np.concatenate([[counts[:rare].sum()], counts[rare:]])
        expected = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    return float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1


def kept_probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution that DESIGN describes, in float64."""
    x = logits.astype(np.float64) / params.temperature
    kept = np.ones(len(x), bool)
    if params.top_k:
        kept = x >= np.sort(x)[-params.top_k]
    masses = np.where(kept, np.exp(x - x.max()), 0.0)
    masses /= masses.sum()
    order = np.lexsort((np.arange(len(x)), -x))
    before = np.cumsum(masses[order]) - masses[order]
    masses[order[before >= params.top_p]] = 0.0
    probabilities: np.ndarray = masses / masses.sum()
    return probabilities


def first_codebook(golden: GoldenDirectory, **options: Any) -> CodePredictor:
    """The predictor without all codebooks but the first, whose logits they do not change."""
    config = json.loads((golden.path / "config.json").read_text())
    config["talker_config"]["code_predictor_config"]["num_code_groups"] = 2
    tensors = {
        name: tensor
        for name, tensor in load_file(golden.path / "model.safetensors").items()
        if not re.search(r"code_predictor.*(lm_head|codec_embedding)[.][1-9]", name)
    }
    return CodePredictor.from_tensors(config, tensors, **options)


@pytest.mark.parametrize("params", [(1.0, 0, 1.0), (0.9, 50, 1.0), (1.0, 50, 0.8), (2.5, 11, 0.95)])
def test_codes_are_drawn_as_often_as_the_exact_distribution_says(
    omni_tiny: GoldenDirectory, params: tuple[float, int, float]
) -> None:
    rows, frames = 64, 300
    predictor = first_codebook(omni_tiny, max_batch=rows)
    hidden = np.repeat(omni_tiny.talker_last_hidden[0, :1], rows, axis=0)
    code_zero = np.repeat(omni_tiny.code_zero[0, :1], rows)
    logits = predictor.predict_frame(hidden, code_zero, logits=True).to_host().logits
    assert logits is not None
    seeds = [SamplingParams(*params, seed=2**40 + row) for row in range(rows)]
    size = predictor.codebook_size
    counts = np.zeros(size)
    for frame_idx in range(frames):
        codes = predictor.predict_frame(hidden, code_zero, sampling=seeds, frame_idx=frame_idx).codes.numpy()
        counts += np.bincount(codes[:, 1], minlength=size)
    expected = kept_probabilities(logits[0, 0], seeds[0])
    assert not counts[expected == 0].any()
    drawable = expected > 0
    assert drawable.sum() > 3
    value, degrees = chi_square(counts[drawable], expected[drawable] * rows * frames)
    assert value < chi_square_limit(degrees)


def test_draws_of_seeds_frames_and_codebooks_are_independent() -> None:
    """Flat logits: every code is as likely, and pairs of draws that differ in one counter are as likely as any."""
    model = RandomModel(residual_codebooks=2, codebook_size=8, layers=1, head_scale=0.0)
    rows, frames = 64, 120
    predictor = model.load(max_batch=rows)
    hidden, code_zero = model.inputs(rows)
    params = [SamplingParams(seed=seed) for seed in range(rows)]
    codes = np.stack(
        [
            predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=index).codes.numpy()[:, 1:]
            for index in range(frames)
        ]
    )
    pairs = {
        "seed": (codes[:, ::2], codes[:, 1::2]),
        "frame": (codes[::2], codes[1::2]),
        "codebook": (codes[:, :, 0], codes[:, :, 1]),
    }
    for name, (one, other) in pairs.items():
        counts = np.bincount((one * 8 + other).ravel(), minlength=64)
        value, degrees = chi_square(counts, np.full(64, counts.sum() / 64))
        assert value < chi_square_limit(degrees), name
