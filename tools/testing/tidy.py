# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on sources, each by itself, and keeps the sources without a finding.

What clang-tidy finds depends on files alone: the source, its headers, the settings, the compile command. A
kept source is not looked at again while all of these are the same, so an interrupted run goes on with the
next source.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testing import store
from testing.stage import JOBS, REPORTS, ROOT, Runner, Stage

# Newer than Debian's: it leaves the headers of the system alone, and takes less than half of the time.
TIDY = str(ROOT / ".venv" / "bin" / "clang-tidy")
HEADER_FOLDERS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")  # clang reads these variables


def read_commands(folder: Path) -> dict[str, list[str]]:
    """Returns the compile commands of a configured build by source, a path from the root."""
    commands: dict[str, list[str]] = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if source.suffix == ".cpp" and source.is_relative_to(ROOT):
            commands.setdefault(str(source.relative_to(ROOT)), []).append(entry["command"])
    return commands


def settings_of(name: str) -> list[Path]:
    """Returns the files with settings that hold for a source."""
    return [file for folder in (ROOT / name).parents if (file := folder / ".clang-tidy").is_file()]


def without_finding(name: str) -> Path:
    """Returns the file that keeps a source without a finding."""
    return store.STORE / "tidy" / f"{name}.json"


def recall(name: str, key: str) -> bool:
    """Returns True if the source had no finding with this key and with all its files as they are."""
    try:
        kept = json.loads(without_finding(name).read_text())
        return bool(kept["key"] == key and kept["content"] == store.hash_of(map(Path, kept["files"])))
    except (OSError, ValueError):
        return False


def keep(name: str, key: str, headers: Sequence[Path], begin: float) -> None:
    """Keeps a source without a finding. A file that changed after `begin` may be another than was read."""
    files = sorted({os.path.realpath(path) for path in (ROOT / name, *headers)})
    if any(os.stat(path).st_mtime >= begin for path in files):
        return
    kept = {"key": key, "content": store.hash_of(map(Path, files)), "files": files}
    file = without_finding(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept) + "\n")


class Looks:
    """Looks of clang-tidy at sources of one database."""

    def __init__(self, runner: Runner, stage: Stage, folder: Path):
        self.runner, self.stage, self.folder = runner, stage, folder
        self.version = subprocess.run([TIDY, "--version"], capture_output=True, text=True, check=True).stdout

    def key(self, name: str, commands: list[str]) -> str:
        folders = [os.environ.get(variable, "") for variable in HEADER_FOLDERS]
        return store.hash_of(settings_of(name), self.version, name, *sorted(commands), *folders)

    def look(self, name: str, key: str) -> bool:
        """Runs clang-tidy on one source, counts the result, and keeps it."""
        headers = REPORTS / "tidy" / f"{name}.headers"
        log = headers.with_suffix(".log")
        headers.parent.mkdir(parents=True, exist_ok=True)
        for old in (headers, log):
            old.unlink(missing_ok=True)
        listing = ["-Xclang", "-sys-header-deps", "-Xclang", "-header-include-file", "-Xclang", str(headers)]
        command = [
            TIDY,
            "--quiet",
            "-p",
            str(self.folder),
            *(f"--extra-arg={each}" for each in listing),
            name,
        ]
        begin = time.time()
        log_name = str(log.relative_to(REPORTS).with_suffix(""))
        ok = self.runner.command(self.stage, command, quiet=True, log_name=log_name)
        self.stage.check(ok, f"clang-tidy {name}", log.read_text(errors="replace"))
        if ok:
            # A source without an include leaves no list.
            lines = headers.read_text().splitlines() if headers.exists() else []
            keep(name, key, [self.folder / line for line in lines], begin)
        return ok


def run(
    runner: Runner, stage: Stage, files: Sequence[str], folder: Path, minutes: float | None, use_kept: bool
) -> None:
    """Looks at the sources, several at once. Sources that have not begun within `minutes` are named and
    counted as skipped."""
    commands = read_commands(folder)
    looks = Looks(runner, stage, folder)
    keys = {name: looks.key(name, commands[name]) for name in files}
    todo = [name for name in files if not (use_kept and recall(name, keys[name]))]
    stage.passed += len(files) - len(todo)
    stage.stored += len(files) - len(todo)
    if not runner.background:
        kept = len(files) - len(todo)
        print(f"  clang-tidy on {len(todo)} files; {kept} had no finding before", flush=True)
    stop_at = time.monotonic() + minutes * 60 if minutes else None

    def work(name: str) -> None:
        if stop_at and time.monotonic() > stop_at:
            why = f"clang-tidy had its {minutes} minutes: `make tidy` takes the rest"
            stage.skip(name, why, runner.allowed_skips)
        else:
            looks.look(name, keys[name])

    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(work, todo))
