# SPDX-License-Identifier: Apache-2.0
"""Compiles a module into a .pt2 package that contains its io spec."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.export import ExportedProgram

from ..errors import Exhausted, InvalidArgument, NotSupported
from . import io_spec
from .archive import append_spec
from .noting_file import NotingFile
from .request import ExportRequest

METADATA_KEY = "headrace"
_FULL_DISK_BYTES = 1 << 20


@dataclass
class Program:
    """An exported module: torch's program, the io spec, and the names of its dimensions."""

    exported: ExportedProgram
    spec: dict[str, Any]
    names: io_spec.DimensionNames


def default_cache() -> Path:
    """Returns the folder of the compiler's cache: TORCHINDUCTOR_CACHE_DIR, or one in the user's cache folder.
    It is never the temporary folder."""
    if chosen := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "inductor"


def export_program(request: ExportRequest, device: str, version: str) -> Program:
    """Traces the module. Its inputs must already be on the device.

    errors   invalid_argument (torch.export cannot trace it, or the dynamic dimensions contradict the module),
             not_supported (an input or output is not a tensor)
    """
    try:
        with torch.no_grad():
            exported = torch.export.export(
                request.module,
                request.args,
                request.kwargs,
                dynamic_shapes=request.dynamic_shapes,
                strict=False,
            )
            functional = exported.run_decompositions({})
    except Exception as error:
        raise InvalidArgument(
            f"torch.export cannot trace {type(request.module).__name__}: {error}"
        ) from error
    return Program(
        exported,
        io_spec.describe(functional, request, device, version),
        io_spec.DimensionNames(functional, request),
    )


def write_package(
    program: Program, path: Path, cache: Path, check: Callable[[Path], None] = lambda candidate: None
) -> None:
    """Compiles the program and writes it to `path`.

    The complete package appears at `path` after `check` has returned; otherwise nothing appears. The caller
    has checked the path with check_output.
    errors   exhausted (a full disk), not_supported (no C++ compiler, or one that fails)
    """
    with (
        _disk_errors(path, cache),
        compiler_cache(cache),
        tempfile.TemporaryDirectory(
            prefix=f".{path.stem}-", dir=path.parent, ignore_cleanup_errors=True
        ) as unfinished,
    ):
        candidate = Path(unfinished) / path.name
        _compile(program, candidate)
        append_spec(candidate, program.spec)
        check(candidate)
        os.replace(candidate, path)


def _compile(program: Program, candidate: Path) -> None:
    try:
        with NotingFile(candidate) as file:
            torch._inductor.aoti_compile_and_package(
                program.exported,
                package_path=cast("IO[bytes]", file),
                inductor_configs=_compiler_options(program),
            )
            file.check()
    except OSError:
        raise
    except Exception as error:
        if "InvalidCxxCompiler" in f"{type(error).__name__} {error}":
            raise NotSupported(
                "AOTInductor needs a C++ compiler, and none works on this machine: install g++ (Debian: "
                "apt-get install g++)"
            ) from error
        raise


def _compiler_options(program: Program) -> dict[str, Any]:
    """Returns the options for Inductor that the installed torch has."""
    from torch._inductor import config

    wanted: dict[str, Any] = {
        "metadata": {METADATA_KEY: json.dumps(program.spec)},
        # With it, AOTInductor's own checks, if they are turned on, refuse sizes of 0 and 1.
        "check_lowerbound": False,
        # Precompiled headers stay in the temporary folder, and making them takes the time that they save over
        # three packages.
        "precompile_headers": False,
        # Line tables are three quarters of the size of a small package.
        "enable_line_tables": False,
    }
    return {
        f"aot_inductor.{name}": value for name, value in wanted.items() if hasattr(config.aot_inductor, name)
    }


@contextmanager
def compiler_cache(cache: Path) -> Iterator[None]:
    """Makes Inductor keep its cache in the folder. Inductor reads the path from the environment; its default
    is the temporary folder."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


@contextmanager
def _disk_errors(path: Path, cache: Path) -> Iterator[None]:
    """Reports a full disk as `exhausted`: torch, the compiler and the archive writer report it in other
    forms."""
    try:
        yield
    except Exception as error:
        full = [folder for folder in (path.parent, cache) if _is_full(folder)]
        told = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or os.strerror(
            errno.ENOSPC
        ) in str(error)
        if not told and not full:
            raise
        where = full[0] if full else path.parent
        raise Exhausted(
            f"{path} was not written: {os.strerror(errno.ENOSPC)} (ENOSPC) in {where}: free space there, "
            "or choose another folder with --output or --cache"
        ) from error


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_DISK_BYTES
    except OSError:
        return False
