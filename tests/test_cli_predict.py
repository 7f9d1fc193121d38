"""`overtone predict`: the golden codes through the command line, its sampling options, and the file it writes."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command_line import CommandLine, assert_refused, run_process
from golden import SAMPLING_SETS, GoldenDirectory
from hostile import safetensors_bytes
from overtone import CodePredictor, SamplingParams


class Predict:
    """`overtone predict` on a golden directory."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self.overtone = CommandLine(capsys)
        self.out = directory / "codes.safetensors"
        self.printed = ""

    def __call__(self, golden: GoldenDirectory, *options: object, frames: Path | None = None) -> dict[str, Any]:
        arguments: list[object] = ["predict", golden.path, "--frames", frames or golden.frames_file, "--out", self.out]
        if golden.code_zero_table_file is not None:
            arguments += ["--code-zero-table", golden.code_zero_table_file]
        outcome = self.overtone(*arguments, *options)
        assert (outcome.code, outcome.err) == (0, "")
        self.printed = outcome.out
        return load_file(self.out)


@pytest.fixture
def predict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Predict:
    return Predict(capsys, tmp_path)


def written(directory: Path, sampling: object) -> Path:
    file = directory / "sampling.json"
    file.write_text(json.dumps(sampling))
    return file


@pytest.mark.parametrize("sampling_set", SAMPLING_SETS)
def test_golden_frames_give_the_golden_codes(
    predict: Predict, golden: GoldenDirectory, sampling_set: str, tmp_path: Path
) -> None:
    written_sampling = written(tmp_path, golden.sampling_sets[sampling_set])
    outputs = predict(golden, "--sampling", written_sampling)
    assert sorted(outputs) == ["codec_sum", "codes"]
    for name, tensor in outputs.items():
        expected = golden.expected(sampling_set, name)
        assert tensor.dtype == expected.dtype
        np.testing.assert_array_equal(tensor, expected)


