"""Checkpoints that try to hurt a loader, each made from a golden one by one change.

A case names its golden directory, what it does to a copy of it, and what the error must name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden import DATA
from hostile import safetensors_bytes

OMNI, SHARDED = "omni-tiny", "tts-tiny-projected"
WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
FIRST_SHARD = "model-00001-of-00003.safetensors"
PREDICTOR = "talker.code_predictor."
QUERY = PREDICTOR + "model.layers.0.self_attn.q_proj.weight"
HEAD = PREDICTOR + "lm_head.0.weight"
TABLE = PREDICTOR + "model.codec_embedding.0.weight"
BIAS = PREDICTOR + "small_to_mtp_projection.bias"
Damage = Callable[[Path], object]


@dataclass(frozen=True)
class HostileCheckpoint:
    """One damaged checkpoint."""

    name: str
    golden: str
    damage: Damage
    named: tuple[str, ...]
    """What the error line must contain."""
    in_values: bool = False
    """Whether only the values of the weights are at fault, which `info` does not look at."""

    def build(self, directory: Path) -> Path:
        """A damaged copy in `directory`, without the golden inputs and outputs."""
        checkpoint = directory / "checkpoint"
        ignore = shutil.ignore_patterns("frames.safetensors", "expected.safetensors", "params.json")
        shutil.copytree(DATA / self.golden, checkpoint, ignore=ignore)
        self.damage(checkpoint)
        return checkpoint


def _bytes(change: Callable[[bytes], bytes], file: str = WEIGHTS) -> Damage:
    return lambda directory: (directory / file).write_bytes(change((directory / file).read_bytes()))


def _header(change: Callable[[safetensors_bytes.Header], object]) -> Damage:
    return lambda directory: safetensors_bytes.edit(directory / WEIGHTS, change)


def _raw_header(header: bytes, length: int | None = None) -> Damage:
    return lambda directory: safetensors_bytes.write_raw(directory / WEIGHTS, header, b"\0" * 64, length)


def _tensors(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda directory: safetensors_bytes.edit_tensors(directory / WEIGHTS, change)


def _text(text: str, file: str = CONFIG) -> Damage:
    return lambda directory: (directory / file).write_text(text)


def _config(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Changes the predictor's own part of `config.json`."""

    def damage(directory: Path) -> None:
        document = json.loads((directory / CONFIG).read_text())
        change(document["talker_config"]["code_predictor_config"])
        (directory / CONFIG).write_text(json.dumps(document))

    return damage


def _set(key: str, value: object) -> Damage:
    return _config(lambda config: config.__setitem__(key, value))


