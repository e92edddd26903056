# SPDX-License-Identifier: Apache-2.0
"""What the processes of a test load and read, so that a stored result depends on that and not on everything.

The dynamic loader of each process lists the programs and objects that it maps, with LD_DEBUG=files, in a file
of its own. Python processes list files and commands: seen_by_python/sitecustomize.py. Children inherit both
settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

LOADED = re.compile(r"^\s*\d+:\s(?:file=(\S+) \[\d+\];|initialize program: (.+)$)", re.M)
BY_PYTHON = Path(__file__).resolve().parent / "seen_by_python"


@dataclass
class Seen:
    """The reports of all processes of one test."""

    loaded: set[str] = field(default_factory=set)  # programs and objects, as the processes named them
    programs: set[str] = field(default_factory=set)  # the programs among these
    paths: set[str] = field(default_factory=set)  # files and folders that Python processes opened
    words: set[str] = field(default_factory=set)  # paths in the commands that they ran
    unseen: bool = False  # a process did not inherit the settings

    def names(self) -> set[str]:
        return {os.path.basename(path) for path in self.loaded}


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which processes report to the folder, which is emptied."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    return {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(folder / "process")}


def environment_of_python(folder: Path, within: Iterable[Path], without: Iterable[Path]) -> dict[str, str]:
    """The same where Python processes report also what they read below some folders, but for others."""
    path = os.pathsep.join(filter(None, [str(BY_PYTHON), os.environ.get("PYTHONPATH")]))
    return {
        **environment(folder),
        "PYTHONPATH": path,
        "HEADRACE_SEEN_FOLDER": str(folder),
        "HEADRACE_SEEN_WITHIN": os.pathsep.join(map(str, within)),
        "HEADRACE_SEEN_WITHOUT": os.pathsep.join(map(str, without)),
    }


def read(folder: Path) -> Seen:
    seen = Seen()
    for report in folder.glob("process.*"):
        for match in LOADED.finditer(report.read_text(errors="replace")):
            seen.loaded.add(match[1] or match[2])
            if match[2]:
                seen.programs.add(match[2])
    for report in folder.glob("python.*"):
        for line in report.read_text(errors="replace").splitlines():
            kind, _, path = line.partition(" ")
            seen.unseen |= kind == "unseen"
            if path:
                (seen.words if kind == "word" else seen.paths).add(path)
    return seen
