# SPDX-License-Identifier: Apache-2.0
"""Collectives with the names, arguments and defaults of torch.distributed's, on the communicator of a group.

Where a group is of another backend they are torch's own. torch's documentation says what each does; with
async_op they return a torch.distributed.Work, else None.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GroupMember, ProcessGroup, ReduceOp

import headrace
from headrace._torch import profiling
from headrace._torch.errors import as_torch_error
from headrace._torch.opening import comm_of
from headrace._torch.reductions import reduction_of
from headrace._torch.tensors import Staged, as_input, as_output, as_outputs, split_elements

from ._calls import comm_for, comm_for_all, start
from ._groups import rank_in, root_in

Group = ProcessGroup | None


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Any:
    comm = comm_for(tensor, group)
    if comm is None or tensor.layout is not torch.strided:
        return dist.all_reduce(tensor, op, group, async_op)
    staged: list[Staged] = []
    arguments = as_output(tensor, staged), reduction_of(op, tensor)
    return start(comm.all_reduce, arguments, async_op, [tensor], staged)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    comm = comm_for(tensor, group)
    if comm is None:
        return dist.broadcast(tensor, src, group, async_op, group_src)
    staged: list[Staged] = []
    root = rank_in(group, src, group_src, "src")
    memory = as_input(tensor) if root == comm.get_rank() else as_output(tensor, staged)
    return start(comm.broadcast, (memory, root), async_op, [tensor], staged)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    comm = comm_for(tensor, group)
    if comm is None:
        return dist.reduce(tensor, dst, op, group, async_op, group_dst)
    staged: list[Staged] = []
    arguments = as_output(tensor, staged), rank_in(group, dst, group_dst, "dst"), reduction_of(op, tensor)
    return start(comm.reduce, arguments, async_op, [tensor], staged)


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False) -> Any:
    """Tensors of different sizes are taken, too."""
    comm = comm_for_all(tensor_list, group)
    if comm is None or comm_for(tensor, group) is None:
        return dist.all_gather(tensor_list, tensor, group, async_op)
    staged: list[Staged] = []
    gather = comm.all_gather if _of_one_length(tensor_list) else comm.all_gather_v
    arguments = as_outputs(tensor_list, staged), as_input(tensor)
    return start(gather, arguments, async_op, [tensor_list], staged)


def all_gather_single(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    comm = comm_for(output_tensor, group)
    if comm is None or comm_for(input_tensor, group) is None:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
    staged: list[Staged] = []
    arguments = as_output(output_tensor, staged), as_input(input_tensor)
    return start(comm.all_gather_single, arguments, async_op, [output_tensor], staged)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Tensors of different sizes are taken, too."""
    comm = comm_for_all(input_list, group)
    if comm is None or comm_for(output, group) is None:
        return dist.reduce_scatter(output, input_list, op, group, async_op)
    staged: list[Staged] = []
    scatter = comm.reduce_scatter if _of_one_length(input_list) else comm.reduce_scatter_v
    inputs = [as_input(tensor) for tensor in input_list]
    arguments = as_output(output, staged), inputs, reduction_of(op, output)
    return start(scatter, arguments, async_op, [output], staged)


def reduce_scatter_single(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Any:
    comm = comm_for(output, group)
    if comm is None or comm_for(input, group) is None:
        return dist.reduce_scatter_tensor(output, input, op, group, async_op)
    staged: list[Staged] = []
    arguments = as_output(output, staged), as_input(input), reduction_of(op, input)
    return start(comm.reduce_scatter_single, arguments, async_op, [output], staged)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Any:
    return reduce_scatter_single(output, input, op, group, async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Any:
    comm = comm_for_all(output_tensor_list, group)
    if comm is None or comm_for_all(input_tensor_list, group) is None:
        return dist.all_to_all(output_tensor_list, input_tensor_list, group, async_op)
    staged: list[Staged] = []
    outputs = [as_output(tensor, staged) for tensor in output_tensor_list]
    inputs = [as_input(tensor) for tensor in input_tensor_list]
    return start(comm.all_to_all, (outputs, inputs), async_op, [output_tensor_list], staged)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Split sizes count rows; none: one part of all rows for each rank."""
    comm = comm_for(output, group)
    if comm is None or comm_for(input, group) is None:
        return dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)
    staged: list[Staged] = []
    size = comm.get_size()
    splits = split_elements(output, output_split_sizes, size), split_elements(input, input_split_sizes, size)
    arguments = as_output(output, staged), as_input(input), *splits
    return start(comm.all_to_all_v_single, arguments, async_op, [output], staged)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    comm = comm_for(tensor, group)
    if comm is None or comm_for_all(gather_list or [], group) is None:
        return dist.gather(tensor, gather_list, dst, group, async_op, group_dst)
    staged: list[Staged] = []
    root = root_in(group, dst, group_dst, "dst")
    outputs = [as_output(output, staged) for output in gather_list or ()]
    arguments = outputs, as_input(tensor), root
    return start(comm.gather, arguments, async_op, [gather_list or []], staged)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    comm = comm_for(tensor, group)
    if comm is None or comm_for_all(scatter_list or [], group) is None:
        return dist.scatter(tensor, scatter_list, src, group, async_op, group_src)
    staged: list[Staged] = []
    root = root_in(group, src, group_src, "src")
    inputs = [as_input(part) for part in scatter_list or ()]
    return start(comm.scatter, (as_output(tensor, staged), inputs, root), async_op, [tensor], staged)


def barrier(
    group: Group = GroupMember.WORLD,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: timedelta | None = None,
) -> Any:
    comm = None if profiling.is_enabled() else comm_of(group)
    if comm is None:
        return dist.barrier(group, async_op, device_ids, timeout)
    return start(comm.barrier, (), async_op, [], timeout=timeout)


def monitored_barrier(
    group: Group = GroupMember.WORLD, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that finds out which ranks do not come: rank 0 names them, and the others hear it."""
    comm = comm_of(group)
    if comm is None:
        dist.monitored_barrier(group, timeout, wait_all_ranks)
        return
    try:
        comm.monitored_barrier(timeout, wait_all_ranks)
    except headrace.Error as error:
        raise as_torch_error(error) from None


def _of_one_length(tensors: Sequence[Tensor]) -> bool:
    return len({tensor.numel() for tensor in tensors}) <= 1
