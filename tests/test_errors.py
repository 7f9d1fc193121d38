"""Errors: their tree, and that each says which file, tensor or key is at fault, what was found and what expected."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from golden import GoldenDirectory
from models import RandomModel
from overtone import (
    CheckpointError,
    CodePredictor,
    ConfigError,
    InputError,
    ModelSpec,
    OvertoneError,
    UnsupportedError,
    errors,
    estimate_memory,
)

MODEL = RandomModel()


@pytest.fixture
def checkpoint(omni_tiny: GoldenDirectory, tmp_path: Path) -> Path:
    """A copy of a golden checkpoint, to be damaged."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(omni_tiny.path / name, directory / name)
    return directory


def edit_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text())
    change(config["talker_config"]["code_predictor_config"])
    file.write_text(json.dumps(config))


def edit_tensors(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name.startswith("talker.")}
    change(tensors)
    save_file(tensors, file)


KEY = "talker.code_predictor.model.layers.1.mlp.up_proj.weight"
CONFIG = "talker_config.code_predictor_config"


def test_a_missing_tensor_is_named_with_its_shape(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.pop(KEY))
    with pytest.raises(CheckpointError, match="no tensor") as refused:
        CodePredictor.from_pretrained(checkpoint)
    error = refused.value
    assert (error.file, error.tensor, error.expected) == (str(checkpoint / "model.safetensors"), KEY, "[160, 64]")


def test_a_tensor_of_another_shape_is_named_with_both(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({KEY: np.zeros((160, 63), "f4")}))
    with pytest.raises(CheckpointError, match="shape") as refused:
        CodePredictor.from_pretrained(checkpoint)
    error = refused.value
    assert (error.file, error.tensor) == (str(checkpoint / "model.safetensors"), KEY)
    assert (error.found, error.expected) == ("[160, 63]", "[160, 64]")


def test_a_tensor_of_another_type_is_named_with_both(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({KEY: np.zeros((160, 64), "i4")}))
    with pytest.raises(CheckpointError, match="I32") as refused:
        CodePredictor.from_pretrained(checkpoint)
    assert refused.value.tensor == KEY
    assert refused.value.expected


def test_a_weight_that_is_not_finite_is_named_with_its_place(checkpoint: Path) -> None:
    def poison(tensors: dict[str, Any]) -> None:
        tensors[KEY] = tensors[KEY].copy()
        tensors[KEY][7, 3] = np.inf

    edit_tensors(checkpoint, poison)
    with pytest.raises(CheckpointError, match=r"inf at \[7, 3\], expected finite values") as refused:
        CodePredictor.from_pretrained(checkpoint)
    assert (refused.value.file, refused.value.tensor) == (str(checkpoint / "model.safetensors"), KEY)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 31),
        ("hidden_act", "gelu"),
        ("rms_norm_eps", 0.0),
        ("vocab_size", 1e3),
        ("hidden_size", "64"),
        ("num_hidden_layers", 2**70),
        ("attention_bias", True),
    ],
)
def test_a_wrong_key_of_the_configuration_is_named(checkpoint: Path, key: str, value: object) -> None:
    edit_config(checkpoint, lambda config: config.update({key: value}))
    with pytest.raises(ConfigError) as refused:
        CodePredictor.from_pretrained(checkpoint)
    error = refused.value
    assert (error.file, error.key) == (str(checkpoint / "config.json"), f"{CONFIG}.{key}")
    assert key in str(error)
    assert error.found
    assert error.expected


