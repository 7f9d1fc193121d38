"""The published class in transformers, in float32, picks the same codes from the same weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from models import Array, RandomModel
from overtone import CodePredictor

pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore")]

TINY = RandomModel(residual_codebooks=7, codebook_size=96, hidden_size=64, layers=3, head_size=32, mlp_width=160)
TRUE_SIZES = {
    "residual_codebooks": 15,
    "codebook_size": 2048,
    "code_zero_size": 3072,
    "hidden_size": 1024,
    "layers": 5,
    "heads": 16,
    "key_value_heads": 8,
    "head_size": 128,
    "mlp_width": 3072,
}
CLOSE_CALL = 1e-4
"""The reference's own margin below which another order of adding may pick the other code."""


def reference_class(model: RandomModel) -> Any:
    """The published code predictor with the model's weights, on the CPU in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch  # noqa: PLC0415 # only where the marker finds it
        from transformers.models.qwen3_omni_moe import (  # noqa: PLC0415
            configuration_qwen3_omni_moe,
            modeling_qwen3_omni_moe,
        )
    settings = {key: value for key, value in model.config.items() if key not in ("model_type", "rope_theta")}
    config = configuration_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorConfig(
        **settings, rope_parameters={"rope_type": "default", "rope_theta": model.config["rope_theta"]}
    )
    kind = modeling_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration
    reference = kind(config).to(torch.float32).eval()
    own = {name: torch.from_numpy(tensor) for name, tensor in model.tensors.items() if not name.startswith("talker.")}
    reference.load_state_dict(own, strict=True)
    return reference


def greedy_codes(reference: Any, rows: Any, *, cached: bool) -> tuple[Array, Array]:
    """Codes [B, R] and logits [B, R, V] of the reference, one step after another from its two rows of prefill.

    Without a cache every step passes all rows so far as `inputs_embeds`, of whose number the class takes the head.
    """
    import torch  # noqa: PLC0415

    codes: list[Any] = []
    logits: list[Any] = []
    past = None
    with torch.inference_mode():
        for step in range(len(reference.lm_head)):
            if cached and step:
                output = reference(
                    input_ids=codes[-1][:, None], past_key_values=past, use_cache=True, generation_steps=step
                )
            else:
                output = reference(inputs_embeds=rows, use_cache=cached)
            past = output.past_key_values
            logits.append(output.logits[:, -1].float())
            codes.append(logits[-1].argmax(dim=-1))
            embedding = reference.get_input_embeddings()[step](codes[-1])
            rows = torch.cat([rows, embedding[:, None]], dim=1)
    return torch.stack(codes, 1).numpy(), torch.stack(logits, 1).numpy()


def prefill_rows(model: RandomModel, hidden: Array, code_zero: Array) -> Any:
    import torch  # noqa: PLC0415

    table = model.tensors["talker.model.codec_embedding.weight"]
    return torch.from_numpy(np.stack([hidden, table[code_zero]], axis=1))


def compare(found: Array, found_logits: Array, expected: Array, expected_logits: Array) -> int:
    """Check every code up to a row's first close call; return how many were compared."""
    compared = 0
    ordered = np.sort(expected_logits, axis=-1)
    margins = ordered[..., -1] - ordered[..., -2]
    for row in range(len(expected)):
        for step in range(expected.shape[1]):
            scale = np.abs(expected_logits[row, step]).max()
            assert np.abs(found_logits[row, step] - expected_logits[row, step]).max() < 1e-4 * scale
            if found[row, step] != expected[row, step]:
                assert margins[row, step] < CLOSE_CALL
                break
            compared += 1
    return compared


@pytest.mark.parametrize("cached", [False, True], ids=["whole rows", "cached"])
def test_greedy_codes_equal_the_published_class(cached: bool) -> None:
    reference = reference_class(TINY)
    predictor = TINY.load(max_batch=8, dtype="float32")
    compared = 0
    for seed in range(8):
        hidden, code_zero = TINY.inputs(8, seed)
        host = predictor.predict_frame(hidden, code_zero, logits=True).to_host()
        assert host.logits is not None
        expected, logits = greedy_codes(reference, prefill_rows(TINY, hidden, code_zero), cached=cached)
        compared += compare(host.codes[:, 1:], host.logits, expected, logits)
    assert compared > 0.98 * 8 * 8 * TINY.residual_codebooks


def test_the_published_class_and_configuration_load_as_they_are() -> None:
    """Its own state dict of torch tensors and its own `to_dict` make the same predictor."""
    reference = reference_class(TINY)
    table = TINY.tensors["talker.model.codec_embedding.weight"]
    state_dict = {**reference.state_dict(), "talker.model.codec_embedding.weight": table}
    predictor = CodePredictor.from_tensors(reference.config.to_dict(), state_dict, max_batch=4)
    hidden, code_zero = TINY.inputs(4)
    expected = TINY.load(max_batch=4).predict_frame(hidden, code_zero).codes
    np.testing.assert_array_equal(predictor.predict_frame(hidden, code_zero).codes, expected)
    assert predictor.spec.rope_theta == 1e6


def test_torch_tensors_go_in_and_come_out() -> None:
    """Hidden rows, codes and outputs of torch, bfloat16 among them, without a copy."""
    import torch  # noqa: PLC0415

    hidden, code_zero = TINY.inputs(3)
    predictor = TINY.load(max_batch=3)
    narrow = torch.from_numpy(hidden).to(torch.bfloat16)
    frame = predictor.predict_frame(narrow, torch.from_numpy(code_zero))
    wide = predictor.predict_frame(narrow.float().numpy(), code_zero)
    assert torch.from_dlpack(frame.codec_sum).dtype == torch.bfloat16
    np.testing.assert_array_equal(torch.from_dlpack(frame.codes).numpy(), wide.codes)
    assert torch.equal(torch.from_dlpack(frame.codec_sum), torch.from_dlpack(wide.codec_sum).to(torch.bfloat16))


@pytest.mark.slow
def test_greedy_codes_equal_the_published_class_at_the_true_architecture() -> None:
    model = RandomModel(**TRUE_SIZES)
    reference = reference_class(model)
    predictor = model.load(max_batch=8, dtype="float32")
    hidden, code_zero = model.inputs(8)
    host = predictor.predict_frame(hidden, code_zero, logits=True).to_host()
    assert host.logits is not None
    expected, logits = greedy_codes(reference, prefill_rows(model, hidden, code_zero), cached=True)
    assert compare(host.codes[:, 1:], host.logits, expected, logits) > 0.9 * 8 * 15
