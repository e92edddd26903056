#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the model runner as for ROCm's torch, as far as that goes without one: nothing is linked, nothing
is run.

Every source of bindings/torch is compiled as BACKEND=rocm compiles it, against the headers of the torch that
is installed, which are the same files in every torch as far as the sources include them; and the functions
that are found by name in HIP's runtime are held against HIP's header, of Debian's libamdhip64-dev: installed,
or fetched into --work by apt-get and unpacked there. Not covered: ROCm's libtorch, HIP newer than Debian's,
an AMD GPU.

Usage: check_rocm.py --python .venv/bin/python --work build/rocm
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "libamdhip64-dev"
FIND_TORCH = (
    "import importlib.util, pathlib; s = importlib.util.find_spec('torch'); "
    "print(pathlib.Path(s.origin).parent if s else '')"
)
HIP_ERROR = f"HIP's header is not to be had: `apt-get install {PACKAGE}`, or let apt-get download it"


def torch_folder(python: str) -> Path:
    found = subprocess.run(
        [python, "-c", FIND_TORCH], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not found:
        sys.exit(f"{python} has no torch: name a Python that has one by --python")
    return Path(found)


def hip_headers(work: Path) -> Path:
    """The folder above hip/hip_runtime_api.h."""
    header = Path("include/hip/hip_runtime_api.h")
    places = [Path("/usr"), work / "usr"]
    if not any((place / header).exists() for place in places):
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=work, check=False)
        for package in work.glob(f"{PACKAGE}_*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(work)], check=False)
    for place in places:
        if (place / header).exists():
            return place / "include"
    sys.exit(HIP_ERROR)


def compile_one(compiler: str, source: Path, torch: Path, hip: Path) -> bool:
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D__HIP_PLATFORM_AMD__",
        "-DUSE_ROCM",
    ]
    command += [
        '-DHEADRACE_TORCH_VERSION="0.0.0+rocm"',
        '-DHEADRACE_TORCH_ACCELERATOR="rocm"',
        "-DHEADRACE_TORCH_LOADS_FOLDERS",
    ]
    command += ["-I", str(ROOT), "-I", str(ROOT / "include")]
    for folder in (torch / "include", torch / "include/torch/csrc/api/include", hip):
        command += ["-isystem", str(folder)]
    good = subprocess.run([*command, str(source)], check=False).returncode == 0
    print(f"{'compiled' if good else 'FAILED'}: {source.relative_to(ROOT)}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="a Python that has torch")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/rocm", help="where HIP's header is unpacked"
    )
    parser.add_argument("--compiler", default="c++")
    options = parser.parse_args()
    torch, hip = torch_folder(options.python), hip_headers(options.work)
    sources = [*sorted((ROOT / "bindings/torch").glob("*.cpp")), ROOT / "tests/rocm/hip_functions.cpp"]
    failed = [source for source in sources if not compile_one(options.compiler, source, torch, hip)]
    print(f"{len(sources) - len(failed)} of {len(sources)} compiled as for ROCm; neither linked nor run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
