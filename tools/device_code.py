#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles device code to a cubin with NVRTC 12.8, so that drivers of CUDA 12.8 (570) and later can run it.

Drivers of CUDA 12 refuse cubins of nvcc 13. So builds for distribution use the compiler of the oldest
supported driver. It is a Python package and needs no CUDA toolkit:

    pip install nvidia-cuda-nvrtc-cu12==12.8.93
    tools/device_code.py --arch 90a -I include -I . -o out.cubin in.cu
    tools/device_code.py --check          prints the version of the NVRTC that it uses; without an NVRTC 12.8
                                          it prints the reason and ends with 1

--library names a libnvrtc.so.12 that is not a package of this Python.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = (12, 8)
PACKAGE = "nvidia-cuda-nvrtc-cu12==12.8.93"
OWN_HEADERS = ROOT / "kernels" / "nvrtc"  # replace the system's headers


def find_library() -> Path:
    """Returns the path of libnvrtc in this Python's packages."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        spec = None
    for folder in spec.submodule_search_locations or [] if spec else []:
        library = Path(folder) / "lib" / "libnvrtc.so.12"
        if library.exists():
            return library
    sys.exit(f"{sys.executable} has no NVRTC 12.8: {sys.executable} -m pip install {PACKAGE}")


class Nvrtc:
    def __init__(self, path: Path) -> None:
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            sys.exit(f"{path} does not load: {error}")
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        if self.version != WANTED:
            wanted = ".".join(map(str, WANTED))
            sys.exit(
                f"{path} is of CUDA {major.value}.{minor.value}, and the oldest supported driver needs "
                f"{wanted}: install {PACKAGE}"
            )

    def call(self, name: str, *arguments: object) -> None:
        outcome = getattr(self.library, name)(*arguments)
        if outcome != 0:
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(outcome).decode()}")

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, source: Path, options: list[str]) -> bytes:
        """Returns the cubin.

        errors   RuntimeError (the compiler's log)
        """
        program = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.read_bytes(),
            str(source).encode(),
            0,
            None,
            None,
        )
        try:
            words = [option.encode() for option in options]
            try:
                self.call("nvrtcCompileProgram", program, len(words), (ctypes.c_char_p * len(words))(*words))
            except RuntimeError as error:
                said = self.text(program, "ProgramLog").rstrip(b"\0\n").decode(errors="replace")
                raise RuntimeError(f"{said}\n{error}") from None
            return self.text(program, "CUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", type=Path, help="CUDA C++ without the runtime library")
    parser.add_argument("-o", "--output", type=Path, help="the cubin to write")
    parser.add_argument("--arch", help="architecture of the GPU, such as 80 or 90a")
    parser.add_argument(
        "-I",
        "--include",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder of headers; can be repeated",
    )
    parser.add_argument(
        "--library", type=Path, help="libnvrtc.so.12 of CUDA 12.8 (default: from this Python's packages)"
    )
    parser.add_argument(
        "--check", action="store_true", help="print the version of NVRTC, and compile nothing"
    )
    options = parser.parse_args()
    compiler = Nvrtc(options.library or find_library())
    if options.check:
        print(".".join(map(str, compiler.version)))
        return
    if not (options.source and options.output and options.arch):
        parser.error("a source, --output and --arch are required")
    includes = [f"--include-path={folder}" for folder in [OWN_HEADERS, *options.include]]
    try:
        cubin = compiler.compile(
            options.source,
            [f"--gpu-architecture=sm_{options.arch}", "--std=c++20", "-default-device", *includes],
        )
        options.output.write_bytes(cubin)
    except (RuntimeError, OSError) as error:
        sys.exit(f"{options.source} for sm_{options.arch}: {error}")


if __name__ == "__main__":
    main()
