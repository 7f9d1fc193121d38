"""Fixtures for the golden data, and the rules by which a machine that lacks something skips a test.

Markers, strictness and warnings-as-errors are set in `pyproject.toml`; reading the golden files is `golden.py`'s.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import overtone
from contract import MODEL
from golden import DATA, GOLDEN_NAMES, GoldenDirectory, SamplingCase, read_sampling_cases


def pytest_report_header() -> str:
    """Say which overtone is under test: the installed wheel, or something else by accident."""
    return f"overtone {overtone.__version__} from {Path(overtone.__file__).parent}"


@functools.cache
def missing_gpu() -> str | None:
    """Why no CUDA device can be used, or None. Asks the driver itself, so that an overtone that fails to see a GPU
    fails its GPU tests instead of skipping them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    if (code := driver.cuInit(0)) != 0:
        return f"the CUDA driver does not start (cuInit returned {code})"
    count = ctypes.c_int(0)
    if (code := driver.cuDeviceGetCount(ctypes.byref(count))) != 0:
        return f"the CUDA driver does not count its devices (cuDeviceGetCount returned {code})"
    return None if count.value else "the CUDA driver sees no device"


def missing_packages(*names: str) -> str | None:
    """Which of the packages cannot be imported, as a reason to skip, or None."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def missing_tensorrt() -> str | None:
    """Why no TensorRT engine can run, or None. Either flavour of TensorRT will do."""
    if missing_packages("tensorrt") and missing_packages("tensorrt_rtx"):
        return "not installed: tensorrt or tensorrt_rtx"
    return missing_gpu()


REQUIREMENTS: dict[str, Callable[[], str | None]] = {
    "gpu": missing_gpu,
    "tensorrt": missing_tensorrt,
    "transformers": lambda: missing_packages("torch", "transformers"),
}
"""For each marker that asks something of the machine: the function that says what is missing."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker asks for something this machine lacks, and say what."""
    for marker, missing in REQUIREMENTS.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def auto_is_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `executor="auto"` be the CPU in tests that are not about a GPU, whatever the machine has, and in the
    processes that they start."""
    if any(request.node.get_closest_marker(marker) for marker in ("gpu", "tensorrt")):
        return

    # A process that has looked at its devices does not look again.
    if overtone._core.describe_cuda()["problem"] is None:

        def absent(_ordinal: int | None = None) -> None:
            raise overtone.CudaUnavailableError("the tests hide cuda. Mark a test that needs it.")

        monkeypatch.setattr("overtone._core.check_cuda", absent)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """`tests/data`."""
    return DATA


@pytest.fixture(scope="session", params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest) -> GoldenDirectory:
    """Each golden directory in turn."""
    return GoldenDirectory(request.param)


@pytest.fixture(scope="session")
def omni_tiny() -> GoldenDirectory:
    """One file, float32, the nesting of Qwen3-Omni, among tensors that a loader ignores."""
    return GoldenDirectory("omni-tiny")


@pytest.fixture(scope="session")
def tts_tiny_projected() -> GoldenDirectory:
    """Three shards, bfloat16, the nesting of Qwen3-TTS, with a projection from 96 to 64."""
    return GoldenDirectory("tts-tiny-projected")


@pytest.fixture(scope="session")
def standalone() -> GoldenDirectory:
    """Float16, a flat configuration, keys without a prefix, the code_0 table in a file of its own."""
    return GoldenDirectory("standalone")


@pytest.fixture(scope="session")
def sampling_cases() -> list[SamplingCase]:
    """The 200 golden draws."""
    return read_sampling_cases()


@pytest.fixture
def predictor() -> overtone.CodePredictor:
    """The model of `contract.py`, loaded."""
    return MODEL.load(max_batch=5)
