# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.pplx.native.cumem: GPU memory that other processes map. Host memory stands in for it, but
in `test_on_a_gpu`."""

import ctypes
import gc
import importlib.util
import multiprocessing
import os
import pickle
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import cuda_memory
import headrace
from cuda_memory import GRANULE
from gpus import count_gpus
from headrace.compat.pplx import _cuda_driver, _descriptor_socket, _dlpack
from headrace.compat.pplx.native import cumem
from headrace.compat.pplx.native.cumem import CUMemAllocHandle, CUMemExportHandle, CUMemHandleKind

GPU = SimpleNamespace(type="cuda", index=None)
BY_DESCRIPTOR = CUMemHandleKind.FileDescriptor


@pytest.fixture
def driver(monkeypatch):
    """Host memory for GPU memory. All of it is given back at the end."""
    driver = cuda_memory.HostDriver()
    monkeypatch.setattr(_cuda_driver, "driver", lambda: driver)
    before = len(os.listdir("/proc/self/fd"))
    _descriptor_socket.offers()  # stays open
    yield driver
    gc.collect()
    assert (driver.handles, driver.addresses, driver.mapped) == ({}, {}, {})
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def in_another_process(handles, on_host=True):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=cuda_memory.increment, args=(handles, theirs, on_host))
    process.start()
    theirs.close()
    assert ours.poll(100), "the other process says nothing"
    seen = ours.recv()
    process.join(60)
    assert process.exitcode == 0
    return seen


def test_memory_is_a_tensor_that_keeps_it(driver):
    handle = CUMemAllocHandle(GRANULE + 1, GPU)
    mapping = handle.map()
    assert mapping.size == 2 * GRANULE and mapping.data_ptr() % 4096 == 0
    tensor = mapping.to_tensor((3, 5), torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.data_ptr()) == ((3, 5), torch.bfloat16, mapping.data_ptr())
    tensor.fill_(2.5)
    del handle, mapping
    gc.collect()
    assert torch.equal(tensor, torch.full((3, 5), 2.5, dtype=torch.bfloat16))
    assert len(driver.mapped) == 1
    part = tensor[1]
    del tensor
    gc.collect()
    assert part.tolist() == [2.5] * 5
    del part
    gc.collect()
    assert not driver.mapped and not _dlpack._kept


def test_shapes_that_do_not_fit_are_refused(driver):
    mapping = CUMemAllocHandle(1, GPU).map()
    assert mapping.to_tensor((), torch.float64).shape == ()
    assert mapping.to_tensor((0, 7), torch.float8_e4m3fn).shape == (0, 7)
    assert mapping.to_tensor((GRANULE // 2,), torch.int16).numel() == GRANULE // 2
    with pytest.raises(RuntimeError, match=rf"shape \({GRANULE},\) of torch\.int16 has {2 * GRANULE} bytes"):
        mapping.to_tensor((GRANULE,), torch.int16)


def test_memory_changes_under_an_address_that_stays(driver):
    first, second = CUMemAllocHandle(1, GPU), CUMemAllocHandle(1, GPU)
    mapping = first.map(SimpleNamespace(type="cuda", index=3))
    assert driver.mapped == {mapping.data_ptr(): 3}
    tensor = mapping.to_tensor((4,), torch.int32)
    tensor.fill_(7)
    with pytest.raises(RuntimeError, match="the mapping has memory: call unmap first"):
        second.map_to(mapping)
    mapping.unmap()
    mapping.unmap()
    with pytest.raises(RuntimeError, match="nothing is mapped: call map_to"):
        mapping.to_tensor((1,), torch.int32)
    second.map_to(mapping)
    assert tensor.tolist() == [0] * 4
    mapping.unmap()
    first.map_to(mapping)
    assert tensor.tolist() == [7] * 4 and driver.mapped == {mapping.data_ptr(): 3}
    mapping.unmap()
    with pytest.raises(RuntimeError, match=f"has {GRANULE} bytes, and the memory {2 * GRANULE}"):
        CUMemAllocHandle(2 * GRANULE, GPU).map_to(mapping)


def test_another_process_maps_what_it_was_given(driver):
    handles = [CUMemAllocHandle(1, GPU, kind) for kind in (BY_DESCRIPTOR, CUMemHandleKind.Fabric)]
    tensors = [handle.map().to_tensor((GRANULE,), torch.uint8) for handle in handles]
    for value, tensor in enumerate(tensors):
        tensor[0] = 10 * value
    exported = [handle.export() for handle in handles]
    assert in_another_process(exported) == [0, 10]
    assert in_another_process(exported) == [1, 11]
    assert [int(tensor[0]) for tensor in tensors] == [2, 12]


@pytest.mark.gpu1
@pytest.mark.skipif(count_gpus() == 0, reason="this machine has no GPU")
def test_on_a_gpu():
    handle = CUMemAllocHandle(1, torch.device("cuda:0"), BY_DESCRIPTOR)
    mapping = handle.map()
    tensor = mapping.to_tensor((2, 3), torch.bfloat16)
    tensor.fill_(1.5)
    assert tensor.sum().item() == 9 and tensor.device == torch.device("cuda:0")
    raw = mapping.to_tensor((mapping.size,), torch.uint8)
    raw[0] = 40
    torch.cuda.synchronize()
    assert in_another_process([handle.export()], on_host=False) == [40]
    assert int(raw[0]) == 41
    mapping.unmap()
    handle.map_to(mapping)
    assert int(mapping.to_tensor((1,), torch.uint8)[0]) == 41


def test_a_handle_that_is_exported_no_more_is_refused(driver):
    handle = CUMemAllocHandle(1, GPU, BY_DESCRIPTOR)
    exported = handle.export()
    data = pickle.dumps(exported)
    with pytest.raises(RuntimeError, match="this process exported the handle"):
        exported.bind()
    imported = pickle.loads(data)
    mapping, own = imported.bind().map(), handle.map()
    ctypes.c_uint8.from_address(own.data_ptr()).value = 5
    assert ctypes.c_uint8.from_address(mapping.data_ptr()).value == 5
    with pytest.raises(RuntimeError, match="pickle the one that it was made from"):
        pickle.dumps(imported)
    del exported
    with pytest.raises(RuntimeError, match="the memory is exported no more: keep the export handle"):
        pickle.loads(data)


def test_damaged_handles_are_refused(driver, tmp_path):
    exported = CUMemAllocHandle(1, GPU, BY_DESCRIPTOR).export()
    _, (payload,) = exported.__reduce__()
    head = payload[: cumem.HEAD.size]
    for wrong, sentence in (
        (b"", "0 bytes are no handle of memory"),
        (b"\x03" + payload[1:], "of kind 3 are no handle"),
        (b"\x02" + payload[1:], "of kind 2 are no handle"),
        (head + bytes(16) + payload[len(head) + 16 :], "exported no more"),
        (payload + b"x", "does not answer at .*x .*it must live, on this host and under this user"),
        (head + bytes(16) + bytes(200), "does not answer"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            CUMemExportHandle(wrong)
    with pytest.raises(
        RuntimeError, match="kind Local stays in its process: allocate it with FileDescriptor"
    ):
        CUMemAllocHandle(1, GPU).export()


def test_only_gpus_have_such_memory(driver):
    with pytest.raises(RuntimeError, match="cpu is no GPU: give a device of type cuda"):
        CUMemAllocHandle(1, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="is no GPU"):
        CUMemAllocHandle(1, GPU).map(torch.device("cpu"))


@pytest.mark.skipif(count_gpus() > 0, reason="this machine has a GPU")
def test_a_machine_without_a_driver_says_so():
    with pytest.raises(headrace.NotSupported, match="there is no GPU memory here: no NVIDIA driver"):
        CUMemAllocHandle(1, GPU)


@pytest.mark.parametrize("make", [lambda: cumem.CUMulticastHandle(2, 4096), cumem.CUMulticastExportHandle])
def test_multicast_is_not_supported(make):
    with pytest.raises(headrace.NotSupported, match="Headrace uses no multicast addresses of NVLink"):
        make()


# --- the functions of the driver


class Library:
    """Functions that remember their arguments and return a code."""

    def __init__(self, codes):
        self.codes, self.calls = codes, []

    def __getattr__(self, name):
        def function(*arguments):
            self.calls.append((name, arguments))
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"out of memory"
            return self.codes.get(name, 0)

        return function


def test_structures_are_laid_out_as_those_of_the_driver():
    assert ctypes.sizeof(_cuda_driver.Properties) == 32 and _cuda_driver.Properties.flags.offset == 24
    assert ctypes.sizeof(_cuda_driver.Access) == 12
    assert ctypes.sizeof(_dlpack._Tensor) == 48 and ctypes.sizeof(_dlpack._Managed) == 64
    properties = _cuda_driver._properties(3, _cuda_driver.DESCRIPTOR)
    assert (properties.type, properties.handle_kinds, properties.flags.gpu_direct_rdma) == (1, 1, 1)
    assert (properties.location.type, properties.location.id) == (1, 3)


def test_an_error_of_the_driver_says_which_function_failed():
    driver = _cuda_driver.Driver(Library({"cuMemCreate": 2}))
    with pytest.raises(RuntimeError, match=r"^cuMemCreate: out of memory \(2\)$"):
        driver.create(GRANULE, 0, 0)


def test_memory_that_a_device_may_not_use_is_unmapped():
    library = Library({"cuMemSetAccess": 1})
    with pytest.raises(RuntimeError, match="^cuMemSetAccess: "):
        _cuda_driver.Driver(library).map(1 << 40, GRANULE, 7, 0)
    assert [name for name, _ in library.calls] == [
        "cuInit",
        "cuMemMap",
        "cuMemSetAccess",
        "cuGetErrorString",
        "cuMemUnmap",
    ]
    _, (address, length) = library.calls[-1]
    assert (address.value, length.value) == (1 << 40, GRANULE)
