# SPDX-License-Identifier: Apache-2.0
"""The programs and shared objects that the processes of a test load.

The dynamic loader of each process lists them, with LD_DEBUG=files, in a file of its own. Children inherit the
setting. A static program lists nothing, and loads nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

LOADED = re.compile(r"^\s*\d+:\s(?:file=(\S+) \[\d+\];|initialize program: (.+)$)", re.M)


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which processes report to the folder, which is emptied."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    return {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(folder / "process")}


def names(folder: Path) -> set[str]:
    """Returns the names, without folders, of all that the processes loaded."""
    reports = [report.read_text(errors="replace") for report in folder.iterdir()]
    return {os.path.basename(match[1] or match[2]) for text in reports for match in LOADED.finditer(text)}
