"""`overtone info`, `make-checkpoint`, `bench` and `doctor`: what they print, as text and JSON, and what they write."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from command_line import CommandLine, assert_refused
from golden import GOLDEN_NAMES, GoldenDirectory
from overtone import CodePredictor, ModelSpec, __version__, _core, estimate_memory
from overtone.cli.options import WORKING_TYPES
from overtone.cli.weight_traffic import key_value_bytes, weight_traffic


@pytest.fixture
def overtone(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic checkpoint of the smallest architecture, with frames."""
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    _core.make_checkpoint(directory, "tiny", 0, 4, 2)
    return directory


def printed_json(overtone: CommandLine, *arguments: object, code: int = 0) -> Any:
    outcome = overtone(*arguments, "--json")
    assert (outcome.code, outcome.err) == (code, "")
    return json.loads(outcome.out)


class TestInfo:
    def test_json_tells_the_architecture(self, overtone: CommandLine, tts_tiny_projected: GoldenDirectory) -> None:
        document = printed_json(overtone, "info", tts_tiny_projected.path)
        assert document["family"] == "qwen3-tts"
        sizes = document["architecture"]
        assert (sizes["residual_codebooks"], sizes["codes_per_frame"], sizes["codebook_size"]) == (7, 8, 80)
        assert (sizes["hidden_size"], sizes["talker_hidden_size"], sizes["projected"]) == (64, 96, True)
        assert document["default_sampling"] == {"temperature": 0.9, "top_k": 50, "top_p": 1.0}

    @pytest.mark.parametrize(
        ("name", "dtype", "width"),
        [(*GOLDEN_NAMES[:1], "float32", 4), ("tts-tiny-projected", "bfloat16", 2), ("standalone", "float16", 2)],
    )
    def test_storage_is_that_of_the_predictor_and_the_talkers_table(
        self, overtone: CommandLine, name: str, dtype: str, width: int
    ) -> None:
        document = printed_json(overtone, "info", GoldenDirectory(name).path)
        sizes = document["architecture"]
        table = (sizes["code_zero_size"] or 0) * sizes["talker_hidden_size"]
        assert document["storage"] == {dtype: (document["parameters"] + table) * width}

    def test_bytes_and_floors_follow_from_the_published_sizes(self) -> None:
        """161.5 MB a step and 2.42 GB a frame in bfloat16: 0.54 ms at 4.5 TB/s."""
        traffic = weight_traffic(ModelSpec.named("qwen3-tts-0.6b"), "bfloat16")
        assert traffic.step == 157_286_400 + 4_194_304
        assert traffic.frame == 15 * traffic.step
        assert traffic.floor_milliseconds(4500) == pytest.approx(0.538, abs=0.001)

    def test_keys_and_values_of_a_stream_take_16_positions(self) -> None:
        assert key_value_bytes(ModelSpec.named("qwen3-tts-0.6b")) == 2 * 5 * 16 * 8 * 128 * 4

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
    def test_bytes_per_frame_are_what_the_executor_reads(
        self, overtone: CommandLine, tts_tiny_projected: GoldenDirectory, tiny: Path, dtype: str
    ) -> None:
        for checkpoint in (tts_tiny_projected.path, tiny):
            document = printed_json(overtone, "info", checkpoint)
            predictor = CodePredictor.from_pretrained(checkpoint, dtype=dtype)
            costs = document["working_types"][dtype]
            assert costs["bytes_per_frame"] == predictor.frame_bytes
            assert costs["context_memory_bytes"]["8"] == estimate_memory(predictor.spec, dtype, 8).context

    def test_text_says_the_same(self, overtone: CommandLine, golden: GoldenDirectory) -> None:
        document = printed_json(overtone, "info", golden.path)
        outcome = overtone("info", golden.path)
        assert (outcome.code, outcome.err) == (0, "")
        rows = [line.split() for line in outcome.out.splitlines()]
        assert ["family", document["family"]] in rows
        assert ["codebook", "size", "V", str(document["architecture"]["codebook_size"])] in rows
        floors = [document["working_types"][dtype]["floor_ms_per_frame"]["H200"] for dtype in WORKING_TYPES]
        shown = next(row for row in rows if row[:1] == ["H200"])
        assert [float(cell) for cell in shown[-4:]] == pytest.approx(floors, abs=6e-4)

    def test_a_checkpoint_without_the_talker_says_so(self, overtone: CommandLine, standalone: GoldenDirectory) -> None:
        assert printed_json(overtone, "info", standalone.path)["architecture"]["code_zero_size"] is None
        assert "not in this checkpoint" in overtone("info", standalone.path).out


