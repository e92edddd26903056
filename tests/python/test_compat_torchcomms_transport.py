# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.torchcomms._transport: what torchcomms' tests of RdmaTransport show, over host memory, in
one process and in two; and the bad input that it refuses."""

import gc
import importlib.util
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from datetime import timedelta

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import torchcomms_transport_peer as far
from conftest import until
from headrace._torch import shared_fabric
from headrace.compat.torchcomms import _transport
from headrace.compat.torchcomms._transport import (
    CommResult,
    RdmaMemory,
    RdmaMemoryMutableView,
    RdmaMemoryView,
    RdmaRemoteBuffer,
    RdmaTransport,
)

CPU = torch.device("cpu")
SECONDS = 60  # longer than any step: a call that needs it has failed


def connected(device=CPU, other=CPU):
    """Two transports of this process."""
    server, client = RdmaTransport(device), RdmaTransport(other)
    assert server.connect(client.bind()) == client.connect(server.bind()) == 0
    assert server.connected() and client.connected()
    return server, client


def numbers(device=CPU):
    return torch.arange(1024).to(torch.uint8).to(device)


class Peer:
    """A transport in another process, and one here that is connected to it."""

    SEED = 7

    def __init__(self):
        context = multiprocessing.get_context("fork")  # torch is loaded already, and no fabric is open yet
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=far.serve, args=(theirs, self.SEED), daemon=True)
        self.process.start()
        theirs.close()
        url, self.transport = self.answer(), RdmaTransport(CPU)
        self.pipe.send(self.transport.bind())
        assert self.transport.connect(url) == 0
        self.remote = self.answer()

    def answer(self):
        assert self.pipe.poll(SECONDS), "the other process says nothing"
        return self.pipe.recv()

    def ask(self, *asked):
        self.pipe.send(asked if len(asked) > 1 else asked[0])
        return self.answer()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(SECONDS)


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    if peer.process.is_alive():
        peer.pipe.send(None)
        peer.process.join(SECONDS)
        assert peer.process.exitcode == 0


# --- torchcomms' tests of its Python package


def test_it_is_supported_without_an_rdma_device():
    assert all(RdmaTransport.supported() for _ in range(3))


def test_memory_is_made_of_a_tensor():
    tensor = numbers()
    memory, other = RdmaMemory(tensor), RdmaMemory(torch.zeros_like(tensor))
    assert memory.to_view().size() == tensor.nbytes == other.to_view().size()
    assert memory.reused_registration() is False


def test_two_transports_bind_and_connect():
    server, client = RdmaTransport(CPU), RdmaTransport(CPU)
    assert not server.connected()
    assert server.bind() != client.bind() and isinstance(server.bind(), bytes)
    assert server.connect(client.bind()) == CommResult.SUCCESS


def moves(device, other, operation):
    server, client = connected(device, other)
    source, target = numbers(device), torch.zeros(1024, dtype=torch.uint8, device=other)
    source_memory, target_memory = RdmaMemory(source), RdmaMemory(target)
    if operation == "write":
        assert server.write(source_memory.to_view(), target_memory.to_remote_buffer()) == 0
    else:
        assert client.read(target_memory.to_mutable_view(), source_memory.to_remote_buffer()) == 0
    assert torch.equal(source.cpu(), target.cpu())


@pytest.mark.parametrize("operation", ["write", "read"])
def test_bytes_move_between_tensors_of_the_cpu(operation):
    moves(CPU, CPU, operation)


@pytest.mark.gpu1
@pytest.mark.parametrize("operation", ["write", "read"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("other", ["cpu", "cuda:0"])
def test_bytes_move_with_tensors_on_a_gpu(device, other, operation):
    moves(torch.device(device), torch.device(other), operation)


@pytest.mark.gpu2
@pytest.mark.parametrize("operation", ["write", "read"])
def test_bytes_move_between_two_gpus(operation):
    moves(torch.device("cuda:0"), torch.device("cuda:1"), operation)


@pytest.mark.parametrize("protocol", [0, 1, pickle.HIGHEST_PROTOCOL])
def test_a_remote_buffer_is_pickled(protocol):
    server, _client = connected()
    source, target = RdmaMemory(numbers()), torch.zeros(1024, dtype=torch.uint8)
    memory = RdmaMemory(target)
    remote = pickle.loads(pickle.dumps(memory.to_remote_buffer(), protocol))
    assert remote.__getstate__() == memory.to_remote_buffer().__getstate__()
    assert server.write(source.to_view(), remote) == 0 and torch.equal(target, numbers())


def test_views_have_offset_and_length():
    memory = RdmaMemory(numbers())
    for view in (memory.to_view, memory.to_mutable_view):
        sizes = (
            view(),
            view(offset=256),
            view(length=512),
            view(offset=256, length=512),
            view(1024),
            view(0, 0),
        )
        assert [each.size() for each in sizes] == [1024, 768, 512, 512, 0, 0]
    assert type(memory.to_view()) is RdmaMemoryView
    assert type(memory.to_mutable_view()) is RdmaMemoryMutableView


def test_a_part_is_written():
    server, _client = connected()
    source, target = numbers(), torch.zeros(1024, dtype=torch.uint8)
    source_memory, target_memory = RdmaMemory(source), RdmaMemory(target)
    assert server.write(source_memory.to_view(256, 512), target_memory.to_remote_buffer()) == 0
    assert torch.equal(target[:512], source[256:768]) and not target[512:].any()


def test_a_part_is_read():
    _server, client = connected()
    source, target = numbers(), torch.zeros(1024, dtype=torch.uint8)
    source_memory, target_memory = RdmaMemory(source), RdmaMemory(target)
    assert client.read(target_memory.to_mutable_view(256, 512), source_memory.to_remote_buffer()) == 0
    assert torch.equal(target[256:768], source[:512])
    assert not target[:256].any() and not target[768:].any()


# --- what its C++ class has besides: notify, timeout, a buffer that begins later, no bytes


def test_each_write_that_notifies_ends_one_wait():
    server, client = connected()
    source, target = RdmaMemory(numbers()), torch.zeros(1024, dtype=torch.uint8)
    remote = RdmaMemory(target)
    assert client.wait_for_write(timeout=0) == CommResult.TIMEOUT and client.last_error
    for notify in (True, False, True):  # a write without is not counted
        assert server.write(source.to_view(), remote.to_remote_buffer(), notify) == 0
    assert client.wait_for_write(SECONDS) == client.wait_for_write(timedelta(seconds=SECONDS)) == 0
    assert torch.equal(target, numbers())
    assert client.wait_for_write(timedelta(0)) == CommResult.TIMEOUT
    assert server.wait_for_write(0) == CommResult.TIMEOUT  # it is for the peer


def test_a_remote_buffer_may_begin_inside_the_memory():
    server, _client = connected()
    target = torch.zeros(1024, dtype=torch.uint8)
    memory, source = RdmaMemory(target), RdmaMemory(numbers())
    whole = memory.to_remote_buffer()
    later = RdmaRemoteBuffer(whole.ptr + 1000, 24, whole.access_key)
    assert server.write(source.to_view(0, 24), later) == 0
    assert torch.equal(target[1000:], numbers()[:24]) and not target[:1000].any()
    with pytest.raises(
        ValueError, match="bytes 1020 to 1044 are outside of the peer's memory, which has 1024"
    ):
        server.write(source.to_view(0, 24), RdmaRemoteBuffer(whole.ptr + 1020, 24, whole.access_key))
    assert server.write(source.to_view(5, 0), whole, notify=True) == 0


# --- two processes


def test_two_processes_write_read_and_notify(peer):
    theirs = far.pattern(Peer.SEED)
    mine = torch.zeros_like(theirs)
    memory = RdmaMemory(mine)
    assert peer.ask("write", memory.to_remote_buffer(), True) == 0
    assert peer.transport.wait_for_write(SECONDS) == 0 and torch.equal(mine, theirs)
    mine.zero_()
    assert peer.transport.read(memory.to_mutable_view(), peer.remote) == 0 and torch.equal(mine, theirs)
    mine.copy_(far.pattern(8))
    assert peer.transport.write(memory.to_view(), peer.remote, notify=True, timeout=SECONDS) == 0
    assert peer.ask("wait", SECONDS) == 0
    assert peer.ask("bytes") == bytes(mine.numpy())


def test_a_peer_that_is_killed_ends_the_calls(peer, caplog):
    results, memory = [], RdmaMemory(far.pattern(1))
    waits = threading.Thread(target=lambda: results.append(peer.transport.wait_for_write()))
    with caplog.at_level(logging.INFO):
        waits.start()
        peer.kill()
        waits.join(SECONDS)
    assert results == [CommResult.INTERNAL_ERROR]
    assert "the peer has ended" in peer.transport.last_error and "a transport is broken" in caplog.text
    assert peer.transport.write(memory.to_view(), peer.remote) == CommResult.INTERNAL_ERROR
    assert peer.transport.read(memory.to_mutable_view(), peer.remote) == CommResult.INTERNAL_ERROR
    assert peer.transport.connected()  # as there


def test_a_peer_that_is_stopped_is_a_timeout_and_goes_on(peer):
    mine = RdmaMemory(far.pattern(1))
    os.kill(peer.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)  # a signal takes a moment
    # The write returns when its memory is quiet: the peer has to say so, before its link is given up.
    goes_on = threading.Timer(1, os.kill, [peer.process.pid, signal.SIGCONT])
    goes_on.start()
    assert peer.transport.write(mine.to_view(), peer.remote, timeout=0.05) == CommResult.TIMEOUT
    goes_on.join()
    assert peer.transport.write(mine.to_view(), peer.remote, timeout=SECONDS) == 0


def test_memory_that_its_owner_has_closed_breaks_the_transport(peer):
    mine = RdmaMemory(far.pattern(1))
    assert peer.ask("drop") == 0
    assert peer.transport.write(mine.to_view(), peer.remote) == CommResult.INTERNAL_ERROR
    assert "no such memory" in peer.transport.last_error


# --- lives


def test_the_end_of_a_transport_ends_nothing_else():
    server, client = connected()
    other, _its_peer = connected()
    source, target = RdmaMemory(numbers()), RdmaMemory(torch.zeros(1024, dtype=torch.uint8))
    del server
    assert other.write(source.to_view(), target.to_remote_buffer()) == 0
    assert client.write(source.to_view(), target.to_remote_buffer()) == 0


def test_the_fabric_ends_with_the_last_memory_and_transport():
    shared = shared_fabric.shared_fabric()
    fabric, scopes = shared.fabric, connected()
    memory = RdmaMemory(numbers())
    del shared, scopes
    gc.collect()
    assert not fabric.closed
    view = memory.to_view()
    del memory
    gc.collect()
    assert not fabric.closed  # a view keeps its memory
    del view
    gc.collect()
    until(lambda: fabric.closed)


# --- bad input: a sentence each


def test_what_is_not_connected_says_so():
    transport, memory = RdmaTransport(CPU), RdmaMemory(numbers())
    for call in (
        transport.wait_for_write,
        lambda: transport.write(memory.to_view(), memory.to_remote_buffer()),
        lambda: transport.read(memory.to_mutable_view(), memory.to_remote_buffer()),
    ):
        with pytest.raises(RuntimeError, match="call connect with the URL of the peer first"):
            call()


def test_bad_urls_and_keys_are_refused():
    transport, client = connected()
    memory = RdmaMemory(numbers())
    for url in (b"", b"abc", client.bind()[:-1], client.bind()[:30]):
        with pytest.raises(ValueError, match="the peer's URL is none of Headrace"):
            RdmaTransport(CPU).connect(url)
    with pytest.raises(RuntimeError, match="connected already"):
        transport.connect(client.bind())
    good = memory.to_remote_buffer()
    for key in ("", "1:2", "::", good.access_key[:-2], "x" + good.access_key):
        with pytest.raises(ValueError, match="the access key names no memory of Headrace"):
            transport.write(memory.to_view(), RdmaRemoteBuffer(good.ptr, good.len, key))
    of_another = RdmaRemoteBuffer(good.ptr, good.len, "00" * 8 + good.access_key[16:])
    with pytest.raises(ValueError, match="the remote buffer is not of the peer"):
        transport.write(memory.to_view(), of_another)


def test_bad_views_are_refused():
    transport, _client = connected()
    memory = RdmaMemory(numbers())
    for offset, length in ((1025, None), (0, 1025), (1, 1024), (-1, None), (0, -1), (5, -2)):
        with pytest.raises(ValueError, match="are outside of the memory, which has 1024 bytes"):
            memory.to_view(offset, length)
    short = RdmaMemory(torch.zeros(1000, dtype=torch.uint8)).to_remote_buffer()
    with pytest.raises(RuntimeError, match="the view has 1024 bytes, and the remote buffer only 1000"):
        transport.write(memory.to_view(), short)
    with pytest.raises(TypeError, match="may be written to"):
        transport.read(memory.to_view(), memory.to_remote_buffer())
    with pytest.raises(TypeError, match="give a view"):
        transport.write(memory, memory.to_remote_buffer())
    with pytest.raises(TypeError, match="to_remote_buffer"):
        transport.write(memory.to_view(), memory)


def test_bad_tensors_and_devices_are_refused():
    with pytest.raises(ValueError, match="not contiguous"):
        RdmaMemory(torch.zeros(4, 4).t())
    with pytest.raises(ValueError, match="empty"):
        RdmaMemory(torch.zeros(0))
    with pytest.raises(TypeError, match="not from bytearray"):
        RdmaMemory(bytearray(8))
    with pytest.raises(ValueError, match="on cpu or cuda"):
        RdmaMemory(torch.zeros(4, device="meta"))
    with pytest.raises(ValueError, match="has no number"):
        RdmaTransport(torch.device("cuda"))
    with pytest.raises(ValueError, match="no use for meta"):
        RdmaTransport(torch.device("meta"))


def test_a_forked_child_opens_its_own_fabric():
    transport, memory = RdmaTransport(CPU), RdmaMemory(numbers())
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            mine, _other = connected()
            target = RdmaMemory(torch.zeros(1024, dtype=torch.uint8))
            failed = mine.write(RdmaMemory(numbers()).to_view(), target.to_remote_buffer())
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert transport.bind() and memory.to_view().size() == 1024


def test_hooks_of_the_allocator_are_taken():
    assert _transport.attach_rdma_memory_hook(None, None) is None
