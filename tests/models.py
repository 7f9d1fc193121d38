"""Predictors for the tests: of the golden directories, and of random weights made on the spot.

What they predict is compared by the tests; this module only makes them, their inputs, and comparisons bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from golden import GoldenDirectory
from overtone import CodePredictor, Frame, SamplingParams, Tensor

Array = npt.NDArray[Any]


def load(golden: GoldenDirectory, **options: Any) -> CodePredictor:
    """The predictor of a golden directory, with the talker's table wherever it is."""
    return CodePredictor.from_pretrained(golden.path, code_zero_table=golden.code_zero_table_file, **options)


def sampling_rows(golden: GoldenDirectory, name: str) -> list[SamplingParams]:
    """A named parameter set, one entry per row."""
    return [SamplingParams(**row) for row in golden.sampling_sets[name]]


def bits(tensor: Tensor | Array) -> bytes:
    """The elements, bit for bit and row by row. bfloat16 widens exactly, so its float32 tells as much."""
    array = tensor.numpy() if isinstance(tensor, Tensor) else tensor
    return np.ascontiguousarray(array).tobytes()


def row_bits(frame: Frame, row: int) -> tuple[bytes, ...]:
    """All that a frame writes of one row: rows 0 and R of `codec_hiddens` are the talker's."""
    outputs = (frame.codes, frame.codec_sum, frame.status, frame.logits)
    written = [output.numpy()[row] for output in outputs if output is not None]
    return tuple(bits(values) for values in (*written, frame.codec_hiddens.numpy()[row, 1:-1]))


@dataclass(frozen=True)
class RandomModel:
    """A predictor of random weights, standing on its own: H = Ht, no projection, flat configuration."""

    residual_codebooks: int = 3
    codebook_size: int = 40
    code_zero_size: int = 50
    hidden_size: int = 32
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head_size: int = 8
    mlp_width: int = 48
    seed: int = 0
    head_scale: float = 1.0
    config: dict[str, Any] = field(init=False)
    tensors: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self._make_config())
        object.__setattr__(self, "tensors", self._make_tensors())

    def _make_config(self) -> dict[str, Any]:
        return {
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            "vocab_size": self.codebook_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_size,
            "num_code_groups": self.residual_codebooks + 1,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "rope_theta": 1e6,
        }

    def _make_tensors(self) -> dict[str, Array]:
        generator = np.random.default_rng(self.seed)

        def matrix(outputs: int, inputs: int, scale: float = 1.0) -> Array:
            drawn: Array = generator.standard_normal((outputs, inputs)) * scale / np.sqrt(inputs)
            return drawn.astype(np.float32)

        def norm(width: int) -> Array:
            return generator.uniform(0.5, 1.5, width).astype(np.float32)

        hidden, queries, keys = self.hidden_size, self.heads * self.head_size, self.key_value_heads * self.head_size
        tensors = {"model.norm.weight": norm(hidden)}
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            tensors |= {
                f"{at}input_layernorm.weight": norm(hidden),
                f"{at}post_attention_layernorm.weight": norm(hidden),
                f"{at}self_attn.q_proj.weight": matrix(queries, hidden),
                f"{at}self_attn.k_proj.weight": matrix(keys, hidden),
                f"{at}self_attn.v_proj.weight": matrix(keys, hidden),
                f"{at}self_attn.o_proj.weight": matrix(hidden, queries),
                f"{at}self_attn.q_norm.weight": norm(self.head_size),
                f"{at}self_attn.k_norm.weight": norm(self.head_size),
                f"{at}mlp.gate_proj.weight": matrix(self.mlp_width, hidden),
                f"{at}mlp.up_proj.weight": matrix(self.mlp_width, hidden),
                f"{at}mlp.down_proj.weight": matrix(hidden, self.mlp_width),
            }
        for index in range(self.residual_codebooks):
            tensors[f"model.codec_embedding.{index}.weight"] = matrix(self.codebook_size, hidden, np.sqrt(hidden))
            tensors[f"lm_head.{index}.weight"] = matrix(self.codebook_size, hidden, self.head_scale)
        tensors["talker.model.codec_embedding.weight"] = matrix(self.code_zero_size, hidden, np.sqrt(hidden))
        return tensors

    def load(self, **options: Any) -> CodePredictor:
        """The predictor."""
        return CodePredictor.from_tensors(self.config, self.tensors, **options)

    def inputs(self, batch: int, seed: int = 0) -> tuple[Array, Array]:
        """Random hidden rows [B, Ht] float32 and codes [B] int32."""
        generator = np.random.default_rng([self.seed, seed])
        hidden = generator.standard_normal((batch, self.hidden_size)).astype(np.float32)
        return hidden, generator.integers(self.code_zero_size, size=batch, dtype=np.int32)
