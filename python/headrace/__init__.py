# SPDX-License-Identifier: Apache-2.0
"""Headrace moves tensors between GPU memory, host memory and files, inside one machine and between machines.

Open an Agent, register or allocate memory, exchange metadata with peers, prepare page lists and post
requests:

    with headrace.Agent("decode") as agent:
        cache = agent.allocate(1 << 30, name="kv")
        agent.fetch_metadata("prefill.example:7000")
        there = agent.peer_region("prefill", "kv")
        here, far = (headrace.UniformPages(region, 0, 0, 65536, 16) for region in (cache, there))
        agent.read("prefill", here, far)

Ranks add, gather and exchange elements by a communicator:

    with headrace.new_comm(rank=0, size=2, meeting="tcp://first.example:29500") as comm:
        comm.all_reduce(array, headrace.ReduceOp.SUM)

Memory and page arrays are passed by the buffer protocol or by DLPack. The package imports neither NumPy nor
torch.
"""

from __future__ import annotations

from . import _headrace
from ._headrace import (
    Agent,
    AllGatherHandle,
    BackendInfo,
    BatchSendRecv,
    Coalescing,
    Comm,
    CommCall,
    CommCallId,
    CommElements,
    CommHint,
    CommHook,
    CommOptions,
    CompletionQueue,
    CostEstimate,
    Counter,
    CounterWord,
    DetectedTopology,
    EventSnapshot,
    FlightRecorder,
    HistogramSnapshot,
    ImportReport,
    LeftOutNic,
    Mapping,
    Memory,
    MemoryRange,
    Model,
    OptionInfo,
    PageList,
    PageView,
    PartInfo,
    PeerInfo,
    ReduceOp,
    Region,
    RegionPages,
    Request,
    RequestTimes,
    TelemetrySnapshot,
    Tensor,
    TopologyGpu,
    TopologyGroup,
    TopologyNic,
    UniformPages,
    Window,
    WindowAttr,
    Work,
    any_source,
    detect_topology,
    list_backends,
    list_comm_backends,
    list_comm_hints,
    list_namespace,
    list_options,
    new_comm,
    pages_of,
    register_backend,
    set_log_level,
    set_log_sink,
)
from ._torch import compiled_torch_binding
from .errors import (
    BackendFailed,
    Canceled,
    Corrupt,
    Error,
    Exhausted,
    Internal,
    InvalidArgument,
    NotFound,
    NotSupported,
    PeerLost,
    TimedOut,
    WouldBlock,
)

__version__: str = _headrace.__version__

__all__ = [
    "Agent",
    "AllGatherHandle",
    "BackendFailed",
    "BackendInfo",
    "BatchSendRecv",
    "Canceled",
    "Coalescing",
    "Comm",
    "CommCall",
    "CommCallId",
    "CommElements",
    "CommHint",
    "CommHook",
    "CommOptions",
    "CompletionQueue",
    "Corrupt",
    "CostEstimate",
    "Counter",
    "CounterWord",
    "DetectedTopology",
    "Error",
    "EventSnapshot",
    "Exhausted",
    "FlightRecorder",
    "HistogramSnapshot",
    "ImportReport",
    "Internal",
    "InvalidArgument",
    "LeftOutNic",
    "Mapping",
    "Memory",
    "MemoryRange",
    "Model",
    "NotFound",
    "NotSupported",
    "OptionInfo",
    "PageList",
    "PageView",
    "PartInfo",
    "PeerInfo",
    "PeerLost",
    "ReduceOp",
    "Region",
    "RegionPages",
    "Request",
    "RequestTimes",
    "TelemetrySnapshot",
    "Tensor",
    "TimedOut",
    "TopologyGpu",
    "TopologyGroup",
    "TopologyNic",
    "UniformPages",
    "Window",
    "WindowAttr",
    "Work",
    "WouldBlock",
    "any_source",
    "compiled_torch_binding",
    "detect_topology",
    "list_backends",
    "list_comm_backends",
    "list_comm_hints",
    "list_namespace",
    "list_options",
    "new_comm",
    "pages_of",
    "register_backend",
    "set_log_level",
    "set_log_sink",
]