def test_a_missing_key_of_the_configuration_is_named(checkpoint: Path) -> None:
    edit_config(checkpoint, lambda config: config.pop("hidden_size"))
    with pytest.raises(ConfigError) as refused:
        ModelSpec.from_directory(checkpoint)
    assert (refused.value.file, refused.value.key) == (str(checkpoint / "config.json"), f"{CONFIG}.hidden_size")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "missing: no such directory"),
        ("checkpoint/config.json", "not a directory"),
        ("nul\0byte", "unexpected NUL byte"),
        ("\udc80", "no such directory"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(checkpoint: Path, path: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        CodePredictor.from_pretrained(f"{checkpoint.parent}/{path}")


def test_paths_may_be_bytes_or_path_objects(omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    odd = tmp_path / "tén\udcff"
    try:
        shutil.copytree(omni_tiny.path, odd)
    except OSError:
        pytest.skip("this file system takes no such name")
    for path in (odd, str(odd), bytes(odd)):
        assert CodePredictor.from_pretrained(path).codebook_size == 96  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        CodePredictor.from_pretrained(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message", "key"),
    [
        ({"max_batch": 0}, "max_batch: found 0, expected 1 to 4096", "max_batch"),
        ({"max_batch": 4097}, "max_batch: found 4097, expected 1 to 4096", "max_batch"),
        ({"max_batch": 2**70}, "max_batch: found 1180591620717411303424, expected a whole number", "max_batch"),
        ({"max_batch": "8"}, "max_batch: found '8', expected a whole number", "max_batch"),
        ({"threads": 0}, "threads: found 0, expected 1 to 1024", "threads"),
        ({"threads": -2}, "threads: found -2, expected 1 to 1024", "threads"),
        ({"threads": 10**9}, "threads: found 1000000000, expected 1 to 1024", "threads"),
        ({"threads": 1.5}, "threads: found 1.5, expected a whole number", "threads"),
        ({"dtype": "bf16"}, 'dtype "bf16": no such type; expected one of float32, bfloat16, int8', "dtype"),
        ({"dtype": float}, 'dtype "float": no such type', "dtype"),
        ({"dtype": ""}, 'dtype "": no such type', "dtype"),
        ({"executor": "gpu"}, "executor: found 'gpu', expected one of auto, cpu", "executor"),
        ({"executor": None}, "executor: found None", "executor"),
        ({"executor": "cpu", "device": "cuda:0"}, "device: found 'cuda:0', expected None or 'cpu'", "device"),
        ({"device": "gpu"}, "device: found 'gpu', expected None, 'cpu', 'cuda', or a CUDA device", "device"),
        ({"device": -1}, "device: found '-1', expected None, 'cpu'", "device"),
        ({"executor": "cuda", "device": "cpu"}, "device: found 'cpu', expected None or a CUDA device", "device"),
        ({"spec_verify_size": None}, "spec_verify_size: found None", "spec_verify_size"),
    ],
)
def test_a_wrong_option_of_loading_is_named(
    omni_tiny: GoldenDirectory, options: dict[str, Any], message: str, key: str
) -> None:
    for load in (
        lambda: CodePredictor.from_pretrained(omni_tiny.path, **options),
        lambda: CodePredictor.from_tensors(MODEL.config, MODEL.tensors, **options),
    ):
        with pytest.raises(InputError) as refused:
            load()
        assert str(refused.value).startswith(message)
        assert refused.value.key == key


def test_a_type_that_the_cpu_lacks_is_unsupported_rather_than_unknown(omni_tiny: GoldenDirectory) -> None:
    for dtype in ("float16", "fp8"):
        with pytest.raises(UnsupportedError, match="the cpu executor does not have it") as refused:
            CodePredictor.from_pretrained(omni_tiny.path, dtype=dtype)
        assert refused.value.found == dtype


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")])
def test_types_may_be_named_by_other_libraries(omni_tiny: GoldenDirectory, dtype: object) -> None:
    assert CodePredictor.from_pretrained(omni_tiny.path, dtype=dtype).dtype == "float32"


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0"])
def test_the_cpu_is_a_device(omni_tiny: GoldenDirectory, device: str | None) -> None:
    assert CodePredictor.from_pretrained(omni_tiny.path, device=device).executor == "cpu"


def test_an_estimate_refuses_what_loading_refuses() -> None:
    spec = ModelSpec.named("tiny")
    with pytest.raises(InputError, match="max_batch: found 0"):
        estimate_memory(spec, max_batch=0)
    with pytest.raises(InputError, match='dtype "half": no such type'):
        estimate_memory(spec, "half")
    with pytest.raises(InputError, match="huge"):
        ModelSpec.named("huge")


def test_attributes_that_do_not_apply_are_none() -> None:
    with pytest.raises(InputError) as refused:
        CodePredictor("gpu")
    assert refused.value.file is None
    assert refused.value.tensor is None
    error = OvertoneError("text")
    assert (error.file, error.tensor, error.key, error.found, error.expected) == (None,) * 5


def test_no_traceback_shows_anything_but_the_package(omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    for provoke in (
        lambda: CodePredictor.from_pretrained(tmp_path / "missing"),
        lambda: CodePredictor.from_pretrained(omni_tiny.path, max_batch=0),
        lambda: CodePredictor.from_pretrained(omni_tiny.path).predict_frame(np.zeros((1, 3), "f4"), [0]),
    ):
        with pytest.raises(OvertoneError) as refused:
            provoke()
        text = "".join(traceback.format_exception(refused.value))
        assert ".rs" not in text
        assert "panic" not in text
        assert "\n" not in str(refused.value)


def test_the_exceptions_form_the_documented_tree() -> None:
    assert set(errors.__all__) == {
        "OvertoneError",
        "ConfigError",
        "CheckpointError",
        "BindingError",
        "InputError",
        "DeviceError",
        "CudaUnavailableError",
        "OutOfMemoryError",
        "CaptureError",
        "EngineError",
        "FrameError",
        "UnsupportedError",
    }
    for name in set(errors.__all__) - {"OvertoneError"}:
        kind = getattr(errors, name)
        assert kind.__mro__[1] is OvertoneError
        assert issubclass(kind, ValueError) == (
            name in {"ConfigError", "CheckpointError", "BindingError", "InputError"}
        )
