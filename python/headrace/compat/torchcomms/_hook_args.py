# SPDX-License-Identifier: Apache-2.0
"""What hooks are told of an operation, and the handle that removes a hook."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from ._types import OpName

SendPreHookArgs = namedtuple("SendPreHookArgs", "tensor peer async_op")
RecvPreHookArgs = namedtuple("RecvPreHookArgs", "tensor peer async_op")
BroadcastPreHookArgs = namedtuple("BroadcastPreHookArgs", "tensor root async_op")
AllReducePreHookArgs = namedtuple("AllReducePreHookArgs", "tensor async_op")
ReducePreHookArgs = namedtuple("ReducePreHookArgs", "tensor root async_op")
AllGatherPreHookArgs = namedtuple("AllGatherPreHookArgs", "output input async_op")
AllGatherVPreHookArgs = namedtuple("AllGatherVPreHookArgs", "output input async_op")
AllGatherSinglePreHookArgs = namedtuple("AllGatherSinglePreHookArgs", "output input async_op")
ReduceScatterPreHookArgs = namedtuple("ReduceScatterPreHookArgs", "output input async_op")
ReduceScatterVPreHookArgs = namedtuple("ReduceScatterVPreHookArgs", "output input async_op")
ReduceScatterSinglePreHookArgs = namedtuple("ReduceScatterSinglePreHookArgs", "output input async_op")
AllToAllPreHookArgs = namedtuple("AllToAllPreHookArgs", "output input async_op")
AllToAllSinglePreHookArgs = namedtuple("AllToAllSinglePreHookArgs", "output input async_op")
AllToAllVSinglePreHookArgs = namedtuple(
    "AllToAllVSinglePreHookArgs", "output input output_split_sizes input_split_sizes async_op"
)
BarrierPreHookArgs = namedtuple("BarrierPreHookArgs", "async_op")
ScatterPreHookArgs = namedtuple("ScatterPreHookArgs", "output input root async_op")
GatherPreHookArgs = namedtuple("GatherPreHookArgs", "output input root async_op")
GatherSinglePreHookArgs = namedtuple("GatherSinglePreHookArgs", "output input root async_op")
SplitPreHookArgs = namedtuple("SplitPreHookArgs", "ranks name")
NewWindowPreHookArgs = namedtuple("NewWindowPreHookArgs", "")
FinalizePreHookArgs = namedtuple("FinalizePreHookArgs", "")

CollectivePostHookArgs = namedtuple("CollectivePostHookArgs", "")
SplitPostHookArgs = namedtuple("SplitPostHookArgs", "")
NewWindowPostHookArgs = namedtuple("NewWindowPostHookArgs", "")
FinalizePostHookArgs = namedtuple("FinalizePostHookArgs", "")

OPERATIONS: dict[Any, OpName] = {
    SendPreHookArgs: OpName.send,
    RecvPreHookArgs: OpName.recv,
    BroadcastPreHookArgs: OpName.broadcast,
    AllReducePreHookArgs: OpName.all_reduce,
    ReducePreHookArgs: OpName.reduce,
    AllGatherPreHookArgs: OpName.all_gather,
    AllGatherVPreHookArgs: OpName.all_gather_v,
    AllGatherSinglePreHookArgs: OpName.all_gather_single,
    ReduceScatterPreHookArgs: OpName.reduce_scatter,
    ReduceScatterVPreHookArgs: OpName.reduce_scatter_v,
    ReduceScatterSinglePreHookArgs: OpName.reduce_scatter_single,
    AllToAllPreHookArgs: OpName.all_to_all,
    AllToAllSinglePreHookArgs: OpName.all_to_all_single,
    AllToAllVSinglePreHookArgs: OpName.all_to_all_v_single,
    BarrierPreHookArgs: OpName.barrier,
    ScatterPreHookArgs: OpName.scatter,
    GatherPreHookArgs: OpName.gather,
    GatherSinglePreHookArgs: OpName.gather_single,
    SplitPreHookArgs: OpName.split,
    NewWindowPreHookArgs: OpName.new_window,
    FinalizePreHookArgs: OpName.finalize,
}

KINDS = {name.name: kind for kind, name in OPERATIONS.items() if "async_op" in kind._fields}
"""By the operations of headrace.Comm, whose arguments have the order of the fields."""

Callback = Callable[..., Any]

__all__ = [
    "AllGatherPreHookArgs",
    "AllGatherSinglePreHookArgs",
    "AllGatherVPreHookArgs",
    "AllReducePreHookArgs",
    "AllToAllPreHookArgs",
    "AllToAllSinglePreHookArgs",
    "AllToAllVSinglePreHookArgs",
    "BarrierPreHookArgs",
    "BroadcastPreHookArgs",
    "CollectivePostHookArgs",
    "FinalizePostHookArgs",
    "FinalizePreHookArgs",
    "GatherPreHookArgs",
    "GatherSinglePreHookArgs",
    "NewWindowPostHookArgs",
    "NewWindowPreHookArgs",
    "RecvPreHookArgs",
    "ReducePreHookArgs",
    "ReduceScatterPreHookArgs",
    "ReduceScatterSinglePreHookArgs",
    "ReduceScatterVPreHookArgs",
    "RemovableHandle",
    "ScatterPreHookArgs",
    "SendPreHookArgs",
    "SplitPostHookArgs",
    "SplitPreHookArgs",
]


class RemovableHandle:
    """Of a hook that was registered. The hook stays if the handle goes."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove: Callable[[], None] | None = remove

    def remove(self) -> None:
        """No call of the hook begins after it returns. A second call does nothing."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()


def add(hooks: list[Callback], callback: Callback) -> RemovableHandle:
    """Adds a hook to those of its kind."""
    hooks.append(callback)
    return RemovableHandle(lambda: hooks.remove(callback))
