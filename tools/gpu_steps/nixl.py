# SPDX-License-Identifier: Apache-2.0
"""Comparisons with NIXL, in turn."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

from gpu_steps import tree
from gpu_steps.bare import compare
from gpu_steps.endings import Failed, NothingRun
from gpu_steps.sitting import Sitting

NIXL = "the wheels nixl and nixl-cu12"
LAST_TURN_SECONDS = 25  # that one may take which began in time


def in_turn(sitting: Sitting, *arguments: str, seconds: int) -> bool:
    """Compares NIXL and Headrace in turn. After `seconds` no turn begins."""
    folder = nixl_folder(sitting)
    seconds = min(seconds, max(1, int(sitting.limit - time.monotonic() - LAST_TURN_SECONDS)))
    before = sitting.row_lines()
    ok = compare(
        sitting,
        "bench/compare_nixl.py",
        "--device",
        "cuda",
        *arguments,
        "--nixl-path",
        os.path.relpath(folder, tree.ROOT),
        "--seconds",
        str(seconds),
    )
    # It goes on where NIXL's processes end too early, and says so.
    if ok and not any(str(row.get("peer")).startswith("nixl") for row in sitting.rows_since(before)):
        return sitting.trouble(
            "nothing was compared with NIXL: the lines above say why its turns did not run"
        )
    return ok


def nixl_folder(sitting: Sitting) -> Path:
    """Returns the folder from which a Python of this version imports NIXL: the folder of --nixl, or the one
    of an installed NIXL.

    Raises NothingRun if there is none.
    """
    given: Path | None = sitting.options.nixl
    if given is not None:
        folder = unpacked(given.resolve())
    else:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        places = [
            Path(sysconfig.get_paths()["purelib"]),
            tree.ROOT / "build" / "nixl-venv" / "lib" / version / "site-packages",
        ]
        found = next((place for place in places if list(place.glob("nixl_cu1[23]-*.dist-info"))), None)
        if found is None:
            raise NothingRun(
                f"NIXL is not installed: download {NIXL} for this Python on a machine with a network, "
                "unpack both into one folder, copy it to this machine, and pass --nixl FOLDER"
            )
        folder = found
    if sitting.limit < time.monotonic():
        raise Failed("out of time before a comparison with NIXL began")
    program = "import nixl._api; print(nixl._api.nixl_agent.__module__)"
    search = os.pathsep.join([str(folder), sitting.environment["PYTHONPATH"]])
    if not sitting.run([sys.executable, "-c", program], environment={"PYTHONPATH": search}):
        raise NothingRun(f"NIXL in {folder} cannot be imported: its error is printed above")
    if (module := sitting.file("stdout").read_text().split()[-1]).startswith("headrace"):
        raise NothingRun(
            f"nixl in {folder} is Headrace's drop-in ({module}): pass --nixl FOLDER with the folder of "
            "NIXL's own package"
        )
    return folder


def nixl(sitting: Sitting) -> bool:
    """NIXL and Headrace in turn, between two GPUs, or between two processes on one."""
    return in_turn(sitting, *target_gpu(sitting), seconds=110)


def target_gpu(sitting: Sitting) -> tuple[str, ...]:
    """Returns the arguments of compare_nixl.py for GPU memory on both sides: its default is two GPUs."""
    return ("--target-gpu", "0") if sitting.gpus == 1 else ()


def nixl_others(sitting: Sitting) -> bool:
    """NIXL, with its defaults and tuned, and Headrace in turn: between a GPU and host memory, in host memory,
    and over tcp."""
    short = (
        "--pages",
        "4096,65536,16777216",
        "--tuned",
        "--without",
        "nixl 2 threads",
        "--rounds",
        "1",
        "--iterations",
        "3",
        "--warm-up",
        "1",
    )
    kinds = [
        ("vram-dram",),
        ("dram-vram",),
        ("dram-dram",),
        ("vram-vram", "--over", "tcp", *target_gpu(sitting)),
        ("dram-dram", "--over", "tcp"),
    ]
    # A list, so that every kind runs after one has failed.
    return all([in_turn(sitting, *short, "--kinds", *which, seconds=75) for which in kinds])  # noqa: C419


def unpacked(given: Path) -> Path:
    """Returns the folder that contains the package: the given folder, or a folder of the given archive, which
    is unpacked once.

    Raises NothingRun if there is none.
    """
    folder = unpack(given) if given.is_file() else given
    packages = [folder / "nixl", *sorted(folder.glob("*/nixl"))]
    # NIXL's wheel has a folder of that name beside the package, for its plugins.
    found = next((path.parent for path in packages if (path / "__init__.py").is_file()), None)
    if found is None:
        raise NothingRun(
            f"{given} has no package nixl: unpack {NIXL} into one folder, and pass it with --nixl FOLDER"
        )
    return found


def unpack(archive: Path) -> Path:
    """Unpacks an archive into a folder of its own, which appears whole or not at all."""
    status = archive.stat()
    target = tree.WORK / "nixl" / f"{archive.name}-{status.st_size}-{status.st_mtime_ns}"
    if target.exists():
        return target
    unfinished = target.with_name(f".{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if zipfile.is_zipfile(archive):  # a wheel is one
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unfinished)
    else:
        with tarfile.open(archive) as tar:  # Pythons before 3.11.4 trust without being told
            if hasattr(tarfile, "fully_trusted_filter"):
                tar.extractall(unfinished, filter="fully_trusted")
            else:
                tar.extractall(unfinished)
    unfinished.rename(target)
    return target
