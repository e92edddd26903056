# SPDX-License-Identifier: Apache-2.0
"""The form in which NIXL's descriptors name files and objects, and files under NIXL's names. The sequence
`storage` compares both with NIXL."""

import fcntl
import os
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import unique, until
from headrace.compat.nixl import _bindings as bind
from headrace.compat.nixl import nixl_agent, nixl_agent_config
from headrace.compat.nixl._plugins import PLUGINS, available, carried
from headrace.compat.nixl._storage import asked_about, named_in, registered


def address(memory):
    return memory.ctypes.data


def descriptors():
    return sorted(
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    )


@pytest.fixture
def tier():
    """An agent with the backend POSIX and 64 KiB of registered memory."""
    agent = nixl_agent(unique("tier"), nixl_agent_config(backends=["POSIX"]))
    memory = np.random.default_rng(1).integers(0, 256, 1 << 16, dtype=np.uint8)
    agent.register_memory([(address(memory), memory.nbytes, 0, "")], "DRAM")
    return agent, memory


@pytest.fixture
def kv(tmp_path):
    path = tmp_path / "kv"
    path.write_bytes(np.random.default_rng(2).bytes(1 << 16))
    return path


def move(agent, op, memory, device, offset=0, size=None):
    source = agent.get_xfer_descs([(address(memory), size or memory.nbytes, 0)], "DRAM")
    handle = agent.initialize_xfer(
        op, source, agent.get_xfer_descs([(offset, size or memory.nbytes, device)], "FILE"), agent.name
    )
    agent.transfer(handle)
    until(lambda: agent.check_xfer_state(handle) == "DONE")


# Names


@pytest.mark.parametrize("said, path, how", [
    ("ro:/a/b", "/a/b", os.O_RDONLY), ("rw,create:b:c", "b:c", os.O_RDWR | os.O_CREAT),
    ("rw,direct,sync,noatime:/x", "/x", os.O_RDWR | os.O_DIRECT | os.O_SYNC | os.O_NOATIME),
    ("", "", 0), ("/a/b", "", 0), ("wo:/a", "", 0), ("rw,nosuch:/a", "", 0), ("ro:", "", 0), ("ro", "", 0),
    (":/a", "", 0),
])  # fmt: skip
def test_the_modes_of_opening_stand_before_the_path(said, path, how):
    assert named_in(said) == (path, how)


def test_a_file_named_by_path_is_opened_with_its_modes_until_it_is_registered(kv):
    before = descriptors()
    with registered(
        "file", [(100, 50, 7, f"rw,sync:{kv}".encode()), (0, 0, 8, f"ro:{kv}".encode())]
    ) as ranges:
        writable, readable = (fcntl.fcntl(range.file_descriptor, fcntl.F_GETFL) for range in ranges)
        assert (
            writable & os.O_ACCMODE == os.O_RDWR
            and writable & os.O_SYNC == os.O_SYNC
            and readable & os.O_ACCMODE == os.O_RDONLY
        )
        assert [range.length_bytes for range in ranges] == [150, 0]
    assert descriptors() == before
    with (
        pytest.raises(bind.nixlBackendError, match="No such file"),
        registered("file", [(0, 0, 7, f"ro:{kv}".encode()), (0, 0, 8, b"ro:/no/such")]),
    ):
        pass
    assert descriptors() == before


def test_a_file_without_a_path_is_an_open_descriptor(kv):
    with registered("file", [(0, 9, 7, b"whatever")]) as (range,):
        assert (range.path, range.file_descriptor, range.length_bytes) == ("", 7, 9)
    with (
        pytest.raises(
            bind.nixlBackendError, match="is not a file descriptor, and 'wo:x' does not name a path"
        ),
        registered("file", [(0, 0, 1 << 40, b"wo:x")]),
    ):
        pass


def test_objects_are_named_by_key_else_by_number():
    with registered("object", [(0, 0, 7, b"key"), (0, 0, 7, b"")]) as ranges:
        assert [range.path for range in ranges] == ["key", "7"]
    assert [asked_about("object", 7, said).path for said in (b"key", b"")] == ["key", "7"]


def test_files_are_queried_by_path():
    assert [asked_about("file", 0, said).path for said in (b"/a", b"ro:/a", b"")] == ["/a", "/a", ""]


# Backends of Headrace behind each name


def opened(name, *kinds, remote=False):
    return SimpleNamespace(name=name, kinds=list(kinds), remote=remote)


def test_a_storage_name_becomes_the_backends_that_carry_both_of_its_sides():
    posix, shm = opened("posix", "dram", "file"), opened("shm", "dram", remote=True)
    assert {"POSIX", "HF3FS", "UCX"} <= set(available([posix, shm]))
    assert not {"GDS", "GDS_MT", "OBJ", "GUSLI"} & set(available([posix, shm]))
    assert "POSIX" not in available([shm, opened("files", "file")])
    found = carried("POSIX", [posix, shm])
    assert found.backends() == ["posix"] and found.segments() == ["DRAM_SEG", "FILE_SEG"] and not found.remote
    assert carried("GDS", [posix, opened("gds", "vram", "file")]).backends() == ["gds"]


def test_a_network_name_never_becomes_a_backend_of_files():
    posix, shm = opened("posix", "dram", "file"), opened("shm", "dram", remote=True)
    assert carried("UCX", [posix, shm]).backends() == ["shm"] and carried("UCX", [posix, shm]).remote
    assert carried("UCX", [posix]) is None
    assert all(carried(name, [posix]) is None for name in PLUGINS if name not in ("POSIX", "HF3FS"))


