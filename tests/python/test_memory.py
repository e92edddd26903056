# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Registering, allocating and mapping memory: the objects that are accepted, the ones that are refused, and
the references that keep memory alive."""

import ctypes
import gc
import mmap
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import headrace
from conftest import introduce, unique


class DlpackOnly:
    """An array that supports only DLPack, as a torch tensor does."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Unwilling:
    def __dlpack__(self, **arguments):
        raise BufferError("detach me first")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(1000),
        lambda: memoryview(bytearray(1000))[10:],
        lambda: mmap.mmap(-1, 4096),
        lambda: (ctypes.c_uint16 * 7)(),
        lambda: np.zeros((3, 5), np.float32),
        lambda: np.zeros((3, 5), np.float32, order="F"),
        lambda: np.zeros((2, 3, 4), np.int16).transpose(2, 0, 1),
        lambda: np.zeros(4, [("a", "u1"), ("b", "f8")]),
        lambda: np.float64(3),
        lambda: DlpackOnly(np.zeros((3, 5), np.float32)),
    ],
    ids=[
        "bytearray",
        "memoryview",
        "mmap",
        "ctypes",
        "numpy",
        "column order",
        "permuted",
        "structured",
        "scalar",
        "dlpack",
    ],
)
def test_anything_with_dense_memory_can_be_registered(agent, make):
    thing = make()
    region = agent.register(thing, name="thing", note=b"\x00\xff")
    size = thing.array.nbytes if isinstance(thing, DlpackOnly) else memoryview(thing).nbytes
    assert (region.kind, region.length_bytes, len(region), region.name, region.note) == (
        "dram",
        size,
        size,
        "thing",
        b"\x00\xff",
    )
    assert region.address != 0 and region.backends == [info.name for info in agent.backends()]
    assert [(r.id, r.name) for r in agent.regions()] == [(region.id, "thing")]


def test_a_region_has_the_address_of_its_array(agent):
    array = np.zeros(1000, np.uint8)
    assert agent.register(array[8:]).address == array.ctypes.data + 8
    assert agent.register(DlpackOnly(array[16:])).address == array.ctypes.data + 16
    assert agent.register((array.ctypes.data, 10)).length_bytes == 10
    assert agent.register(headrace.MemoryRange(address=array.ctypes.data, length_bytes=11)).length_bytes == 11


def test_a_region_is_writable_if_its_object_is(agent):
    frozen = np.zeros(10, np.uint8)
    frozen.flags.writeable = False
    regions = agent.register([bytearray(10), bytes(10), frozen])
    assert [region.writable for region in regions] == [True, False, False]
    assert [region.writable for region in agent.regions()] == [True, False, False]
    assert not agent.register(bytearray(10), writable=False).writable
    with pytest.raises(headrace.InvalidArgument, match="is read-only"):
        agent.register(bytes(10), writable=True)


def test_a_read_only_region_is_never_written(pair):
    left, right = pair
    ours, theirs = left.register(bytes(64)), right.register(bytes(64), name="frozen")
    free = left.register(bytearray(64))
    left.import_metadata(right.export_metadata())
    assert not left.peer_region(right.name, "frozen").writable
    with pytest.raises(headrace.InvalidArgument, match="region .* is registered read-only") as refused:
        left.make_request(
            "write", left.prepare([(free.id, 0, 64)]), left.prepare([(theirs.id, 0, 64)], peer=right.name)
        )
    assert refused.value.page == 0
    with pytest.raises(headrace.InvalidArgument, match="region .* of this agent is registered read-only"):
        left.make_request(
            "read", left.prepare([(ours.id, 0, 64)]), left.prepare([(theirs.id, 0, 64)], peer=right.name)
        )


@pytest.mark.parametrize("backend", ["shm"], indirect=True)
def test_memory_allocated_read_only_is_filled_by_its_owner_and_mapped_for_reading(pair, backend):
    left, right = pair
    memory = right.allocate(10_000, writable=False, name="weights")
    memoryview(memory)[:] = bytes(range(250)) * 40
    left.import_metadata(right.export_metadata())
    mapping = left.map(right.name, left.peer_region(right.name, "weights"))
    assert not mapping.writable and memoryview(mapping).readonly
    assert bytes(mapping) == bytes(memory)
    assert not mapping.numpy().flags.writeable


