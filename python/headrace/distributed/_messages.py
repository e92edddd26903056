# SPDX-License-Identifier: Apache-2.0
"""Messages from rank to rank with the names, arguments and defaults of torch.distributed's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

import headrace
from headrace._torch.errors import as_torch_error
from headrace._torch.tensors import Staged, as_input, as_output
from headrace._torch.work import GroupWork

from ._calls import comm_for, comm_for_all, start
from ._groups import rank_in


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Any:
    return _send(tensor, dst, group, tag, group_dst, dist.isend, True)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    _send(tensor, dst, group, tag, group_dst, dist.send, False)


def _send(
    tensor: Tensor,
    dst: int | None,
    group: ProcessGroup | None,
    tag: int,
    group_dst: int | None,
    torchs: Callable[..., Any],
    async_op: bool,
) -> Any:
    comm = comm_for(tensor, group)
    if comm is None:
        return torchs(tensor, dst, group, tag, group_dst)
    arguments = as_input(tensor), rank_in(group, dst, group_dst, "dst")
    return start(comm.send, arguments, async_op, [tensor], tag=tag)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Any:
    """Without src and group_src: from any rank; source_rank() of the work tells which, as its rank in the
    group."""
    comm = comm_for(tensor, group)
    if comm is None:
        return dist.irecv(tensor, src, group, tag, group_src)
    staged: list[Staged] = []
    arguments = as_output(tensor, staged), _source(group, src, group_src)
    return start(comm.recv, arguments, True, [tensor], staged, tag=tag)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Returns the rank that sent, as its rank in the default group."""
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return dist.recv(tensor, src, group, tag, group_src)  # not in the group: torch warns
    work.wait()
    source = work.source_rank()
    return source if group is None else dist.get_global_rank(group, source)


def _source(group: ProcessGroup | None, src: int | None, group_src: int | None) -> int:
    if src is None and group_src is None:
        return headrace.any_source
    return rank_in(group, src, group_src, "src")


class P2POp(dist.P2POp):
    """A message for batch_isend_irecv.

    op: isend or irecv, of headrace.distributed or of torch.distributed.
    """

    def __new__(
        cls,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> P2POp:
        made: P2POp = super().__new__(cls, _of_torch(op), tensor, peer, group, tag, group_peer)
        return made

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        super().__init__(_of_torch(op), tensor, peer, group, tag, group_peer)


def _of_torch(op: Callable[..., Any]) -> Callable[..., Any]:
    return {isend: dist.isend, irecv: dist.irecv}.get(op, op)


def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
    """Begins all messages together, so that none waits for another. The one work that it returns, in a list,
    ends when all have ended."""
    if not p2p_op_list:
        raise ValueError("p2p_op_list is empty: give at least one P2POp")
    group = p2p_op_list[0].group
    if any(op.group is not group for op in p2p_op_list):
        raise ValueError("the P2POps are of several groups: issue a batch for each")
    comm = comm_for_all([op.tensor for op in p2p_op_list], group)
    if comm is None:
        return dist.batch_isend_irecv(p2p_op_list)
    staged: list[Staged] = []
    batch = comm.batch_op_create()
    try:
        for op in p2p_op_list:
            if op.op is dist.isend:
                batch.send(as_input(op.tensor), op.group_peer, tag=op.tag)
            else:
                batch.recv(as_output(op.tensor, staged), op.group_peer, tag=op.tag)
        work = batch.issue(True)
    except headrace.Error as error:
        raise as_torch_error(error) from None
    return [GroupWork([work], [op.tensor for op in p2p_op_list], staged)]
