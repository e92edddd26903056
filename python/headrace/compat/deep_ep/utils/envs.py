# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils.envs: how many ranks are near one another."""

from __future__ import annotations

from typing import Any

from .._groups import group_of


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """Hosts, and ranks on each. All ranks of a MoE are on one host."""
    return 1, group_of(group).size


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """The same: no row takes a way of two steps."""
    return get_physical_domain_size(group)
