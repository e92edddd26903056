# SPDX-License-Identifier: Apache-2.0
"""Compiles the model's pieces into the packages embed.pt2, layer.pt2, head.pt2 and store.pt2.

    python -m headrace.demo_model.export --output DIR
    python -m headrace.demo_model.export --shape 8b --device cuda
    python -m headrace.demo_model.export --tensor-parallel 2

A package that is up to date is kept. Each package has a record of its torch, its processor features or GPU,
its shape and its source; reading the record needs no torch. Each new package is compared with PyTorch at
several sizes, and layer.pt2 must give the same bits for every page size and order of pages. Shapes with
random weights have two more packages, which make the weights, and the file sizes.json. `--tensor-parallel 2`
adds attention_of_2.pt2, feed_forward_of_2.pt2 and store_of_2.pt2, which run one of two ranks (split.py).
`--shape experts` has attention.pt2, route.pt2 and expert.pt2, too, a layer cut at its experts (experts.py).
Standard output gets one line, the folder; standard error gets the progress. An error names the package that
cannot be exported and its step, and the signal if its process crashed.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import BackendFailed, Error, InvalidArgument, NotSupported
from ..export import Crashed, export_package, require_torch
from ..exporting.archive import read_spec
from ..exporting.bare_loader import ended, explain_crash, is_crash
from .shapes import SHAPES, Shape

KEY = "made_by"
CRASHED = 70  # exit code of a package's process if a runner crashed on the package
SIZES_FILE = "sizes.json"

# The processor flags of Linux on which compiled code may depend.
_FEATURES = re.compile(r"(avx|amx|fma|sve|asimd|bf16|f16c|sse4)\w*")
_SOURCES = (
    "model.py",
    "shapes.py",
    "random_weights.py",
    "experts.py",
    "split.py",
    "pieces.py",
    "export.py",
    "../export.py",
    "../exporting/package.py",
    "../exporting/io_spec.py",
)
_CAPABILITY = (75, 76)  # device attributes of the driver: compute capability, major and minor


@dataclass(frozen=True)
class Target:
    """The shape to compile, and the device to compile for."""

    shape_name: str = "book"
    device: str = "cpu"  # or cuda: any GPU of this machine
    ranks: int = 1  # more than one: also the packages of one of so many ranks

    @property
    def shape(self) -> Shape:
        return SHAPES[self.shape_name]

    @property
    def pieces(self) -> tuple[str, ...]:
        """Returns the names of its packages."""
        return (*self.shape.pieces, *self.shape.split_pieces(self.ranks))


def current_key(target: Target = Target()) -> dict[str, str]:
    """Returns the facts that a package depends on. Its weights are inputs and not among them.

    errors   not_supported (the target is a GPU, and this machine has none)
    """
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = ""
    here = Path(__file__).parent
    source = b"".join((here / name).read_bytes() for name in _SOURCES)
    key = {
        "torch": torch_version,
        "processor": _processor(),
        "source": hashlib.sha256(source).hexdigest()[:16],
    }
    return {**key, "shape": target.shape_name, "device": _gpu() if target.device == "cuda" else "cpu"}


def default_folder(target: Target = Target()) -> Path:
    """Returns the folder of the packages in the user's cache. Each shape and kind of device has its own
    folder."""
    named = os.environ.get("HEADRACE_CACHE_DIR")
    cache = (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    )
    usual = (target.shape_name, target.device) == ("book", "cpu")
    return cache / ("demo" if usual else f"demo-{target.shape_name}-{target.device}")


def _gpu() -> str:
    """Asks the driver for the first GPU's compute capability. Returns it as "cuda 9.0"."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NotSupported(
            f"--device cuda: this machine has no GPU ({error}): without the option it compiles for the "
            "processor"
        ) from error
    device, numbers = ctypes.c_int(), (ctypes.c_int * len(_CAPABILITY))()
    if (code := driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)) != 0:
        raise NotSupported(
            f"--device cuda: the driver finds no GPU (error {code}): without the option it compiles for the "
            "processor"
        )
    for i, attribute in enumerate(_CAPABILITY):
        driver.cuDeviceGetAttribute(ctypes.byref(numbers, i * ctypes.sizeof(ctypes.c_int)), attribute, device)
    return f"cuda {numbers[0]}.{numbers[1]}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    features = sorted({match[0] for match in _FEATURES.finditer(flags)})
    return " ".join([platform.machine(), *features])


