# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.pplx.fabric_lib.TransferEngine: what pplx-garden's tests of its fabric show, in host
memory, and the bad input that it refuses."""

import collections
import copy
import ctypes
import gc
import importlib.util
import multiprocessing
import os
import pickle
import threading
import weakref

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
import pplx_peer
from conftest import until
from headrace.compat.pplx.fabric_lib import (
    DomainAddress,
    DomainInfo,
    MemoryRegionDescriptor,
    PageIndices,
    TransferEngine,
)
from pplx_peer import Alone, Paged, Single

SEED = 0xABCD
IMMEDIATE = 0xDEADBEEF


class Peer:
    """An engine in another process."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=pplx_peer.serve, args=(theirs, SEED), daemon=True)
        self.process.start()
        theirs.close()
        self.address = self._answer()

    def _answer(self):
        assert self.pipe.poll(100), "the other process says nothing"
        return self.pipe.recv()

    def ask(self, asked):
        """Returns when its post has ended."""
        self.pipe.send(asked)
        answer = self._answer()
        assert answer is None, answer

    def close(self):
        self.pipe.send(None)
        self.process.join(60)
        assert self.process.exitcode == 0


@pytest.fixture(scope="module")
def runtime_folder(tmp_path_factory):
    """One for all tests of this file, so that the peer, which outlives a test, is found."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_RUNTIME_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def peer(runtime_folder):
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def engine(runtime_folder, monkeypatch):
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(runtime_folder))
    engine = pplx_peer.new_engine()
    yield engine
    engine.stop()


@pytest.fixture
def memory(engine):
    """A tensor of zeros, and its descriptor."""
    tensor = torch.zeros(pplx_peer.BYTES, dtype=torch.uint8)
    _, descriptor = engine.register_tensor(tensor)
    return tensor, descriptor


@pytest.fixture
def counts(engine):
    """How often each immediate has come that no counter takes."""
    counts = collections.Counter()
    engine.set_imm_callback(lambda immediate: counts.update([immediate]))
    return counts


def bytes_at(tensor, *ranges):
    """A tensor of zeros but for these ranges, which are as the peer's."""
    expected = torch.zeros_like(tensor)
    theirs = torch.frombuffer(bytearray(pplx_peer.contents(SEED)), dtype=torch.uint8)
    for begin, length in ranges:
        expected[begin : begin + length] = theirs[begin : begin + length]
    return expected


# --- pplx-garden's nine tests: types, handle, paged write, single write, immediate, watcher, CPU tensor, end
# of the memory, counted immediates


def test_an_address_is_a_key(engine):
    address = engine.main_address
    assert DomainAddress.from_str(str(address)) == address == pickle.loads(pickle.dumps(address))
    assert len({address, DomainAddress.from_bytes(address.as_bytes())}) == 1


def test_a_descriptor_is_pickled(memory):
    _, descriptor = memory
    for other in (
        pickle.loads(pickle.dumps(descriptor)),
        MemoryRegionDescriptor(descriptor.as_bytes()),
        copy.deepcopy(descriptor),
    ):
        assert other.as_bytes() == descriptor.as_bytes() and other.debug_str() == descriptor.debug_str()
    assert "writable" in descriptor.debug_str()


def test_a_paged_write(peer, memory):
    tensor, descriptor = memory
    indices, stride, offset, length = [5, 900, 0, 77], 128 + 128, 1024, 128
    peer.ask(Paged(descriptor, indices, length, stride, offset))
    assert torch.equal(tensor, bytes_at(tensor, *((offset + i * stride, length) for i in indices)))


def test_a_single_write(peer, memory):
    tensor, descriptor = memory
    peer.ask(Single(descriptor, 1024, 1000))
    assert torch.equal(tensor, bytes_at(tensor, (1024, 1000)))


def test_an_immediate_alone(peer, memory, counts):
    peer.ask(Alone(memory[1], IMMEDIATE))
    until(lambda: counts)
    assert counts == {IMMEDIATE: 1}


def test_a_watcher_is_told_of_each_number_until_it_declines(engine):
    told = []

    def changed(old, new):
        told.append((old, new))
        return new < 3

    watcher = engine.alloc_scalar_watcher(changed)
    number = ctypes.c_uint64.from_address(watcher.ptr)
    for value in (1, 2, 3):
        number.value = value
        until(lambda: told and told[-1][1] == value)  # noqa: B023
    assert told == [(0, 1), (1, 2), (2, 3)]
    number.value = 4
    engine.stop()
    assert len(told) == 3
    with pytest.raises(RuntimeError, match="closed"):
        engine.alloc_scalar_watcher(changed)


def test_a_write_has_arrived_when_its_immediate_has(peer, engine, memory):
    tensor, descriptor = memory
    arrived, seen = threading.Event(), []

    def on_immediate(immediate):
        seen.append((immediate, torch.equal(tensor, bytes_at(tensor, (0, 1024)))))
        arrived.set()

    engine.set_imm_callback(on_immediate)
    peer.ask(Single(descriptor, 0, 1024, immediate=555, shards=1))
    assert arrived.wait(60)
    assert seen == [(555, True)]


