# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The transport "headrace" of torch.distributed._transport, which torch has from 2.15 on: what its contract
says, in one process and in two, over host memory."""

import asyncio
import importlib.util
import multiprocessing
import os
import signal
import threading
from datetime import timedelta

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

if importlib.util.find_spec("torch.distributed._transport") is None:
    pytest.skip("torch.distributed._transport comes with torch 2.15", allow_module_level=True)

from torch.distributed._transport import (
    Memory,
    MemoryView,
    MutableMemoryView,
    RemoteBuffer,
    Transport,
    available_transports,
    new_transport,
    new_transport_rank,
    wait_all,
)

from headrace._torch.transport import HeadraceRemoteBuffer, HeadraceTransport

SECONDS = 60
BYTES = 1 << 16


def pattern(seed):
    return torch.randint(0, 256, (BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def two():
    """Two transports of this process that are connected."""
    with new_transport("headrace", "cpu") as left, new_transport("headrace") as right:
        assert left.connect(right.bind()) == right.connect(left.bind()) == 0
        assert left.connected() and right.connected()
        yield left, right


def sent(buffer):
    """A remote buffer as the peer gets it."""
    return HeadraceRemoteBuffer.deserialize(buffer.serialize())


def test_torch_finds_it_by_its_entry_point():
    assert "headrace" in available_transports()
    with new_transport("Headrace", timeout=5.0) as transport:
        assert isinstance(transport, HeadraceTransport) and isinstance(transport, Transport)
    with pytest.raises(RuntimeError, match="failed to create transport"):
        new_transport("headrace", "meta")


def test_its_parts_are_those_of_torchs_protocols(two):
    memory = two[0].register_memory(torch.zeros(4))
    assert isinstance(memory, Memory) and isinstance(memory.to_remote_buffer(), RemoteBuffer)
    assert isinstance(memory.to_view(), MemoryView) and not isinstance(memory.to_view(), MutableMemoryView)
    assert isinstance(memory.to_mutable_view(), MutableMemoryView)


def test_bytes_move_both_ways(two):
    left, right = two
    source, target = torch.arange(8, dtype=torch.float32), torch.zeros(8)
    here, there = left.register_memory(source), right.register_memory(target)
    assert left.write(here.to_view(), sent(there.to_remote_buffer())) == 0 and torch.equal(source, target)
    source.zero_()
    assert left.read(here.to_mutable_view(8, 16), there.to_remote_buffer()) == 0
    assert source.tolist() == [0, 0, 0, 1, 2, 3, 0, 0]
    assert left.write(here.to_view(0, 0), there.to_remote_buffer()) == 0


def test_a_work_is_waited_for_and_has_a_future(two):
    left, right = two
    source, target = pattern(1), torch.zeros(BYTES, dtype=torch.uint8)
    here, there = left.register_memory(source), right.register_memory(target)
    work = left.write(here.to_view(), there.to_remote_buffer(), async_op=True)
    assert isinstance(work, dist.Work) and work.wait() and work.wait(timedelta(seconds=1))
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.get_future().wait() == [] and work.result() == [] and torch.equal(source, target)


def test_asyncio_waits_without_blocking(two):
    left, right = two
    source, target = pattern(2), torch.zeros(BYTES, dtype=torch.uint8)
    here, there = left.register_memory(source), right.register_memory(target)

    async def run():
        await left.write_async(here.to_view(), there.to_remote_buffer(), timeout=SECONDS)
        source.zero_()
        await left.read_async(here.to_mutable_view(), there.to_remote_buffer())
        works = [left.write(here.to_view(), there.to_remote_buffer(), async_op=True) for _ in range(9)]
        await wait_all(works, timeout=SECONDS)
        await left.close_async(timeout=SECONDS)

    asyncio.run(run())
    assert torch.equal(source, pattern(2)) and torch.equal(source, target) and not left.connected()


def test_memory_is_registered_once_and_ends_for_all_handles(two):
    left, right = two
    here = left.register_memory(torch.zeros(16, dtype=torch.uint8))
    tensor = torch.zeros(16, dtype=torch.uint8)
    there, again = right.register_memory(tensor), right.register_memory(tensor)
    assert there.to_remote_buffer() == again.to_remote_buffer()
    remote = there.to_remote_buffer()
    right.unregister_memory(again)
    right.unregister_memory(again)
    with pytest.raises(RuntimeError, match="the memory was unregistered"):
        there.to_view()
    with pytest.raises(RuntimeError, match="no such memory"):
        left.write(here.to_view(), remote)
    work = left.write(here.to_view(), remote, async_op=True)
    with pytest.raises(RuntimeError, match="no such memory"):
        work.wait()
    assert work.is_completed() and not work.is_success() and "no such memory" in str(work.exception())
    with pytest.raises(RuntimeError, match="no such memory"):
        work.get_future().wait()
    fresh = right.register_memory(tensor)
    assert left.write(here.to_view(), fresh.to_remote_buffer()) == 0


# --- two processes


def serve(pipe):
    transport = new_transport("headrace", "cpu")
    pipe.send(transport.bind())
    transport.connect(pipe.recv())
    tensor = pattern(7)
    memory = transport.register_memory(tensor)
    pipe.send(memory.to_remote_buffer().serialize())
    assert pipe.recv() == "bytes"
    pipe.send(bytes(tensor.numpy()))
    pipe.recv()
    transport.close()


class Peer:
    def __init__(self):
        context = multiprocessing.get_context("fork")  # torch is loaded already, and no fabric is open yet
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.transport = new_transport("headrace", "cpu")
        self.pipe.send(self.transport.bind())
        self.transport.connect(self.answer())
        self.remote = HeadraceRemoteBuffer.deserialize(self.answer())

    def answer(self):
        assert self.pipe.poll(SECONDS), "the other process says nothing"
        return self.pipe.recv()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.process.kill()
    peer.process.join(SECONDS)


def test_two_processes_read_and_write(peer):
    tensor = torch.zeros(BYTES, dtype=torch.uint8)
    memory = peer.transport.register_memory(tensor)
    assert peer.transport.read(memory.to_mutable_view(), peer.remote) == 0 and torch.equal(tensor, pattern(7))
    tensor.copy_(pattern(8))
    assert peer.transport.write(memory.to_view(), peer.remote, timeout=SECONDS) == 0
    peer.pipe.send("bytes")
    assert peer.answer() == bytes(tensor.numpy())
    peer.transport.close()


def test_a_peer_that_is_stopped_is_a_timeout(peer):
    memory = peer.transport.register_memory(pattern(1))
    os.kill(peer.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)  # a signal takes a moment
    work = peer.transport.write(memory.to_view(), peer.remote, async_op=True)
    with pytest.raises(TimeoutError, match="goes on"):
        work.wait(timedelta(milliseconds=20))
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="transfers use the memory"):
        peer.transport.unregister_memory(memory)
    with pytest.raises(TimeoutError):
        peer.transport.close(timeout=0.02)
    with pytest.raises(RuntimeError, match="closed"):
        peer.transport.register_memory(torch.zeros(4))
    os.kill(peer.process.pid, signal.SIGCONT)
    try:
        peer.transport.close(timeout=SECONDS)
    except RuntimeError as error:  # the canceled transfer; it may also have ended before
        assert "cancel" in str(error)
    assert work.is_completed()


def test_a_peer_that_is_killed_is_an_error(peer):
    memory = peer.transport.register_memory(pattern(1))
    peer.process.kill()
    peer.process.join(SECONDS)
    with pytest.raises(RuntimeError, match="no rail to"):
        peer.transport.write(memory.to_view(), peer.remote, timeout=SECONDS)
    peer.transport.close()


# --- rendezvous by a Store


def test_ranks_meet_in_a_store():
    store = dist.HashStore()
    results = {}

    def run(rank):
        with new_transport_rank("headrace", "cpu", store=store, peer_rank=1 - rank, rank=rank) as transport:
            tensor = torch.full((4,), float(rank))
            memory = transport.register_memory(tensor)
            store.set(f"buffer/{rank}", memory.to_remote_buffer().serialize())
            theirs = HeadraceRemoteBuffer.deserialize(store.get(f"buffer/{1 - rank}"))
            landing = torch.zeros(4)
            transport.read(transport.register_memory(landing).to_mutable_view(), theirs)
            results[rank] = landing.tolist()
            store.set(f"done/{rank}", b"1")
            store.wait([f"done/{1 - rank}"], timedelta(seconds=SECONDS))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert results == {0: [1.0] * 4, 1: [0.0] * 4}


# --- bad input: a sentence each


def test_bad_input_is_refused(two):
    left, right = two
    here, there = left.register_memory(torch.zeros(4)), right.register_memory(torch.zeros(2))
    remote = there.to_remote_buffer()
    for call, kind, words in (
        (lambda: left.write(here.to_view(), remote), ValueError, "16 bytes, and the remote buffer only 8"),
        (lambda: left.write(here.to_view(0, 4), here.to_remote_buffer()), ValueError, "not of the peer"),
        (lambda: left.write(there.to_view(), remote), TypeError, "of this transport"),
        (lambda: left.read(here.to_view(0, 4), remote), TypeError, "HeadraceMutableMemoryView"),
        (lambda: left.write(here.to_view(0, 4), b"x"), TypeError, "no HeadraceRemoteBuffer"),
        (lambda: left.write(here.to_view(0, 4), remote, timeout=-1), ValueError, "timeout is -1"),
        (lambda: here.to_view(8, 9), ValueError, "bytes 8 to 17 are outside of the memory, which has 16"),
        (lambda: left.connect(right.bind()), RuntimeError, "connected already"),
        (lambda: left.register_memory(torch.zeros(4, 4).t()), ValueError, "not contiguous"),
        (lambda: left.register_memory(torch.zeros(0)), ValueError, "empty"),
        (lambda: left.register_memory([1]), TypeError, "not from list"),
        (lambda: left.unregister_memory(there), TypeError, "not registered by this transport"),
        (lambda: left.bind(timeout=float("inf")), ValueError, "timeout is inf"),
    ):
        with pytest.raises(kind, match=words):
            call()
    data = remote.serialize()
    for length in range(len(data)):
        with pytest.raises(ValueError):
            HeadraceRemoteBuffer.deserialize(data[:length])
    with pytest.raises(TypeError, match="is bytes, not str"):
        HeadraceRemoteBuffer.deserialize("x")
    alone = new_transport("headrace")
    with pytest.raises(RuntimeError, match="not connected"):
        alone.write(alone.register_memory(torch.zeros(4)).to_view(), remote)
    with pytest.raises(ValueError, match="none of Headrace"):
        alone.connect(b"abc")
    alone.close()
    alone.close()


def test_a_tensor_that_was_resized_is_refused(two):
    left, right = two
    tensor = torch.zeros(16)
    here, there = left.register_memory(tensor), right.register_memory(torch.zeros(64))
    view = here.to_view()
    tensor.resize_(64)
    with pytest.raises(RuntimeError, match="was resized"):
        left.write(view, there.to_remote_buffer())
