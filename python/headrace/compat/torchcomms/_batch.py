# SPDX-License-Identifier: Apache-2.0
"""Sends and receives that are issued together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

import headrace
from headrace._torch.errors import as_torch_error

from ._types import BatchP2POptions
from ._work import DONE, TorchWork


class P2POpType(Enum):
    SEND = 0
    RECV = 1


@dataclass
class P2POp:
    """One message of a batch."""

    type: P2POpType
    tensor: Tensor
    peer: int


_keys = count(1)
_by_key: WeakValueDictionary[str, BatchSendRecv] = WeakValueDictionary()


def batch_of_key(key: str) -> BatchSendRecv:
    """The batch that a compiled program was traced with."""
    batch = _by_key.get(key)
    if batch is None:
        raise RuntimeError(f"the batch {key} of this compiled program is gone: compile it again with another")
    return batch


class BatchSendRecv:
    """Messages that begin together, so that none waits for another, from TorchComm.batch_op_create."""

    def __init__(self, comm: Any) -> None:
        self.ops: list[P2POp] = []
        self._comm = comm
        self.key = str(next(_keys))
        _by_key[self.key] = self

    def send(self, tensor: Tensor, dst: int) -> None:
        """Adds a message to rank dst. Nothing moves before issue."""
        self.ops.append(P2POp(P2POpType.SEND, tensor, dst))

    def recv(self, tensor: Tensor, src: int) -> None:
        """Adds a receive from rank src."""
        self.ops.append(P2POp(P2POpType.RECV, tensor, src))

    def issue(self, async_op: bool, options: BatchP2POptions | None = None) -> TorchWork:
        """Begins all messages. They may be issued again, as in torchcomms."""
        timeout = options.timeout if options and options.timeout else None
        try:
            batch = self._comm.batch_op_create()
            for op in self.ops:
                add = batch.send if op.type is P2POpType.SEND else batch.recv
                add(op.tensor, op.peer)
            work = batch.issue(async_op, None, timeout)
        except headrace.Error as error:
            raise as_torch_error(error) from None
        return TorchWork(work) if async_op else DONE
