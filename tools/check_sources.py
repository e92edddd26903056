#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every file of the repository: it has a licence line, no host name of a package registry, no path of
one machine, and no link to a place outside the repository.

Usage: check_sources.py [PATH...]   prints each line that breaks a rule; the exit code is 1 if there is one.

PATH is a folder or a file of a git repository; without PATH the check covers this whole repository.
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


def files_at(path: Path) -> tuple[Path, list[str]]:
    """Returns the root of the path's repository, and the names of the files to check: the file, or all files
    of the folder. A link is a file.

    errors   ValueError (the path does not exist, or is in no git repository)
    """
    is_folder = path.is_dir() and not path.is_symlink()
    if not path.exists() and not path.is_symlink():
        raise ValueError(f"{path} does not exist: expected a file or a folder of a git repository")
    folder = path.resolve() if is_folder else path.parent.resolve()
    command = ["git", "rev-parse", "--show-toplevel"]
    found = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise ValueError(f"{path} is in no git repository: expected a file or a folder of one")
    root = Path(found.stdout.removesuffix("\n")).resolve()
    if not is_folder:
        return root, [(folder / path.name).relative_to(root).as_posix()]
    return root, [name for name in repository_files(root) if (root / name).is_relative_to(folder)]


def main(arguments: list[str]) -> int:
    if any(argument.startswith("-") for argument in arguments):
        print(__doc__)
        return 0 if {"-h", "--help"} & set(arguments) else 2
    count, problems = 0, []
    paths = [Path(argument) for argument in arguments] or [Path(__file__).resolve().parent.parent]
    for path in paths:
        try:
            root, names = files_at(path)
        except ValueError as error:
            print(f"check_sources: {error}", file=sys.stderr)
            return 2
        count += len(names)
        problems += [problem for name in names for problem in check_file(root, name)]
    for problem in problems:
        print(problem)
    print(f"sources: {count} files, {len(problems)} lines that break a rule")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