def test_one_call_registers_either_all_objects_or_none(agent):
    regions = agent.register([np.zeros(10), bytearray(20), (np.zeros(30).ctypes.data, 5)], name="layer")
    assert [region.name for region in regions] == ["layer/0", "layer/1", "layer/2"]
    with pytest.raises(headrace.InvalidArgument, match="empty") as caught:
        agent.register([bytearray(10), bytearray(10), bytearray(0)])
    assert caught.value.page == 2
    assert len(agent.regions()) == 3


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (bytearray(0), "is empty"),
        (np.zeros((4, 4))[:, ::2], "gaps"),
        (np.zeros(10)[::-1], "gaps"),
        (np.array([1, "text"], object), "array of Python objects"),
        (np.zeros(2, [("a", int), ("b", object)]), "array of Python objects"),
        (DlpackOnly(np.zeros((4, 4))[:, ::2]), "gaps"),
        ("text", "'text' cannot be registered"),
        (None, "None cannot be registered"),
        ((0, 10), "no address"),
        ((4096, 0), "is empty"),
        ((-1, 10), "the address of page 0 is -1"),
        ((2**64 - 8, 16), "end of the address space"),
        (("x", 10), "the address of page 0 is 'x'"),
        ([], "nothing to register"),
        (headrace.MemoryRange("vram", 4096, 10), "names no device"),
        (headrace.MemoryRange("file"), "neither a path nor a descriptor"),
        (headrace.MemoryRange("object"), "names no object"),
    ],
)
def test_an_object_that_cannot_be_registered_is_refused_with_a_reason(agent, thing, text):
    with pytest.raises(headrace.InvalidArgument, match=text):
        agent.register(thing)
    assert agent.regions() == []


def test_the_error_of_an_object_that_does_not_export_its_memory_is_passed_on(agent):
    with pytest.raises(BufferError, match="detach me first"):
        agent.register(Unwilling())


def test_a_name_is_used_once(agent):
    agent.register(bytearray(10), name="x")
    with pytest.raises(headrace.InvalidArgument, match="called x already"):
        agent.register(bytearray(10), name="x")


def test_memory_that_no_backend_takes_is_not_supported(agent):
    with pytest.raises(headrace.NotSupported, match="vram"):
        agent.register(headrace.MemoryRange("vram", 4096, 10, device=0))
    with pytest.raises(headrace.NotSupported, match="none of those asked for"):
        agent.register(bytearray(10), backends=["no_such"])
    with pytest.raises(headrace.InvalidArgument, match="tape"):
        headrace.MemoryRange("tape")
    with pytest.raises(headrace.NotSupported, match="vram"):
        agent.allocate(4096, kind="vram")


def test_a_registered_object_is_kept_alive_until_it_is_deregistered(agent):
    class Array(np.ndarray):
        pass

    for make in (lambda a: a, DlpackOnly):
        array = np.zeros(1000).view(Array)
        gone = weakref.ref(array)
        region = agent.register(make(array))
        pages = agent.prepare([region])  # a prepared list does not keep the object alive
        del array
        gc.collect()
        assert gone() is not None
        agent.deregister(region)
        gc.collect()
        assert gone() is None
        del pages


def test_each_of_several_objects_registered_in_one_call_is_released_with_its_own_region(agent):
    class Array(np.ndarray):
        pass

    arrays = [np.zeros(10).view(Array) for _ in range(3)]
    gone = [weakref.ref(array) for array in arrays]
    regions = agent.register(arrays)
    del arrays
    agent.deregister(regions[1])
    gc.collect()
    assert [ref() is None for ref in gone] == [False, True, False]
    agent.deregister([regions[0], regions[2].id])
    gc.collect()
    assert [ref() is None for ref in gone] == [True, True, True]


def test_an_object_that_was_refused_is_not_kept(agent):
    array = np.zeros((4, 4))
    before = sys.getrefcount(array)
    with pytest.raises(headrace.InvalidArgument, match="name has at most 255 bytes, this one 256"):
        agent.register(array, name="x" * 256)
    with pytest.raises(headrace.InvalidArgument, match="range 1 is empty"):
        agent.register([array, bytearray(0)])
    assert sys.getrefcount(array) == before


def test_closing_the_agent_releases_registered_objects(backend):
    array = np.zeros(10)
    before = sys.getrefcount(array)
    with headrace.Agent("a", [backend]) as agent:
        agent.register(array)
        assert sys.getrefcount(array) > before
    assert sys.getrefcount(array) == before


