"""`generate` of the published class in transformers, as its own talker calls it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from benchmarks.peers.body import prefill_rows
from benchmarks.peers.measure import Contender
from benchmarks.peers.weights import CODE_ZERO_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from benchmarks.peers.body import Inputs
    from benchmarks.peers.weights import Weights

    from overtone import ModelSpec, SamplingParams

GENERATE = "transformers generate"


def published_model(spec: ModelSpec, state: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    """The code predictor of transformers on the GPU, with these weights.

    Raises:
        NotImplementedError: The checkpoint has a projection, which the class lacks.
    """
    if spec.projected:
        raise NotImplementedError("its class has no projection")
    model = _unloaded(spec, dtype)
    model.load_state_dict({name: tensor for name, tensor in state.items() if name != CODE_ZERO_TABLE}, strict=True)
    return model


def published_body(spec: ModelSpec, state: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    """Its decoder alone, which takes rows [B, S, H] as `inputs_embeds`: behind the projection, where there is one."""
    body: Any = _unloaded(spec, dtype).model
    own = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    body.codec_embedding = None
    body.load_state_dict({name: tensor for name, tensor in own.items() if "codec_embedding" not in name}, strict=True)
    return body


def _unloaded(spec: ModelSpec, dtype: torch.dtype) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.qwen3_omni_moe import (  # noqa: PLC0415
            configuration_qwen3_omni_moe,
            modeling_qwen3_omni_moe,
        )
    config = configuration_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorConfig(
        vocab_size=spec.codebook_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.mlp_width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.query_heads,
        num_key_value_heads=spec.key_value_heads,
        head_dim=spec.head_size,
        rms_norm_eps=spec.rms_norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        num_code_groups=spec.codes_per_frame,
    )
    kind = modeling_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration
    # Casting a finished model would also round the rotary frequencies, which the class keeps in float32.
    return kind._from_config(config, dtype=dtype, attn_implementation="sdpa").to("cuda").eval()  # noqa: SLF001


def generated_frame(
    model: torch.nn.Module, weights: Weights, inputs: Inputs, sampling: SamplingParams | None
) -> Callable[[], torch.Tensor]:
    """A call that returns codes [B, R + 1]."""
    import torch  # noqa: PLC0415

    drawing: dict[str, Any] = {"do_sample": False}
    if sampling is not None and sampling.temperature > 0:
        drawing = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }

    def frame() -> torch.Tensor:
        with torch.inference_mode():
            codes = model.generate(
                inputs_embeds=prefill_rows(weights, inputs),
                max_new_tokens=weights.spec.residual_codebooks,
                pad_token_id=0,
                **drawing,
            )
            return torch.cat([inputs.code_zero[:, None], codes], dim=1)

    return frame


def generate_contender(
    model: torch.nn.Module, weights: Weights, inputs: Inputs, sampling: SamplingParams | None
) -> Contender:
    """`generate` with the same inputs; it runs once here, so that what it trips over shows before anything is timed."""
    frame = generated_frame(model, weights, inputs, sampling)
    frame()
    return Contender(GENERATE, frame)