def test_a_write_in_shards_at_the_end_of_the_memory(peer, memory, counts):
    tensor, descriptor = memory
    peer.ask(Single(descriptor, len(tensor) - 128, 128, immediate=3))
    assert torch.equal(tensor, bytes_at(tensor, (len(tensor) - 128, 128)))
    until(lambda: counts[3] == 2)  # once a shard, and each of the two cards has one


def test_immediates_of_pages_are_counted(peer, engine, memory, counts):
    expected, extra, reached = 10, 7, []
    assert engine.set_imm_count_expected(IMMEDIATE, expected, lambda: reached.append(True)) is None
    peer.ask(Paged(memory[1], list(range(expected + extra)), 0, 0, 0, IMMEDIATE))
    until(lambda: counts[IMMEDIATE] == extra)
    assert reached == [True]
    assert engine.remove_imm_count(IMMEDIATE) is None


# --- more


def test_shards_of_any_number_and_size(peer, memory, counts):
    tensor, descriptor = memory
    for shards, length in ((2, 100_003), (1, 5), (2, 0)):
        tensor.zero_()
        counts.clear()
        peer.ask(Single(descriptor, 11, length, immediate=9, shards=shards))
        until(lambda shards=shards: counts[9] == shards)
        assert torch.equal(tensor, bytes_at(tensor, (11, length)))
    assert counts == {9: 2}


def test_messages_come_back_in_their_order(peer, engine):
    got = []
    engine.submit_bouncing_recvs(2, pplx_peer.BYTES, got.append, got.append)
    address = DomainAddress.from_str(peer.address)
    sent = [bytes([length % 251]) * length for length in (0, 1, 100, 70_000, 5, 0, 900_000, 3)]
    for data in sent:
        ended = pplx_peer.Ended()
        message = pickle.dumps((engine.main_address, data))
        engine.submit_send(address, message, ended.done, ended.failed)
        ended.wait()
    until(lambda: len(got) == len(sent))
    assert got == sent


def test_a_message_waits_for_a_receive_and_must_fit_into_it(engine):
    other, got = pplx_peer.new_engine(), []
    first, second = pplx_peer.Ended(), pplx_peer.Ended()
    engine.submit_send(other.main_address, b"early", first.done, first.failed)
    other.submit_bouncing_recvs(1, 8, got.append, got.append)
    first.wait()
    engine.submit_send(other.main_address, b"too long for it", second.done, second.failed)
    assert second.event.wait(60) and "15" in second.errors[0] and "8" in second.errors[0]
    until(lambda: got == [b"early"])
    other.stop()
    with pytest.raises(RuntimeError):
        engine.submit_send(DomainAddress(b"nowhere"), b"", first.done, first.failed)
    with pytest.raises(RuntimeError):
        engine.submit_bouncing_recvs(0, 8, got.append, got.append)


def test_what_an_engine_says_of_itself(engine):
    assert (engine.num_domains, engine.nets_per_gpu) == (2, 2)
    assert engine.aggregated_link_speed >= 0
    near = TransferEngine(1, [])
    assert (near.num_domains, near.nets_per_gpu) == (1, 1)
    near.stop()


def test_a_range_outside_is_refused_before_a_byte_leaves(engine, memory):
    tensor, descriptor = memory
    source, _ = engine.register_tensor(torch.ones(100, dtype=torch.uint8))
    ended = pplx_peer.Ended()
    ends = ended.done, ended.failed
    with pytest.raises(RuntimeError, match="bytes 50 to 150 are outside of the source, which has 100 bytes"):
        engine.submit_write(source, 50, 100, 1, descriptor, 0, *ends)
    with pytest.raises(RuntimeError, match=f"outside of the target, which has {len(tensor)} bytes"):
        engine.submit_write(source, 0, 100, 1, descriptor, len(tensor), *ends)
    with pytest.raises(RuntimeError, match=r"page 1 of the source \(index 10\)"):
        engine.submit_paged_writes(
            10, source, PageIndices([0, 10]), 10, 0, descriptor, PageIndices([0, 1]), 10, 0, None, *ends
        )
    with pytest.raises(RuntimeError):
        engine.submit_paged_writes(
            10, source, PageIndices([0]), 10, 0, descriptor, PageIndices([0, 1]), 10, 0, None, *ends
        )
    with pytest.raises(ValueError, match="num_shards is 3: give 1 to 2"):
        engine.submit_write(source, 0, 1, None, descriptor, 0, *ends, num_shards=3)
    with pytest.raises(OverflowError, match="32 bits"):
        engine.submit_imm(2**32, descriptor, *ends)
    assert not ended.event.is_set() and not tensor.any()


def test_memory_that_cannot_be_registered_is_refused(engine):
    with pytest.raises(ValueError, match="not contiguous"):
        engine.register_tensor(torch.zeros(4, 4)[:, :2])
    with pytest.raises(ValueError, match="null"):
        engine.register_memory(0, 10, pplx_peer.CPU)
    with pytest.raises(ValueError, match="give a device of type cpu or cuda"):
        engine.register_memory(4096, 10, torch.device("meta"))
    with pytest.raises(ValueError, match="this is no descriptor of memory"):
        MemoryRegionDescriptor(b"\x01\x02")


