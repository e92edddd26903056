# SPDX-License-Identifier: Apache-2.0
"""Results of test programs that passed, kept under the hash of their inputs.

A program whose hash is known is not run again by `make test`. The hash covers the program, the files that it
loads, its data, its arguments and its environment. Continuous integration does not read the store. An
interrupted `make test-long` reads what it kept itself, under the hash of the whole tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from testing.stage import BUILD, Case, Stage

STORE = BUILD / "passed"

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


def recall(stage: Stage, name: str, key: str) -> bool:
    """Counts the stored result of `name` if it was reached with this key."""
    try:
        stored = json.loads((STORE / f"{stage.name}.{name}.json").read_text())
    except (OSError, ValueError):
        return False
    if stored["key"] != key:
        return False
    stage.passed += stored["passed"]
    stage.stored += stored["passed"]
    stage.skips += [Case(*skip) for skip in stored["skips"]]
    return True


def keep(stage: Stage, name: str, key: str, passed: int, skips: list[Case]) -> None:
    """Stores a result in which nothing failed."""
    STORE.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"key": key, "passed": passed, "skips": [[case.name, case.text] for case in skips]})
    (STORE / f"{stage.name}.{name}.json").write_text(text + "\n")


def recall_cases(stage: Stage, name: str, key: str) -> dict[str, str]:
    """Returns the cases of a program that were kept with this key, each with the reason of its skip or ""."""
    try:
        stored = json.loads((STORE / f"{stage.name}.{name}.cases.json").read_text())
    except (OSError, ValueError):
        return {}
    return dict(stored["cases"]) if stored["key"] == key else {}


def keep_cases(stage: Stage, name: str, key: str, cases: dict[str, str]) -> None:
    """Keeps cases of a program beside those kept before with this key."""
    STORE.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"key": key, "cases": {**recall_cases(stage, name, key), **cases}})
    file = STORE / f"{stage.name}.{name}.cases.json"
    file.with_suffix(".new").write_text(text + "\n")
    file.with_suffix(".new").replace(file)  # an interruption leaves the old one