def test_a_registered_bytearray_cannot_be_resized(agent):
    buffer = bytearray(10)
    region = agent.register(buffer)
    with pytest.raises(BufferError, match="cannot be re-sized"):
        buffer.extend(b"more")
    agent.deregister(region)
    buffer.extend(b"more")


def test_deregistering_twice_or_an_unknown_region_is_not_found(agent):
    region = agent.register(bytearray(10))
    agent.deregister(region)
    for unknown in (region, 77, 2**40):
        with pytest.raises(headrace.NotFound, match="no region"):
            agent.deregister(unknown)
    with pytest.raises(headrace.InvalidArgument, match="'x' is not a region"):
        agent.deregister("x")


def test_allocated_memory_is_a_buffer_of_zeros(agent):
    memory = agent.allocate(10_000, name="cache", note=b"n")
    assert (len(memory), memory.region.length_bytes, memory.region.name, memory.region.note) == (
        10_000,
        10_000,
        "cache",
        b"n",
    )
    assert memory.region.address % mmap.PAGESIZE == 0
    view = memoryview(memory)
    assert (view.nbytes, view.readonly, bytes(view)) == (10_000, False, bytes(10_000))
    view[5] = 77
    assert memory.numpy()[5] == 77
    assert memory.numpy().ctypes.data == memory.region.address


def test_allocated_memory_takes_a_numpy_dtype_and_shape(agent):
    memory = agent.allocate(96)
    assert memory.numpy("float32").shape == (24,)
    array = memory.numpy(np.int16, (4, 6))
    array[:] = np.arange(24).reshape(4, 6)
    assert memory.numpy("<i2")[:24].tolist() == list(range(24))
    with pytest.raises((ValueError, TypeError), match="buffer is too small"):
        memory.numpy("uint8", (97,))


def test_allocated_memory_outlives_its_region_while_a_view_of_it_lives(backend):
    agent = headrace.Agent("a", [backend])
    views = {}
    for how in ("memory", "view", "array", "slice"):
        memory = agent.allocate(1 << 20)
        memory.numpy()[:] = 42
        views[how] = {
            "memory": memory,
            "view": memoryview(memory),
            "array": memory.numpy(),
            "slice": memory.numpy()[1000:2000],
        }[how]
        agent.deregister(memory)
        del memory
    agent.close()
    del agent
    gc.collect()
    for view in views.values():
        array = np.frombuffer(view, np.uint8)
        assert array.size and (array == 42).all()
        array = np.asarray(view)
        array[:] = 43
        assert (array == 43).all()


def test_allocated_memory_is_unmapped_when_its_last_view_is_gone(agent):
    def mapped(address):
        return any(
            int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
            for line in open("/proc/self/maps")
        )

    memory = agent.allocate(64 << 20)
    address = memory.region.address + (32 << 20)
    part = memory.numpy()[100:200]
    agent.deregister(memory)
    del memory
    gc.collect()
    assert mapped(address)
    del part
    gc.collect()
    assert not mapped(address)


def test_memory_is_allocated_on_a_node_and_with_huge_pages_or_refused(agent):
    memory = agent.allocate(12_345, numa_node=0)
    memory.numpy()[:] = 1
    assert (len(memory), int(memory.numpy().sum())) == (12_345, 12_345)
    try:
        huge = agent.allocate(3 << 20, huge_pages=True)
    except headrace.Exhausted as error:
        assert "huge" in str(error)  # the machine has no free huge pages
    else:
        huge.numpy()[:] = 1
        assert huge.region.address % (2 << 20) == 0 and int(huge.numpy().sum()) == 3 << 20
    with pytest.raises(headrace.Error, match="4095"):
        agent.allocate(4096, numa_node=4095)
    if not Path("/sys/devices/system/node/node1023").exists():
        with pytest.raises(headrace.Error, match="node 1023.*has memory on 0|not allowed"):
            agent.allocate(4096, numa_node=1023)


def test_memory_near_a_gpu_needs_that_gpu(agent):
    assert len(agent.allocate(4096, numa_node=0, near_gpu=99)) == 4096  # a named node overrides near_gpu
    with pytest.raises(headrace.Error, match="near GPU 99"):
        agent.allocate(4096, near_gpu=99)
    with pytest.raises(headrace.InvalidArgument, match="no GPU -2"):
        agent.allocate(4096, near_gpu=-2)


