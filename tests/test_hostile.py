"""Whatever is wrong with the input, the command exits with 2, says so in one line, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from command_line import CommandLine, Outcome, assert_refused, run_process
from golden import GoldenDirectory
from hostile.checkpoints import HOSTILE_CHECKPOINTS, HostileCheckpoint
from hostile.frames import HOSTILE_FRAMES, HostileFrames


@pytest.fixture
def overtone(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@dataclass(frozen=True)
class Workplace:
    """A directory to predict in, and what may be in it when the command has been refused."""

    directory: Path
    overtone: CommandLine

    @property
    def out(self) -> Path:
        return self.directory / "out" / "codes.safetensors"

    def predict(self, checkpoint: Path, frames: Path, *options: object) -> Outcome:
        self.out.parent.mkdir(exist_ok=True)
        return self.overtone("predict", checkpoint, "--frames", frames, "--out", self.out, *options)

    def assert_refused(self, outcome: Outcome, *fragments: str) -> None:
        assert_refused(outcome, *fragments)
        assert list(self.out.parent.iterdir()) == []


@pytest.fixture
def workplace(tmp_path: Path, overtone: CommandLine) -> Workplace:
    return Workplace(tmp_path, overtone)


def cases(listed: list[HostileCheckpoint] | list[HostileFrames]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", listed, ids=[case.name.replace(" ", "-") for case in listed])


@cases(HOSTILE_CHECKPOINTS)
def test_a_hostile_checkpoint_is_refused(workplace: Workplace, case: HostileCheckpoint) -> None:
    checkpoint = case.build(workplace.directory)
    outcome = workplace.predict(checkpoint, GoldenDirectory(case.golden).frames_file)
    workplace.assert_refused(outcome, *case.named)


@cases(HOSTILE_CHECKPOINTS)
def test_other_commands_refuse_it_too(workplace: Workplace, case: HostileCheckpoint) -> None:
    checkpoint = case.build(workplace.directory)
    assert_refused(workplace.overtone("bench", checkpoint, "--batch", "1", "--frames", "1"), *case.named)
    outcome = workplace.overtone("info", checkpoint)
    if case.in_values:
        assert outcome.code == 0
    else:
        assert_refused(outcome, *case.named)


@cases(HOSTILE_FRAMES)
def test_hostile_frames_are_refused(workplace: Workplace, omni_tiny: GoldenDirectory, case: HostileFrames) -> None:
    file = workplace.directory / "hostile.safetensors"
    case.write(file, load_file(omni_tiny.frames_file))
    workplace.assert_refused(workplace.predict(omni_tiny.path, file), "hostile.safetensors", *case.named)


@pytest.mark.parametrize("seed", range(30))
def test_frames_with_damaged_bytes_are_refused_or_predicted(
    workplace: Workplace, omni_tiny: GoldenDirectory, seed: int
) -> None:
    noise = np.random.default_rng(seed)
    content = bytearray(omni_tiny.frames_file.read_bytes())
    # Half of the damage goes to the header, which is short.
    for _ in range(3):
        content[noise.integers(0, 200 if seed % 2 else len(content))] = noise.integers(0, 256)
    file = workplace.directory / "damaged.safetensors"
    file.write_bytes(content)
    outcome = workplace.predict(omni_tiny.path, file)
    if outcome.code == 0:
        assert load_file(workplace.out)["codes"].shape == (4, 3, 8)
    else:
        workplace.assert_refused(outcome, "damaged.safetensors")


SAMPLING_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "not valid JSON"),
    "not JSON": ("temperature: 1", "not valid JSON"),
    "not text": (b"\xff\xfe\xfa", "not valid JSON"),
    "nested without end": ("[" * 100_000, "not valid JSON"),
    "a number of too many digits": ('{"seed": ' + "9" * 10_000 + "}", "not valid JSON"),
    "a number": ("0.9", "0.9"),
    "null": ("null", "null"),
    "text": ('"greedy"', "greedy"),
    "a list of one too few": ("[{}, {}]", "a list of 2"),
    "a list of one too many": ("[{}, {}, {}, {}]", "a list of 4"),
    "a list of nothing": ("[]", "a list of 0"),
    "a list with something else": ('[{}, {}, "greedy"]', "stream 2"),
    "an unknown name": ('{"temprature": 1.0}', "temprature"),
    "a name twice": ('{"top_k": 1, "top_k": 2}', "top_k"),
    "temperature text": ('{"temperature": "0.9"}', "temperature"),
    "temperature null": ('{"temperature": null}', "temperature"),
    "temperature true": ('{"temperature": true}', "temperature"),
    "temperature NaN": ('{"temperature": NaN}', "temperature"),
    "temperature infinite": ('{"temperature": 1e999}', "temperature"),
    "temperature below 0": ('[{}, {"temperature": -0.5}, {}]', "stream 1: temperature is -0.5"),
    "temperature beyond float64": ('{"temperature": 1' + "0" * 400 + "}", "temperature"),
    "top_k a fraction": ('{"top_k": 50.0}', "top_k"),
    "top_k below 0": ('{"top_k": -1}', "top_k is -1"),
    "top_k beyond 64 bits": ('{"top_k": 1' + "0" * 30 + "}", "top_k"),
    "top_p of 0": ('{"top_p": 0}', "top_p is 0"),
    "top_p above 1": ('{"top_p": 1.01}', "top_p is 1.01"),
    "seed below 0": ('{"seed": -1}', "seed"),
    "seed beyond 64 bits": ('{"seed": 18446744073709551616}', "seed"),
    "seed text": ('{"seed": "7"}', "seed"),
}


@pytest.mark.parametrize("name", SAMPLING_FILES)
def test_a_hostile_sampling_file_is_refused(workplace: Workplace, omni_tiny: GoldenDirectory, name: str) -> None:
    content, named = SAMPLING_FILES[name]
    file = workplace.directory / "sampling.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = workplace.predict(omni_tiny.path, omni_tiny.frames_file, "--sampling", file)
    workplace.assert_refused(outcome, "sampling.json", named)


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir], ids=["missing", "a directory"])
def test_a_sampling_file_that_cannot_be_read_is_refused(
    workplace: Workplace, omni_tiny: GoldenDirectory, make: Callable[[Path], object]
) -> None:
    file = workplace.directory / "sampling.json"
    make(file)
    outcome = workplace.predict(omni_tiny.path, omni_tiny.frames_file, "--sampling", file)
    workplace.assert_refused(outcome, "sampling.json", "cannot be read")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--temperature", "nan"), "temperature"),
        (("--temperature", "inf"), "temperature"),
        (("--temperature", "-1"), "temperature is -1"),
        (("--temperature", "warm"), "--temperature"),
        (("--top-k", "-1"), "top_k is -1"),
        (("--top-k", "1.5"), "--top-k"),
        (("--top-k", "1" + "0" * 30), "top_k"),
        (("--top-p", "0"), "top_p is 0"),
        (("--top-p", "1.5"), "top_p is 1.5"),
        (("--top-p", "nan"), "top_p"),
        (("--seed", "-1"), "--seed"),
        (("--seed", str(2**64)), "--seed"),
        (("--threads", "0"), "--threads"),
        (("--threads", "1000000"), "--threads"),
        (("--dtype", "float64"), "--dtype"),
        (("--executor", "gpu"), "--executor"),
        (("--executor", "cuda"), "cuda"),
        (("--executor", "onnxruntime"), "onnxruntime"),
        (("--code-zero-table", "nowhere.safetensors"), "nowhere.safetensors"),
        (("--checkpoint-dir", "nowhere"), "nowhere"),
        (("--sampling", "params.json", "--seed", "1"), "--sampling"),
        (("--unknown",), "--unknown"),
        (("one argument too many",), "one argument too many"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_hostile_options_are_refused(
    workplace: Workplace, omni_tiny: GoldenDirectory, options: tuple[str, ...], named: str
) -> None:
    workplace.assert_refused(workplace.predict(omni_tiny.path, omni_tiny.frames_file, *options), named)


def test_an_unusable_thread_variable_is_refused(
    workplace: Workplace, omni_tiny: GoldenDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("none", "0", "-1", "1e3", "1000000", "99999999999999999999", ""):
        monkeypatch.setenv("OVERTONE_NUM_THREADS", value)
        workplace.assert_refused(workplace.predict(omni_tiny.path, omni_tiny.frames_file), "1 to 1024")


def test_a_checkpoint_that_is_not_there_is_refused(workplace: Workplace, omni_tiny: GoldenDirectory) -> None:
    workplace.assert_refused(workplace.predict(workplace.directory / "nowhere", omni_tiny.frames_file), "nowhere")
    workplace.assert_refused(workplace.predict(omni_tiny.frames_file, omni_tiny.frames_file), "not a directory")
    empty = workplace.directory / "empty"
    empty.mkdir()
    workplace.assert_refused(workplace.predict(empty, omni_tiny.frames_file), "no config.json")


def test_unreadable_files_are_refused(workplace: Workplace, omni_tiny: GoldenDirectory) -> None:
    checkpoint = workplace.directory / "checkpoint"
    shutil.copytree(omni_tiny.path, checkpoint)
    for name in ("model.safetensors", "config.json", "frames.safetensors", "params.json"):
        (checkpoint / name).chmod(0)
        if os.access(checkpoint / name, os.R_OK):
            pytest.skip("this user reads every file")
        outcome = workplace.predict(
            checkpoint, checkpoint / "frames.safetensors", "--sampling", checkpoint / "params.json"
        )
        workplace.assert_refused(outcome, name)
        (checkpoint / name).chmod(0o600)


class TestOutput:
    """`--out` where nothing can be written, or where something would be lost."""

    @pytest.fixture
    def checkpoint(self, tmp_path: Path, omni_tiny: GoldenDirectory) -> Path:
        return Path(shutil.copytree(omni_tiny.path, tmp_path / "checkpoint"))

    def predict(self, overtone: CommandLine, checkpoint: Path, out: Path, *options: object) -> Outcome:
        before = sorted(path.name for path in checkpoint.iterdir())
        contents = [path.read_bytes() for path in sorted(checkpoint.iterdir()) if path.is_file()]
        frames = checkpoint / "frames.safetensors"
        outcome = overtone("predict", checkpoint, "--frames", frames, "--out", out, *options)
        assert sorted(path.name for path in checkpoint.iterdir()) == before
        assert [path.read_bytes() for path in sorted(checkpoint.iterdir()) if path.is_file()] == contents
        return outcome

    def test_a_missing_directory_is_refused(self, overtone: CommandLine, checkpoint: Path) -> None:
        outcome = self.predict(overtone, checkpoint, checkpoint.parent / "nowhere" / "codes.safetensors")
        assert_refused(outcome, "--out", "nowhere: no such directory")

    def test_a_file_for_a_directory_is_refused(self, overtone: CommandLine, checkpoint: Path) -> None:
        outcome = self.predict(overtone, checkpoint, checkpoint / "config.json" / "codes.safetensors")
        assert_refused(outcome, "--out", "config.json: not a directory")

    def test_a_directory_is_refused(self, overtone: CommandLine, checkpoint: Path) -> None:
        assert_refused(self.predict(overtone, checkpoint, checkpoint), "--out", "not a regular file")

    def test_a_pipe_is_not_replaced(self, overtone: CommandLine, checkpoint: Path) -> None:
        pipe = checkpoint.parent / "pipe"
        os.mkfifo(pipe)
        assert_refused(self.predict(overtone, checkpoint, pipe), "--out", "not a regular file")
        assert pipe.is_fifo()

    def test_a_name_too_long_is_refused(self, overtone: CommandLine, checkpoint: Path) -> None:
        assert_refused(self.predict(overtone, checkpoint, checkpoint / ("long" * 100)), "--out")

    @pytest.mark.parametrize("name", ["frames.safetensors", "config.json", "model.safetensors", "sampling.json"])
    def test_an_input_is_not_overwritten(self, overtone: CommandLine, checkpoint: Path, name: str) -> None:
        (checkpoint / "sampling.json").write_text('{"top_k": 5}')
        link = checkpoint.parent / "link"
        link.symlink_to(checkpoint / name)
        for out in (checkpoint / name, checkpoint / ".." / "checkpoint" / name, link):
            outcome = self.predict(overtone, checkpoint, out, "--sampling", checkpoint / "sampling.json")
            assert_refused(outcome, "--out", "input")

    def test_a_directory_that_may_not_be_written_is_refused(self, overtone: CommandLine, checkpoint: Path) -> None:
        closed = checkpoint.parent / "closed"
        closed.mkdir(0o500)
        if os.access(closed, os.W_OK):
            pytest.skip("this user writes everywhere")
        assert_refused(self.predict(overtone, checkpoint, closed / "codes.safetensors"), "--out", "not writable")


class TestCodeZeroTable:
    """The talker's codec table in a file of its own."""

    def predict(
        self, workplace: Workplace, standalone: GoldenDirectory, tensors: dict[str, npt.NDArray[Any]]
    ) -> Outcome:
        file = workplace.directory / "table.safetensors"
        save_file(tensors, file)
        return workplace.predict(standalone.path, standalone.frames_file, "--code-zero-table", file)

    def test_one_is_needed_where_the_checkpoint_has_none(
        self, workplace: Workplace, standalone: GoldenDirectory
    ) -> None:
        workplace.assert_refused(workplace.predict(standalone.path, standalone.frames_file), "--code-zero-table")

    def test_a_file_with_two_is_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        table = np.zeros((3072, 64), np.float32)
        outcome = self.predict(workplace, standalone, {"a": table, "b": table})
        workplace.assert_refused(outcome, "table.safetensors", "2 two-dimensional tensors")

    def test_a_file_with_none_is_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        outcome = self.predict(workplace, standalone, {"a": np.zeros(64, np.float32)})
        workplace.assert_refused(outcome, "table.safetensors", "no two-dimensional tensor")

    def test_another_width_is_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        outcome = self.predict(workplace, standalone, {"a": np.zeros((3072, 32), np.float32)})
        workplace.assert_refused(outcome, "table.safetensors", "64")

    def test_a_value_that_is_not_finite_is_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        table = np.zeros((3072, 64), np.float32)
        table[3071, 3] = np.nan
        workplace.assert_refused(self.predict(workplace, standalone, {"a": table}), "NaN at [3071, 3]")

    def test_integers_are_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        outcome = self.predict(workplace, standalone, {"a": np.zeros((3072, 64), np.int32)})
        workplace.assert_refused(outcome, "table.safetensors", "I32")

    def test_a_code_outside_it_is_refused(self, workplace: Workplace, standalone: GoldenDirectory) -> None:
        outcome = self.predict(workplace, standalone, {"a": np.zeros((1, 64), np.float32)})
        workplace.assert_refused(outcome, "code_zero", "expected 0 to 0")


