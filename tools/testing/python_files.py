# SPDX-License-Identifier: Apache-2.0
"""Runs the files of the Python tests, each in a process of its own, and stores the result of each.

A result depends on every file of the tree and of the installed package. A file of tests that names its
backends does not depend on the others.
"""

from __future__ import annotations

import json
import re
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

# The line in a file of tests that names the backends that it uses. Its processes load the plugin of no other
# one, and it reads no file of another one's folder. A file without this line depends on all backends.
BACKENDS = re.compile(r"^# backends: (none|\w+(?:, \w+)*)$", re.MULTILINE)
PLUGIN = re.compile(r"headrace_backend_(\w+)\.so")


@dataclass
class Place:
    """Where the tests run: a tree, an environment with the package, and what else they read."""

    root: Path
    python: Path
    package: Path
    texts: tuple[str, ...] = ()  # what else decides the results
    more: list[Path] = field(default_factory=list)

    def key(self, backends: set[str] | None) -> str:
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


def backends_of(file: Path) -> set[str] | None:
    """Returns the backends that a file of tests names; None if it names none, and depends on all."""
    line = BACKENDS.search(file.read_text())
    return set(line[1].split(", ")) - {"none"} if line else None


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
    files = list(files)
    keys = {file: place.key(backends_of(file)) for file in files}
    todo = [file for file in files if not (runner.use_store and store.recall(stage, file.stem, keys[file]))]
    # The longest first, so that no core waits for a long file at the end.
    todo.sort(key=lambda file: -sum(known.get(file.stem, {}).values()))

    def work(file: Path) -> None:
        seconds = run_file(runner, stage, place, file, arguments, environment, keys[file])
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
    key: str,
) -> dict[str, float]:
    """Runs one file, counts its tests, and stores the result. Returns the seconds of each test."""
    name = f"{stage.name}-{file.stem}"
    report, log = REPORTS / f"{name}.xml", REPORTS / f"{name}.log"
    for old in (report, log):
        old.unlink(missing_ok=True)
    loads = REPORTS / "seen" / name
    backends = backends_of(file)
    # The name of a Unix socket has room for 107 bytes, and tests make theirs below this folder.
    base = tempfile.mkdtemp(prefix="hr-")
    command = [str(place.python), "-m", "pytest", "-q", f"--junitxml={report}", f"--basetemp={base}/t"]
    code = runner.exit_code(
        stage,
        [*command, *arguments, str(file.relative_to(place.root))],
        environment={**environment, **(seen.environment(loads) if backends is not None else {})},
        quiet=True,
        log_name=name,
    )
    shutil.rmtree(base, ignore_errors=True)
    counted = Stage(stage.name, "")
    if code != NO_TESTS:
        count_junit(runner, counted, report, "pytest")
        if code != 0 and not counted.failures:
            counted.check(False, file.stem, f"pytest failed though no test did: build/reports/{name}.log")
    if backends is not None:
        loaded = {plugin[1] for each in seen.names(loads) if (plugin := PLUGIN.fullmatch(each))}
        shutil.rmtree(loads)
        for beside in sorted(loaded - backends):
            counted.check(False, file.stem, f"its line `# backends:` lacks {beside}, which it loads")
    if not counted.failures and place.key(backends) == key:
        store.keep(stage, file.stem, key, counted.passed, counted.skips)
    stage.add(counted)
    seconds = seconds_of(report) if code != NO_TESTS and report.exists() else {}
    print(f"  {file.stem}: {counted.passed} passed, {sum(seconds.values()):.0f} s", flush=True)
    return seconds


def seconds_of(report: Path) -> dict[str, float]:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name") or "?": float(case.get("time") or 0) for case in cases}
