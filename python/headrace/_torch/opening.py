# SPDX-License-Identifier: Apache-2.0
"""The communicator of a process group: opened for it, and found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store, _resolve_process_group
from torch.distributed import GroupMember

import headrace

from .errors import as_torch_error

_CPU = torch.device("cpu")


def open_comm(
    store: Store, rank: int, size: int, timeout: timedelta, name: str, hints: dict[str, Any] | None
) -> headrace.Comm:
    """Meets the other ranks at the store."""
    with as_torch_errors():
        return headrace.new_comm(
            rank=rank,
            size=size,
            store=store,
            name=name or "world",
            timeout=timeout,
            meeting_timeout=timeout,
            hints=hints,
        )


def open_on_gpu(
    device: torch.device, store: Store, rank: int, size: int, timeout: timedelta, name: str
) -> headrace.Comm:
    """The same for tensors on a GPU: `auto` takes p2p or NCCL for each operation."""
    with as_torch_errors():
        return headrace.new_comm(
            "auto",
            str(device),
            rank=rank,
            size=size,
            store=PrefixStore("gpu/", store),
            name=f"{name or 'world'}:gpu",
            timeout=timeout,
            meeting_timeout=timeout,
        )


def comm_of(
    group: ProcessGroup | None = None, device: torch.device | str | None = None
) -> headrace.Comm | None:
    """The communicator behind a group, by default the default one; None: it is of another backend, or there
    is none.

    device: a GPU: the group's communicator there, which the first such call of all ranks opens.
    """
    group = GroupMember.WORLD if group is None else group
    if device is not None and torch.device(device).type != "cpu":
        comm_on = getattr(group, "comm_on", None)
        return comm_on(torch.device(device)) if comm_on else None
    found = getattr(group, "comm", None)
    if found is None and type(group) is ProcessGroup:
        found = _comm_of_backend(group)
    return found


def _comm_of_backend(group: ProcessGroup) -> headrace.Comm | None:
    """Of a group whose backend for the CPU is a compiled one of Headrace."""
    try:
        return getattr(group._get_backend(_CPU), "comm", None)
    except RuntimeError:
        return None  # it has no backend for the CPU


def comm_of_group_name(name: str) -> headrace.Comm:
    """The communicator behind the group of a name. The compiled part calls it for symmetric tensors."""
    comm = comm_of(_resolve_process_group(name))  # type: ignore[arg-type]  # torch's GroupName is newer
    if comm is None:
        text = f'group "{name}" is none of Headrace: make it by init_process_group("headrace")'
        raise as_torch_error(headrace.NotSupported(text))
    return comm


@contextmanager
def as_torch_errors() -> Iterator[None]:
    """Raises errors of Headrace as torch's users catch them."""
    try:
        yield
    except headrace.Error as error:
        raise as_torch_error(error) from None