def test_too_much_memory_is_exhausted_and_zero_bytes_are_invalid(agent):
    with pytest.raises(headrace.InvalidArgument, match="allocate 0 bytes"):
        agent.allocate(0)
    with pytest.raises(headrace.Exhausted, match=f"allocate {1 << 60} bytes"):
        agent.allocate(1 << 60)
    assert agent.regions() == []


def test_a_region_of_a_peer_is_mapped_without_a_copy():
    with headrace.Agent(unique("left"), ["shm"]) as left, headrace.Agent(unique("right"), ["shm"]) as right:
        memory = right.allocate(8192, name="shared")
        introduce(left, right)
        mapping = left.map(right.name, left.peer_region(right.name, "shared"))
        assert len(mapping) == 8192 and mapping.alive
        memory.numpy()[:] = 5
        assert (np.frombuffer(mapping, np.uint8) == 5).all()
        mapping.numpy("uint32")[0] = 0x01020304
        assert bytes(memoryview(memory)[:4]) == b"\x04\x03\x02\x01"


def test_a_mapping_of_a_closed_peer_is_not_alive_and_can_still_be_read():
    left = headrace.Agent(unique("left"), ["shm"])
    right = headrace.Agent(unique("right"), ["shm"])
    memory = right.allocate(8192, name="shared")
    memory.numpy()[:] = 9
    introduce(left, right)
    mapping = left.map(right.name, left.peer_region(right.name, "shared"))
    array = mapping.numpy()
    right.close()
    from conftest import until

    until(lambda: not mapping.alive)  # noqa: F821  it is deleted below
    del memory, mapping
    gc.collect()
    left.close()
    assert (array == 9).all()


def test_memory_that_was_registered_and_not_allocated_cannot_be_mapped(pair):
    left, right = pair
    right.register(bytearray(4096), name="plain")
    left.import_metadata(right.export_metadata())
    words = f"region .* of peer {right.name} cannot be mapped"
    with pytest.raises(headrace.NotSupported, match=words):
        left.map(right.name, left.peer_region(right.name, "plain"))
    with pytest.raises((headrace.NotFound, headrace.NotSupported), match="4711"):
        left.map(right.name, 4711)
    with pytest.raises(headrace.NotFound, match="peer nobody is unknown"):
        left.map("nobody", 1)


@pytest.fixture
def mapped():
    """Two agents over shm, and mappings of two regions of the second agent: one writable, one read-only."""
    with headrace.Agent(unique("left"), ["shm"]) as left, headrace.Agent(unique("right"), ["shm"]) as right:
        memory, weights = (
            right.allocate(8192, name="shared"),
            right.allocate(4096, name="weights", writable=False),
        )
        memory.numpy()[:] = 5
        weights.numpy()[:] = 6
        introduce(left, right)
        yield (
            left,
            right,
            memory,
            left.map(right.name, memory.region.id),
            left.map(right.name, weights.region.id),
        )


def test_a_mapping_for_the_cpu_has_its_device_and_address(mapped):
    _, _, _, mapping, _ = mapped
    assert mapping.device == -1
    assert mapping.address == mapping.numpy().ctypes.data
    assert not hasattr(mapping, "__cuda_array_interface__")


def test_the_device_of_a_mapping_is_a_number_or_a_name(mapped):
    left, right, memory, _, _ = mapped
    for cpu in (None, -1, "cpu"):
        assert left.map(right.name, memory.region.id, device=cpu).device == -1
    for gpu, number in ((0, 0), (np.int64(3), 3), ("cuda:1", 1), ("cuda", 0)):
        with pytest.raises(
            headrace.NotSupported,
            match=f"cannot be mapped:\n  shm: shm maps memory for the CPU, not for GPU {number}$",
        ):
            left.map(right.name, memory.region.id, device=gpu)
    with pytest.raises(headrace.InvalidArgument, match="there is no GPU -2: they count from 0"):
        left.map(right.name, memory.region.id, device=-2)
    for nothing in ("gpu", 1.5, 1 << 40, object()):
        with pytest.raises(
            headrace.InvalidArgument, match="there is no device .*: write cpu, cuda or cuda:1"
        ):
            left.map(right.name, memory.region.id, device=nothing)


def test_a_mapping_is_passed_to_other_libraries_by_dlpack(mapped):
    _, _, memory, mapping, _ = mapped
    assert mapping.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(mapping)
    assert array.shape == (8192,) and array.dtype == np.uint8 and array.ctypes.data == mapping.address
    memory.numpy()[17] = 99
    assert array[17] == 99