def _index(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(directory: Path) -> None:
        document = json.loads((directory / INDEX).read_text())
        change(document["weight_map"])
        (directory / INDEX).write_text(json.dumps(document))

    return damage


def _shard_called(found: object) -> Damage:
    return _index(lambda shards: shards.__setitem__(QUERY, found))


def _without(file: str) -> Damage:
    return lambda directory: (directory / file).unlink()


def _replaced_by(make: Callable[[Path], object], file: str) -> Damage:
    def damage(directory: Path) -> None:
        (directory / file).unlink()
        make(directory / file)

    return damage


def _with_value(value: bytes) -> Damage:
    """Puts one float32 into the third place of a weight."""

    def change(tensors: dict[str, Any]) -> None:
        dtype, shape, content = tensors[QUERY]
        tensors[QUERY] = (dtype, shape, content[:8] + value + content[12:])

    return _tensors(change)


def _retyped(dtype: str) -> Damage:
    return _header(lambda header: header[QUERY].__setitem__("dtype", dtype))


def _reshaped(shape: list[int]) -> Damage:
    return _header(lambda header: header[QUERY].__setitem__("shape", shape))


def _transposed(tensors: dict[str, Any]) -> None:
    dtype, shape, content = tensors[QUERY]
    tensors[QUERY] = (dtype, shape[::-1], content)


def _doubled(directory: Path) -> None:
    """Gives a head twice, which JSON allows, with other data the second time."""
    header, data = safetensors_bytes.read(directory / WEIGHTS)
    begin, end = header[HEAD]["data_offsets"]
    second = {HEAD: {**header[HEAD], "data_offsets": [len(data), len(data) + end - begin]}}
    text = f"{json.dumps(header)[:-1]}, {json.dumps(second)[1:]}".encode()
    safetensors_bytes.write_raw(directory / WEIGHTS, text, data + bytes(end - begin))


def _without_tensor(name: str) -> Damage:
    return _tensors(lambda tensors: tensors.pop(name))


def _copied(source: str, name: str) -> Damage:
    return _tensors(lambda tensors: tensors.__setitem__(name, tensors[source]))


def _half_a_projection(directory: Path) -> None:
    """Takes the bias out of the shard and out of the index."""
    _index(lambda shards: shards.pop(BIAS))(directory)
    for shard in directory.glob("model-*.safetensors"):
        if BIAS in safetensors_bytes.tensors(shard):
            safetensors_bytes.edit_tensors(shard, lambda tensors: tensors.pop(BIAS))


def _shards_swapped(directory: Path) -> None:
    first, second = FIRST_SHARD, "model-00002-of-00003.safetensors"
    content = (directory / first).read_bytes()
    (directory / first).write_bytes((directory / second).read_bytes())
    (directory / second).write_bytes(content)


def _overlapping(header: safetensors_bytes.Header) -> None:
    header[QUERY]["data_offsets"] = header[HEAD]["data_offsets"]


FILES = [
    HostileCheckpoint("weights cut short", OMNI, _bytes(lambda content: content[:-100]), (WEIGHTS,)),
    HostileCheckpoint("weights cut inside the header", OMNI, _bytes(lambda content: content[:500]), (WEIGHTS,)),
    HostileCheckpoint("weights cut inside the length", OMNI, _bytes(lambda content: content[:5]), (WEIGHTS,)),
    HostileCheckpoint(
        "weights with bytes after the end", OMNI, _bytes(lambda content: content + b"\0" * 8), (WEIGHTS,)
    ),
    HostileCheckpoint("weights empty", OMNI, _bytes(lambda _: b""), (WEIGHTS,)),
    HostileCheckpoint("weights of zeros", OMNI, _bytes(lambda content: bytes(len(content))), (WEIGHTS,)),
    HostileCheckpoint("a shard cut short", SHARDED, _bytes(lambda content: content[:-1], FIRST_SHARD), (FIRST_SHARD,)),
    HostileCheckpoint("header longer than anything", OMNI, _raw_header(b"{}", 2**64 - 1), (WEIGHTS,)),
    HostileCheckpoint("header longer than the file", OMNI, _raw_header(b"{}", 10**6), (WEIGHTS,)),
    HostileCheckpoint("header of no bytes", OMNI, _raw_header(b"", 0), (WEIGHTS,)),
    HostileCheckpoint("header not JSON", OMNI, _raw_header(b"not json at all"), (WEIGHTS,)),
    HostileCheckpoint("header not text", OMNI, _raw_header(b"\xff\xfe\xfd\xfc"), (WEIGHTS,)),
    HostileCheckpoint("header a list", OMNI, _raw_header(b"[1, 2, 3]"), (WEIGHTS,)),
    HostileCheckpoint("header nested without end", OMNI, _raw_header(b'{"a":' + b"[" * 100_000), (WEIGHTS,)),
    HostileCheckpoint("header with a head twice", OMNI, _doubled, (WEIGHTS,)),
    HostileCheckpoint(
        "offsets past the end", OMNI, _header(lambda h: h[QUERY].update(data_offsets=[0, 2**40])), (WEIGHTS,)
    ),
    HostileCheckpoint("offsets backwards", OMNI, _header(lambda h: h[QUERY].update(data_offsets=[64, 0])), (WEIGHTS,)),
    HostileCheckpoint("offsets negative", OMNI, _header(lambda h: h[QUERY].update(data_offsets=[-8, 8])), (WEIGHTS,)),
    HostileCheckpoint("offsets of another tensor", OMNI, _header(_overlapping), (WEIGHTS,)),
    HostileCheckpoint("shape of more elements than there can be", OMNI, _reshaped([2**62, 2**62]), (WEIGHTS,)),
    HostileCheckpoint("shape that the bytes do not fill", OMNI, _reshaped([4096, 64]), (WEIGHTS,)),
    HostileCheckpoint("shape negative", OMNI, _reshaped([-1, 64]), (WEIGHTS,)),
    HostileCheckpoint("unknown element type", OMNI, _retyped("F31"), (WEIGHTS,)),
    HostileCheckpoint("weights a directory", OMNI, _replaced_by(Path.mkdir, WEIGHTS), (WEIGHTS, "not a regular file")),
    HostileCheckpoint("weights a pipe", OMNI, _replaced_by(os.mkfifo, WEIGHTS), (WEIGHTS, "not a regular file")),
    HostileCheckpoint(
        "weights a dangling link", OMNI, _replaced_by(lambda file: file.symlink_to("nowhere"), WEIGHTS), (WEIGHTS,)
    ),
    HostileCheckpoint(
        "weights a link to itself", OMNI, _replaced_by(lambda file: file.symlink_to(WEIGHTS), WEIGHTS), (WEIGHTS,)
    ),
    HostileCheckpoint("weights missing", OMNI, _without(WEIGHTS), ("no weights",)),
]
"""What is wrong with the bytes of files, or with what stands in their place."""

TENSORS = [
    HostileCheckpoint(
        "a weight that is NaN", OMNI, _with_value(b"\0\0\xc0\x7f"), (WEIGHTS, QUERY, "NaN", "[0, 2]"), in_values=True
    ),
    HostileCheckpoint(
        "a weight that is infinite",
        OMNI,
        _with_value(b"\0\0\x80\xff"),
        (WEIGHTS, QUERY, "-inf", "[0, 2]"),
        in_values=True,
    ),
    HostileCheckpoint("a weight of integers", OMNI, _retyped("I32"), (WEIGHTS, QUERY, "I32")),
    HostileCheckpoint("a weight transposed", OMNI, _tensors(_transposed), (WEIGHTS, QUERY, "shape")),
    HostileCheckpoint("a weight missing", OMNI, _without_tensor(QUERY), (WEIGHTS, QUERY, "no tensor")),
    HostileCheckpoint("a head missing", OMNI, _without_tensor(HEAD), (WEIGHTS, HEAD, "no tensor")),
    HostileCheckpoint(
        "a head too many", OMNI, _copied(HEAD, PREDICTOR + "lm_head.7.weight"), ("lm_head.7", "num_code_groups")
    ),
    HostileCheckpoint(
        "a table too many", OMNI, _copied(HEAD, TABLE.replace("0", "7")), ("codec_embedding.7", "num_code_groups")
    ),
    HostileCheckpoint("a layer with a bias", OMNI, _copied(HEAD, QUERY.replace("weight", "bias")), ("q_proj.bias",)),
    HostileCheckpoint(
        "a projection without bias", SHARDED, _half_a_projection, ("small_to_mtp_projection.weight", "bias")
    ),
    HostileCheckpoint("a shard missing", SHARDED, _without(FIRST_SHARD), (FIRST_SHARD, "no such file")),
    HostileCheckpoint("two shards swapped", SHARDED, _shards_swapped, ("model-0000", INDEX)),
    HostileCheckpoint(
        "a shard outside the directory", SHARDED, _shard_called("../" + FIRST_SHARD), (INDEX, QUERY, "../")
    ),
    HostileCheckpoint(
        "a shard at an absolute path", SHARDED, _shard_called("/etc/passwd"), (INDEX, QUERY, "/etc/passwd")
    ),
    HostileCheckpoint("a shard that is the directory", SHARDED, _shard_called("."), (INDEX, QUERY)),
    HostileCheckpoint("a shard without a name", SHARDED, _shard_called(""), (INDEX, QUERY)),
    HostileCheckpoint("a shard named by a number", SHARDED, _shard_called(1), (INDEX, QUERY)),
    HostileCheckpoint(
        "a shard with a line break in its name", SHARDED, _shard_called("a\nb\u2028c\x1b[31m"), ("a", "b")
    ),
    HostileCheckpoint("index not JSON", SHARDED, _text("{", INDEX), (INDEX, "not valid JSON")),
    HostileCheckpoint("index without a map", SHARDED, _text("{}", INDEX), (INDEX, "weight_map")),
    HostileCheckpoint(
        "index with a list for a map", SHARDED, _text('{"weight_map": []}', INDEX), (INDEX, "weight_map")
    ),
]
"""What is wrong with tensors, or with the index of the files that hold them."""

CONFIGS = [
    HostileCheckpoint("config missing", OMNI, _without(CONFIG), ("no config.json",)),
    HostileCheckpoint("config a directory", OMNI, _replaced_by(Path.mkdir, CONFIG), (CONFIG,)),
    HostileCheckpoint("config empty", OMNI, _text(""), (CONFIG, "not valid JSON")),
    HostileCheckpoint("config not JSON", OMNI, _text("hidden_size = 64"), (CONFIG, "not valid JSON")),
    HostileCheckpoint("config a list", OMNI, _text("[]"), (CONFIG, "a list")),
    HostileCheckpoint("config nested without end", OMNI, _text("[" * 100_000), (CONFIG, "not valid JSON")),
    HostileCheckpoint(
        "config without a key",
        OMNI,
        _config(lambda config: config.pop("hidden_size")),
        (CONFIG, "hidden_size", "missing"),
    ),
    HostileCheckpoint("a size that is text", OMNI, _set("hidden_size", "64"), (CONFIG, "hidden_size", '"64"')),
    HostileCheckpoint("a size that is a fraction", OMNI, _set("hidden_size", 64.5), (CONFIG, "hidden_size", "64.5")),
    HostileCheckpoint("a size that is nothing", OMNI, _set("hidden_size", 0), (CONFIG, "hidden_size", "0")),
    HostileCheckpoint("a size below nothing", OMNI, _set("num_hidden_layers", -5), (CONFIG, "num_hidden_layers", "-5")),
    HostileCheckpoint(
        "a size beyond any memory", OMNI, _set("intermediate_size", 2**62), (CONFIG, "intermediate_size")
    ),
    HostileCheckpoint("a size beyond 64 bits", OMNI, _set("vocab_size", 10**30), (CONFIG, "vocab_size")),
    HostileCheckpoint(
        "more layers than any model", OMNI, _set("num_hidden_layers", 10**9), (CONFIG, "num_hidden_layers")
    ),
    HostileCheckpoint("no residual codebook", OMNI, _set("num_code_groups", 1), (CONFIG, "num_code_groups", "1")),
    HostileCheckpoint("more codebooks than tables", OMNI, _set("num_code_groups", 9), (WEIGHTS, "no tensor")),
    HostileCheckpoint(
        "heads that do not divide", OMNI, _set("num_key_value_heads", 3), (CONFIG, "num_key_value_heads")
    ),
    HostileCheckpoint("a theta of nothing", OMNI, _set("rope_theta", 0), (CONFIG, "rope_theta")),
    HostileCheckpoint("another activation", OMNI, _set("hidden_act", "gelu"), (CONFIG, "hidden_act", "gelu")),
]
"""What is wrong with the configuration."""

HOSTILE_CHECKPOINTS = [*FILES, *TENSORS, *CONFIGS]
