# SPDX-License-Identifier: Apache-2.0
"""Results of tests that passed, kept under the hash of their inputs.

A part of the tests, for example a program or a row of the contract suite, is not run again by `make test`
while its inputs are the same. These are a key, the hash of what is known before it runs (program, data,
arguments), the files that its processes loaded, each with its hash, and what every result depends on:
`surroundings`. Continuous integration does not read the store. An interrupted `make test-long` reads what it
kept itself, under the hash of the whole tree.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from testing.stage import BUILD, ROOT, Case, Stage, inherited

STORE = BUILD / "passed"
TOOLS = Path(__file__).resolve().parents[1]
PYTHONS = (ROOT / ".venv", BUILD / "nixl-venv")
DEBIAN_PACKAGES = Path("/var/lib/dpkg/status")  # the system's compilers, libraries and programs

_known: dict[tuple[str, int, int], str] = {}


def file_hash(path: Path) -> str:
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    if key not in _known:
        with path.open("rb") as file:
            digest = hashlib.blake2b(digest_size=20)
            while block := file.read(1 << 20):
                digest.update(block)
        _known[key] = digest.hexdigest()
    return _known[key]


def files_below(*roots: Path) -> list[Path]:
    """Returns every file in these folders, and the files among `roots` themselves, without Python's
    caches."""
    found: list[Path] = []
    for root in roots:
        if root.is_file():
            found.append(root)
        for folder, names, files in os.walk(root):
            names[:] = [name for name in names if name not in ("__pycache__", "build", ".git")]
            found += [Path(folder) / name for name in files if not name.endswith(".pyc")]
    return sorted(set(found))


def hash_of(files: Iterable[Path], *texts: str) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for path in files:
        digest.update(f"{path.name} {file_hash(path)}\n".encode())
    for text in (*texts, platform.release(), platform.node()):
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()


@functools.cache
def surroundings() -> str:
    """Returns the hash of what every result depends on: the environment, the tools that judge it, the
    packages of the system and of Python. The project's own package is an input of the Python tests alone."""
    files = [*files_below(TOOLS / "testing", TOOLS / "test.py"), *filter(Path.exists, [DEBIAN_PACKAGES])]
    python = [
        place
        for home in PYTHONS
        for place in sorted(home.glob("lib/python3*/site-packages/*.dist-info"))
        if not place.name.startswith("headrace-")
    ]
    return hash_of(files, *map(str, python), json.dumps(inherited(), sort_keys=True))


def content_hash(path: Path) -> str:
    """Returns the hash of a file, or of all files in a folder and their names."""
    if path.is_file():
        return file_hash(path)
    files = files_below(path)
    return hash_of(files, *map(str, files))


def hashes_of(paths: Iterable[Path]) -> dict[str, str]:
    return {str(path): content_hash(path) for path in paths}


def unchanged(hashes: Mapping[str, str]) -> bool:
    """Returns True if each of these files and folders is there and has its hash."""
    return all(Path(name).exists() and content_hash(Path(name)) == known for name, known in hashes.items())


def recall(stage: Stage, name: str, key: str) -> bool:
    """Counts the stored result of `name` if it was reached with this key and with all its files as they
    are."""
    try:
        stored = json.loads((STORE / f"{stage.name}.{name}.json").read_text())
        if stored["key"] != [key, surroundings()] or not unchanged(stored["files"]):
            return False
    except (OSError, ValueError, KeyError):
        return False
    stage.passed += stored["passed"]
    stage.stored += stored["passed"]
    stage.skips += [Case(*skip) for skip in stored["skips"]]
    return True


def keep(
    stage: Stage, name: str, key: str, passed: int, skips: list[Case], files: Mapping[str, str] | None = None
) -> None:
    """Stores a result in which nothing failed. `files`: what was loaded, each file with its hash."""
    texts = [[case.name, case.text] for case in skips]
    content = {"files": dict(files or {}), "passed": passed, "skips": texts}
    write(f"{stage.name}.{name}", {"key": [key, surroundings()], **content})


def write(name: str, content: object) -> None:
    STORE.mkdir(parents=True, exist_ok=True)
    file = STORE / f"{name}.json"
    file.with_suffix(".new").write_text(json.dumps(content) + "\n")
    file.with_suffix(".new").replace(file)  # an interruption leaves the old one


def recall_cases(stage: Stage, name: str, key: str) -> dict[str, str]:
    """Returns the cases of a program that were kept with this key, each with the reason of its skip or ""."""
    try:
        stored = json.loads((STORE / f"{stage.name}.{name}.cases.json").read_text())
    except (OSError, ValueError):
        return {}
    return dict(stored["cases"]) if stored["key"] == [key, surroundings()] else {}


def keep_cases(stage: Stage, name: str, key: str, cases: dict[str, str]) -> None:
    """Keeps cases of a program beside those kept before with this key."""
    content = {"key": [key, surroundings()], "cases": {**recall_cases(stage, name, key), **cases}}
    write(f"{stage.name}.{name}.cases", content)
