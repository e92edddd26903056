# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The backend nccl where it cannot be used: without its library, and without a GPU."""

import sys
from pathlib import Path

import pytest

import headrace


def open_one_rank(device="cuda:0", **options):
    return headrace.new_comm("nccl", device, rank=0, size=1, **options)


def test_it_is_listed():
    assert {"nccl", "ncclx", "rccl", "rcclx"} <= set(headrace.list_comm_backends())


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("HEADRACE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    with pytest.raises(headrace.NotFound, match=r"nccl\.library names /nowhere/libnccl\.so\.2, which is not"):
        open_one_rank()


def test_host_memory_is_refused_before_its_library_is_looked_for(monkeypatch):
    monkeypatch.setenv("HEADRACE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    with pytest.raises(headrace.NotSupported, match=r"nccl does not move memory of cpu: use .*\(auto, fake"):
        open_one_rank("cpu")


def test_ncclx_asks_for_a_path():
    with pytest.raises(headrace.NotSupported, match=r"name its path by option ncclx\.library"):
        headrace.new_comm("ncclx", "cuda:0", rank=0, size=1)


def test_rccl_asks_for_rocm_and_rcclx_for_a_path():
    if Path("/dev/kfd").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(headrace.NotSupported, match=r"librccl\.so\.1.*install ROCm with RCCL"):
        headrace.new_comm("rccl", "cuda:0", rank=0, size=1)
    with pytest.raises(headrace.NotSupported, match=r"name its path by option rcclx\.library"):
        headrace.new_comm("rcclx", "cuda:0", rank=0, size=1)


def test_the_wheel_loads_without_a_gpu(monkeypatch):
    libraries = [Path(folder) / "nvidia/nccl/lib/libnccl.so.2" for folder in sys.path]
    library = next((path for path in libraries if path.exists()), None)
    if library is None:
        pytest.skip("NCCL is not installed")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("HEADRACE_NCCL_LIBRARY", str(library))
    with pytest.raises(headrace.NotSupported, match="no NVIDIA driver: libcuda"):
        open_one_rank()


def test_a_backend_without_suspend_says_so():
    comm = headrace.new_comm("fake", rank=0, size=1)
    with pytest.raises(headrace.NotSupported, match="backend fake has no suspend"):
        comm.suspend()
    with pytest.raises(headrace.NotSupported, match="backend fake has no resume"):
        comm.resume()
    assert not comm.is_suspended()
