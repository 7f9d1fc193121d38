"""Checks what would be published: the platform policy of the wheel, and what both archives hold.

usage: check_distributions.py WHEEL SDIST

Run from the root of the repository, in an environment that has auditwheel. Prints one line per promise kept; the first
broken one ends it with exit status 1.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

POLICY = (2, 28)
"""The newest glibc, as (major, minor), that the wheel may ask for: manylinux_2_28."""

LARGEST_WHEEL = 8 * 2**20
"""Bytes. Kernels are compressed; a wheel beyond this holds something that nobody meant to ship."""

KERNELS = Path("kernels")
ARCHITECTURES = Path("rust/cuda/build/architectures.rs")

KINDS = {1: "compute", 2: "sm"}
"""Of an entry of a fat binary: PTX and machine code, as nvcc names what they are for."""

PACKAGE = Path("python/overtone")
EXTENSION = "overtone/_core.abi3.so"

SDIST_TOP = {
    "CHANGELOG.md", "Cargo.lock", "Cargo.toml", "LICENSE", "PKG-INFO", "README.md", "kernels", "pyproject.toml",
    "python", "rust",
}  # fmt: skip
SDIST_SUFFIXES = {"", ".cu", ".cuh", ".lock", ".md", ".ptx", ".py", ".pyi", ".rs", ".toml", ".typed"}


def require(promise: str, broken: object) -> None:
    """Report a promise; `broken` is whatever speaks against it, and empty when it is kept."""
    if broken:
        sys.exit(f"error: not so: {promise}: {broken}")
    print(f"ok: {promise}")


def check_tags(wheel: Path) -> None:
    """The wheel says abi3 for Python 3.10 and manylinux_2_28 of this architecture, and auditwheel agrees."""
    python, abi, platform = wheel.stem.split("-")[-3:]
    prefix = f"manylinux_{POLICY[0]}_{POLICY[1]}_"
    expected = ("cp310", "abi3", True)
    found = (python, abi, platform.startswith(prefix))
    require(f"{wheel.name} is tagged cp310-abi3-{prefix}*", found != expected and wheel.name)

    shown = subprocess.run(["auditwheel", "show", "--json", wheel], check=True, capture_output=True, text=True).stdout
    report = json.loads(shown)
    tag = report["overall_tag"]
    fits = tag.startswith("manylinux_") and tuple(map(int, tag.split("_")[1:3])) <= POLICY
    require(f"auditwheel finds it no stricter than that ({tag})", not fits and shown)
    require("any processor of this architecture can load it", report["unsupported_isa"])
    require("it needs no library beside it", report["external_libs"])
    require("it unwinds stacks by the libgcc_s of its process", "libgcc_s.so.1" not in report["versioned_symbols"])


def check_wheel_contents(wheel: Path) -> None:
    """The wheel holds the Python package, the extension module and its metadata: all of it, and nothing else."""
    sources = {
        f"overtone/{file.relative_to(PACKAGE).as_posix()}"
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = next(PurePosixPath(name).parts[0] for name in names if ".dist-info/" in name)
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        extension = archive.read(EXTENSION)
    expected = sources | {EXTENSION} | {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }  # fmt: skip
    require("the wheel holds the package and nothing else", sorted(names ^ expected))
    require("the wheel is typed", {"overtone/py.typed", "overtone/_core.pyi"} - names)

    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    require("the package needs numpy alone", [line for line in needed if not line.startswith("numpy")] or not needed)

    here = [str(path).encode() for path in (Path.home(), Path.cwd()) if len(path.parts) > 1]
    require("the extension module names no folder of the machine it was built on", [p for p in here if p in extension])


def fat_binaries(extension: bytes) -> list[list[str]]:
    """What each fat binary embedded in the extension module holds: `sm_80` is machine code, `compute_90` PTX.

    A fat binary is a header (magic, version 1, size of the header, bytes that follow) and entries: kind, size of the
    entry's header, bytes that follow, and at offset 28 the compute capability.
    """
    found = []
    for match in re.finditer(re.escape(b"\x50\xed\x55\xba\x01\x00\x10\x00"), extension):
        place = match.end() + 8
        end = place + struct.unpack_from("<Q", extension, match.end())[0]
        entries = []
        while place < end:
            kind, _, header_bytes, code_bytes = struct.unpack_from("<HHIQ", extension, place)
            (capability,) = struct.unpack_from("<I", extension, place + 28)
            entries.append(f"{KINDS[kind]}_{capability}")
            place += header_bytes + code_bytes
        found.append(entries)
    return found


def check_kernels(wheel: Path) -> None:
    """The extension module embeds every kernel, for each architecture that a release is for."""
    with zipfile.ZipFile(wheel) as archive:
        found = fat_binaries(archive.read(EXTENSION))
    declared = re.search(r'const ALL: &str = "(.*)";', ARCHITECTURES.read_text())
    assert declared
    names = [name.rstrip("af") for name in declared[1].split(",")]
    expected = sorted(name if name.startswith("compute_") else f"sm_{name}" for name in names)
    files = len(list(KERNELS.glob("*.cu")))
    require(f"the wheel embeds the kernels of {files} files", len(found) != files and f"{len(found)} found")
    require(f"each is there for {', '.join(expected)}", [entries for entries in found if sorted(entries) != expected])
    size = wheel.stat().st_size
    require(f"the wheel has no more than {LARGEST_WHEEL:,} bytes", size > LARGEST_WHEEL and f"{size:,}")


def check_sdist_contents(sdist: Path) -> None:
    """The sdist holds sources, and nothing built, cached or recorded."""
    with tarfile.open(sdist) as archive:
        files = [PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in archive if member.isfile()]
    strangers = [str(f) for f in files if f.parts[0] not in SDIST_TOP or f.suffix not in SDIST_SUFFIXES]
    require("the sdist holds sources and nothing else", strangers)
    kernels = set(map(str, KERNELS.glob("*.cu*")))
    missing = sorted(SDIST_TOP - {file.parts[0] for file in files}) + sorted(kernels - set(map(str, files)))
    require("the sdist has all that a build needs", missing)


def main() -> None:
    """Check the two archives named on the command line."""
    wheel, sdist = map(Path, sys.argv[1:])
    check_tags(wheel)
    check_wheel_contents(wheel)
    check_kernels(wheel)
    check_sdist_contents(sdist)


if __name__ == "__main__":
    main()