class TestMakeCheckpoint:
    def test_what_it_makes_can_be_predicted_as_it_says(
        self, overtone: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        outcome = overtone("make-checkpoint", "a checkpoint", "--arch", "tiny", "--frames", 3, "--batch", 2)
        assert (outcome.code, outcome.err) == (0, "")
        program, *arguments = shlex.split(outcome.out.splitlines()[-1].removeprefix("next: "))
        assert program == "overtone"
        outcome = overtone(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert load_file("a checkpoint/codes.safetensors")["codes"].shape == (3, 2, 16)

    def test_it_names_every_file_it_wrote(self, overtone: CommandLine, tmp_path: Path) -> None:
        outcome = overtone("make-checkpoint", tmp_path / "made", "--arch", "tiny")
        for file in (tmp_path / "made").iterdir():
            assert f"wrote {file} ({file.stat().st_size:,} bytes)\n" in outcome.out
        assert len(list((tmp_path / "made").iterdir())) == 3

    def test_equal_seeds_make_equal_files_and_others_do_not(self, overtone: CommandLine, tmp_path: Path) -> None:
        contents = []
        for name, seed in (("a", 5), ("b", 5), ("c", 6)):
            assert overtone("make-checkpoint", tmp_path / name, "--arch", "tiny", "--seed", seed).code == 0
            contents.append((tmp_path / name / "model.safetensors").read_bytes())
        assert contents[0] == contents[1] != contents[2]

    def test_a_checkpoint_is_not_overwritten(self, overtone: CommandLine, omni_tiny: GoldenDirectory) -> None:
        before = {file: file.read_bytes() for file in omni_tiny.path.iterdir()}
        assert_refused(overtone("make-checkpoint", omni_tiny.path, "--arch", "tiny"), "exists already")
        assert {file: file.read_bytes() for file in omni_tiny.path.iterdir()} == before

    def test_a_place_that_cannot_hold_it_is_refused(self, overtone: CommandLine, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            assert_refused(overtone("make-checkpoint", place, "--arch", "tiny"), "file")
        assert (tmp_path / "file").read_text() == ""

    @pytest.mark.parametrize("option", ["--frames", "--batch"])
    @pytest.mark.parametrize("value", ["0", "-1", "1.5", "9" * 40])
    def test_absurd_numbers_are_refused(self, overtone: CommandLine, tmp_path: Path, option: str, value: str) -> None:
        assert_refused(overtone("make-checkpoint", tmp_path / "made", "--arch", "tiny", option, value), option)
        assert list(tmp_path.iterdir()) == []


class TestBench:
    def test_json_has_a_result_for_each_type_and_batch(self, overtone: CommandLine, tiny: Path) -> None:
        arguments = (
            "bench",
            tiny,
            "--dtype",
            "bfloat16",
            "--dtype",
            "int8",
            "--batch",
            "1,3",
            "--frames",
            5,
            "--threads",
            1,
        )
        document = printed_json(overtone, *arguments)
        assert document["version"] == __version__
        assert "1 threads" in document["device"]
        found = [(result["dtype"], result["batch"]) for result in document["results"]]
        assert found == [("bfloat16", 1), ("bfloat16", 3), ("int8", 1), ("int8", 3)]
        for result in document["results"]:
            assert (result["executor"], result["threads"], result["frames"]) == ("cpu", 1, 5)
            assert 0 < result["p05"] <= result["ms_per_frame"] <= result["p95"]
            assert result["real_time_factor"] == pytest.approx(80 / result["ms_per_frame"], rel=1e-2)
            assert result["floor_ratio"] == pytest.approx(result["ms_per_frame"] / result["floor_ms"], rel=1e-2)
            assert result["frame_bytes"] == weight_traffic(ModelSpec.named("tiny"), result["dtype"]).frame

    def test_text_has_a_row_for_each(self, overtone: CommandLine, tiny: Path) -> None:
        outcome = overtone("bench", tiny, "--batch", "1,2", "--frames", 2, "--warmup", 0)
        assert (outcome.code, outcome.err) == (0, "")
        rows = [line.split() for line in outcome.out.splitlines()]
        assert [row[:2] for row in rows[2:]] == [["bfloat16", "1"], ["bfloat16", "2"]]

    def test_a_checkpoint_without_the_talker_can_be_measured(
        self, overtone: CommandLine, standalone: GoldenDirectory
    ) -> None:
        document = printed_json(overtone, "bench", standalone.path, "--batch", "2", "--frames", "1")
        assert document["results"][0]["dtype"] == "float32"

    def test_a_plot_is_a_picture_and_alone(self, overtone: CommandLine, tiny: Path, tmp_path: Path) -> None:
        plot = tmp_path / "plot.png"
        outcome = overtone("bench", tiny, "--batch", "1,2", "--frames", 2, "--plot", plot)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"wrote {plot}\n" in outcome.out
        assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert plot.read_bytes().endswith(b"IEND\xaeB`\x82")
        assert list(tmp_path.iterdir()) == [plot]

    def test_with_a_plot_json_is_still_json(self, overtone: CommandLine, tiny: Path, tmp_path: Path) -> None:
        outcome = overtone("bench", tiny, "--batch", "1", "--frames", 1, "--json", "--plot", tmp_path / "plot.png")
        assert json.loads(outcome.out)["results"]
        assert outcome.err == f"wrote {tmp_path / 'plot.png'}\n"

    def test_a_plot_that_cannot_be_written_is_refused_at_once(
        self, overtone: CommandLine, tiny: Path, tmp_path: Path
    ) -> None:
        for plot, named in (
            (tmp_path / "nowhere" / "plot.png", "no such directory"),
            (tmp_path / "plot.pdf", ".png"),
            (tmp_path, ".png"),
        ):
            assert_refused(overtone("bench", tiny, "--plot", plot), "--plot", named)
        assert list(tmp_path.iterdir()) == []

    def test_without_matplotlib_it_says_how_to_get_it(
        self, overtone: CommandLine, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
        outcome = overtone("bench", tiny, "--plot", tmp_path / "plot.png")
        assert_refused(outcome, "matplotlib", "pip install 'overtone[cli]'")


class TestDoctor:
    def test_a_machine_that_can_run_frames_is_well(self, overtone: CommandLine) -> None:
        document = printed_json(overtone, "doctor")
        assert document["works"] is True
        assert document["version"] == __version__
        findings = {finding["subject"]: finding for finding in document["findings"]}
        assert findings["cpu executor"]["good"] is True
        assert f"{np.__version__}" in findings["Python"]["found"]
        for name in ("tensorrt", "onnxruntime"):
            assert findings[f"{name} executor"]["good"] is False

    def test_what_is_missing_comes_with_the_command_that_mends_it(
        self, overtone: CommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("overtone.cli.doctor._version", lambda name: None if name == "torch" else "1.0")
        outcome = overtone("doctor")
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        missing = next(index for index, line in enumerate(lines) if line.startswith("no  torch"))
        assert lines[missing + 1].strip() == "mend it with: pip install 'overtone[torch]'"

    def test_a_machine_that_cannot_says_why_and_how_to_mend_it(
        self, overtone: CommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OVERTONE_NUM_THREADS", "many")
        outcome = overtone("doctor")
        assert outcome.code == 1
        assert outcome.err.startswith("error: ")
        assert len(outcome.err.splitlines()) == 1
        assert "unset OVERTONE_NUM_THREADS" in outcome.out

    def test_it_leaves_nothing_behind(
        self, overtone: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert overtone("doctor").code == 0
        assert list(tmp_path.iterdir()) == []
