# SPDX-License-Identifier: Apache-2.0
"""Several calls as one: torch's coalescing manager over the coalesced calls of a communicator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

import headrace
from headrace._torch.errors import as_torch_error
from headrace._torch.opening import comm_of
from headrace._torch.work import GroupWork

from ._calls import Block, blocks


@contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
) -> Iterator[c10d._CoalescingManager]:
    """Issues the calls of a block together at its end. They may be of different operations.

    In the block the functions of headrace.distributed return None; the manager's `wait` waits for all of
    them. An exception in the block issues none.
    """
    comm = comm_of(group)
    if comm is None:
        with c10d._coalescing_manager(group, device, async_ops) as theirs:
            yield theirs
        return
    manager, block = c10d._CoalescingManager(), Block()
    key = get_ident(), id(comm)
    try:
        with comm.coalescing(async_op=True) as coalescing:
            blocks[key] = block
            try:
                yield manager
            finally:
                del blocks[key]
    except headrace.Error as error:
        raise as_torch_error(error) from None
    assert coalescing.work is not None
    work = GroupWork([coalescing.work], block.result, block.staged)
    if async_ops:
        manager.append(work)
    else:
        work.wait()
