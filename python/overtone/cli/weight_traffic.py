"""What a frame reads from memory, from the architecture alone, and the time that this takes at least.

A frame makes R passes over the decoder's layers (the prefill and R - 1 steps) and one over each head, whatever its
batch. Embedding rows, norms and the KV cache are small beside that and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from overtone import ModelSpec

__all__ = ["DEVICES", "Device", "WeightTraffic", "key_value_bytes", "weight_traffic"]


class Device(NamedTuple):
    """Memory that weights are read from."""

    name: str
    gigabytes_per_second: float
    measured: bool
    """By streaming reads; otherwise the vendor's figure, of which some 80 to 95 % can be reached."""


DEVICES = (
    Device("CPU, 2 channels DDR5-5600", 89.6, measured=False),
    Device("CPU, 12 channels DDR5-4800", 460.8, measured=False),
    Device("Jetson AGX Orin", 204.8, measured=False),
    Device("L4", 300, measured=False),
    Device("RTX 4090", 1008, measured=False),
    Device("RTX 5090", 1792, measured=False),
    Device("A100 SXM 80 GB", 2039, measured=False),
    Device("H100 SXM", 3350, measured=False),
    Device("H200", 4500, measured=True),
    Device("B200", 8000, measured=False),
)
"""Some machines a talker may run on."""

_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}
"""Bytes of a weight that is not quantised, by working type."""


@dataclass(frozen=True)
class WeightTraffic:
    """Bytes that a frame reads.

    Args:
        step: Of one step: the layers, the projection where there is one, and one head.
        frame: Of one frame, R steps.
    """

    step: int
    frame: int

    def floor_milliseconds(self, gigabytes_per_second: float) -> float:
        """How long a frame takes at least where memory is that fast."""
        return self.frame / gigabytes_per_second / 1e6


def weight_traffic(spec: ModelSpec, dtype: str) -> WeightTraffic:
    """Bytes of a step and of a frame.

    Args:
        spec: The architecture.
        dtype: Working type: `float32`, `bfloat16`, `float16` or `int8`; int8 quantises all of a layer but its down
            projection.
    """
    plain = _FLOAT_BYTES[dtype]
    query = spec.query_heads * spec.head_size
    key_value = spec.key_value_heads * spec.head_size
    hidden = spec.hidden_size
    quantised = hidden * (query + 2 * key_value) + query * hidden + 2 * hidden * spec.mlp_width
    scales = query + 2 * key_value + hidden + 2 * spec.mlp_width
    quantised_bytes = quantised + 4 * scales if dtype == "int8" else quantised * plain
    projection = hidden * spec.talker_hidden_size * plain if spec.projected else 0
    body = spec.layers * (quantised_bytes + spec.mlp_width * hidden * plain) + projection
    step = body + spec.codebook_size * hidden * plain
    return WeightTraffic(step, step * spec.residual_codebooks)


def key_value_bytes(spec: ModelSpec) -> int:
    """Bytes of the keys and values of one stream, in float32: R + 1 positions of every layer."""
    return 2 * spec.layers * spec.codes_per_frame * spec.key_value_heads * spec.head_size * 4
