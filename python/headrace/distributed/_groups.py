# SPDX-License-Identifier: Apache-2.0
"""Groups of torch.distributed and the communicators behind them. A new group is a split of its parent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed import GroupMember, ProcessGroup

import headrace
from headrace._torch.errors import as_torch_error
from headrace._torch.opening import comm_of
from headrace_torch import NAME

_OURS = (None, NAME, f"cpu:{NAME}")


def is_enabled() -> bool:
    """Whether the default group is one of Headrace, so that its operations go to a communicator directly."""
    return comm_of() is not None


def rank_in(group: ProcessGroup | None, rank: int | None, group_rank: int | None, name: str) -> int:
    """The rank in the group that a pair of arguments such as src and group_src means."""
    if (rank is None) == (group_rank is None):
        raise ValueError(f"give {name}, the rank in the default group, or group_{name}: one of both")
    if group_rank is not None:
        return group_rank
    assert rank is not None
    is_default = group is None or group is GroupMember.WORLD
    return rank if is_default else dist.get_group_rank(group, rank)  # type: ignore[arg-type]


def root_in(group: ProcessGroup | None, rank: int | None, group_rank: int | None, name: str) -> int:
    """The same where neither is needed: rank 0 of the default group, as torch has it."""
    return rank_in(group, 0 if rank is None and group_rank is None else rank, group_rank, name)


@dataclass
class Ready:
    """Options of a group whose communicator is there."""

    comm: headrace.Comm
    hints: None = None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    _ranks: list[int] | None = None,
) -> None:
    """Makes the default group.

    backend: None: "headrace". With another one every function here is torch's own.
    pg_options: of "headrace": hints, a dict.
    """
    dist.init_process_group(
        NAME if backend is None else backend,
        init_method,
        timeout,
        world_size,
        rank,
        store,
        group_name,
        pg_options,
        device_id,
        _ranks,
    )


def new_group(
    ranks: list[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    sort_ranks: bool = True,
) -> Any:
    """Makes a group of some ranks of the default one, by a split of its communicator. All ranks call it.

    use_local_synchronization: the ranks of the group alone call it, and meet in torch's Store.
    pg_options: hints, a dict.
    """
    world = _to_split(None, backend)
    if world is None or use_local_synchronization:
        return dist.new_group(
            ranks, timeout, backend, pg_options, use_local_synchronization, group_desc, device_id, sort_ranks
        )
    members = list(range(world.get_size())) if ranks is None else list(ranks)
    if sort_ranks:
        members.sort()
    comm = _split(world, members if world.get_rank() in members else [], timeout, pg_options)
    options = Ready(comm) if comm else None
    return dist.new_group(members, timeout, NAME, options, False, group_desc, device_id, sort_ranks)


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Makes groups of the ranks of a group, and returns that of this rank; None if it is in none. All ranks
    of the parent call it.

    split_ranks: ranks in the parent.
    """
    parent = _to_split(parent_pg, backend)
    if parent is None:
        return dist.split_group(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
    if not split_ranks or not all(split_ranks):
        raise ValueError(f"split_ranks is {split_ranks}: give a list of lists of ranks, none of them empty")
    mine = next((sorted(part) for part in split_ranks if parent.get_rank() in part), [])
    comm = _split(parent, mine, timeout, pg_options)
    if comm is None:
        return None
    members = [dist.get_global_rank(parent_pg or GroupMember.WORLD, rank) for rank in mine]  # type: ignore[arg-type]
    return _group_of_members(comm, members, timeout, group_desc)


def shrink_group(
    ranks_to_exclude: list[int],
    group: ProcessGroup | None = None,
    shrink_flags: int = dist.distributed_c10d.SHRINK_DEFAULT,
    pg_options: Any | None = None,
) -> ProcessGroup:
    """Makes a group of all ranks but some, which have died or are to go. All that stay call it.

    The old group ends. If it was the default group, the new one becomes it, its ranks count from 0, and all
    other groups end, too.
    shrink_flags: torch's; operations that are under way end in any case.
    """
    parent = _to_split(group, None)
    if parent is None:
        return dist.shrink_group(ranks_to_exclude, group, shrink_flags, pg_options)
    comm = _checked(parent.shrink, ranks_to_exclude, pg_options)
    is_default = group is None or group is GroupMember.WORLD
    members = [
        rank
        for position, rank in enumerate(dist.get_process_group_ranks(group))
        if position not in ranks_to_exclude
    ]
    dist.destroy_process_group(group)
    if not is_default:
        return _group_of_members(comm, members, None, None)
    rank, size = comm.get_rank(), comm.get_size()
    dist.init_process_group(NAME, store=HashStore(), rank=rank, world_size=size, pg_options=Ready(comm))
    assert GroupMember.WORLD is not None
    return GroupMember.WORLD


def _to_split(group: ProcessGroup | None, backend: str | None) -> headrace.Comm | None:
    """The communicator of a group whose parts are splits of it; None: torch makes them, because they have
    another backend, or one for another device besides."""
    if backend not in _OURS or (comm := comm_of(group)) is None or "," in dist.get_backend(group):
        return None
    return comm


def _split(
    parent: headrace.Comm, members: list[int], timeout: timedelta | None, hints: dict[str, Any] | None
) -> headrace.Comm | None:
    name = f"{parent.get_name()}/{','.join(map(str, members))}"
    comm: headrace.Comm | None = _checked(parent.split, members, name, hints, timeout)
    return comm


def _group_of_members(
    comm: headrace.Comm, members: list[int], timeout: timedelta | None, description: str | None
) -> ProcessGroup:
    """The group of torch for a communicator that is there; other ranks take no part."""
    group: ProcessGroup = dist.new_group(
        members, timeout, NAME, Ready(comm), use_local_synchronization=True, group_desc=description
    )
    return group


def _checked(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except headrace.Error as error:
        raise as_torch_error(error) from None
