#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the model runner for ROCm's torch on a machine without ROCm. It links nothing and runs nothing.

It compiles every source of bindings/torch with the definitions of BACKEND=rocm, against the headers of the
installed torch: the included headers are the same in every build of torch. It also compares the functions
that Headrace looks up by name in HIP's runtime with HIP's header. The header is from Debian's package
libamdhip64-dev, which is installed, or is downloaded by apt-get into --work and unpacked there. The check
does not cover ROCm's libtorch, a HIP newer than Debian's, or an AMD GPU.

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
HIP_ERROR = f"HIP's header is missing, and apt-get did not download it: `apt-get install {PACKAGE}`"


def torch_folder(python: str) -> Path:
    found = subprocess.run(
        [python, "-c", FIND_TORCH], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not found:
        sys.exit(f"{python} has no torch: name a Python that has torch with --python")
    return Path(found)


def hip_headers(work: Path) -> Path:
    """Returns the include folder with hip/hip_runtime_api.h."""
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
    parser.add_argument(
        "--python",
        default=str(ROOT / ".venv/bin/python"),
        help="Python with torch (default: .venv/bin/python)",
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/rocm", help="folder for HIP's header (default: build/rocm)"
    )
    parser.add_argument("--compiler", default="c++", help="C++ compiler (default: c++)")
    options = parser.parse_args()
    torch, hip = torch_folder(options.python), hip_headers(options.work)
    sources = [*sorted((ROOT / "bindings/torch").glob("*.cpp")), ROOT / "tests/rocm/hip_functions.cpp"]
    failed = [source for source in sources if not compile_one(options.compiler, source, torch, hip)]
    print(f"{len(sources) - len(failed)} of {len(sources)} sources compile for ROCm; none was linked or run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
