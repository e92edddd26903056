# SPDX-License-Identifier: Apache-2.0
"""What torch's profilers and torch's debug server see of communicators, symmetric tensors, and memory for
torch's pools. torch is not imported here: the program has done so."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ._headrace import Comm, CommCall, CommCallId, CommHook, FlightRecorder
from .errors import Error, InvalidArgument, NotSupported

__all__ = ["add_profiler_ranges", "mem_allocator", "register_debug_handlers", "register_symmetric_memory"]

_LIBRARY = Path(__file__).parent / "lib" / "libheadrace.so.0"

_End = Callable[[], None]


def add_profiler_ranges(comm: Comm, nvtx: bool = False) -> CommHook:
    """Shows each operation of a communicator in torch's profilers, from its call until its end.

    A range is called "headrace:all_reduce". It has no shapes of tensors: torch lets another thread end a
    range only where it has none. While no profiler runs an operation pays for one question. The process group
    of torch.distributed has such ranges by itself.

    nvtx: ranges of NVTX instead, for Nsight Systems, whether a profiler runs or not.
    Returns: remove() ends it.
    Errors: InvalidArgument (torch is not imported), NotSupported (torch has no NVTX).
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgument("torch is not imported: these are ranges of its profilers, so import it before")
    begin = _nvtx_ranges(torch) if nvtx else _profiler_ranges(torch)
    ends: dict[tuple[str, int], _End] = {}

    def scheduled(call: CommCall) -> None:
        if (end := begin(f"headrace:{call.operation}")) is not None:
            ends[call.operation, call.number] = end

    def completed(call: CommCallId, _error: Error | None) -> None:
        if (end := ends.pop((call.operation, call.number), None)) is not None:
            end()

    return comm.add_hooks(scheduled=scheduled, completed=completed)


def _profiler_ranges(torch: Any) -> Callable[[str], _End | None]:
    is_enabled = torch._C._autograd._profiler_enabled

    def begin(name: str) -> _End | None:
        if not is_enabled():
            return None
        ended = torch.futures.Future()
        record = torch.autograd.profiler.record_function(name)
        record.__enter__()
        record._call_end_callbacks_on_future(ended)  # any thread may end it
        return lambda: ended.set_result(None)

    return begin


def _nvtx_ranges(torch: Any) -> Callable[[str], _End | None]:
    nvtx = torch.cuda.nvtx
    try:
        nvtx.range_end(nvtx.range_start("headrace"))
    except RuntimeError as error:
        raise NotSupported("this torch has no NVTX: use one that is built for CUDA, or nvtx=False") from error

    def begin(name: str) -> _End | None:
        started = nvtx.range_start(name)
        return lambda: nvtx.range_end(started)

    return begin


def register_debug_handlers(recorder: FlightRecorder) -> list[str]:
    """Makes the dump of a flight recorder one of the pages of torch's debug server
    (torch.distributed.debug.start_debug_server, from torch 2.13 on). Once in a process, before or after the
    server starts.

    The names are headrace_fr_trace_json and, unless torchcomms has it, torchcomms_fr_trace_json, which the
    server's page "TorchComms FR" shows. With onlyactive=true the dump has the operations under way alone.

    Returns: the names.
    Errors: InvalidArgument (torch is not imported; registered already), NotSupported (torch has no debug
    server).
    """
    if "torch" not in sys.modules:
        raise InvalidArgument(
            "torch is not imported: these are handlers of its debug server, so import it before"
        )
    try:
        from torch._C._distributed_c10d import _register_handler
    except ImportError as error:
        raise NotSupported(
            "this torch has no debug server: torch.distributed.debug came with 2.13"
        ) from error

    def answer(request: Any, response: Any) -> None:
        dump = json.loads(recorder.dump())
        if request.get_param("onlyactive") == "true":
            dump["entries"] = [entry for entry in dump["entries"] if not entry["retired"]]
        response.set_content(json.dumps(dump), "application/json")
        response.set_status(200)

    # torch lets its handlers go after the interpreter has ended, where none may be freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(answer))
    try:
        _register_handler("headrace_fr_trace_json", answer)
    except ValueError as error:
        raise InvalidArgument("a recorder is registered already: a process has one") from error
    names = ["headrace_fr_trace_json"]
    try:
        _register_handler("torchcomms_fr_trace_json", answer)
    except ValueError:
        return names  # torchcomms has it
    return [*names, "torchcomms_fr_trace_json"]


def register_symmetric_memory() -> None:
    """Makes torch.distributed._symmetric_memory take tensors on the CPU: empty(..., device="cpu"), then
    rendezvous with a group of Headrace whose ranks are on one host. The compiled process group does it when
    it is made; programs with the group in Python, or that make the tensors first, call this.

    Errors: ImportError (Headrace has no compiled part for this torch: why).
    """
    from ._torch.compiled import load

    load()


def mem_allocator() -> Any:
    """The allocator of a torch.cuda.MemPool whose memory the GPUs of all ranks can map: of the driver's
    virtual memory API, with a descriptor. Tensors of torch's own pools can be registered, too, where the
    driver exports them.

        pool = torch.cuda.MemPool(headrace.torch_tools.mem_allocator())
        with torch.cuda.use_mem_pool(pool):
            gradients = torch.empty(1 << 20, device="cuda")
        comm.tensor_register(gradients)

    It takes segments of at least 2 MiB from the driver, and fills them with zeros. Where there is no memory,
    torch raises torch.OutOfMemoryError, and the log of Headrace says why.
    Errors: InvalidArgument (torch is not imported), NotSupported (torch is built without CUDA).
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgument("torch is not imported: this is memory for its pools, so import it before")
    if not torch.version.cuda:
        raise NotSupported(
            f"torch {torch.__version__} is built without CUDA, so it has no pools of GPU memory"
        )
    return _pluggable(torch).allocator()


@cache
def _pluggable(torch: Any) -> Any:
    return torch.cuda.memory.CUDAPluggableAllocator(str(_LIBRARY), "headrace_gpu_alloc", "headrace_gpu_free")
