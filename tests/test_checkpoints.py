"""Every way to the same predictor: files, artifacts, tensors in memory; what is estimated before and held after.

Hostile checkpoints are `test_hostile.py`'s; how errors are worded is `test_errors.py`'s.
"""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import overtone
from golden import GoldenDirectory
from models import Array, RandomModel, bits, load
from overtone import (
    BindingError,
    CheckpointError,
    CodePredictor,
    ConfigError,
    InputError,
    ModelSpec,
    OutOfMemoryError,
    Tensor,
)
from overtone._core import read_tensors

MODEL = RandomModel()


def state_dict(golden: GoldenDirectory) -> dict[str, Tensor]:
    """All tensors of a golden checkpoint, bfloat16 among them."""
    files = sorted(golden.path.glob("model*.safetensors"))
    table = golden.code_zero_table_file
    return {
        name: tensor for file in [*files, *([table] if table else [])] for name, tensor in read_tensors(file).items()
    }


def config(golden: GoldenDirectory) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((golden.path / "config.json").read_text())
    return read


def outputs(predictor: CodePredictor, golden: GoldenDirectory) -> list[bytes]:
    frame = predictor.predict_frame(golden.talker_last_hidden[0], golden.code_zero[0], logits=True).wait()
    assert frame.logits is not None
    return [bits(tensor) for tensor in (frame.codes, frame.codec_sum, frame.codec_hiddens, frame.logits)]


# Tensors in memory


def test_tensors_in_memory_are_the_same_predictor(golden: GoldenDirectory) -> None:
    expected = outputs(load(golden), golden)
    for given in (config(golden), json.dumps(config(golden)), MappingProxyType(config(golden))):
        predictor = CodePredictor.from_tensors(given, state_dict(golden))
        assert outputs(predictor, golden) == expected
    assert predictor.spec == CodePredictor.from_tensors(config(golden), state_dict(golden)).spec
    assert predictor.dtype == load(golden).dtype


def test_strided_tensors_in_memory_are_the_same_predictor(golden: GoldenDirectory) -> None:
    def strided(tensor: Tensor) -> Array | Tensor:
        if tensor.dtype == "bfloat16":
            return tensor
        array = tensor.numpy()
        spread = np.full([2 * extent for extent in array.shape], 77, array.dtype)
        view = spread[tuple(slice(None, None, -2) for _ in array.shape)]
        view[...] = array
        return view

    given = {name: strided(tensor) for name, tensor in state_dict(golden).items()}
    assert outputs(CodePredictor.from_tensors(config(golden), given), golden) == outputs(load(golden), golden)


def test_every_spelling_of_the_keys_is_the_same_predictor(standalone: GoldenDirectory) -> None:
    expected = outputs(load(standalone), standalone)
    plain = state_dict(standalone)
    for prefix in ("", "code_predictor.", "talker.code_predictor."):
        for model in ("", "model."):
            spelled = {
                name if name.startswith("talker.") else prefix + name.replace("model.", model, 1): tensor
                for name, tensor in plain.items()
            }
            assert outputs(CodePredictor.from_tensors(config(standalone), spelled), standalone) == expected


def test_tensors_in_memory_are_copied() -> None:
    tensors = {name: tensor.copy() for name, tensor in MODEL.tensors.items()}
    predictor = CodePredictor.from_tensors(MODEL.config, tensors)
    before = predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist()
    for tensor in tensors.values():
        tensor[:] = np.nan
    assert predictor.predict_frame(*MODEL.inputs(2)).codec_sum.tolist() == before


def test_a_configuration_object_of_another_library_is_taken() -> None:
    class Dtype:
        def __repr__(self) -> str:
            return "torch.float32"

    flat = {**MODEL.config, "dtype": Dtype(), "quantization_config": None}
    nested: Mapping[str, Any] = OrderedDict(
        model_type="qwen3_omni_moe",
        talker_config=MappingProxyType({"code_predictor_config": flat, "text_config": {"hidden_size": 32}}),
    )
    expected = MODEL.load().predict_frame(*MODEL.inputs(2)).codes.tolist()
    for given in (flat, nested):
        predictor = CodePredictor.from_tensors(given, MODEL.tensors)
        assert predictor.predict_frame(*MODEL.inputs(2)).codes.tolist() == expected


