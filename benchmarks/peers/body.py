"""The predictor's decoder in plain PyTorch with a static KV cache: what the graph peers run, and the float32 reference.

Everything is a closure over tensors, which torch.compile traces and a CUDA graph captures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from benchmarks.peers.weights import Weights

    from overtone import ModelSpec, SamplingParams

    Where: TypeAlias = "slice | torch.Tensor"
    Forward: TypeAlias = Callable[[torch.Tensor, "Cache", Where], torch.Tensor]
    """Rows [B, S, H] at the positions `where` → the final norm's output [B, S, H]."""

Cache: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor]]"
"""Keys and values of each layer, [B, Nkv, R + 1, D]."""


@dataclass(frozen=True)
class Inputs:
    """A frame's inputs on the GPU: talker_last_hidden [B, Ht] in the working type, code_zero [B] int64."""

    talker_last_hidden: torch.Tensor
    code_zero: torch.Tensor

    @property
    def batch(self) -> int:
        """B."""
        return int(self.code_zero.shape[0])


def random_inputs(spec: ModelSpec, batch: int, seed: int, dtype: torch.dtype) -> Inputs:
    """Hidden rows of usual size, and codes that the talker's table has."""
    import torch  # noqa: PLC0415

    noise = torch.Generator("cuda").manual_seed(seed)
    hidden = torch.randn(batch, spec.talker_hidden_size, device="cuda", generator=noise)
    code_zero = torch.randint(spec.code_zero_size or 1, (batch,), device="cuda", generator=noise)
    return Inputs(hidden.to(dtype), code_zero)


def empty_cache(weights: Weights, batch: int) -> Cache:
    """A cache of zeros: a masked slot that was never written must not hold a NaN."""
    import torch  # noqa: PLC0415

    spec = weights.spec
    shape = (batch, spec.key_value_heads, spec.codes_per_frame, spec.head_size)

    def zeros() -> torch.Tensor:
        return torch.zeros(shape, dtype=weights.dtype, device="cuda")

    return [(zeros(), zeros()) for _ in weights.layers]


def prefill_rows(weights: Weights, inputs: Inputs) -> torch.Tensor:
    """P(h) and P(E0[c0]) [B, 2, H]."""
    import torch  # noqa: PLC0415

    return torch.stack([weights.project(inputs.talker_last_hidden), weights.code_zero_rows[inputs.code_zero]], dim=1)


def rotation(spec: ModelSpec, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [R + 1, D] of the rotary embedding. The sines of the first half are negated.

    So "rotate half", which negates the half that it moves to the front, becomes a plain roll.
    """
    import torch  # noqa: PLC0415

    even = torch.arange(0, spec.head_size, 2, device="cuda").float()
    frequencies = 1.0 / spec.rope_theta ** (even / spec.head_size)
    angles = torch.arange(spec.codes_per_frame, device="cuda").float()[:, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([cosine, cosine], -1).to(dtype), torch.cat([-sine, sine], -1).to(dtype)


def static_forward(weights: Weights, *, masked: bool) -> Forward:
    """The decoder.

    Args:
        weights: Its weights.
        masked: Attend to every slot under a mask, so that all steps have one shape and compile once; `where` is then a
            tensor of positions. Otherwise attend to the slots written so far, and `where` is a slice.
    """
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    spec, layers, final_norm = weights.spec, weights.layers, weights.norm
    heads, size, epsilon = (spec.query_heads, spec.key_value_heads), spec.head_size, spec.rms_norm_epsilon
    cosine, signed_sine = rotation(spec, weights.dtype)
    slots = spec.codes_per_frame
    causal = torch.full((slots, slots), float("-inf"), device="cuda").triu(1).to(weights.dtype)

    def norm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(rows.dtype) * weight

    def rotate(rows: torch.Tensor, where: Where) -> torch.Tensor:
        return rows * cosine[where] + rows.roll(size // 2, -1) * signed_sine[where]

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        stored: tuple[torch.Tensor, torch.Tensor],
        where: Where,
    ) -> torch.Tensor:
        keys, values = stored
        if masked:
            keys.index_copy_(2, where, key)
            values.index_copy_(2, where, value)
            mask = causal[where][None, None]
            return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        keys[:, :, where], values[:, :, where] = key, value
        seen = slice(0, where.stop)
        several = query.shape[2] > 1
        return functional.scaled_dot_product_attention(
            query, keys[:, :, seen], values[:, :, seen], is_causal=several, enable_gqa=True
        )

    def forward(rows: torch.Tensor, cache: Cache, where: Where) -> torch.Tensor:
        batch, steps = rows.shape[:2]
        for number, layer in enumerate(layers):
            projected = functional.linear(norm(rows, layer["attention_norm"]), layer["query_key_value"])
            query, key, value = projected.view(batch, steps, -1, size).split([heads[0], heads[1], heads[1]], 2)
            query = rotate(norm(query, layer["query_norm"]).transpose(1, 2), where)
            key = rotate(norm(key, layer["key_norm"]).transpose(1, 2), where)
            attended = attend(query, key, value.transpose(1, 2), cache[number], where)
            rows = rows + functional.linear(attended.transpose(1, 2).reshape(batch, steps, -1), layer["output"])
            gate, up = functional.linear(norm(rows, layer["mlp_norm"]), layer["gate_up"]).chunk(2, -1)
            rows = rows + functional.linear(functional.silu(gate) * up, layer["down"])
        return norm(rows, final_norm)

    return forward


def sampler(sampling: SamplingParams | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits [B, V] → codes [B]. Draws by the exponential race, which needs neither a second sort nor a sum."""
    import torch  # noqa: PLC0415

    if sampling is None or sampling.temperature == 0:
        return lambda logits: logits.argmax(-1)
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p

    def sample(logits: torch.Tensor) -> torch.Tensor:
        kept, codes = (logits.float() / temperature).topk(top_k or logits.shape[-1], -1)
        probabilities = kept.softmax(-1)
        if top_p < 1:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = torch.where(before < top_p, probabilities, 0.0)
        winner = (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1, keepdim=True)
        return codes.gather(-1, winner)[:, 0]

    return sample


def greedy_agreement(reference: Weights, inputs: Inputs, codes: torch.Tensor) -> float:
    """How many of the codes [B, R + 1] the reference picks too, given the codes before each: a fraction.

    One pass over whole rows: the codes are known, so no step has to wait for another.
    """
    import torch  # noqa: PLC0415

    with torch.inference_mode():
        wide = Inputs(inputs.talker_last_hidden.to(reference.dtype), inputs.code_zero)
        last = reference.spec.residual_codebooks
        fed = [reference.code_rows[codebook - 1][codes[:, codebook]][:, None] for codebook in range(1, last)]
        rows = torch.cat([prefill_rows(reference, wide), *fed], dim=1)
        forward = static_forward(reference, masked=False)
        hidden = forward(rows, empty_cache(reference, inputs.batch), slice(0, last + 1))
        picked = [(hidden[:, codebook] @ head.T).argmax(-1) for codebook, head in enumerate(reference.heads, 1)]
        return float((torch.stack(picked, 1) == codes[:, 1:]).double().mean())