def test_rows_that_cannot_be_drawn_are_named_and_nothing_is_written(
    workplace: Workplace, omni_tiny: GoldenDirectory
) -> None:
    """Finite weights whose products overflow: only the frame itself can tell."""
    checkpoint = Path(shutil.copytree(omni_tiny.path, workplace.directory / "checkpoint"))
    weights = load_file(checkpoint / "model.safetensors")
    weights["talker.code_predictor.lm_head.2.weight"][:] = 3e38
    save_file(weights, checkpoint / "model.safetensors")
    outcome = workplace.predict(checkpoint, omni_tiny.frames_file, "--temperature", "1")
    workplace.assert_refused(outcome, "frame 0, stream 0, 1, 2", "codebook 3")


def test_a_process_of_its_own_prints_no_traceback_either(tmp_path: Path, omni_tiny: GoldenDirectory) -> None:
    case = next(case for case in HOSTILE_CHECKPOINTS if case.name == "a weight that is NaN")
    checkpoint = case.build(tmp_path)
    out = tmp_path / "codes.safetensors"
    assert_refused(run_process("predict", checkpoint, "--frames", omni_tiny.frames_file, "--out", out), *case.named)
    assert not out.exists()


def test_paths_that_are_no_text_are_reported(tmp_path: Path, overtone: CommandLine) -> None:
    name = os.fsdecode(b"no\xfftext\nat all\x1b[31m")
    outcome = overtone("info", tmp_path / name)
    assert_refused(outcome, "no such directory")
    assert "\x1b" not in outcome.err


def test_shards_of_other_parts_need_not_be_there(tmp_path: Path, overtone: CommandLine) -> None:
    """The twin of the missing shard: what the predictor does not read does not matter."""
    case = HostileCheckpoint("", "tts-tiny-projected", lambda _: None, ())
    checkpoint = case.build(tmp_path)
    index = checkpoint / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["speaker_encoder.weight"] = "elsewhere.safetensors"
    index.write_text(json.dumps(document))
    assert overtone("info", checkpoint).code == 0