def test_the_talkers_other_tensors_may_be_anything() -> None:
    around: dict[str, Any] = {
        "talker.model.layers.0.self_attn.q_proj.weight": np.zeros(3, complex),
        "thinker.model.embed_tokens.weight": np.zeros((2, 2), ">f4"),
        "code2wav.decoder": object(),
        "rope.freqs": None,
        "talker.model.norm.weight": np.full(2, np.nan),
        "talker.huge": np.broadcast_to(np.float32(0), (2**44,)),
    }
    predictor = CodePredictor.from_tensors(MODEL.config, {**around, **MODEL.tensors})
    expected = MODEL.load().predict_frame(*MODEL.inputs(2)).codes.tolist()
    assert predictor.predict_frame(*MODEL.inputs(2)).codes.tolist() == expected


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("lm_head.1.weight", np.zeros((40, 32)), CheckpointError, "type float64, expected float32, float16 or"),
        ("lm_head.1.weight", np.zeros((40, 32), "i8"), CheckpointError, "type int64, expected float32, float16 or"),
        ("lm_head.1.weight", None, InputError, "NoneType, expected a tensor"),
        ("lm_head.1.weight", [[1.0]], InputError, "list, expected a tensor"),
        ("lm_head.1.weight", np.zeros((40, 32), ">f4"), InputError, "byte-swapped elements"),
        ("lm_head.1.weight", np.zeros((40, 31), "f4"), CheckpointError, r"shape \[40, 31\], expected \[40, 32\]"),
        ("model.norm.weight", np.full(32, np.inf, "f4"), CheckpointError, r"inf at \[0\], expected finite values"),
        ("lm_head.7.weight", np.zeros((40, 32)), CheckpointError, "type float64"),
        ("lm_head.7.weight", np.zeros((40, 32), "f4"), CheckpointError, "`num_code_groups` is 4"),
        ("small_to_mtp_projection.weight", np.eye(32), CheckpointError, "type float64"),
        ("small_to_mtp_projection.bias", np.zeros(32, "f4"), CheckpointError, "without `small_to_mtp_proj"),
        ("talker.model.codec_embedding.weight", np.zeros((50, 32)), CheckpointError, "type float64"),
        ("talker.model.codec_embedding.weight", np.zeros((50, 31), "f4"), CheckpointError, "at least 1, 32"),
        ("model.codec_embedding.1.weight", np.zeros((40, 32), "f2"), CheckpointError, "like the first codec table"),
    ],
)
def test_a_tensor_of_the_predictor_that_does_not_fit_is_named(
    key: str, value: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        CodePredictor.from_tensors(MODEL.config, {**MODEL.tensors, key: value})  # type: ignore[dict-item]
    assert refused.value.tensor == key  # type: ignore[attr-defined]
    assert refused.value.file is None  # type: ignore[attr-defined]


def test_a_projection_that_cannot_be_read_is_never_left_out() -> None:
    projection = {"small_to_mtp_projection.weight": np.eye(32), "small_to_mtp_projection.bias": np.zeros(32)}
    with pytest.raises(CheckpointError, match=r"small_to_mtp_projection\.\w+: type float64"):
        CodePredictor.from_tensors(MODEL.config, {**MODEL.tensors, **projection})


def test_weights_that_are_all_double_are_refused_as_such() -> None:
    double = {name: tensor.astype("f8") for name, tensor in MODEL.tensors.items()}
    with pytest.raises(CheckpointError, match="type float64, expected float32, float16 or bfloat16"):
        CodePredictor.from_tensors(MODEL.config, double)


def test_a_tensor_that_no_memory_holds_is_refused_not_fatal() -> None:
    huge = np.broadcast_to(np.float32(0), (2**44, 32))
    with pytest.raises(OutOfMemoryError, match=r"lm_head\.1\.weight: 2251799813685248 bytes"):
        CodePredictor.from_tensors(MODEL.config, {**MODEL.tensors, "lm_head.1.weight": huge})


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        (None, MODEL.tensors, "config: found None, expected a mapping, or JSON text"),
        (b"{}", MODEL.tensors, "config: found b'{}', expected"),
        (MODEL.config, [np.zeros(100)], r"state_dict: found \[array.*, expected a mapping"),
    ],
)
def test_what_is_no_mapping_is_refused_in_one_line(config: Any, tensors: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        CodePredictor.from_tensors(config, tensors)
    assert "\n" not in str(refused.value)


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(TypeError):
        CodePredictor.from_tensors(MODEL.config, {**MODEL.tensors, 7: np.zeros(1)})  # type: ignore[dict-item]


def test_a_state_dict_without_a_predictor_says_so() -> None:
    for tensors in ({}, {"talker.model.norm.weight": np.zeros(3, "f4")}):
        with pytest.raises(CheckpointError, match="no decoder layers"):
            CodePredictor.from_tensors(MODEL.config, tensors)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"vocab_size": NaN}', "\0"])