def test_a_process_of_its_own_gives_the_golden_codes(tmp_path: Path, omni_tiny: GoldenDirectory) -> None:
    out = tmp_path / "codes.safetensors"
    outcome = run_process("predict", omni_tiny.path, "--frames", omni_tiny.frames_file, "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    np.testing.assert_array_equal(load_file(out)["codes"], omni_tiny.expected("greedy", "codes"))


def test_without_sampling_options_it_is_greedy(predict: Predict, golden: GoldenDirectory) -> None:
    np.testing.assert_array_equal(predict(golden)["codes"], golden.expected("greedy", "codes"))


def test_threads_do_not_change_the_codes(predict: Predict, golden: GoldenDirectory) -> None:
    for threads in (1, 3):
        outputs = predict(golden, "--threads", threads)
        np.testing.assert_array_equal(outputs["codec_sum"], golden.expected("greedy", "codec_sum"))


def test_more_streams_than_share_a_pass_give_the_codes_of_each_alone(
    predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path
) -> None:
    frames = tmp_path / "frames.safetensors"
    save_file(
        {name: np.tile(t, (1, 50, *[1] * (t.ndim - 2))) for name, t in load_file(omni_tiny.frames_file).items()}, frames
    )
    sampling = written(tmp_path, omni_tiny.sampling_sets["mixed"] * 50)
    codes = predict(omni_tiny, "--sampling", sampling, frames=frames)["codes"]
    np.testing.assert_array_equal(codes, np.tile(omni_tiny.expected("mixed", "codes"), (1, 50, 1)))


def by_the_interface(golden: GoldenDirectory, params: SamplingParams) -> Any:
    """The codes that Python's `predict_frame` gives."""
    predictor = CodePredictor.from_pretrained(golden.path, code_zero_table=golden.code_zero_table_file)
    return np.stack(
        [
            predictor.predict_frame(hidden, code_zero, sampling=params, frame_idx=index).to_host().codes
            for index, (hidden, code_zero) in enumerate(zip(golden.talker_last_hidden, golden.code_zero, strict=True))
        ]
    )


@pytest.mark.parametrize(
    ("options", "params"),
    [
        (("--temperature", "0.7"), SamplingParams(temperature=0.7)),
        (("--top-k", "5"), SamplingParams(top_k=5)),
        (("--top-p", "0.5", "--seed", "3"), SamplingParams(top_p=0.5, seed=3)),
        (("--temperature", "0.9", "--top-k", "50", "--seed", "7"), SamplingParams(0.9, 50, 1.0, 7)),
        (("--temperature", "1", "--seed", str(2**64 - 1)), SamplingParams(seed=2**64 - 1)),
        (("--temperature", "0"), SamplingParams.greedy()),
    ],
)
def test_options_mean_what_sampling_params_mean(
    predict: Predict, omni_tiny: GoldenDirectory, options: tuple[str, ...], params: SamplingParams
) -> None:
    np.testing.assert_array_equal(predict(omni_tiny, *options)["codes"], by_the_interface(omni_tiny, params))


def test_a_seed_alone_samples_as_the_family_does(
    predict: Predict, omni_tiny: GoldenDirectory, tts_tiny_projected: GoldenDirectory
) -> None:
    for golden, params in (
        (omni_tiny, SamplingParams(1.0, 50, 0.8, 11)),
        (tts_tiny_projected, SamplingParams(0.9, 50, 1.0, 11)),
    ):
        np.testing.assert_array_equal(predict(golden, "--seed", 11)["codes"], by_the_interface(golden, params))
        described = f"temperature {params.temperature:g}, top_k 50, top_p {params.top_p:g}, seed 11"
        assert described in predict.printed


def test_one_object_in_a_file_serves_every_stream(predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    codes = predict(omni_tiny, "--sampling", written(tmp_path, {"temperature": 1, "seed": 5}))["codes"]
    np.testing.assert_array_equal(codes, by_the_interface(omni_tiny, SamplingParams(seed=5)))


def test_what_it_prints_is_what_it_writes(predict: Predict, omni_tiny: GoldenDirectory) -> None:
    codes = predict(omni_tiny)["codes"]
    for stream in range(3):
        assert f"frame 0, stream {stream}: {' '.join(map(str, codes[0, stream]))}\n" in predict.printed
    assert "4 frames of 3 streams, greedy\n" in predict.printed
    shown = re.search(r"^([\d.]+) ms per frame .*real-time factor ([\d.]+)$", predict.printed, re.MULTILINE)
    assert shown is not None
    assert float(shown[2]) == pytest.approx(80 / float(shown[1]), rel=0.05)
    assert f"wrote {predict.out}\n" in predict.printed


def test_the_file_is_an_ordinary_one_and_alone(predict: Predict, omni_tiny: GoldenDirectory) -> None:
    mask = os.umask(0o027)
    try:
        predict(omni_tiny)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(predict.out.stat().st_mode) == 0o640
    assert list(predict.out.parent.iterdir()) == [predict.out]


def test_an_earlier_result_is_replaced(predict: Predict, omni_tiny: GoldenDirectory) -> None:
    predict.out.write_text("an earlier result")
    np.testing.assert_array_equal(predict(omni_tiny)["codes"], omni_tiny.expected("greedy", "codes"))


def test_a_result_that_cannot_be_written_leaves_the_earlier_one(
    predict: Predict, omni_tiny: GoldenDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict.out.write_text("an earlier result")
    outcome = predict.overtone(
        "predict", omni_tiny.path, "--frames", omni_tiny.frames_file, "--out", predict.out, "--top-p", "7"
    )
    assert_refused(outcome, "top_p")
    assert predict.out.read_text() == "an earlier result"
    assert list(predict.out.parent.iterdir()) == [predict.out]


def test_codes_may_be_64_bits_wide(predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    frames = tmp_path / "frames.safetensors"
    tensors = load_file(omni_tiny.frames_file)
    save_file({**tensors, "code_zero": tensors["code_zero"].astype(np.int64)}, frames)
    codes = predict(omni_tiny, frames=frames)["codes"]
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, omni_tiny.expected("greedy", "codes"))


def test_float16_rows_give_a_float16_sum(predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    halved = load_file(omni_tiny.frames_file)
    halved["talker_last_hidden"] = halved["talker_last_hidden"].astype(np.float16)
    frames = tmp_path / "half.safetensors"
    save_file(halved, frames)
    outputs = predict(omni_tiny, frames=frames)
    widened = tmp_path / "widened.safetensors"
    save_file({**halved, "talker_last_hidden": halved["talker_last_hidden"].astype(np.float32)}, widened)
    expected = predict(omni_tiny, frames=widened)
    np.testing.assert_array_equal(outputs["codes"], expected["codes"])
    assert outputs["codec_sum"].dtype == np.float16
    np.testing.assert_array_equal(outputs["codec_sum"], expected["codec_sum"].astype(np.float16))


def test_bfloat16_rows_are_used_as_they_are(predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path) -> None:
    tensors = load_file(omni_tiny.frames_file)
    # Cutting a float32 after its upper half leaves a bfloat16.
    upper = (tensors["talker_last_hidden"].view(np.uint32) >> 16).astype(np.uint16)
    shape, code_zero = list(upper.shape), tensors["code_zero"]
    frames = tmp_path / "bfloat16.safetensors"
    safetensors_bytes.write_tensors(
        frames,
        {
            "talker_last_hidden": ("BF16", shape, upper.tobytes()),
            "code_zero": ("I32", list(code_zero.shape), code_zero.tobytes()),
        },
    )
    outputs = predict(omni_tiny, frames=frames)
    widened = tmp_path / "widened.safetensors"
    hidden = (upper.astype(np.uint32) << 16).view(np.float32)
    save_file({"talker_last_hidden": hidden, "code_zero": code_zero}, widened)
    expected = predict(omni_tiny, frames=widened)
    for name in ("codes", "codec_sum"):
        assert outputs[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_working_type_runs_and_is_named(predict: Predict, omni_tiny: GoldenDirectory, dtype: str) -> None:
    codes = predict(omni_tiny, "--dtype", dtype)["codes"]
    assert f"with {dtype} on the cpu executor" in predict.printed
    np.testing.assert_array_equal(codes[..., 0], omni_tiny.code_zero)
    assert ((codes[..., 1:] >= 0) & (codes[..., 1:] < 96)).all()


def test_artifacts_take_what_they_lack_from_the_original_checkpoint(
    predict: Predict, omni_tiny: GoldenDirectory, tmp_path: Path
) -> None:
    """Tables and heads exported for another runtime, without the layers."""
    weights = load_file(omni_tiny.path / "model.safetensors")
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "config.json").write_bytes((omni_tiny.path / "config.json").read_bytes())
    prefix = "talker.code_predictor."
    tables = {f"embedding_{i}": weights[f"{prefix}model.codec_embedding.{i}.weight"] for i in range(7)}
    save_file(tables, artifacts / "codec_embeddings.safetensors")
    heads = {f"lm_head_{i}.weight": weights[f"{prefix}lm_head.{i}.weight"] for i in range(7)}
    save_file(heads, artifacts / "lm_heads.safetensors")
    arguments = ("predict", artifacts, "--frames", omni_tiny.frames_file, "--out", predict.out)
    assert_refused(predict.overtone(*arguments), "no decoder layers")
    outcome = predict.overtone(*arguments, "--checkpoint-dir", omni_tiny.path)
    assert (outcome.code, outcome.err) == (0, "")
    np.testing.assert_array_equal(load_file(predict.out)["codes"], omni_tiny.expected("greedy", "codes"))
    assert_refused(
        predict.overtone(*arguments[:-1], artifacts / "lm_heads.safetensors", "--checkpoint-dir", omni_tiny.path),
        "input",
    )
