"""`import overtone` needs NumPy and brings nothing else; asking for what isn't there is refused with advice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import overtone
from golden import GoldenDirectory
from overtone import CodePredictor, CudaUnavailableError, UnsupportedError, _core

PACKAGE_ROOT = Path(overtone.__file__).parent.parent

IMPORTED = """
import importlib.util, json, sys
before = set(sys.modules)
import numpy
with_numpy = set(sys.modules)
import overtone
after = set(sys.modules)
known = set(sys.stdlib_module_names)
print(json.dumps({
    "top": sorted({name.partition(".")[0] for name in after - before} - known),
    "beside_numpy": sorted({name.partition(".")[0] for name in after - with_numpy}),
    "overtone": sorted(name for name in after if name.startswith("overtone")),
    "threads": len(__import__("os").listdir("/proc/self/task")),
}))
"""


def run(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with `path` and then overtone's own folder first on its path."""
    start = f"import sys; sys.path[:0] = {[str(entry) for entry in (*path, PACKAGE_ROOT)]!r}\n"
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def imported(*path: Path, **environment: str) -> dict[str, Any]:
    outcome = run(IMPORTED, *path, **environment)
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


@pytest.fixture
def heavy_packages(tmp_path: Path) -> Path:
    """A folder of packages that must not be imported: each fails the process that tries."""
    for name in ("torch", "click", "tqdm", "rich", "matplotlib", "transformers", "cupy", "jax", "tensorrt"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('overtone imported {name}')\n")
    return tmp_path


def test_importing_overtone_brings_numpy_and_nothing_else(heavy_packages: Path) -> None:
    found = imported(heavy_packages)
    assert found["top"] == ["numpy", "overtone"]
    standard = set(found["beside_numpy"]) - {"overtone", "numpy"}
    assert not standard & {"asyncio", "concurrent", "ctypes", "multiprocessing", "subprocess", "unittest"}


def test_importing_overtone_leaves_the_command_line_alone(heavy_packages: Path) -> None:
    assert not [name for name in imported(heavy_packages)["overtone"] if name.startswith("overtone.cli")]


def test_importing_overtone_starts_no_thread(heavy_packages: Path) -> None:
    alone = run("import os, numpy; print(len(os.listdir('/proc/self/task')))", heavy_packages)
    assert imported(heavy_packages)["threads"] == int(alone.stdout)


def test_frames_need_no_other_package_either(heavy_packages: Path, data_directory: Path) -> None:
    code = f"""
before = set(sys.modules)
import overtone, numpy as np
predictor = overtone.CodePredictor.from_pretrained({str(data_directory / "omni-tiny")!r})
frame = predictor.predict_frame(np.ones((1, 64), "f4"), [1]).wait()
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(frame.codes.shape, sorted(new - set(sys.stdlib_module_names)))
"""
    outcome = run(code, heavy_packages)
    assert outcome.stdout == "(1, 8) ['numpy', 'overtone']\n", outcome.stderr


def test_import_needs_no_home_no_driver_and_no_writable_folder(heavy_packages: Path) -> None:
    found = imported(heavy_packages, HOME="/nonexistent", CUDA_VISIBLE_DEVICES="", LD_LIBRARY_PATH="/nonexistent")
    assert found["top"] == ["numpy", "overtone"]


def test_every_public_name_is_there() -> None:
    assert sorted(overtone.__all__) == overtone.__all__
    for name in overtone.__all__:
        assert getattr(overtone, name) is not None
        assert name == "__version__" or getattr(overtone, name).__doc__
    assert overtone.__version__.count(".") == 2


def test_asking_for_cuda_gives_advice() -> None:
    with pytest.raises(CudaUnavailableError, match=r"\. [A-Z].*\.$"):
        CodePredictor("cuda")


@pytest.mark.parametrize("executor", ["tensorrt", "onnxruntime"])
def test_asking_for_another_executor_gives_advice(executor: str) -> None:
    with pytest.raises(UnsupportedError, match=f'no {executor} executor yet; use executor="cuda"') as refused:
        CodePredictor(executor)
    assert refused.value.key == "executor"


def test_auto_is_the_cpu_here_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "overtone"):
        assert CodePredictor("auto").executor == "cpu"
    (record,) = caplog.records
    assert record.getMessage().startswith("executor auto: cpu, because cuda cannot run here: ")


def test_auto_on_a_cuda_device_is_no_wish_but_an_order() -> None:
    with pytest.raises(CudaUnavailableError):
        CodePredictor("auto", device="cuda:0")


def test_what_cuda_cannot_run_goes_to_the_cpu_when_nobody_asked_for_cuda(
    omni_tiny: GoldenDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("overtone._core.check_cuda", lambda ordinal: None)
    with caplog.at_level("INFO", "overtone"):
        predictor = CodePredictor.from_pretrained(omni_tiny.path, dtype="int8")
    assert (predictor.executor, predictor.device, predictor.dtype) == ("cpu", "cpu", "int8")
    assert "cuda cannot run this" in caplog.records[-1].getMessage()
    with pytest.raises(UnsupportedError, match="int8"):
        CodePredictor.from_pretrained(omni_tiny.path, "cuda", dtype="int8")


def test_what_is_there_of_cuda_can_be_asked_anywhere() -> None:
    report = _core.describe_cuda()
    assert set(report) == {"kernels", "architectures", "driver", "devices", "problem", "advice"}
    assert (report["problem"] is None) == bool(report["devices"])
    assert (report["problem"] is None) == (report["advice"] is None)
