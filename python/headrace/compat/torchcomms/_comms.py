# SPDX-License-Identifier: Apache-2.0
"""The names of torchcomms' compiled module."""

from __future__ import annotations

from ._batch import BatchSendRecv, P2POp, P2POpType
from ._comm import TorchComm
from ._hook_args import (
    AllGatherPreHookArgs,
    AllGatherSinglePreHookArgs,
    AllGatherVPreHookArgs,
    AllReducePreHookArgs,
    AllToAllPreHookArgs,
    AllToAllSinglePreHookArgs,
    AllToAllVSinglePreHookArgs,
    BarrierPreHookArgs,
    BroadcastPreHookArgs,
    CollectivePostHookArgs,
    FinalizePostHookArgs,
    FinalizePreHookArgs,
    GatherPreHookArgs,
    GatherSinglePreHookArgs,
    NewWindowPostHookArgs,
    NewWindowPreHookArgs,
    RecvPreHookArgs,
    ReducePreHookArgs,
    ReduceScatterPreHookArgs,
    ReduceScatterSinglePreHookArgs,
    ReduceScatterVPreHookArgs,
    RemovableHandle,
    ScatterPreHookArgs,
    SendPreHookArgs,
    SplitPostHookArgs,
    SplitPreHookArgs,
)
from ._new_comm import _is_backend_registered, get_mem_allocator, new_comm, register_backend
from ._python_backend import TorchCommBackend
from ._torch_group import _BackendWrapper
from ._types import BatchP2POptions, CommOptions, OpName, ReconfigureOptions, RedOpType, ReduceOp
from ._window import TorchCommWinAccessType, TorchCommWindow, TorchCommWindowAttr
from ._work import TorchWork, WorkStatus

__all__ = [
    "AllGatherPreHookArgs",
    "AllGatherSinglePreHookArgs",
    "AllGatherVPreHookArgs",
    "AllReducePreHookArgs",
    "AllToAllPreHookArgs",
    "AllToAllSinglePreHookArgs",
    "AllToAllVSinglePreHookArgs",
    "BarrierPreHookArgs",
    "BatchP2POptions",
    "BatchSendRecv",
    "BroadcastPreHookArgs",
    "CollectivePostHookArgs",
    "CommOptions",
    "FinalizePostHookArgs",
    "FinalizePreHookArgs",
    "GatherPreHookArgs",
    "GatherSinglePreHookArgs",
    "NewWindowPostHookArgs",
    "NewWindowPreHookArgs",
    "OpName",
    "P2POp",
    "P2POpType",
    "ReconfigureOptions",
    "RecvPreHookArgs",
    "RedOpType",
    "ReduceOp",
    "ReducePreHookArgs",
    "ReduceScatterPreHookArgs",
    "ReduceScatterSinglePreHookArgs",
    "ReduceScatterVPreHookArgs",
    "RemovableHandle",
    "ScatterPreHookArgs",
    "SendPreHookArgs",
    "SplitPostHookArgs",
    "SplitPreHookArgs",
    "TorchComm",
    "TorchCommBackend",
    "TorchCommWinAccessType",
    "TorchCommWindow",
    "TorchCommWindowAttr",
    "TorchWork",
    "WorkStatus",
    "_BackendWrapper",
    "_is_backend_registered",
    "get_mem_allocator",
    "new_comm",
    "register_backend",
]
