# SPDX-License-Identifier: Apache-2.0
"""Puts this package into sys.modules under other names."""

from __future__ import annotations

from .. import _names

PACKAGE = "headrace.compat.nixl"
MODULES = ("_api", "_bindings", "_utils", "logging")


def provide(name: str) -> None:
    """Makes `import name` give this package, and `import name._api` its module. Modules that were imported
    earlier stay with their users."""
    _names.provide(name, PACKAGE, MODULES)
