# SPDX-License-Identifier: Apache-2.0
"""The checkout: its folders, its commit, and the labels of its tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "gpu"
SITE = WORK / "site"  # what goes on PYTHONPATH
LABELS = ["gpu1", "gpu2", "gpu4", "kernel"]
ANY_LABEL = " or ".join(LABELS)


def commit_of_tree() -> str:
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    return (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


def load_bare_loader() -> ModuleType:
    """Loads python/headrace/exporting/bare_loader.py without the package, which is not built yet."""
    path = ROOT / "python" / "headrace" / "exporting" / "bare_loader.py"
    spec = importlib.util.spec_from_file_location("bare_loader", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bare_loader = load_bare_loader()
