# SPDX-License-Identifier: Apache-2.0
"""The files of a build that a machine with GPUs needs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_steps import tree
from gpu_steps.tree import bare_loader, commit_of_tree


def collect(folder: Path, build: Path) -> None:
    """Copies the files of a release build that a GPU machine needs, stripped, and nanobind's sources for the
    extension."""
    if not (build / "lib" / "libheadrace_kernels.so").exists():
        sys.exit(f"{build}/lib has no libheadrace_kernels.so: run `make build` on a machine with nvcc")
    shutil.rmtree(folder, ignore_errors=True)
    wanted = [
        "bin/headrace",
        "lib/libheadrace.so.0",
        "lib/libheadrace_kernels.so",
        "lib/headrace-probe-plugin",
        "lib/headrace_window.bc",
    ]
    wanted += [
        f"bench/bench_{name}"
        for name in ("gpu_probe", "gpu_ceilings", "gpu_collectives", "gpu_moe", "shm_raw", "raw_tcp")
    ]
    wanted += [str(path.relative_to(build)) for path in (build / "lib" / "backends").glob("*.so")]
    for name in wanted:
        if not (build / name).exists() and name.startswith(("bench/", "lib/headrace_window.bc")):
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2((build / name).resolve(), target)
        if target.suffix != ".bc":
            subprocess.run(["strip", "--strip-debug", str(target)], check=True)
    nanobind = nanobind_folder(None)
    if nanobind is None:
        print("nanobind is not installed for this Python: install it on the GPU machine", file=sys.stderr)
    else:
        for part in ("include", "src", "ext"):
            shutil.copytree(
                nanobind / part, folder / "nanobind" / part, ignore=shutil.ignore_patterns("__pycache__")
            )
    (folder / "commit.txt").write_text(commit_of_tree() + "\n")
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {total / 1e6:.1f} MB")


def nanobind_folder(carried: Path | None) -> Path | None:
    """Returns the folder with nanobind's include, src and ext: carried, or installed for this Python or in
    .venv."""
    if carried is not None and (carried / "nanobind").exists():
        return carried / "nanobind"
    if found := importlib.util.find_spec("nanobind"):
        return Path(found.origin).parent if found.origin else None
    return next((tree.ROOT / ".venv" / "lib").glob("python3*/site-packages/nanobind"), None)


def build_here() -> Path:
    """Builds and collects a release build of this tree. If a dependency is missing, it exits and prints the
    next steps."""
    for command in (["cmake", "--preset", "release"], ["cmake", "--build", "--preset", "release"]):
        print(f"$ {' '.join(command)}", flush=True)
        try:
            done = subprocess.run(
                command, cwd=tree.ROOT, capture_output="--build" not in command, text=True, check=False
            )
        except OSError as error:
            done = subprocess.CompletedProcess(command, 1, stderr=str(error))
        if done.returncode != 0:
            print(cause(done.stderr or ""))
            print(f"{' '.join(command)}: {bare_loader.ending(done.returncode)}")
            sys.exit(
                "this machine cannot build Headrace: run `make setup`. Or build on another machine, run "
                "`tools/test_gpu.py --collect FOLDER build/release` there, copy FOLDER to this machine, and "
                'run `make test-gpu ARGS="--carried FOLDER"`'
            )
    collect(tree.WORK / "collected", tree.ROOT / "build" / "release")
    return tree.WORK / "collected"


def cause(errors: str) -> str:
    """Returns CMake's error on one line. Of other errors it returns the last lines."""
    found = re.search(
        r"^CMake Error at [^\n]*\n(.*?)(?:\n\n\n|\nCall Stack|\Z)", errors, re.DOTALL | re.MULTILINE
    )
    return " ".join(found[1].split()) if found else "\n".join(errors.splitlines()[-8:])
