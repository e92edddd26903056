# SPDX-License-Identifier: Apache-2.0
"""Runs the files of the Python tests, each in a process of its own, and stores the result of each.

A result depends on every file of the tree and of the installed package. A file of tests that names its
backends does not depend on the others. A file whose cases have the fixture `backend` can be stored in parts,
one for each backend.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from testing import seen, store
from testing.junit import count_junit
from testing.stage import REPORTS, Runner, Stage, signal_sentence

LAST_LINES = 80  # of the log of a process that wrote no report
NO_TESTS = 5  # pytest's exit code where the marks leave none

# The line in a file of tests that names the backends that it uses. Its agents open these unless a test names
# others, its processes load the plugin of no other one, and it reads no file of another one's folder. With
# `by case` the cases with the fixture `backend` use the one that they are given, and the others use all
# backends, or the ones that the line names. A file without this line depends on all backends.
BACKENDS = re.compile(r"^# backends: (none|(?:by case, others )?\w+(?:, \w+)*|by case)$", re.MULTILINE)
BY_CASE = ("shm", "tcp")  # what the fixture `backend` gives
PLUGIN = re.compile(r"headrace_backend_(\w+)\.so")


@dataclass
class Place:
    """Where the tests run: a tree, an environment with the package, and what else they read."""

    root: Path
    python: Path
    package: Path
    texts: tuple[str, ...] = ()  # what else decides the results
    more: list[Path] = field(default_factory=list)

    def key(self, backends: Set[str] | None) -> str:
        """Returns the hash of what a test depends on that uses these backends; None: all. Files of the others
        count by their names."""
        files = [*files_of(self.root), *store.files_below(self.package, *self.more)]
        read = [file for file in files if backends is None or self.backend_of(file) in {None, *backends}]
        modes = [f"{file} {file.stat().st_mode}" for file in files]
        return store.hash_of(read, *modes, *self.texts)

    def backend_of(self, file: Path) -> str | None:
        """Returns the backend whose plugin or source the file is."""
        if plugin := PLUGIN.fullmatch(file.name):
            return plugin[1]
        within = file.relative_to(self.root).parts if file.is_relative_to(self.root) else ()
        return within[1] if len(within) > 2 and within[0] == "backends" else None


@dataclass(frozen=True)
class Part:
    """What one process runs of a file: all of it, or the cases that pytest's `--part` selects."""

    file: Path
    backends: frozenset[str] | None  # that it depends on; None: all
    name: str = ""  # "": all of the file

    @property
    def key(self) -> str:
        return f"{self.file.stem}@{self.name}" if self.name else self.file.stem

    @property
    def arguments(self) -> list[str]:
        return ["--part", self.name] if self.name else []


def parts_of(file: Path, *, split: bool = True) -> list[Part]:
    """Returns the parts of a file of tests; without `split` one, which depends on all that they use."""
    line = BACKENDS.search(file.read_text())
    if line is None:
        return [Part(file, None)]
    if not line[1].startswith("by case"):
        return [Part(file, named(line[1]))]
    if not split:
        return [Part(file, None)]
    others = line[1].removeprefix("by case").removeprefix(", others ")
    cases = [Part(file, frozenset({name}), name) for name in BY_CASE]
    return [*cases, Part(file, named(others) if others else None, "others")]


def named(names: str) -> frozenset[str]:
    return frozenset(names.split(", ")) - {"none"}


def files_of(root: Path) -> list[Path]:
    """Returns the files of the tree that git knows or would know."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [file for name in sorted(set(listing.split("\0"))) if (file := root / name).is_file()]


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
    # Parts cost a process each; who does not read the store runs whole files.
    parts = [part for file in files for part in parts_of(file, split=runner.use_store)]
    keys = {part: place.key(part.backends) for part in parts}
    todo = [part for part in parts if not (runner.use_store and store.recall(stage, part.key, keys[part]))]
    # The longest first, so that no core waits for a long file at the end.
    todo.sort(key=lambda part: -sum(known.get(part.key, {}).values()))

    def work(part: Part) -> None:
        seconds = run_part(runner, stage, place, part, arguments, environment, keys[part])
        known[part.key] = seconds

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, todo))
    store.write(times.stem, known)
    stage.took("run", begin)


def run_part(
    runner: Runner,
    stage: Stage,
    place: Place,
    part: Part,
    arguments: Sequence[str],
    environment: dict[str, str],
    key: str,
) -> dict[str, float]:
    """Runs one part, counts its tests, and stores the result. Returns the seconds of each test."""
    name = f"{stage.name}-{part.key}"
    report, log = REPORTS / f"{name}.xml", REPORTS / f"{name}.log"
    for old in (report, log):
        old.unlink(missing_ok=True)
    loads = REPORTS / "seen" / name
    # The name of a Unix socket has room for 107 bytes, and tests make theirs below this folder.
    base = tempfile.mkdtemp(prefix="hr-")
    command = [str(place.python), "-m", "pytest", "-q", f"--junitxml={report}", f"--basetemp={base}/t"]
    code = runner.exit_code(
        stage,
        [*command, *arguments, *part.arguments, str(part.file.relative_to(place.root))],
        environment={**environment, **environment_of(part, loads)},
        quiet=True,
        log_name=name,
    )
    shutil.rmtree(base, ignore_errors=True)
    counted = Stage(stage.name, "")
    if code != NO_TESTS:
        if report.exists():
            count_junit(runner, counted, report, "pytest")
        else:
            last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            counted.check(False, part.key, "\n".join([f"{signal_sentence(code)}, without a report", *last]))
        if code != 0 and not counted.failures:
            counted.check(False, part.key, f"pytest failed though no test did: build/reports/{name}.log")
    if part.backends is not None:
        loaded = {plugin[1] for each in seen.names(loads) if (plugin := PLUGIN.fullmatch(each))}
        shutil.rmtree(loads)
        for beside in sorted(loaded - part.backends):
            counted.check(False, part.key, f"its line `# backends:` lacks {beside}, which it loads")
    if not counted.failures and place.key(part.backends) == key:
        store.keep(stage, part.key, key, counted.passed, counted.skips)
    stage.add(counted)
    seconds = seconds_of(report) if code != NO_TESTS and report.exists() else {}
    print(f"  {part.key}: {counted.passed} passed, {sum(seconds.values()):.0f} s", flush=True)
    return seconds


def environment_of(part: Part, loads: Path) -> dict[str, str]:
    """Returns the environment of a part that names its backends: agents open these, and what the processes
    load is listed in the folder."""
    if part.backends is None:
        return {}
    opened = {"HEADRACE_BACKENDS": ",".join(sorted(part.backends))} if part.backends else {}
    return {**opened, **seen.environment(loads)}


def seconds_of(report: Path) -> dict[str, float]:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name") or "?": float(case.get("time") or 0) for case in cases}