def test_memory_that_is_unregistered_is_not_reached(peer, engine, memory):
    tensor, descriptor = memory
    engine.unregister_memory(tensor.data_ptr())
    with pytest.raises(AssertionError):
        peer.ask(Single(descriptor, 0, 10))
    assert not tensor.any()
    with pytest.raises(RuntimeError, match="no memory is registered at 0x"):
        engine.unregister_memory(tensor.data_ptr())


def test_a_builder_refuses_what_does_not_fit():
    (group, *_) = TransferEngine.detect_topology()
    cards, cpu = [DomainInfo("127.0.0.1", 0)], group.cpus[0]

    def build(*calls):
        builder = TransferEngine.builder()
        for call in calls:
            assert builder.add_gpu_domains(*call) is builder
        return builder.build()

    for calls, sentence in (
        ([], "the builder has no GPU: call add_gpu_domains"),
        ([(None, cards, cpu, cpu)] * 2, r"127\.0\.0\.1 is given twice"),
        ([(99, cards, cpu, cpu)] * 2, "cuda:99 is added twice: add it once, with all its network cards"),
        ([(99, cards, cpu, cpu)], "there is no cuda:99 here"),
        ([(None, cards * 2, cpu, cpu)], r"network card 127\.0\.0\.1 is given twice"),
        ([(None, cards, 4095, cpu)], "CPU 4095 is not near group for host memory: give some of "),
        ([(None, [], cpu, cpu)], "no network card"),
        ([(None, [DomainInfo("nic99", 0)], cpu, cpu)], "nic99"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            build(*calls)
    for arguments, sentence in (
        ((1, [99]), "there is no cuda:99 here"),
        ((0, []), "give at least 1"),
        ((99, []), "group for host memory has 1 network cards near it, and 99 are asked for: "),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            TransferEngine(*arguments)


def test_a_callback_that_raises_ends_nothing(peer, engine, memory):
    _, descriptor = memory
    arrived = threading.Event()

    def on_immediate(immediate):
        arrived.set()
        raise KeyError("no such page")

    engine.set_imm_callback(on_immediate)
    for _ in range(2):
        arrived.clear()
        peer.ask(Alone(descriptor, 1))
        assert arrived.wait(60)


def test_an_engine_that_is_stopped_ends_what_it_does_and_refuses_more(engine, memory):
    engine.stop()
    engine.stop()
    with pytest.raises(RuntimeError):
        engine.register_tensor(torch.zeros(10))
    with pytest.raises(RuntimeError):
        engine.submit_imm(1, memory[1], lambda: None, lambda error: None)


def test_posts_that_are_under_way_when_it_stops_end_with_an_error(engine, memory):
    other = pplx_peer.new_engine()
    _, descriptor = other.register_tensor(torch.zeros(10, dtype=torch.uint8))
    source, _ = engine.register_tensor(torch.ones(10, dtype=torch.uint8))
    other.stop()
    ended = pplx_peer.submit(engine, source, Single(descriptor, 0, 10, immediate=1))
    engine.stop()
    assert ended.event.wait(60) and len(ended.errors) == 1 and ended.errors[0]


def test_an_engine_that_nobody_has_is_stopped(memory):
    tensor, descriptor = memory
    own = pplx_peer.new_engine()
    own.set_imm_callback(lambda immediate: None)
    own.set_imm_count_expected(1, 1, lambda: None)
    source, _ = own.register_tensor(torch.ones(10, dtype=torch.uint8))
    pplx_peer.submit(own, source, Single(descriptor, 0, 10)).wait()
    assert tensor[:10].all()
    fabric = weakref.ref(own._fabric)
    del own
    gc.collect()
    assert fabric() is None


def test_a_forked_child_cannot_use_the_engine(engine, memory):
    child = os.fork()
    if child == 0:
        try:
            engine.submit_imm(1, memory[1], lambda: None, lambda error: None)
        except RuntimeError as error:
            os._exit(7 if "parent process" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_post_waits_while_too_many_others_run(engine):
    answers = [headrace.WouldBlock("wait"), headrace.WouldBlock("wait"), "posted"]

    def write(*given, **more):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, given, more

    assert engine._post(write, 1, immediate=2) == ("posted", (1,), {"immediate": 2})


def test_each_of_many_posts_ends_and_is_counted(engine, memory, counts):
    tensor, descriptor = memory
    source, _ = engine.register_tensor(torch.ones(10, dtype=torch.uint8))
    posts, ended = 1000, []
    for number in range(posts):
        engine.submit_write(
            source, 0, 1, 5, descriptor, 2 * number, lambda: ended.append("done"), ended.append, num_shards=1
        )
    until(lambda: len(ended) == posts and counts[5] == posts)
    assert set(ended) == {"done"} and tensor[: 2 * posts].sum() == posts
