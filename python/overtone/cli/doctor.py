"""`overtone doctor`: what this machine can run, and the one command that mends what it can't."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import overtone
from overtone import CodePredictor, OvertoneError, Tensor, _core
from overtone.cli.machine import memory_bytes, processor_name, usable_cores
from overtone.cli.options import json_option

__all__ = ["doctor"]

_THREADS_VARIABLE = "OVERTONE_NUM_THREADS"


@dataclass(frozen=True)
class _Finding:
    """One line of the report.

    Args:
        subject: What was looked at.
        good: Whether it is there and works; None where it is only worth knowing.
        found: What was found.
        remedy: The command that mends it, where one does.
    """

    subject: str
    good: bool | None
    found: str
    remedy: str | None = None


@click.command()
@json_option
def doctor(*, as_json: bool) -> None:
    """Tell what this machine can run, and how to mend what it can't.

    Exits with 0 when the CPU executor works, which a small frame proves.
    """
    executor = _try_executor("cpu")
    findings = [*_machine(), executor, *_cuda(), *_other_executors(), *_optional_packages()]
    if as_json:
        document = {
            "version": overtone.__version__,
            "works": executor.good,
            "findings": [asdict(finding) for finding in findings],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        for finding in findings:
            mark = {True: "ok", False: "no", None: "--"}[finding.good]
            click.echo(f"{mark}  {finding.subject:22}{finding.found}")
            if finding.remedy is not None:
                click.echo(f"{'':26}mend it with: {finding.remedy}")
    if not executor.good:
        raise OvertoneError(f"the cpu executor does not work: {executor.found}")


def _machine() -> list[_Finding]:
    cores = usable_cores()
    wanted = os.environ.get(_THREADS_VARIABLE)
    said = (
        f"{_THREADS_VARIABLE} is {wanted!r}" if wanted is not None else f"{_THREADS_VARIABLE} is not set: all of them"
    )
    return [
        _Finding("overtone", None, f"{overtone.__version__}, {Path(overtone.__file__).parent}"),
        _Finding("Python", None, f"{platform.python_version()}, NumPy {np.__version__}"),
        _Finding("system", None, f"{platform.system()} {platform.release()}, {platform.machine()}"),
        _Finding("processor", None, processor_name()),
        _Finding("cores", None, f"{cores} usable; {said}"),
        _Finding("memory", None, f"{memory_bytes() / 1e9:,.1f} GB"),
    ]


def _try_executor(name: str, device: str | None = None) -> _Finding:
    """Make a tiny checkpoint, load it and predict a frame of it."""
    subject = f"{name} executor" if device is None else f"{name} executor, {device}"
    try:
        with tempfile.TemporaryDirectory(prefix="overtone-doctor-") as directory:
            _core.make_checkpoint(directory, "tiny", 0, 1, 1)
            predictor = CodePredictor.from_pretrained(directory, name, device, max_batch=1)
            frames = _core.read_tensors(Path(directory) / "frames.safetensors")
            hidden, code_zero = frames["talker_last_hidden"].numpy(), frames["code_zero"].numpy()
            row = Tensor.from_dlpack(hidden[0]).to(predictor.device)
            codes = predictor.predict_frame(row, code_zero[0]).to_host().codes[0]
    except (OvertoneError, OSError) as error:
        invalid_threads = isinstance(error, OvertoneError) and error.key == "threads"
        remedy = f"unset {_THREADS_VARIABLE}" if invalid_threads else None
        return _Finding(subject, good=False, found=" ".join(str(error).split()), remedy=remedy)
    residual = codes[1:]
    if codes[0] != code_zero[0, 0] or residual.min() < 0 or residual.max() >= predictor.codebook_size:
        return _Finding(subject, good=False, found=f"predicted impossible codes {codes.tolist()}; please report it")
    threads = f" on {predictor.threads} threads" if predictor.threads else ""
    found = f"a small frame ran with {predictor.instructions} instructions{threads}"
    return _Finding(subject, good=True, found=found)


def _cuda() -> list[_Finding]:
    """What is there of CUDA, each device tried."""
    report = _core.describe_cuda()
    built = ", ".join(report["architectures"]) or "PTX"
    findings = [
        _Finding("cuda kernels", good=True, found=f"in this build, for {built}")
        if report["kernels"]
        else _Finding(
            "cuda kernels", good=False, found="not in this build", remedy="pip install --force-reinstall overtone"
        )
    ]
    if report["problem"] is not None:
        found = f"{report['problem']}. {report['advice']}"
        return [*findings, _Finding("cuda executor", good=False, found=found, remedy=_cuda_remedy(report))]
    driver = f"supports CUDA {report['driver']}; 13.0 (branch 580) or later is needed"
    findings.append(_Finding("NVIDIA driver", good=True, found=driver))
    for device in report["devices"]:
        name = f"cuda:{device['ordinal']}"
        found = (
            f"{device['name']}, compute capability {device['compute_capability']}, "
            f"{device['memory_bytes'] / 1e9:,.1f} GB, {device['multiprocessors']} multiprocessors"
        )
        usable = device["problem"] is None
        findings.append(_Finding(name, good=usable, found=found if usable else f"{found}: {device['problem']}"))
        if usable:
            findings.append(_try_executor("cuda", name))
    return findings


def _cuda_remedy(report: dict[str, Any]) -> str | None:
    """The one command that mends what keeps CUDA from running, where a command does."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not report["kernels"]:
        return None
    if "sees no GPU" in report["problem"] and hidden is not None:
        return "unset CUDA_VISIBLE_DEVICES"
    if "there is no NVIDIA driver" in report["problem"] or "is needed" in report["problem"]:
        return "sudo apt-get install nvidia-driver-580-server"
    return "nvidia-smi"


def _other_executors() -> list[_Finding]:
    return [
        _Finding(f"{name} executor", good=False, found="not in this version of overtone")
        for name in ("tensorrt", "onnxruntime")
    ]


def _optional_packages() -> list[_Finding]:
    findings = []
    for name, extra, purpose in (
        ("click", "cli", "the command line"),
        ("tqdm", "cli", "progress bars"),
        ("matplotlib", "cli", "bench --plot"),
        ("torch", "torch", "torch tensors in and out"),
        ("prometheus_client", "metrics", "counters for Prometheus"),
    ):
        version = _version(name)
        remedy = None if version else f"pip install 'overtone[{extra}]'"
        found = f"{version or 'not installed'}, for {purpose}"
        findings.append(_Finding(name, good=version is not None, found=found, remedy=remedy))
    return findings


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
