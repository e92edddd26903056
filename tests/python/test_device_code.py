# SPDX-License-Identifier: Apache-2.0
"""tools/device_code.py: device code by NVRTC 12.8; and the device code in the installed package."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "device_code.py"
ARCHS = {"80": 80, "90a": 90, "100": 100, "120": 120}
# The ABI version in the ELF header of a cubin that drivers of CUDA 12 accept. CUDA 13 writes 8 for all.
ABI = {"80": 7, "90a": 7, "100": 8, "120": 8}

SOURCE = """
#include <stddef.h>
#include <stdint.h>
static_assert(sizeof(size_t) == 8 && sizeof(uintptr_t) == 8 && sizeof(uint64_t) == 8 && sizeof(int32_t) == 4);
extern "C" __global__ void add_one(uint64_t* at) { *at += 1; }
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def elf_of(cubin: bytes) -> tuple[int, int]:
    """ABI version and kind of GPU. From version 8 on the kind stands at another place in the flags."""
    assert cubin[:4] == b"\x7fELF"
    flags = struct.unpack_from("<I", cubin, 0x30)[0]
    return cubin[8], (flags >> 8 if cubin[8] >= 8 else flags) & 0xFF


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "one.cu"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("arch", ARCHS)
def test_each_kind_of_gpu_gets_a_cubin_that_drivers_of_cuda_12_run(
    arch: str, source: Path, tmp_path: Path
) -> None:
    cubin = tmp_path / "one.cubin"
    done = run("--arch", arch, "-o", cubin, source)
    assert done.returncode == 0, done.stderr
    assert elf_of(cubin.read_bytes()) == (ABI[arch], ARCHS[arch])
    assert b"add_one" in cubin.read_bytes()


def test_check_prints_the_version_of_nvrtc() -> None:
    assert run("--check").stdout == "12.8\n"


def test_a_compiler_error_is_printed_and_nothing_is_written(source: Path, tmp_path: Path) -> None:
    source.write_text(SOURCE + "__global__ void wrong() { no_such_name(); }")
    done = run("--arch", "90a", "-o", tmp_path / "one.cubin", source)
    assert done.returncode == 1
    assert "no_such_name" in done.stderr and "sm_90a" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "one.cubin").exists()


def test_a_wrong_call_is_refused_with_the_reason(source: Path, tmp_path: Path) -> None:
    cubin = tmp_path / "one.cubin"
    for arguments, words in [
        (["--arch", "7x", "-o", cubin, source], "sm_7x"),
        (["--arch", "90a", "-o", cubin, tmp_path / "none.cu"], "none.cu"),
        (["--arch", "90a", "-o", tmp_path / "no" / "folder", source], "no/folder"),
        (["--arch", "90a", source], "--output"),
        (["--check", "--library", tmp_path / "libnvrtc.so.12"], "does not load"),
    ]:
        done = run(*arguments)
        assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr, (
            arguments,
            done.stderr,
        )


def test_without_nvrtc_the_tool_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(TOOL), "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "-m pip install nvidia-cuda-nvrtc-cu12==12.8.93" in done.stderr


class Image(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("numbers", ctypes.c_uint32 * 4),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    ]


class Family(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", ctypes.c_uint32)]


class Table(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("abi", ctypes.c_uint32 * 2),
        ("version", ctypes.c_char_p),
        ("images", ctypes.POINTER(Image)),
        ("image_count", ctypes.c_uint64),
        ("open", ctypes.c_void_p),
        ("close", ctypes.c_void_p),
        ("family", ctypes.CFUNCTYPE(ctypes.POINTER(Family), ctypes.c_char_p, ctypes.c_uint32)),
    ]


def packaged() -> list[str]:
    """The kinds of GPU that the installed package has kernels for. `make test` builds one kind; `make wheel`
    and the stage `wheel-all` of `make test-long` build all of them."""
    return os.environ.get("HEADRACE_TEST_ARCHS", "90a").split(",")


def test_doctor_finds_the_kernels_if_the_command_was_started_by_its_name() -> None:
    """The script `headrace` starts the command by its name only, without a path."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = [finding for finding in json.loads(done.stdout)["findings"] if finding["name"] == "GPU kernels"]
    assert [finding["value"] for finding in found] == [", ".join(f"sm_{arch}" for arch in packaged())]


def kernels_table() -> Table:
    """The table of the installed library of kernels."""
    library = ctypes.CDLL(str(Path(headrace.__file__).parent / "lib" / "libheadrace_kernels.so"))
    library.headrace_kernels_v1_table.restype = ctypes.POINTER(Table)
    return library.headrace_kernels_v1_table().contents


def test_the_library_has_a_family_for_each_folder_with_device_code() -> None:
    table = kernels_table()
    families = {source.parent.name for source in (ROOT / "kernels").glob("*/*.cu")}
    assert {"gather_scatter", "grids", "courier"} <= families
    for name in families:
        family = table.family(name.encode(), 0)
        assert family and family.contents.version >= 1, name
        assert not table.family(name.encode(), family.contents.version + 1), name
    assert not table.family(b"unknown", 0)


def test_the_package_has_kernels_for_the_kinds_of_gpu_it_was_built_for() -> None:
    table = kernels_table()
    assert table.version.decode() == headrace.__version__
    images = {
        image.name.decode(): ctypes.string_at(image.data, image.bytes)
        for image in table.images[: table.image_count]
    }
    assert {name: elf_of(cubin) for name, cubin in images.items()} == {
        f"sm_{arch}": (ABI[arch], ARCHS[arch]) for arch in packaged()
    }
