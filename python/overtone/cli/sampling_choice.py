"""How the command line says how codes are drawn: single options for all streams, or a JSON file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from overtone import SamplingParams
from overtone.cli.options import path_type
from overtone.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from overtone import ModelSpec

    _Command = TypeVar("_Command", bound="Callable[..., Any]")

__all__ = ["choose_sampling", "describe_sampling", "read_sampling", "sampling_options"]

_LARGEST_SEED = 2**64 - 1
_LARGEST_FILE = 64 << 20
_FIELDS = {"temperature": float, "top_k": int, "top_p": float, "seed": int}


def sampling_options(command: _Command) -> _Command:
    """`--temperature`, `--top-k`, `--top-p`, `--seed` and `--sampling`."""
    for option in (
        click.option(
            "--sampling",
            "sampling_file",
            type=path_type(),
            metavar="JSON",
            help="File with one object of temperature, top_k, top_p and seed, or a list of one per stream.",
        ),
        click.option("--seed", type=click.IntRange(0, _LARGEST_SEED), help="64-bit key of the noise."),
        click.option("--top-p", type=float, help="Keep the most probable codes until their mass reaches this."),
        click.option("--top-k", type=int, help="Keep the k largest logits; 0 keeps all."),
        click.option("--temperature", type=float, help="Logits are divided by it; 0 draws the largest."),
    ):
        command = option(command)
    return command


def choose_sampling(
    spec: ModelSpec,
    streams: int,
    *,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    sampling_file: Path | None,
) -> list[SamplingParams] | None:
    """Sampling parameters of every stream; None is greedy, for when nothing was asked for.

    Raises:
        InputError: A parameter is out of range, or the file is at fault.
        click.UsageError: Both single options and a file were given.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if sampling_file is not None:
        if chosen or seed is not None:
            raise click.UsageError(
                "--sampling replaces --temperature, --top-k, --top-p and --seed: give one or the other"
            )
        return read_sampling(sampling_file, streams)
    if chosen:
        return [SamplingParams(**chosen, seed=seed or 0)] * streams
    if seed is not None:
        return [SamplingParams.for_checkpoint(spec, seed)] * streams
    return None


def describe_sampling(sampling: list[SamplingParams] | None) -> str:
    """The choice in a few words."""
    if sampling is None:
        return "greedy"
    if any(params != sampling[0] for params in sampling):
        return "sampled, each stream with its own parameters"
    only = sampling[0]
    return f"sampled: temperature {only.temperature:g}, top_k {only.top_k}, top_p {only.top_p:g}, seed {only.seed}"


def read_sampling(file: Path, streams: int) -> list[SamplingParams]:
    """Read a file of one object, or of one per stream.

    Raises:
        InputError: The file cannot be read, is not such JSON, or has an unknown or unusable parameter.
    """
    document = _read_json(file)
    if isinstance(document, dict):
        return [_params(file, "", document)] * streams
    if not isinstance(document, list):
        raise _refused(file, f"is {_kind(document)}, expected an object or a list of objects")
    if len(document) != streams:
        raise _refused(file, f"a list of {len(document)}, expected one object for each of the {streams} streams")
    return [_params(file, f"stream {index}: ", entry) for index, entry in enumerate(document)]


def _read_json(file: Path) -> object:
    try:
        with file.open("rb") as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror}") from error
    if len(text) > _LARGEST_FILE:
        raise _refused(file, f"larger than {_LARGEST_FILE} bytes")
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"not valid JSON: {error}") from error


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"`{name}` is given twice")
        values[name] = value
    return values


def _params(file: Path, place: str, entry: object) -> SamplingParams:
    if not isinstance(entry, dict):
        raise _refused(file, f"{place}is {_kind(entry)}, expected an object")
    for name, value in entry.items():
        if name not in _FIELDS:
            raise _refused(file, f"{place}unknown `{name}`, expected {', '.join(_FIELDS)}", key=name)
        if isinstance(value, bool) or not isinstance(value, (int, _FIELDS[name])):
            number = "an integer" if _FIELDS[name] is int else "a number"
            raise _refused(file, f"{place}`{name}` is {_kind(value)}, expected {number}", key=name)
    seed = entry.get("seed", 0)
    if not 0 <= seed <= _LARGEST_SEED:
        raise _refused(file, f"{place}`seed` is {seed}, expected 0 to {_LARGEST_SEED}", key="seed")
    try:
        return SamplingParams(**entry)
    except InputError as error:
        raise _refused(file, f"{place}{error}", key=error.key) from error
    except OverflowError as error:
        raise _refused(file, f"{place}a number does not fit: {error}") from error


def _kind(value: object) -> str:
    """A JSON value in a few words."""
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: str(value).lower()}
    return kinds.get(type(value)) or f"{json.dumps(value):.60}"


def _refused(file: Path, problem: str, key: str | None = None) -> InputError:
    return InputError(f"{file}: {problem}", file=str(file), key=key)
