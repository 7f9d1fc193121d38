"""Runs the `overtone` command for tests: in this process, which is quick, or in one of its own, as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from overtone.cli import main


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)


def run_process(*arguments: object, **environment: str) -> Outcome:
    """Run `python -m overtone` to its end."""
    finished = subprocess.run(
        [sys.executable, "-m", "overtone", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    return Outcome(finished.returncode, finished.stdout, finished.stderr)


def assert_refused(outcome: Outcome, *fragments: str) -> None:
    """Bad input or usage: exit code 2, one `error:` line that names what is wrong, and nothing else."""
    assert outcome.code == 2, outcome
    assert outcome.out == "", outcome
    assert outcome.err.startswith("error: "), outcome
    assert outcome.err.endswith("\n"), outcome
    assert len(outcome.err.splitlines()) == 1, outcome
    assert "Traceback" not in outcome.err, outcome
    for fragment in fragments:
        assert fragment in outcome.err, outcome
