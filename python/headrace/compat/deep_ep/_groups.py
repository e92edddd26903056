# SPDX-License-Identifier: Apache-2.0
"""The groups that a buffer is given: of torch.distributed, or a communicator of mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

import headrace


class Group(NamedTuple):
    rank: int
    size: int
    gather: Callable[[Any], list[Any]]


def group_of(group: Any, comm: Any = None) -> Group:
    """group: of torch.distributed, or what mpi4py's communicators are."""
    given = comm if group is None else group
    if given is None:
        raise headrace.InvalidArgument(
            "neither group nor comm is given: give a group of torch.distributed or a communicator of mpi4py"
        )
    if hasattr(given, "allgather") and hasattr(given, "Get_rank"):
        return Group(given.Get_rank(), given.Get_size(), given.allgather)

    def gather(value: Any) -> list[Any]:
        gathered: list[Any] = [None] * given.size()
        dist.all_gather_object(gathered, value, given)
        return gathered

    return Group(given.rank(), given.size(), gather)
