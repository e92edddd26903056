# SPDX-License-Identifier: Apache-2.0
"""Compiles the model's three pieces into the packages embed.pt2, layer.pt2 and head.pt2.

    python -m headrace.demo_model.export --output DIR

What is there and still fits is left alone: a package says which torch, which processor features and which source made it, and
looking at that takes no torch. Each new one is compared with PyTorch at several sizes, and layer.pt2 must give the same bits for
every page size and order of pages. The folder is the one line on standard output, standard error tells what is being done.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..errors import BackendFailed, Error
from ..export import export_package, require_torch
from ..exporting.archive import read_spec

PIECES = ("embed", "layer", "head")
KEY = "made_by"

# What compiled code may depend on, among the flags that Linux tells of a processor.
_FEATURES = re.compile(r"(avx|amx|fma|sve|asimd|bf16|f16c|sse4)\w*")
_SOURCES = ("model.py", "pieces.py", "export.py", "../export.py", "../exporting/package.py", "../exporting/io_spec.py")


def current_key() -> dict[str, str]:
    """What a package depends on beyond its weights, which are inputs."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = ""
    here = Path(__file__).parent
    source = b"".join((here / name).read_bytes() for name in _SOURCES)
    return {"torch": torch_version, "processor": _processor(), "source": hashlib.sha256(source).hexdigest()[:16]}


def default_folder() -> Path:
    """In the user's cache, where unpacked packages are too."""
    named = os.environ.get("HEADRACE_CACHE_DIR")
    cache = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    return cache / "demo"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    features = sorted({match[0] for match in _FEATURES.finditer(flags)})
    return " ".join([platform.machine(), *features])


def is_current(package: Path, key: dict[str, str]) -> bool:
    """Whether the package is there and was made by what `key` tells."""
    try:
        return read_spec(package).get(KEY) == key
    except (OSError, zipfile.BadZipFile, ValueError, Error):
        return False


def export_pieces(output: Path, cache: Path | None = None) -> list[Path]:
    """Exports what is missing or outdated into the folder; returns all three packages.

    errors   backend_failed when a piece could not be exported: its process has said why
    """
    packages = [output / f"{piece}.pt2" for piece in PIECES]
    key = current_key()

    def outdated() -> list[str]:
        return [package.stem for package in packages if not is_current(package, key)]

    if outdated():  # only then the folder must be ours to write
        output.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(output):
            _sweep(output)
            if pieces := outdated():
                _export_all(pieces, output, cache)
                return packages
    _say(f"{', '.join(package.name for package in packages)} in {output} are up to date")
    return packages


def _sweep(output: Path) -> None:
    """Removes what an export that was killed had begun: with the lock held nobody else writes there."""
    for piece in PIECES:
        for begun in output.glob(f".{piece}-*"):
            shutil.rmtree(begun) if begun.is_dir() and not begun.is_symlink() else begun.unlink(missing_ok=True)


def _export_all(pieces: list[str], output: Path, cache: Path | None) -> None:
    """Each in a process of its own, as many at once as there are processors: compiling takes one."""
    began = time.monotonic()
    _say(f"compiling {', '.join(pieces)} for this processor and torch: this is done once and takes a while")
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            codes = list(pool.map(lambda piece: _run_piece(piece, output, cache, running), pieces))
        except BaseException:  # we are to end, and they with us: each removes what it has begun
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    if failed := [piece for piece, code in zip(pieces, codes) if code != 0]:
        raise BackendFailed(f"exporting {', '.join(failed)} failed: what is printed above says why")
    _say(f"{', '.join(pieces)} in {output} after {time.monotonic() - began:.0f} s")


def _run_piece(piece: str, output: Path, cache: Path | None, running: list[subprocess.Popen[bytes]]) -> int:
    command = [sys.executable, "-m", "headrace.demo_model.export", "--output", str(output), "--piece", piece]
    process = subprocess.Popen([*command, *(["--cache", str(cache)] if cache else [])])
    running.append(process)
    return process.wait()


def export_piece(piece: str, output: Path, cache: Path | None = None) -> None:
    """Exports one piece, whether or not it is there."""
    require_torch()
    import torch

    from . import pieces

    torch.manual_seed(1)
    checks = {"layer": pieces.check_pages}
    note = {KEY: current_key()}
    export_package(pieces.request(piece), output / f"{piece}.pt2", verify=True, cache=cache, note=note, check=checks.get(piece))


@contextmanager
def _one_at_a_time(output: Path) -> Iterator[None]:
    """Two that start together compile once: the second waits and finds what it wants."""
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo_model.export", description="Compiles the demo's language model.")
    folder = "the folder for embed.pt2, layer.pt2 and head.pt2 (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=default_folder(), metavar="DIR", help=folder)
    parser.add_argument("--piece", choices=PIECES, help="export this one alone, even if it is up to date")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where the compiler keeps its work (default: the user's cache)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        if options.piece:
            export_piece(options.piece, options.output, options.cache)
        else:
            export_pieces(options.output, options.cache)
            print(options.output)
    except Error as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(f"{error.filename or options.output}: {error.strerror}: choose another folder with --packages or --output")
        return 1
    return 0


def _end(number: int, _frame: object) -> None:
    """As an exception, so that what has been begun is removed on the way."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
