"""What holds for every batch, every parameter set, every input and every model: hypothesis looks for exceptions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models import RandomModel, bits, row_bits
from overtone import Binding, CodePredictor, FramePlan, InputError, SamplingArrays, SamplingParams, Tensor

MODEL = RandomModel(residual_codebooks=4, codebook_size=37, layers=1, hidden_size=24, mlp_width=40)
ROWS = 6
CODES = MODEL.residual_codebooks + 1

many = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@cache
def predictor(dtype: str = "float32") -> CodePredictor:
    return MODEL.load(dtype=dtype, max_batch=ROWS)


seeds = st.integers(0, 2**64 - 1)
temperatures = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 3.4e38))
sampling_params = st.builds(
    SamplingParams,
    temperature=temperatures,
    top_k=st.one_of(st.integers(0, 40), st.integers(0, 2**63 - 1)),
    top_p=st.floats(0, 1, exclude_min=True, width=32),
    seed=seeds,
)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
sound_float = st.floats(-4, 4, width=32)


def hidden_rows(elements: st.SearchStrategy[float], rows: int = ROWS) -> st.SearchStrategy[Any]:
    return arrays(np.float32, (rows, MODEL.hidden_size), elements=elements, fill=st.just(0.25))


code_zeros = st.lists(st.integers(0, MODEL.code_zero_size - 1), min_size=ROWS, max_size=ROWS)


@many
@given(
    hidden=hidden_rows(sound_float),
    code_zero=code_zeros,
    params=st.lists(sampling_params, min_size=ROWS, max_size=ROWS),
    frame_idx=st.lists(seeds, min_size=ROWS, max_size=ROWS),
    order=st.permutations(range(ROWS)).flatmap(lambda order: st.integers(1, ROWS).map(lambda count: order[:count])),
    dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
)
def test_any_batch_of_any_streams_is_its_streams_alone(
    hidden: np.ndarray, code_zero: list[Any], params: list[Any], frame_idx: list[Any], order: list[Any], dtype: str
) -> None:
    index = np.array(frame_idx, np.uint64)
    frame = predictor(dtype).predict_frame(
        hidden[order],
        [code_zero[row] for row in order],
        sampling=[params[row] for row in order],
        frame_idx=index[order],
        logits=True,
    )
    for slot, row in enumerate(order):
        alone = predictor(dtype).predict_frame(
            hidden[[row]], [code_zero[row]], sampling=params[row], frame_idx=frame_idx[row], logits=True
        )
        assert row_bits(frame, slot) == row_bits(alone, 0)


@many
@given(
    hidden=hidden_rows(any_float),
    code_zero=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=ROWS, max_size=ROWS),
    params=st.lists(sampling_params, min_size=ROWS, max_size=ROWS),
    poisoned=st.sets(st.integers(0, ROWS - 1), min_size=1),
    poison=st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_no_input_crashes_and_a_poisoned_row_touches_no_other(
    hidden: np.ndarray, code_zero: list[Any], params: list[Any], poisoned: set[int], poison: float
) -> None:
    sound = predictor().predict_frame(hidden, code_zero, sampling=params, frame_idx=3, logits=True)
    broken = hidden.copy()
    broken[list(poisoned), 5] = poison
    frame = predictor().predict_frame(broken, code_zero, sampling=params, frame_idx=3, logits=True)
    for row in range(ROWS):
        status = frame.status.numpy()[row]
        if row in poisoned:
            assert status == (1 if 0 <= code_zero[row] < MODEL.code_zero_size else -1)
        else:
            assert row_bits(frame, row) == row_bits(sound, row)
    codes = frame.codes.numpy()
    assert (codes[:, 1:] >= 0).all()
    assert (codes[:, 1:] < MODEL.codebook_size).all()
    assert np.isfinite(frame.codec_sum.numpy()).all()
    again = predictor().predict_frame(hidden, code_zero, sampling=params, frame_idx=3, logits=True)
    assert [row_bits(again, row) for row in range(ROWS)] == [row_bits(sound, row) for row in range(ROWS)]


@many
@given(params=sampling_params, frame_idx=seeds)
def test_every_drawn_code_is_one_the_filters_keep(params: SamplingParams, frame_idx: int) -> None:
    hidden, code_zero = MODEL.inputs(ROWS)
    host = predictor().predict_frame(hidden, code_zero, sampling=params, frame_idx=frame_idx, logits=True)
    temperature = np.float32(params.temperature)
    for row, status in enumerate(host.status.tolist()):
        assert host.logits is not None
        for codebook, logits in enumerate(host.logits.numpy()[row], start=1):
            with np.errstate(over="ignore"):
                quotients = logits / temperature if temperature else logits
            if not np.isfinite(quotients).all():
                assert 0 < status <= codebook
                continue
            code = host.codes.tolist()[row][codebook]
            rank = (quotients > quotients[code]).sum()
            assert rank < (1 if temperature == 0 else params.top_k or MODEL.codebook_size)


@many
@given(
    temperature=st.floats(width=32),
    top_k=st.integers(-(2**63), 2**63 - 1),
    top_p=st.floats(width=32),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_arrays_take_what_objects_take_and_refuse_what_they_refuse(
    temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    hidden, code_zero = MODEL.inputs(1)
    given_arrays = SamplingArrays(
        np.array([temperature], "f4"), np.array([top_k]), np.array([top_p], "f4"), np.array([seed])
    )

    def predict(sampling: SamplingParams | SamplingArrays) -> bytes:
        return row_bits(predictor().predict_frame(hidden, code_zero, sampling=sampling, frame_idx=0), 0)[0]

    try:
        params = SamplingParams(temperature, top_k, top_p, seed % 2**64)
    except InputError as refused:
        try:
            predict(given_arrays)
        except InputError as also_refused:
            assert str(also_refused).endswith(str(refused))  # noqa: PT017 # both messages are compared
        else:
            raise AssertionError(f"taken in arrays, refused in an object: {refused}") from None
    else:
        assert predict(given_arrays) == predict(params)


@many
@given(
    active=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
    batch=st.integers(1, ROWS),
    advance=st.booleans(),
    wide=st.booleans(),
    bound=st.booleans(),
)
def test_only_active_rows_of_the_batch_are_written(
    active: list[Any], batch: int, advance: bool, wide: bool, bound: bool
) -> None:
    hidden, code_zero = MODEL.inputs(ROWS)
    own = MODEL.load(max_batch=ROWS)
    hiddens = np.full((ROWS, CODES, MODEL.hidden_size), 5.0, np.float32)
    if bound:
        own.bind(Binding(MODEL.hidden_size, CODES, ROWS, codec_hiddens=hiddens))
    codes = np.full((ROWS, CODES), -9, np.int64 if wide else np.int32)
    frame_idx = np.arange(ROWS) + 10
    plan = FramePlan(batch, code_zero, hidden, SamplingParams(), frame_idx, np.array(active), advance)
    own.run_frame(plan, codes).wait()
    taking_part = np.array(active) & (np.arange(ROWS) < batch)
    expected = predictor().predict_frame(hidden, code_zero, sampling=SamplingParams(), frame_idx=np.arange(ROWS) + 10)
    np.testing.assert_array_equal(codes[taking_part], expected.codes.numpy()[taking_part])
    assert (codes[~taking_part] == -9).all()
    np.testing.assert_array_equal(frame_idx, np.arange(ROWS) + 10 + (taking_part if advance else 0))
    if bound:
        assert bits(hiddens[taking_part, 1:-1]) == bits(expected.codec_hiddens.numpy()[taking_part, 1:-1])
        assert (hiddens[~taking_part] == 5).all()
        assert (hiddens[:, [0, -1]] == 5).all()


@settings(many, max_examples=25)
@given(
    residual_codebooks=st.integers(1, 5),
    codebook_size=st.integers(1, 40),
    code_zero_size=st.integers(1, 40),
    hidden_size=st.integers(1, 40),
    layers=st.integers(1, 3),
    key_value_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half_head=st.integers(1, 9),
    mlp_width=st.integers(1, 40),
    batch=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
)
def test_every_architecture_runs_whatever_its_extents(
    residual_codebooks: int,
    codebook_size: int,
    code_zero_size: int,
    hidden_size: int,
    layers: int,
    key_value_heads: int,
    group: int,
    half_head: int,
    mlp_width: int,
    batch: int,
    dtype: str,
) -> None:
    model = RandomModel(
        residual_codebooks,
        codebook_size,
        code_zero_size,
        hidden_size,
        layers,
        key_value_heads * group,
        key_value_heads,
        2 * half_head,
        mlp_width,
    )
    own = model.load(dtype=dtype, max_batch=batch, threads=2)
    size = own.required_context_memory
    around = np.full(size + 192, 0xFF, np.uint8)
    start = 64 + -around.ctypes.data % 64
    assert own.set_context_memory(around[start : start + size])
    hidden, code_zero = model.inputs(batch)
    frame = own.predict_frame(hidden, code_zero, logits=True).wait()
    alone = model.load(dtype=dtype, max_batch=1, threads=1).predict_frame(hidden[-1:], code_zero[-1:], logits=True)
    assert row_bits(frame, batch - 1) == row_bits(alone, 0)
    assert (around[:start] == 0xFF).all()
    assert (around[start + size :] == 0xFF).all()
    if dtype == "float32":
        assert frame.logits is not None
        expected = reference_first_logits(model, hidden, code_zero)
        np.testing.assert_allclose(
            frame.logits.numpy()[:, 0], expected, rtol=0, atol=2e-4 * max(1, abs(expected).max())
        )


def reference_first_logits(model: RandomModel, hidden: np.ndarray, code_zero: np.ndarray) -> np.ndarray:
    """Logits of code_1 in float64: the two rows of the prefill through every layer."""
    weights = {name: tensor.astype(np.float64) for name, tensor in model.tensors.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        half = model.head_size // 2
        angle = position * 1e6 ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    rows = np.stack([hidden, weights["talker.model.codec_embedding.weight"][code_zero]], 1)
    for layer in range(model.layers):
        at = f"model.layers.{layer}."
        x = norm(rows, weights[f"{at}input_layernorm.weight"])

        def heads(kind: str, count: int, x: np.ndarray = x, at: str = at) -> np.ndarray:
            return (x @ weights[f"{at}self_attn.{kind}_proj.weight"].T).reshape(*x.shape[:2], count, model.head_size)

        queries = norm(heads("q", model.heads), weights[f"{at}self_attn.q_norm.weight"])
        keys = norm(heads("k", model.key_value_heads), weights[f"{at}self_attn.k_norm.weight"])
        group = model.heads // model.key_value_heads
        values = np.repeat(heads("v", model.key_value_heads), group, axis=2)
        keys = np.repeat(np.stack([rotate(keys[:, p], p) for p in (0, 1)], 1), group, axis=2)
        queries = np.stack([rotate(queries[:, p], p) for p in (0, 1)], 1)
        scores = np.einsum("bqhd,bkhd->bhqk", queries, keys) / np.sqrt(model.head_size)
        scores[:, :, 0, 1] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        attended = np.einsum("bhqk,bkhd->bqhd", scores, values).reshape(*x.shape[:2], -1)
        rows = rows + attended @ weights[f"{at}self_attn.o_proj.weight"].T
        x = norm(rows, weights[f"{at}post_attention_layernorm.weight"])
        gate = x @ weights[f"{at}mlp.gate_proj.weight"].T
        up = x @ weights[f"{at}mlp.up_proj.weight"].T
        rows = rows + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}mlp.down_proj.weight"].T
    logits: np.ndarray = norm(rows[:, 1], weights["model.norm.weight"]) @ weights["lm_head.0.weight"].T
    return logits


@many
@given(shape=st.lists(st.integers(0, 7), max_size=4), dtype=st.sampled_from(["float32", "bfloat16", "int32", "bool"]))
def test_a_tensor_of_any_other_shape_or_type_is_an_input_error(shape: list[Any], dtype: str) -> None:
    tensor = Tensor.zeros(shape, dtype)
    hidden, code_zero = MODEL.inputs(2)
    good: dict[str, Any] = {"talker_last_hidden": hidden, "code_zero": code_zero, "frame_idx": 0}
    for name in ("talker_last_hidden", "code_zero", "active", "frame_idx"):
        fits = shape == [2] and (
            (name == "code_zero" and dtype == "int32") or (name == "active" and dtype in ("int32", "bool"))
        )
        assume(not fits)
        try:
            predictor().predict_frame(**{**good, name: tensor})
        except InputError as refused:
            assert refused.tensor == name or refused.key == "active_batch_size"  # noqa: PT017
        else:
            raise AssertionError(f"{name} of shape {shape} was taken")