def test_a_configuration_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        CodePredictor.from_tensors(text, MODEL.tensors)


# Artifacts, and the talker's table


@pytest.fixture
def artifacts(tts_tiny_projected: GoldenDirectory, tmp_path: Path) -> Path:
    """What TensorRT Edge-LLM exports of a golden checkpoint."""
    directory = tmp_path / "artifacts"
    directory.mkdir()
    tensors = state_dict(tts_tiny_projected)
    prefix = "talker.code_predictor."
    residual = load(tts_tiny_projected).num_rvq_layers
    overtone._core.write_tensors(
        directory / "codec_embeddings.safetensors",
        {f"embedding_{i}": tensors[f"{prefix}model.codec_embedding.{i}.weight"] for i in range(residual)},
    )
    overtone._core.write_tensors(
        directory / "lm_heads.safetensors",
        {f"lm_head_{i}.weight": tensors[f"{prefix}lm_head.{i}.weight"] for i in range(residual)},
    )
    overtone._core.write_tensors(
        directory / "small_to_mtp_projection.safetensors",
        {part: tensors[f"{prefix}small_to_mtp_projection.{part}"] for part in ("weight", "bias")},
    )
    shutil.copy(tts_tiny_projected.path / "config.json", directory)
    return directory


def test_artifacts_with_their_checkpoint_are_the_same_predictor(
    artifacts: Path, tts_tiny_projected: GoldenDirectory
) -> None:
    predictor = CodePredictor()
    predictor.preallocate(artifacts, tts_tiny_projected.path)
    assert outputs(predictor, tts_tiny_projected) == outputs(load(tts_tiny_projected), tts_tiny_projected)
    assert ModelSpec.from_directory(artifacts, tts_tiny_projected.path) == predictor.spec


