# SPDX-License-Identifier: Apache-2.0
"""Registers the backend "headrace" with torch.distributed.

torch calls `register` through the entry points `torch.backends` and `torch.distributed.backends`. This
package lies beside `headrace`, so that nothing of Headrace is loaded before the first process group is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._torch.group import HeadraceProcessGroup

NAME = "headrace"


def register() -> None:
    """Makes `init_process_group("headrace")` known to torch. May be called again."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["cpu"])


def _make_group(options: Any, group_options: Any) -> HeadraceProcessGroup:
    from headrace._torch.group import HeadraceProcessGroup

    group = HeadraceProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        timeout=options.timeout,
        name=options.group_id,
        hints=getattr(group_options, "hints", group_options),
        comm=getattr(group_options, "comm", None),  # headrace.distributed has made it already
    )
    group.options.global_ranks_in_group = list(options.global_ranks_in_group)
    return group