def is_current(package: Path, key: dict[str, str]) -> bool:
    """Returns whether the package exists and was made with the facts of `key`."""
    try:
        return read_spec(package).get(KEY) == key
    except (OSError, zipfile.BadZipFile, ValueError, Error):
        return False


def export_pieces(output: Path, cache: Path | None = None, target: Target = Target()) -> list[Path]:
    """Exports the missing and outdated packages into the folder. Returns the paths of all packages.

    errors   backend_failed (a package could not be exported: the text names the package, its step, and how
             its process ended), not_supported (the target is a GPU, and this machine has none),
             invalid_argument (so many ranks cannot share the model's heads: which numbers can)
    """
    _check_ranks(target)
    packages = [output / f"{piece}.pt2" for piece in target.pieces]
    key = current_key(target)

    def outdated() -> list[str]:
        return [package.stem for package in packages if not is_current(package, key)]

    if outdated():  # only then the folder must be writable
        output.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(output):
            _sweep(output, target)
            if target.shape.random:
                _write_sizes(output, target.shape)
            if pieces := outdated():
                _export_all(pieces, output, cache, target)
                return packages
    _say(f"{', '.join(package.name for package in packages)} in {output} are up to date")
    return packages


def _check_ranks(target: Target) -> None:
    try:
        target.shape.sizes.split(target.ranks)
    except ValueError as error:
        raise InvalidArgument(f"--tensor-parallel {target.ranks}: {error}") from error


def _write_sizes(output: Path, shape: Shape) -> None:
    """Writes the sizes for the command, which otherwise reads them from the weights file. They are written
    before the packages, because only the packages are checked later."""
    (output / f".{SIZES_FILE}").write_text(json.dumps(shape.description()) + "\n")
    os.replace(output / f".{SIZES_FILE}", output / SIZES_FILE)


def _sweep(output: Path, target: Target) -> None:
    """Removes the unfinished files of an export that was killed. The lock is held: no other process writes
    there."""
    for piece in target.pieces:
        for begun in output.glob(f".{piece}-*"):
            shutil.rmtree(begun) if begun.is_dir() and not begun.is_symlink() else begun.unlink(
                missing_ok=True
            )


def _export_all(pieces: list[str], output: Path, cache: Path | None, target: Target) -> None:
    """Exports each package in a process of its own, as many at once as there are processors: compiling uses
    one."""
    began = time.monotonic()
    what = "this GPU" if target.device == "cuda" else "this processor"
    _say(f"compiling {', '.join(pieces)} for {what} and torch: this is done once and takes a while")
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            ended = list(pool.map(lambda piece: _run_piece(piece, output, cache, target, running), pieces))
        except BaseException:  # this process must end: the children end too and remove their unfinished files
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    if failed := [end for end in ended if end.code != 0]:
        raise BackendFailed(_failure_text(failed, target))
    _say(f"{', '.join(pieces)} in {output} after {time.monotonic() - began:.0f} s")


@dataclass(frozen=True)
class _Ended:
    """The last step and the return code of the process of one package."""

    piece: str
    step: str
    code: int

    def __str__(self) -> str:
        return f"{self.piece} {ended(self.code)} in step {self.step}"


def _failure_text(failed: list[_Ended], target: Target) -> str:
    """Returns the error text. A process with an exit code has printed its error; a process that a signal
    ended has not."""
    text = f"exporting failed: {'; '.join(map(str, failed))}"
    if any(end.code > 0 for end in failed):
        text += ". The reason is printed above"
    if any(is_crash(end.code) or end.code == CRASHED for end in failed):
        text += f". {explain_crash(target.device)}"
    return text


def _run_piece(
    piece: str, output: Path, cache: Path | None, target: Target, running: list[subprocess.Popen[bytes]]
) -> _Ended:
    command = _piece_command(piece, output, target)
    command += ["--cache", str(cache)] if cache else []
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as steps:
        try:
            # One compile thread: by default Inductor starts a process per processor for each of these
            # processes.
            process = subprocess.Popen(
                [*command, "--steps-to", str(write_end)],
                env={"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ}, pass_fds=(write_end,),
            )  # fmt: skip
        finally:
            os.close(write_end)
        running.append(process)
        step = "start"
        for line in steps:
            step = line.strip()
    return _Ended(piece, step, process.wait())


def _piece_command(piece: str, output: Path, target: Target) -> list[str]:
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "headrace.demo_model.export",
        "--output",
        str(output),
        "--piece",
        piece,
    ]
    command += ["--shape", target.shape_name, "--device", target.device]
    return [*command, "--tensor-parallel", str(target.ranks)]


