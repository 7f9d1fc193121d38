"""The checkpoint's tensors for PyTorch, read by overtone so that every contender has the very same weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from overtone import _core

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from overtone import ModelSpec

CODE_ZERO_TABLE = "talker.model.codec_embedding.weight"
PREDICTOR = "talker.code_predictor."
PROJECTION = "small_to_mtp_projection"


class Layer(TypedDict):
    """One decoder layer. A plain dict, which torch.compile traces without ado.

    query_key_value [(Nq + 2 Nkv) D, H] and gate_up [2 I, H] are stacked, as whoever tunes such a model does first.
    """

    attention_norm: torch.Tensor
    query_key_value: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Weights:
    """A code predictor on the GPU.

    Args:
        spec: The architecture.
        code_zero_rows: P(E0) [V0, H], projected once where there is a projection.
        code_rows: P(E[i]) [V, H], i = 0 … R-1, likewise.
        heads: Head[i] [V, H].
        layers: The decoder.
        norm: [H], of the final norm.
        projection: The weight [H, Ht] and bias [H] of P, or None.
    """

    spec: ModelSpec
    code_zero_rows: torch.Tensor
    code_rows: list[torch.Tensor]
    heads: list[torch.Tensor]
    layers: list[Layer]
    norm: torch.Tensor
    projection: tuple[torch.Tensor, torch.Tensor] | None

    @property
    def dtype(self) -> torch.dtype:
        """The working type."""
        return self.norm.dtype

    def project(self, rows: torch.Tensor) -> torch.Tensor:
        """P of rows [..., Ht]."""
        from torch.nn import functional  # noqa: PLC0415

        return rows if self.projection is None else functional.linear(rows, *self.projection)

    def step_bytes(self) -> int:
        """Bytes that one step has to read: every layer and one head."""
        matrices = [tensor for layer in self.layers for tensor in _tensors(layer)]
        return sum(tensor.nbytes for tensor in (*matrices, self.heads[0]))


def read_state(checkpoint: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The code predictor's tensors on the GPU under the names of the published class, and the talker's codec table.

    Raises:
        SystemExit: The checkpoint has not the layout of a released one, or comes without its talker.
    """
    import torch  # noqa: PLC0415

    files, _ = _core.describe_checkpoint(checkpoint)
    state: dict[str, torch.Tensor] = {}
    for file in files:
        if file.suffix != ".safetensors":
            continue
        for name, tensor in _core.read_tensors(file).items():
            if name == CODE_ZERO_TABLE or name.startswith(PREDICTOR):
                values = torch.tensor(tensor.numpy(), dtype=dtype, device="cuda")
                state[name.removeprefix(PREDICTOR)] = values
    for expected in (CODE_ZERO_TABLE, "model.norm.weight"):
        if expected not in state:
            raise SystemExit(f"error: {checkpoint} has no {expected}; run without CKPT for a synthetic checkpoint")
    return state


def build_weights(spec: ModelSpec, state: dict[str, torch.Tensor], dtype: torch.dtype) -> Weights:
    """Weights in a working type, with stacked matrices and projected tables."""
    import torch  # noqa: PLC0415

    wide = {name: tensor.to(dtype) for name, tensor in state.items()}
    layers = []
    for number in range(spec.layers):
        own = {
            name.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): tensor
            for name, tensor in wide.items()
            if name.startswith(f"model.layers.{number}.")
        }
        layers.append(
            Layer(
                attention_norm=own["input_layernorm"],
                query_key_value=torch.cat([own[f"self_attn.{part}_proj"] for part in "qkv"]),
                query_norm=own["self_attn.q_norm"],
                key_norm=own["self_attn.k_norm"],
                output=own["self_attn.o_proj"],
                mlp_norm=own["post_attention_layernorm"],
                gate_up=torch.cat([own["mlp.gate_proj"], own["mlp.up_proj"]]),
                down=own["mlp.down_proj"],
            )
        )
    codebooks = range(spec.residual_codebooks)
    raw = Weights(
        spec=spec,
        code_zero_rows=wide[CODE_ZERO_TABLE],
        code_rows=[wide[f"model.codec_embedding.{codebook}.weight"] for codebook in codebooks],
        heads=[wide[f"lm_head.{codebook}.weight"] for codebook in codebooks],
        layers=layers,
        norm=wide["model.norm.weight"],
        projection=(wide[f"{PROJECTION}.weight"], wide[f"{PROJECTION}.bias"]) if spec.projected else None,
    )
    return replace(
        raw, code_zero_rows=raw.project(raw.code_zero_rows), code_rows=[raw.project(table) for table in raw.code_rows]
    )


def _tensors(layer: Layer) -> list[Any]:
    return list(layer.values())
