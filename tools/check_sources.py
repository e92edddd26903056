#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every file of the repository: it has a licence line, no host name of a package registry, no path of
one machine, and no link to a place outside the repository.

Usage: check_sources.py [ROOT]   prints each line that breaks a rule; the exit code is 1 if there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LICENCE_LINE = "SPDX-License-Identifier: Apache-2.0"
LICENCE_WITHIN_LINES = 5

# Files with comments need the licence line. Documents, JSON and recorded data need none.
LICENSED_SUFFIXES = {
    ".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".py", ".pyi", ".sh", ".cmake", ".toml", ".map", ".yml",
    ".yaml", ".rs",
}  # fmt: skip
LICENSED_NAMES = {"CMakeLists.txt", "Makefile", "run", ".clang-format", ".clang-tidy", ".gitignore"}
UNLICENSED_FOLDERS = ("tests/fuzz/corpus/", "tests/data/", "bench/results/")

# In two parts, so that this file does not contain the names.
REGISTRY_HOSTS = [
    ("pypi", "org"), ("pythonhosted", "org"), ("deb.debian", "org"), ("security.debian", "org"),
    ("archive.ubuntu", "com"), ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"), ("proxy.golang", "org"),
    ("rubygems", "org"), ("docker", "io"), ("ghcr", "io"), ("quay", "io"), ("nvcr", "io"),
    ("anaconda", "org"), ("anaconda", "com"), ("download.pytorch", "org"), ("pypi.nvidia", "com"),
    ("huggingface", "co"),
]  # fmt: skip
REGISTRY = re.compile(
    r"(?<![\w-])(?:[\w-]+\.)*(?:" + "|".join(re.escape(f"{a}.{b}") for a, b in REGISTRY_HOSTS) + r")\b", re.I
)

# Folders that exist on one machine only. In two parts for the same reason.
MACHINE_PATH = re.compile(
    r"(?<![\w.~}])/(?:"
    + "|".join(["ro" + "ot", "ho" + "me/[a-z_][a-z0-9_-]*", "wo" + "rk", "Us" + "ers"])
    + r")(?:/|\b)"
)


def repository_files(root: Path) -> list[str]:
    """Returns the tracked files, and the new files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode()
    return sorted(
        {
            name
            for name in listing.split("\0")
            if name and ((root / name).is_symlink() or (root / name).is_file())
        }
    )


def needs_licence(name: str) -> bool:
    if name.startswith(UNLICENSED_FOLDERS):
        return False
    path = Path(name)
    return path.suffix in LICENSED_SUFFIXES or path.name in LICENSED_NAMES


def check_link(root: Path, name: str) -> list[str]:
    target = Path(os.readlink(root / name))
    if not target.is_absolute() and (root / name).resolve().is_relative_to(root.resolve()):
        return []
    return [f"{name}: a link to {target}, which another machine does not have: remove or ignore the link"]


def check_file(root: Path, name: str) -> list[str]:
    if (root / name).is_symlink():
        return check_link(root, name)
    raw = (root / name).read_bytes()
    if b"\0" in raw[:8192]:
        return []
    lines = raw.decode(errors="replace").splitlines()
    problems = []
    if needs_licence(name) and not any(LICENCE_LINE in line for line in lines[:LICENCE_WITHIN_LINES]):
        problems.append(f"{name}: no line `{LICENCE_LINE}` among the first {LICENCE_WITHIN_LINES} lines")
    for number, line in enumerate(lines, start=1):
        if match := REGISTRY.search(line):
            problems.append(
                f"{name}:{number}: names the package registry {match[0]}: say what to install, not from where"
            )
        if match := MACHINE_PATH.search(line):
            problems.append(
                f"{name}:{number}: names {match[0]}, a folder of one machine: use a relative path"
            )
    return problems


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    names = repository_files(root)
    problems = [problem for name in names for problem in check_file(root, name)]
    for problem in problems:
        print(problem)
    print(f"sources: {len(names)} files, {len(problems)} lines that break a rule")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