def test_an_array_made_by_dlpack_keeps_its_mapping(mapped):
    left, right, *_ = mapped
    memory = right.allocate(4096, name="nobody else's")  # no other mapping keeps this memory here
    memory.numpy()[:] = 7
    introduce(left, right)
    array = np.from_dlpack(left.map(right.name, memory.region.id))
    gc.collect()
    right.deregister(memory)
    del memory
    gc.collect()
    assert (array == 7).all()


def test_dlpack_gives_read_only_memory_only_to_consumers_of_version_1(mapped):
    _, _, _, mapping, weights = mapped
    array = np.from_dlpack(weights)
    assert (array == 6).all() and not array.flags.writeable
    for older in ({}, {"max_version": None}, {"max_version": (0, 8)}):
        assert '"dltensor"' in repr(mapping.__dlpack__(**older))
        with pytest.raises(BufferError, match="is read-only, which DLPack before version 1 cannot express"):
            weights.__dlpack__(**older)
    assert '"dltensor_versioned"' in repr(mapping.__dlpack__(max_version=(1, 0)))


def test_dlpack_copies_nothing_and_moves_nothing(mapped):
    _, _, _, mapping, _ = mapped
    mapping.__dlpack__(copy=False, dl_device=(1, 0), stream=None)
    with pytest.raises(BufferError, match="does not copy"):
        mapping.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="does not move"):
        mapping.__dlpack__(dl_device=(2, 0))


def test_a_query_is_refused_by_a_backend_that_is_not_open_or_keeps_nothing(agent):
    backend = agent.backends()[0].name
    with pytest.raises(headrace.NotFound, match=f"no_such is not open in this agent, which has {backend}"):
        agent.query(headrace.MemoryRange("file", path="x"), "no_such")
    with pytest.raises(
        headrace.NotSupported, match=f"query of file x: backend {backend} keeps no files.*headrace plugins"
    ):
        agent.query(headrace.MemoryRange("file", path="x"), backend)
    with pytest.raises(headrace.InvalidArgument, match="not about dram"):
        agent.query(headrace.MemoryRange("dram"), backend)


def test_a_query_finds_the_objects_that_a_backend_keeps():
    with headrace.Agent("asks", ["fake", "shm"], options={"fake.objects": "kv/7=4096"}) as agent:
        assert agent.query(headrace.MemoryRange("object", path="kv/7"), "fake") == {
            "bytes": "4096",
            "key": "kv/7",
        }
        assert agent.query(headrace.MemoryRange("object", path="kv/8"), "fake") is None
        with pytest.raises(headrace.NotSupported, match="ask fake"):
            agent.query(headrace.MemoryRange("object", path="kv/7"), "shm")


def test_a_torch_tensor_is_registered_in_place(agent):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(1000, dtype=torch.bfloat16).reshape(10, 100)
    region = agent.register(tensor)
    assert (region.address, region.length_bytes) == (tensor.data_ptr(), 2000)
    assert agent.prepare([tensor[2:4]]).bytes == 400
    parameter = torch.nn.Parameter(torch.zeros(3))
    assert agent.register(parameter).address == parameter.data_ptr()


def test_torch_tensors_serve_as_pages_and_indices_and_receive_the_bytes(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    left, right = pair
    theirs = torch.randn(37, 129).to(torch.bfloat16)
    here = torch.nn.Parameter(torch.zeros_like(theirs))
    row = theirs[0].nbytes
    ours, there = left.register([here, torch.zeros(3)])[0], right.register(theirs, name="weights")
    left.import_metadata(right.export_metadata())

    local = left.prepare(headrace.UniformPages(ours, 0, 0, row, len(theirs)))
    remote = left.prepare(headrace.UniformPages(there.id, 0, 0, row, len(theirs)), peer=right.name)
    picked = torch.randperm(len(theirs))[:20]
    request = left.make_request("read", local, remote, torch.arange(20), picked.to(torch.int32))
    request.post()
    request.wait(30)
    assert torch.equal(here[:20], theirs[picked]) and not here[20:].any()

    # A tensor may also be a table of pages, or one page of a list.
    table = torch.tensor([[there.id, i * row, row] for i in range(len(theirs))])
    left.read(right.name, list(here.detach()), table, timeout=30)
    assert torch.equal(here, theirs)
