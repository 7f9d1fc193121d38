"""`overtone info`: what a checkpoint is, and what running it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overtone import ModelSpec, _core, estimate_memory
from overtone.cli.options import WORKING_TYPES, checkpoint_argument, checkpoint_dir_option, json_option
from overtone.cli.weight_traffic import DEVICES, key_value_bytes, weight_traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["info"]

_EXECUTOR = {"float32": "cpu", "bfloat16": "cpu", "float16": "cuda", "int8": "cpu"}
"""Whose memory is shown for a working type: float16 is the cuda executor's alone."""

_BATCHES = (1, 8, 32)
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

_SIZES = (
    ("residual codebooks", "R", "residual_codebooks"),
    ("codes per frame", "C", "codes_per_frame"),
    ("codebook size", "V", "codebook_size"),
    ("talker's codec table", "V0", "code_zero_size"),
    ("hidden size", "H", "hidden_size"),
    ("talker hidden size", "Ht", "talker_hidden_size"),
    ("layers", "L", "layers"),
    ("query heads", "Nq", "query_heads"),
    ("key-value heads", "Nkv", "key_value_heads"),
    ("head size", "D", "head_size"),
    ("MLP width", "I", "mlp_width"),
)
"""Sizes in words, their symbols, and their names in `ModelSpec`."""


@click.command()
@checkpoint_argument
@checkpoint_dir_option
@json_option
def info(checkpoint: Path, checkpoint_dir: Path | None, *, as_json: bool) -> None:
    """Show a checkpoint's architecture and what a frame of it costs.

    A floor is the time that reading a frame's weights takes at least. Weights are not loaded and their values not
    checked.
    """
    spec = ModelSpec.from_directory(checkpoint, checkpoint_dir)
    _, stored = _core.describe_checkpoint(checkpoint, checkpoint_dir)
    if as_json:
        click.echo(json.dumps(_document(spec, stored), indent=2))
    else:
        _print(spec, stored)


def _document(spec: ModelSpec, stored: dict[str, int]) -> dict[str, Any]:
    temperature, top_k, top_p = spec.default_sampling
    return {
        "family": spec.family,
        "architecture": {
            **{field: getattr(spec, field) for _, _, field in _SIZES},
            "projected": spec.projected,
            "rope_theta": spec.rope_theta,
            "rms_norm_epsilon": spec.rms_norm_epsilon,
        },
        "parameters": spec.parameters,
        "body_parameters": spec.body_parameters,
        "storage": stored,
        "default_sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p},
        "key_value_bytes_per_stream": key_value_bytes(spec),
        "working_types": {dtype: _costs(spec, dtype) for dtype in WORKING_TYPES},
    }


def _costs(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    traffic = weight_traffic(spec, dtype)
    return {
        "bytes_per_step": traffic.step,
        "bytes_per_frame": traffic.frame,
        "weight_memory_bytes": estimate_memory(spec, dtype, 1, _EXECUTOR[dtype]).weights,
        "context_memory_bytes": {
            str(batch): estimate_memory(spec, dtype, batch, _EXECUTOR[dtype]).context for batch in _BATCHES
        },
        "floor_ms_per_frame": {
            device.name: round(traffic.floor_milliseconds(device.gigabytes_per_second), 4) for device in DEVICES
        },
    }


def _print(spec: ModelSpec, stored: dict[str, int]) -> None:
    temperature, top_k, top_p = spec.default_sampling
    kept = ", ".join(f"{_size(size)} in {dtype}" for dtype, size in stored.items())
    click.echo(f"{'family':22}{spec.family}")
    click.echo(
        f"{'parameters':22}{spec.parameters / 1e6:,.1f} million, of which {spec.body_parameters / 1e6:,.1f} in layers"
    )
    click.echo(f"{'storage':22}{kept}")
    click.echo(f"{'default sampling':22}temperature {temperature:g}, top_k {top_k}, top_p {top_p:g}")
    for words, symbol, field in _SIZES:
        value = getattr(spec, field)
        click.echo(f"{words:22}{symbol:4}{'not in this checkpoint' if value is None else value}")
    click.echo(f"{'projection':22}{'P   Ht to H' if spec.projected else 'none'}")
    click.echo(f"{'rotary embedding':22}theta {spec.rope_theta:g}")
    click.echo(f"{'keys and values':22}{_size(key_value_bytes(spec))} per stream in float32")
    _print_costs(spec)


def _print_costs(spec: ModelSpec) -> None:
    traffic = [weight_traffic(spec, dtype) for dtype in WORKING_TYPES]
    memory = [estimate_memory(spec, dtype, 1, _EXECUTOR[dtype]).weights for dtype in WORKING_TYPES]
    click.echo()
    _row("working type", WORKING_TYPES)
    _row("read per step", [_size(each.step) for each in traffic])
    _row("read per frame", [_size(each.frame) for each in traffic])
    _row("weights and tables in memory", [_size(size) for size in memory])
    for batch in _BATCHES:
        context = [estimate_memory(spec, dtype, batch, _EXECUTOR[dtype]).context for dtype in WORKING_TYPES]
        _row(f"context memory, batch {batch}", [_size(size) for size in context])
    click.echo()
    _row("floor in ms per frame (GB/s of the memory)", WORKING_TYPES)
    for device in DEVICES:
        speed = device.gigabytes_per_second
        source = "measured" if device.measured else "datasheet"
        floors = [f"{each.floor_milliseconds(speed):.3f}" for each in traffic]
        _row(f"{device.name} ({speed:,.0f}, {source})", floors)


def _row(label: str, cells: Iterable[str]) -> None:
    click.echo(f"{label:44}" + "".join(f"{cell:>12}" for cell in cells))


def _size(size: int) -> str:
    unit, scale = next((pair for pair in _UNITS if size >= pair[1]), _UNITS[-1])
    return f"{size / scale:,.1f} {unit}"
