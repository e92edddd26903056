# SPDX-License-Identifier: Apache-2.0
"""Runs the files of the Python tests, each in a process of its own, and stores the result of each.

A result depends on what every test may read (the key), and on what the processes of this one were seen to
use: programs and objects of the installed package, and the sources if it reads any.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from testing import seen, store
from testing.junit import count_junit
from testing.stage import REPORTS, Runner, Stage

NO_TESTS = 5  # pytest's exit code where the marks leave none

# What every test may read: changes here make all results void.
INPUTS = [
    "tests", "tools", "bench", "docs", "examples", "packaging", "python", "include", "kernels",
    "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "layers.toml", "pyproject.toml",
]  # fmt: skip

# These programs, and those of the package, read no file of the tree that their command does not name.
PROGRAMS = {"python", "python3", "etcd"}


@dataclass
class Place:
    """Where the tests run: a tree, an environment with the package, and what is in it."""

    root: Path
    python: Path
    package: Path
    key: str = ""  # the hash of what every test may read
    objects: list[Path] = field(default_factory=list)  # the package's programs and shared objects
    sources: list[Path] = field(default_factory=list)  # the tree's folders and files that are no inputs
    hashes: dict[str, str] = field(default_factory=dict)  # of these two, before the tests

    def look(self, *texts: str) -> None:
        """Reads what is there. `texts`: what else decides the results."""
        package = store.files_below(self.package)
        self.objects = [path for path in package if is_object(path)]
        inputs = store.files_below(*(self.root / name for name in INPUTS), *package)
        data = [path for path in inputs if path not in set(self.objects)]
        self.sources = [self.root / name for name in top_names(self.root) if name not in INPUTS]
        names = map(str, (*data, *self.objects, *self.sources))
        self.key = store.hash_of(data, *names, *identity(self.python), *texts)
        self.hashes = store.hashes_of([*self.objects, *self.sources])

    def used(self, report: seen.Seen) -> list[Path]:
        """Returns the objects and sources on which a test depends; all of them where that is not known."""
        if report.unseen or self.python.name not in report.names():
            return [*self.objects, *self.sources]
        files = {path for path in self.objects if path.name in report.names()}
        for path in map(Path, report.paths | report.words):
            # A listed folder shows the sizes of its files.
            files |= {each for each in self.objects if each == path or self.is_above(path, each)}
        reads_tree = any(map(self.is_source, report.paths)) or any(
            path == str(self.root) or self.is_source(path) for path in report.words
        )
        known = PROGRAMS | {path.name for path in self.objects}
        if reads_tree or {os.path.basename(path) for path in report.programs} - known:
            files |= set(self.sources)
        return sorted(files)

    def is_above(self, folder: Path, file: Path) -> bool:
        """Python itself lists the package's folder and those of its modules, to import them."""
        return folder in file.parents and folder not in (self.package, *self.package.parents)

    def is_source(self, path: str) -> bool:
        """Returns True for files of the tree that are no inputs. pytest itself lists the root."""
        within = Path(path).relative_to(self.root).parts if Path(path).is_relative_to(self.root) else ()
        return bool(within) and within[0] not in (*INPUTS, "build", ".venv", ".git")


def is_object(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def top_names(root: Path) -> list[str]:
    """Returns the names of files and folders at the root that git knows or would know."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    names = sorted({name.partition("/")[0] for name in listing.splitlines()})
    return [name for name in names if (root / name).exists()]


def identity(python: Path) -> list[str]:
    """Returns what tells one environment of Python from another: its configuration, its distributions."""
    home = python.parent.parent
    return [
        (home / "pyvenv.cfg").read_text(),
        *sorted(path.name for path in home.glob("lib/python3.*/site-packages/*.dist-info")),
    ]


def run(
    runner: Runner,
    stage: Stage,
    place: Place,
    files: Iterable[Path],
    arguments: Sequence[str],
    environment: dict[str, str],
    jobs: int,
) -> None:
    """Runs the files and counts their tests in the stage. Files that passed before are not run again while
    all that they depend on is the same."""
    begin = time.monotonic()
    times = store.STORE / f"{stage.name}.seconds.json"
    known: dict[str, dict[str, float]] = json.loads(times.read_text()) if times.exists() else {}
    todo = [
        file
        for file in files
        if not (runner.use_store and store.recall(stage, file.stem, f"{place.key} {file.stem}"))
    ]
    # The longest first, so that no core waits for a long file at the end.
    todo.sort(key=lambda file: -sum(known.get(file.stem, {}).values()))

    def work(file: Path) -> None:
        seconds = run_file(runner, stage, place, file, arguments, environment)
        known[file.stem] = seconds

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, todo))
    store.write(times.stem, known)
    stage.took("run", begin)


def run_file(
    runner: Runner,
    stage: Stage,
    place: Place,
    file: Path,
    arguments: Sequence[str],
    environment: dict[str, str],
) -> dict[str, float]:
    """Runs one file, counts its tests, and stores the result. Returns the seconds of each test."""
    name = f"{stage.name}-{file.stem}"
    report, log = REPORTS / f"{name}.xml", REPORTS / f"{name}.log"
    for old in (report, log):
        old.unlink(missing_ok=True)
    loads = REPORTS / "seen" / name
    # The name of a Unix socket has room for 107 bytes, and tests make theirs below this folder.
    base = tempfile.mkdtemp(prefix="hr-")
    command = [str(place.python), "-m", "pytest", "-q", f"--junitxml={report}", f"--basetemp={base}/t"]
    without = [place.root / each for each in ("build", ".venv", ".git")]
    watched = seen.environment_of_python(loads, [place.root, place.package], without)
    code = runner.exit_code(
        stage,
        [*command, *arguments, str(file.relative_to(place.root))],
        environment={**environment, **watched},
        quiet=True,
        log_name=name,
    )
    shutil.rmtree(base, ignore_errors=True)
    counted = Stage(stage.name, "")
    if code != NO_TESTS:
        count_junit(runner, counted, report, "pytest")
        if code != 0 and not counted.failures:
            counted.check(False, file.stem, f"pytest failed though no test did: build/reports/{name}.log")
    if not counted.failures:
        hashes = {str(path): place.hashes[str(path)] for path in place.used(seen.read(loads))}
        key = f"{place.key} {file.stem}"
        store.keep(stage, file.stem, key, counted.passed, counted.skips, hashes)
    shutil.rmtree(loads)
    stage.add(counted)
    seconds = seconds_of(report) if code != NO_TESTS and report.exists() else {}
    print(f"  {file.stem}: {counted.passed} passed, {sum(seconds.values()):.0f} s", flush=True)
    return seconds


def seconds_of(report: Path) -> dict[str, float]:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name") or "?": float(case.get("time") or 0) for case in cases}
