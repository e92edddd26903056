# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Ranges for torch's profilers, handlers of torch's debug server, and memory for torch's pools."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import headrace
from headrace import ReduceOp
from headrace.torch_tools import add_profiler_ranges, mem_allocator

torch = pytest.importorskip("torch")


def names_of(profile):
    return [event.name for event in profile.events() if event.name.startswith("headrace:")]


def test_profilers_see_each_operation_until_its_end_on_whatever_thread_that_is():
    with headrace.new_comm(rank=0, size=1) as alone:
        hook = add_profiler_ranges(alone)
        with torch.profiler.profile() as profile:
            alone.all_reduce(np.ones(4), ReduceOp.SUM)
            alone.broadcast(np.ones(4), 0, async_op=True).wait()
            with pytest.raises(headrace.InvalidArgument):
                alone.broadcast(np.ones(4), 1)
        hook.remove()
        with torch.profiler.profile() as later:
            alone.barrier()
    assert sorted(names_of(profile)) == ["headrace:all_reduce", "headrace:broadcast"]
    assert names_of(later) == []
    assert all(event.cpu_time_total > 0 for event in profile.events() if event.name.startswith("headrace:"))


def test_nvtx_ranges_begin_with_the_call_and_end_with_the_operation(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", lambda name: told.append(name) or len(told))
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda number: told.append(number))
    with headrace.new_comm(rank=0, size=1) as comm:
        add_profiler_ranges(comm, nvtx=True)
        told.clear()
        comm.barrier()
        comm.all_reduce(np.ones(4), ReduceOp.SUM)
    assert told == ["headrace:barrier", 1, "headrace:all_reduce", 3]


def test_a_torch_without_nvtx_is_named(monkeypatch):
    def missing(name):
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda.nvtx, "range_start", missing)
    comm = headrace.new_comm(rank=0, size=1)
    with pytest.raises(headrace.NotSupported, match="built for CUDA"):
        add_profiler_ranges(comm, nvtx=True)


def run_alone(program):
    """Handlers are registered for a process's life, and here torch is not imported before."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SERVER = """
import torch.distributed, urllib.request, json, numpy as np, headrace
from headrace.torch_tools import register_debug_handlers
from torch._C._distributed_c10d import _WorkerServer
comm = headrace.new_comm(rank=0, size=2, backend="fake")
recorder = headrace.FlightRecorder(entries=10)
recorder.attach(comm)
print(register_debug_handlers(recorder))
try:
    register_debug_handlers(recorder)
except headrace.InvalidArgument as error:
    print(error)
comm.barrier()
server = _WorkerServer("127.0.0.1", 0)
for page in ("headrace_fr_trace_json", "torchcomms_fr_trace_json?onlyactive=true"):
    address = f"http://127.0.0.1:{server.port}/handler/{page}"
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=30) as answer:
        dump = json.load(answer)
    print(dump["version"], [entry["operation"] for entry in dump["entries"]])
server.shutdown()
"""


def test_the_debug_server_of_torch_shows_the_dump_of_a_recorder():
    lines = run_alone(SERVER).splitlines()
    assert lines[0] == "['headrace_fr_trace_json', 'torchcomms_fr_trace_json']"
    assert "registered already" in lines[1]
    assert lines[2:] == ["2.10 ['barrier']", "2.10 []"]


def test_torch_is_not_imported_by_them():
    said = run_alone(
        "import sys, headrace\n"
        "from headrace.torch_tools import add_profiler_ranges, register_debug_handlers\n"
        "for call in (lambda: add_profiler_ranges(headrace.new_comm(rank=0, size=1)),\n"
        "             lambda: register_debug_handlers(headrace.FlightRecorder(entries=1))):\n"
        "    try: call()\n"
        "    except headrace.InvalidArgument as error: print(error, 'torch' in sys.modules)\n"
    )
    assert said.count("torch is not imported") == 2
    assert "True" not in said


def test_a_torch_without_cuda_has_no_pools():
    if torch.version.cuda:
        pytest.skip("this torch has CUDA")
    with pytest.raises(headrace.NotSupported, match="without CUDA"):
        mem_allocator()


def test_pools_of_torch_get_the_functions_of_the_library(monkeypatch):
    """A torch with CUDA is given the library and two functions of it. Without a driver there is no memory."""
    made = []

    class Pluggable:
        def __init__(self, *arguments):
            made.append(arguments)

        def allocator(self):
            return self

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Pluggable)
    assert mem_allocator() is mem_allocator()  # torch's pools use it as long as they live
    ((path, alloc, free),) = made
    library = ctypes.CDLL(path)
    assert hasattr(library, alloc) and hasattr(library, free)
    program = (
        f"import ctypes; library = ctypes.CDLL({path!r}); alloc = getattr(library, {alloc!r})\n"
        "alloc.restype = ctypes.c_void_p\n"
        "assert alloc(ctypes.c_ssize_t(-1), 0, None) is None\n"
        f"getattr(library, {free!r})(ctypes.c_void_p(64), ctypes.c_ssize_t(1), 0, None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "GPU memory of -1 bytes was asked for" in done.stderr
    assert "no GPU memory was allocated at 0x40" in done.stderr
