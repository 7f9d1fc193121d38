"""The `overtone` command as a whole: help, exit codes, what it prints where, and how it stops."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import overtone as package
from command_line import CommandLine, assert_refused, run_process
from golden import GoldenDirectory

SUBCOMMANDS = ("predict", "info", "make-checkpoint", "bench", "fit-drafts", "doctor")


@pytest.fixture
def overtone(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def test_the_installed_command_is_this_one() -> None:
    (script,) = entry_points(group="console_scripts", name="overtone")
    assert script.value == "overtone.cli:main"


def test_the_version_is_the_packages() -> None:
    outcome = run_process("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"overtone {package.__version__}\n", "")


def test_help_lists_every_subcommand(overtone: CommandLine) -> None:
    outcome = overtone("--help")
    assert outcome.code == 0
    assert re.findall(r"^  ([a-z-]+) {2,}\w", outcome.out.split("Commands:")[1], re.MULTILINE) == sorted(SUBCOMMANDS)


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_subcommand_has_help(overtone: CommandLine, subcommand: str) -> None:
    for option in ("-h", "--help"):
        outcome = overtone(subcommand, option)
        assert outcome.code == 0
        assert outcome.out.startswith(f"Usage: overtone {subcommand} ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "Missing command"),
        (("sing",), "sing"),
        (("--loud",), "--loud"),
        (("predict",), "CKPT"),
        (("predict", "somewhere"), "--frames"),
        (("predict", "somewhere", "--frames"), "--frames"),
        (("make-checkpoint", "somewhere"), "--arch"),
        (("make-checkpoint", "somewhere", "--arch", "gpt"), "gpt"),
        (("bench", "somewhere", "--batch", "1,x"), "--batch"),
        (("bench", "somewhere", "--batch", ""), "--batch"),
        (("bench", "somewhere", "--batch", "9" * 10_000), "--batch"),
        (("bench", "somewhere", "--frames", "0"), "--frames"),
        (("info",), "CKPT"),
        (("doctor", "now"), "now"),
    ],
)
def test_wrong_usage_is_one_error_line(overtone: CommandLine, arguments: tuple[str, ...], named: str) -> None:
    assert_refused(overtone(*arguments), named)


@pytest.mark.parametrize("package_name", ["click", "tqdm"])
def test_without_its_packages_it_says_how_to_get_them(package_name: str) -> None:
    code = (
        f"import sys; sys.modules[{package_name!r}] = None; from overtone.cli import main; sys.exit(main(['doctor']))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert re.fullmatch(rf"error: .*{package_name}.*pip install 'overtone\[cli\]'\n", finished.stderr)


def test_the_command_is_no_part_of_the_package() -> None:
    code = "import sys, overtone.cli; print({'click', 'tqdm', 'matplotlib'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "set()\n"


def test_what_nobody_foresaw_is_one_line_too(overtone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_arguments: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("overtone._core.make_checkpoint", break_down)
    outcome = overtone("make-checkpoint", "somewhere", "--arch", "tiny")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: internal error: ZeroDivisionError: by zero; please report it\n"


def test_a_full_disk_is_one_line(omni_tiny: GoldenDirectory) -> None:
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "overtone", "info", omni_tiny.path],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert finished.returncode == 1
    assert re.fullmatch(r"error: .*No space left on device.*\n", finished.stderr)


def test_a_reader_that_leaves_is_no_error(omni_tiny: GoldenDirectory) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    finished = subprocess.run(
        [sys.executable, "-m", "overtone", "info", omni_tiny.path],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (141, "")


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_leaves_no_file(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    directory = tmp_path / "checkpoint"
    command = [sys.executable, "-m", "overtone", "make-checkpoint", str(directory), "--arch", "qwen3-tts-0.6b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not (directory.exists() and any(directory.iterdir())):
                assert process.poll() is None, "it ended before it could be stopped"
                time.sleep(0.01)
            process.send_signal(stop)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


class OnTerminal:
    """The command in a process of its own, whose standard error is a terminal of unknown size."""

    def __init__(self, *arguments: object) -> None:
        self.shown = ""
        self._terminal, others = pty.openpty()
        command = [sys.executable, "-m", "overtone", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=others, text=True)
        os.close(others)

    def close(self) -> None:
        os.close(self._terminal)
        self.process.kill()
        self.process.communicate()

    def read(self) -> str:
        """What appears next; empty when the process has left."""
        try:
            piece = os.read(self._terminal, 65536).decode()
        except OSError:
            return ""
        self.shown += piece
        return piece

    def finish(self) -> tuple[int, str]:
        """Exit code and standard output."""
        while self.read():
            pass
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


def many_frames(file: Path, golden: GoldenDirectory, repeats: int) -> Path:
    tensors = load_file(golden.frames_file)
    save_file({name: tensor.repeat(repeats, axis=0) for name, tensor in tensors.items()}, file)
    return file


def test_a_terminal_shows_progress(tmp_path: Path, omni_tiny: GoldenDirectory) -> None:
    frames = many_frames(tmp_path / "frames.safetensors", omni_tiny, 300)
    out = tmp_path / "codes.safetensors"
    with closing(OnTerminal("predict", omni_tiny.path, "--frames", frames, "--out", out)) as running:
        code, printed = running.finish()
    assert code == 0
    assert "predicting" in running.shown
    assert "/1200 " in running.shown
    assert "predicting" not in printed


def test_elsewhere_there_is_none(tmp_path: Path, omni_tiny: GoldenDirectory) -> None:
    out = tmp_path / "codes.safetensors"
    outcome = run_process("predict", omni_tiny.path, "--frames", omni_tiny.frames_file, "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert "\r" not in outcome.out
    outcome = run_process("make-checkpoint", tmp_path / "checkpoint", "--arch", "tiny")
    assert (outcome.code, outcome.err) == (0, "")


def test_ctrl_c_between_frames_leaves_no_file(tmp_path: Path, omni_tiny: GoldenDirectory) -> None:
    frames = many_frames(tmp_path / "frames.safetensors", omni_tiny, 5_000)
    out = tmp_path / "codes.safetensors"
    with closing(OnTerminal("predict", omni_tiny.path, "--frames", frames, "--out", out)) as running:
        while "predicting" not in running.shown:
            assert running.read(), "it ended before it could be interrupted"
        running.process.send_signal(signal.SIGINT)
        code, printed = running.finish()
    assert (code, printed) == (130, "")
    assert "Traceback" not in running.shown
    assert [path.name for path in tmp_path.iterdir()] == ["frames.safetensors"]