def export_piece(
    piece: str,
    output: Path,
    cache: Path | None = None,
    target: Target = Target(),
    progress: Callable[[str], None] = lambda step: None,
) -> None:
    """Exports one package, even if it exists.

    progress  as in export_package
    errors    invalid_argument (the shape has no such package), and those of export_package
    """
    shape, device = target.shape, target.device
    if piece not in target.pieces:
        raise InvalidArgument(
            f"shape {target.shape_name} has no package {piece}: it has {', '.join(target.pieces)}"
        )
    key = current_key(target)
    require_torch()
    import torch

    from . import pieces

    torch.manual_seed(1)
    checks = {"layer": lambda package: pieces.check_pages(package, shape, device)}
    for name, ranks in (("attention", 1), (f"attention_of_{target.ranks}", target.ranks)):
        checks[name] = partial(pieces.check_pages, shape=shape, device=device, ranks=ranks)
    checks |= dict.fromkeys(
        ("random_layer", "random_ends"), lambda package: pieces.check_random(package, shape, device)
    )
    # Billions of random weights are compared on their device, by a check of their own.
    verify = not piece.startswith("random")
    if device == "cuda" and not torch.cuda.is_available():
        raise NotSupported(
            f"--device cuda: torch {torch.__version__} finds no GPU: without the option it compiles for the "
            "processor"
        )
    request = pieces.request(piece, shape, device)
    export_package(
        request,
        output / f"{piece}.pt2",
        device=device,
        verify=verify,
        cache=cache,
        note={KEY: key},
        check=checks.get(piece),
        progress=progress,
        explain=False,  # export_pieces does it once for all packages
    )


@contextmanager
def _one_at_a_time(output: Path) -> Iterator[None]:
    """Holds the folder's lock: of two exports that start together, the second waits and finds the packages
    made."""
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo_model.export", description="Compiles the demo's language model."
    )
    folder = f"folder for the packages (default: {default_folder()}; each shape and device has its own)"
    parser.add_argument("--output", type=Path, metavar="DIR", help=folder)
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default="book",
        help="a trained model (book, experts), or one with random weights (default: book)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device to compile for (default: cpu)"
    )
    parser.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="RANKS",
        help="export the packages of one of so many ranks, too (default: 1, no more packages)",
    )
    pieces = sorted({piece for target in _all_targets() for piece in target.pieces})
    parser.add_argument("--piece", choices=pieces, help="export only this package, even if it is up to date")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="folder for the compiler's cache (default: headrace/inductor in the user's cache folder)",
    )
    # A pipe to the process that exports all packages: this process writes its steps to it.
    parser.add_argument("--steps-to", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    target = Target(options.shape, options.device, options.tensor_parallel)
    output: Path = options.output or default_folder(target)
    signal.signal(signal.SIGTERM, _end)
    try:
        if options.piece:
            export_piece(options.piece, output, options.cache, target, _steps_to(options.steps_to))
        else:
            export_pieces(output, options.cache, target)
            print(output)
    except Error as error:
        _say(str(error))
        return CRASHED if isinstance(error, Crashed) else 1
    except OSError as error:
        _say(
            f"{error.filename or output}: {error.strerror}: choose another folder with --packages or --output"
        )
        return 1
    return 0


def _all_targets() -> Iterator[Target]:
    for name, shape in SHAPES.items():
        for ranks in shape.sizes.splits():
            yield Target(name, ranks=ranks)


def _steps_to(descriptor: int | None) -> Callable[[str], None]:
    """Returns a function that writes each step as a line. Children of this process do not inherit the
    descriptor, so that the pipe closes with this process."""
    if descriptor is None:
        return lambda step: None
    os.set_inheritable(descriptor, False)
    return lambda step: _write_line(descriptor, step)


def _write_line(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def _end(number: int, _frame: object) -> None:
    """Ends the process by an exception, so that unfinished files are removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