def test_artifacts_come_before_the_checkpoint(artifacts: Path, tts_tiny_projected: GoldenDirectory) -> None:
    heads = {name: tensor.numpy() for name, tensor in read_tensors(artifacts / "lm_heads.safetensors").items()}
    save_file({name: -head for name, head in heads.items()}, artifacts / "lm_heads.safetensors")
    predictor = CodePredictor(dtype="float32")
    predictor.preallocate(artifacts, tts_tiny_projected.path)
    golden = tts_tiny_projected
    found = predictor.predict_frame(golden.talker_last_hidden[0], golden.code_zero[0], logits=True).logits
    assert found is not None
    np.testing.assert_allclose(found.numpy()[:, 0], -golden.expected("greedy", "logits")[0, :, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("checkpoint_dir", [None, ""])
def test_artifacts_alone_lack_the_body(artifacts: Path, checkpoint_dir: str | None) -> None:
    with pytest.raises(CheckpointError, match="no decoder layers"):
        CodePredictor().preallocate(artifacts, checkpoint_dir)


def test_a_table_from_a_file_completes_a_lone_checkpoint(standalone: GoldenDirectory) -> None:
    lone = CodePredictor.from_pretrained(standalone.path)
    assert lone.spec.code_zero_size is None
    with pytest.raises(BindingError, match="no talker's codec table"):
        lone.predict_frame(standalone.talker_last_hidden[0], standalone.code_zero[0])
    predictor = load(standalone)
    assert predictor.spec.code_zero_size == 2304
    frame = predictor.predict_frame(standalone.talker_last_hidden[0], standalone.code_zero[0])
    np.testing.assert_array_equal(frame.codes, standalone.expected("greedy", "codes")[0])


def test_a_table_from_a_file_replaces_the_checkpoints(omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    table = state_dict(omni_tiny)["talker.model.codec_embedding.weight"].numpy()
    file = tmp_path / "table.safetensors"
    save_file({"any.name": np.ascontiguousarray(table[::-1]), "beside": np.zeros(3, "f4")}, file)
    predictor = CodePredictor.from_pretrained(omni_tiny.path, code_zero_table=file)
    mirrored = len(table) - 1 - omni_tiny.code_zero[0]
    frame = predictor.predict_frame(omni_tiny.talker_last_hidden[0], mirrored)
    np.testing.assert_array_equal(frame.codes.numpy()[:, 1:], omni_tiny.expected("greedy", "codes")[0][:, 1:])


@pytest.mark.parametrize(
    "tensors",
    [
        {"one": np.zeros((5, 64), "f4"), "two": np.zeros((5, 64), "f4")},
        {"vector": np.zeros(64, "f4")},
        {"narrow": np.zeros((5, 63), "f4")},
        {"integers": np.zeros((5, 64), "i4")},
        {"nan": np.full((5, 64), np.nan, "f4")},
    ],
)
def test_a_file_without_exactly_one_fitting_table_is_refused(
    omni_tiny: GoldenDirectory, tmp_path: Path, tensors: dict[str, Array]
) -> None:
    file = tmp_path / "table.safetensors"
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as refused:
        CodePredictor.from_pretrained(omni_tiny.path, code_zero_table=file)
    assert refused.value.file == str(file)


# The architecture


def test_the_architecture_is_read_without_the_weights(golden: GoldenDirectory) -> None:
    spec = ModelSpec.from_directory(golden.path)
    found = (
        spec.residual_codebooks,
        spec.codes_per_frame,
        spec.codebook_size,
        spec.talker_hidden_size,
        spec.hidden_size,
        spec.mlp_width,
        spec.layers,
        spec.query_heads,
        spec.key_value_heads,
        spec.head_size,
        spec.rope_theta,
        spec.projected,
    )
    assert (
        found
        == {
            "omni-tiny": (7, 8, 96, 64, 64, 160, 2, 4, 2, 32, 1e6, False),
            "tts-tiny-projected": (7, 8, 80, 96, 64, 160, 3, 4, 4, 24, 1e6, True),
            "standalone": (15, 16, 2048, 64, 64, 192, 1, 8, 2, 16, 1e4, False),
        }[golden.name]
    )
    assert spec.rms_norm_epsilon == pytest.approx(1e-6)
    assert spec == CodePredictor.from_pretrained(golden.path).spec
    assert ("R=15" in repr(spec)) == (golden.name == "standalone")


def test_a_shard_that_is_truncated_stops_the_architecture_too(
    tts_tiny_projected: GoldenDirectory, tmp_path: Path
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(tts_tiny_projected.path, directory)
    shard = directory / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as refused:
        ModelSpec.from_directory(directory)
    assert refused.value.file == str(shard)


# After loading


def test_files_may_be_truncated_or_removed_after_loading(golden: GoldenDirectory, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(golden.path, directory)
    table = golden.code_zero_table_file
    predictor = CodePredictor.from_pretrained(directory, code_zero_table=table and directory / table.name)
    expected = outputs(load(golden), golden)
    for file in directory.glob("*.safetensors"):
        file.write_bytes(b"")
    assert outputs(predictor, golden) == expected
    assert predictor.codec_embed_table(0).numpy().any()
    shutil.rmtree(directory)
    assert outputs(predictor, golden) == expected


def test_nothing_stays_mapped_or_open_after_loading(golden: GoldenDirectory, tmp_path: Path) -> None:
    directory = tmp_path / "only-here"
    shutil.copytree(golden.path, directory)
    predictor = CodePredictor.from_pretrained(directory)
    assert str(directory) not in Path("/proc/self/maps").read_text()
    assert not [file for file in Path("/proc/self/fd").iterdir() if str(directory) in str(safely_resolved(file))]
    assert predictor.codebook_size


def safely_resolved(link: Path) -> Path:
    try:
        return link.readlink()
    except OSError:
        return link


def test_progress_grows_to_the_whole_and_reports_the_stored_bytes(golden: GoldenDirectory) -> None:
    seen: list[tuple[int, int]] = []
    load(golden, progress=lambda done, total: seen.append((done, total)))
    done, total = seen[-1]
    assert done == total
    assert [amount for amount, _ in seen] == sorted(amount for amount, _ in seen)
    assert {whole for _, whole in seen} == {total}
    stored = sum(tensor.nbytes for name, tensor in state_dict(golden).items() if relevant(golden, name))
    assert total == stored


def relevant(golden: GoldenDirectory, name: str) -> bool:
    return golden.name == "standalone" or name.startswith(("talker.code_predictor.", "talker.model.codec_embedding."))


def test_an_exception_in_progress_ends_the_load(golden: GoldenDirectory) -> None:
    def fail(done: int, total: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        load(golden, progress=fail)


def test_the_goldens_hold_what_the_tests_take_them_to_hold(golden: GoldenDirectory) -> None:
    with safe_open(next(iter(golden.path.glob("model*.safetensors"))), "numpy") as file:
        assert list(file.keys())
    assert load_file(golden.frames_file).keys() == {"talker_last_hidden", "code_zero"}
