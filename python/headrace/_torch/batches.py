# SPDX-License-Identifier: Apache-2.0
"""Batches of messages on a GPU for groups in Python, whose messages then begin together, as with NCCL.

torch does this for its own type of group alone, and gives others one message after another. Their receives
and sends run on one stream, so on two ranks that both begin with a receive neither would come to its send.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

Batch = Callable[[list[Any]], list[Any]]


def install() -> None:
    """Makes torch.distributed.batch_isend_irecv begin such batches. A second call does nothing."""
    torchs: Batch = dist.batch_isend_irecv
    if not hasattr(torchs, "_of_headrace"):
        ours = _begins_together(torchs)
        ours._of_headrace = True  # type: ignore[attr-defined]
        dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = ours  # type: ignore[assignment]


def _begins_together(torchs: Batch) -> Batch:
    @functools.wraps(torchs)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
        first = p2p_op_list[0] if isinstance(p2p_op_list, list) and p2p_op_list else None
        as_one = _of_group_on_gpu(first) if isinstance(first, dist.P2POp) else None
        if first is None or as_one is None:
            return torchs(p2p_op_list)
        works: list[Any]
        with as_one(first.tensor.device) as works:
            torchs(p2p_op_list)
        return works

    return batch_isend_irecv


def _of_group_on_gpu(message: dist.P2POp) -> Any:
    """What makes one of the group's operations; None: the message is on the CPU, or of a group of others."""
    return getattr(message.group or dist.group.WORLD, "as_one", None) if message.tensor.is_cuda else None
