# SPDX-License-Identifier: Apache-2.0
"""Python objects with the names, arguments and defaults of torch.distributed's functions.

Objects are pickled, as torch's are: to unpickle runs code that the sender chooses, so all ranks must trust
each other. headrace.objects has the same functions with JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

import headrace
from headrace import objects
from headrace._torch.errors import as_torch_error
from headrace._torch.opening import comm_of

from ._groups import rank_in, root_in

Group = ProcessGroup | None


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    comm = comm_of(group)
    if comm is None:
        dist.all_gather_object(object_list, obj, group)
        return
    _run(objects.all_gather_object, comm, object_list, obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    comm = comm_of(group)
    if comm is None:
        dist.gather_object(obj, object_gather_list, dst, group, group_dst)
        return
    root = root_in(group, dst, group_dst, "dst")
    _run(objects.gather_object, comm, obj, root, object_gather_list)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: torch.device | None = None,
    group_src: int | None = None,
) -> None:
    """device: not used, the bytes of objects lie in host memory."""
    comm = comm_of(group)
    if comm is None:
        dist.broadcast_object_list(object_list, src, group, device, group_src)
        return
    _run(objects.broadcast_object_list, comm, object_list, root_in(group, src, group_src, "src"))


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    comm = comm_of(group)
    if comm is None:
        dist.scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group, group_src)
        return
    root = root_in(group, src, group_src, "src")
    _run(objects.scatter_object_list, comm, root, scatter_object_output_list, scatter_object_input_list)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """device, use_batch: not used."""
    comm = comm_of(group)
    if comm is None:
        dist.send_object_list(object_list, dst, group, device, group_dst, use_batch)
        return
    _run(objects.send_object_list, comm, object_list, rank_in(group, dst, group_dst, "dst"))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Returns the rank that sent, as its rank in the default group. device, use_batch: not used."""
    comm = comm_of(group)
    if comm is None:
        rank: int = dist.recv_object_list(object_list, src, group, device, group_src, use_batch)
        return rank
    is_any = src is None and group_src is None
    source = headrace.any_source if is_any else rank_in(group, src, group_src, "src")
    source = _run(objects.recv_object_list, comm, object_list, source)
    return source if group is None else dist.get_global_rank(group, source)


def _run(function: Callable[..., Any], comm: headrace.Comm, *arguments: Any) -> Any:
    try:
        return function(comm, *arguments, pickle=True)
    except headrace.Error as error:
        raise as_torch_error(error) from None
