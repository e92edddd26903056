# SPDX-License-Identifier: Apache-2.0
"""Puts this package into sys.modules under other names."""

from __future__ import annotations

import importlib
import sys

PACKAGE = "headrace.compat.nixl"
MODULES = ("_api", "_bindings", "_utils", "logging")


def provide(name: str) -> None:
    """Makes `import name` give this package, and `import name._api` its module. Modules that were imported
    earlier stay with their users."""
    for module in [loaded for loaded in sys.modules if loaded.startswith(f"{name}.")]:
        del sys.modules[module]
    sys.modules[name] = importlib.import_module(PACKAGE)
    for module in MODULES:
        sys.modules[f"{name}.{module}"] = importlib.import_module(f"{PACKAGE}.{module}")
