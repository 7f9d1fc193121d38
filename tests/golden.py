"""The golden directories of `tests/data`, read as the tests use them.

The numbers were computed in float64 by a program that shares no code with overtone; `tests/data/README.md` is their
description. This module only reads them: it compares nothing and starts no predictor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

DATA = Path(__file__).resolve().parent / "data"
"""The folder of golden data, wherever the tests are run from."""

GOLDEN_NAMES = ("omni-tiny", "tts-tiny-projected", "standalone")
"""Every golden checkpoint directory."""

SAMPLING_SETS = ("greedy", "sampled_a", "sampled_b", "mixed")
"""The named parameter sets that each golden directory has expected outputs for."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GoldenDirectory:
    """One golden checkpoint with its inputs and expected outputs."""

    name: str

    @property
    def path(self) -> Path:
        """The checkpoint directory, as a user would pass it to overtone."""
        return DATA / self.name

    @property
    def frames_file(self) -> Path:
        """The inputs, as a user would pass them to `overtone predict --frames`."""
        return self.path / "frames.safetensors"

    @property
    def code_zero_table_file(self) -> Path | None:
        """The talker's codec table where the checkpoint lacks it, else None."""
        file = self.path / "code_zero_table.safetensors"
        return file if file.exists() else None

    @cached_property
    def talker_last_hidden(self) -> Array:
        """Hidden rows [T, B, Ht], float32."""
        return load_file(self.frames_file)["talker_last_hidden"]

    @cached_property
    def code_zero(self) -> Array:
        """The talker's codes [T, B], int32."""
        return load_file(self.frames_file)["code_zero"]

    @cached_property
    def sampling_sets(self) -> dict[str, list[dict[str, Any]]]:
        """Parameter sets by name; each is a list of B objects with `temperature`, `top_k`, `top_p` and `seed`."""
        sets: dict[str, list[dict[str, Any]]] = json.loads((self.path / "params.json").read_text())["sets"]
        return sets

    @cached_property
    def _expected(self) -> dict[str, Array]:
        return load_file(self.path / "expected.safetensors")

    def expected(self, sampling_set: str, output: str) -> Array:
        """One expected output.

        Args:
            sampling_set: One of `SAMPLING_SETS`.
            output: `codes` [T, B, C] int32, `codec_sum` [T, B, Ht] float32 or `margin` [T, B, R] float32; for `greedy`
                also `logits` [T, B, R, V] and `codec_hiddens` [T, B, C, Ht] with NaN in the unwritten rows 0 and R.
        """
        return self._expected[f"{sampling_set}.{output}"]


@dataclass(frozen=True)
class SamplingCase:
    """One golden draw: a row of logits, the parameters, and what must come out."""

    index: int
    tag: str
    logits: Array
    temperature: np.float32
    top_k: int
    top_p: np.float32
    seed: int
    frame: int
    codebook: int
    code: int
    kept: int


def read_sampling_cases() -> list[SamplingCase]:
    """The golden draws, in order."""
    tensors = load_file(DATA / "sampling.safetensors")
    described = json.loads((DATA / "sampling.json").read_text())
    return [
        SamplingCase(
            index=index,
            tag=str(case["tag"]),
            logits=tensors[f"logits.{index:03}"],
            temperature=tensors["temperature"][index],
            top_k=int(tensors["top_k"][index]),
            top_p=tensors["top_p"][index],
            seed=int(tensors["seed"][index]),
            frame=int(tensors["frame"][index]),
            codebook=int(tensors["codebook"][index]),
            code=int(tensors["code"][index]),
            kept=int(tensors["kept"][index]),
        )
        for index, case in enumerate(described)
    ]
