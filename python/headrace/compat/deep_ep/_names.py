# SPDX-License-Identifier: Apache-2.0
"""Puts this package into sys.modules under DeepEP's name."""

from __future__ import annotations

from .. import _names

NAME = "deep_ep"
PACKAGE = "headrace.compat.deep_ep"
MODULES = (
    "buffers", "buffers.elastic", "buffers.legacy", "utils", "utils.envs", "utils.event", "utils.math",
)  # fmt: skip


def provide() -> None:
    """Makes `import deep_ep` give this package, and `import deep_ep.m` its modules."""
    _names.provide(NAME, PACKAGE, MODULES)
