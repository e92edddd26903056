# SPDX-License-Identifier: Apache-2.0
"""Puts a package of this folder into sys.modules under the name of another library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence


def provide(name: str, package: str, modules: Sequence[str]) -> None:
    """Makes `import name` give the package, and `import name.m` its modules. Modules that were imported
    earlier stay with their users."""
    for module in [loaded for loaded in sys.modules if loaded.startswith(f"{name}.")]:
        del sys.modules[module]
    sys.modules[name] = importlib.import_module(package)
    for module in modules:
        sys.modules[f"{name}.{module}"] = importlib.import_module(f"{package}.{module}")