# Files under NIXL's names


def test_pages_of_a_file_are_read_and_written_by_prepared_lists(tier, kv):
    agent, memory = tier
    descriptor = os.open(kv, os.O_RDWR)
    agent.register_memory([(0, 0, descriptor, "")], "FILE")
    os.close(descriptor)  # the number still names the file
    pages = 1 << 12
    at = np.arange(pages, dtype=np.uint64) * np.uint64(16)
    here = np.stack(
        [at + np.uint64(address(memory)), np.full(pages, 16, np.uint64), np.zeros(pages, np.uint64)], axis=1
    )
    there = np.stack([at, np.full(pages, 16, np.uint64), np.full(pages, descriptor, np.uint64)], axis=1)
    local, own = agent.prep_xfer_dlist("", here, "DRAM"), agent.prep_xfer_dlist(agent.name, there, "FILE")
    order = np.random.default_rng(3).permutation(pages)
    before, written = np.fromfile(kv, np.uint8).reshape(-1, 16), memory.copy().reshape(-1, 16)
    write = agent.make_prepped_xfer("WRITE", local, np.arange(pages), own, order)
    agent.transfer(write)
    until(lambda: agent.check_xfer_state(write) == "DONE")
    after = np.fromfile(kv, np.uint8).reshape(-1, 16)
    assert (after[order] == written).all() and not (after == before).all()
    memory[:] = 0
    read = agent.make_prepped_xfer("READ", local, order, own, order)
    agent.transfer(read)
    until(lambda: agent.check_xfer_state(read) == "DONE")
    assert (memory.reshape(-1, 16) == after).all()


def test_memory_registered_with_both_names_moves_to_files_and_to_peers(tier, kv):
    _agent, _memory = tier
    both = nixl_agent(unique("both"), nixl_agent_config(backends=["UCX", "POSIX"]))
    peer = nixl_agent(unique("peer"), nixl_agent_config(backends=["UCX"]))
    pool, there = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
    both.register_memory([(address(pool), 4096, 0, "")], "DRAM")
    both.register_memory([(0, 0, 1000, f"ro:{kv}")], "FILE")
    peer.register_memory([(address(there), 4096, 0, "")], "DRAM")
    move(both, "READ", pool, 1000, 4096)
    both.add_remote_agent(peer.get_agent_metadata())
    source, target = ([(address(memory), 4096, 0)] for memory in (pool, there))
    write = both.initialize_xfer(
        "WRITE", both.get_xfer_descs(source, "DRAM"), both.get_xfer_descs(target, "DRAM"), peer.name
    )
    both.transfer(write)
    until(lambda: both.check_xfer_state(write) == "DONE")
    assert both.query_xfer_backend(write) == "UCX"
    assert there.tobytes() == kv.read_bytes()[4096:8192]


def test_a_failed_move_or_registration_names_the_file_and_the_reason(tier, kv):
    agent, memory = tier
    agent.register_memory([(0, 0, 1, f"ro:{kv}")], "FILE")
    with pytest.raises(
        bind.nixlBackendError, match=f"read 100 bytes at offset 65500 of file {kv}.*which has 65536 bytes"
    ):
        move(agent, "READ", memory, 1, 65500, 100)
    with pytest.raises(bind.nixlBackendError, match=f"file {kv}.*is open for reading only"):
        move(agent, "WRITE", memory, 1, 0, 100)
    for said, why in (
        (f"ro:{kv.parent}", "is a directory: name a file in it"),
        (f"rw:{kv}x", "No such file"),
        ("ro:/dev/null", "not a regular file"),
    ):
        with pytest.raises(bind.nixlBackendError, match=why):
            agent.register_memory([(0, 0, 2, said)], "FILE")
    with pytest.raises(bind.nixlBackendError, match="descriptor 9999 is not open"):
        agent.register_memory([(0, 0, 9999, "")], "FILE")
    with pytest.raises(bind.nixlBackendError, match="device 1 already stands for a file"):
        agent.register_memory([(0, 0, 1, f"ro:{kv}")], "FILE")


def test_a_path_may_have_any_bytes(tier, tmp_path):
    agent, memory = tier
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    descs = agent.get_reg_descs([(0, 0, 1, b"rw,create:" + path)], "FILE")
    agent.register_memory(descs)
    move(agent, "WRITE", memory, 1)
    with open(path, "rb") as file:
        assert file.read() == memory.tobytes()


def test_no_descriptor_is_left_behind(tier, kv):
    agent, memory = tier
    descs = agent.register_memory([(0, 0, 1, f"ro:{kv}")], "FILE")
    move(agent, "READ", memory, 1)
    agent.deregister_memory(descs)
    before = descriptors()
    for _ in range(3):
        descs = agent.register_memory([(0, 0, 1, f"rw:{kv}")], "FILE")
        move(agent, "WRITE", memory, 1)
        agent.deregister_memory(descs)
    assert descriptors() == before
    assert kv.read_bytes() == memory.tobytes()


def test_an_agent_with_files_only_has_no_metadata_to_export(tier):
    with pytest.raises(bind.nixlInvalidParamError, match="create one first"):
        tier[0].get_agent_metadata()
