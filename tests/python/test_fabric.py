# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Fabrics of one process: memory, posts, ends, counting, and what is refused."""

import array
import asyncio
import concurrent.futures
import ctypes
import datetime
import gc
import pickle
import select
import socket
import threading
import weakref

import numpy
import pytest

import headrace
from fabrics import SECONDS, await_true, fresh, open_fabric

KIB = 1024


@pytest.fixture
def pair():
    """Two fabrics over two loopback addresses."""
    with open_fabric() as here, open_fabric() as there:
        yield here, there


@pytest.fixture
def moves(pair):
    """Two fabrics; 64 KiB of fresh bytes here, 64 KiB of others there, which peers write and read."""
    here, there = pair
    source, target = fresh(64 * KIB), fresh(64 * KIB)
    return Moves(here, there, source, target, here.register(source), there.register(target, "writable"))


class Moves:
    def __init__(self, here, there, source, target, memory, far):
        self.here, self.there = here, there
        self.source, self.target = source, target
        self.memory, self.descriptor = memory, far.descriptor

    def write(self, *arguments, **options):
        return self.here.write(self.memory, self.descriptor, *arguments, **options)


# ------------------------------------------------------------------ memory, addresses, descriptors


def test_an_address_travels_as_bytes_text_and_pickle(pair):
    here, _ = pair
    address = here.address
    for copy in (
        headrace.FabricAddress(bytes(address)),
        headrace.FabricAddress(str(address)),
        pickle.loads(pickle.dumps(address)),
        eval(repr(address), vars(headrace)),
    ):
        assert copy == address
        assert hash(copy) == hash(address)
    assert bytes.fromhex(str(address)) == bytes(address)
    assert address != open_address()


def open_address():
    with open_fabric() as fabric:
        return fabric.address


def test_a_descriptor_is_short_bytes_and_made_from_them_alone(moves):
    descriptor = pickle.loads(pickle.dumps(moves.descriptor))
    assert descriptor == headrace.FabricDescriptor(bytes(moves.descriptor))
    assert (descriptor.length_bytes, descriptor.access) == (64 * KIB, "writable")
    assert str(descriptor).startswith("65536 writable bytes at tcp:127.0.0.1:")
    assert repr(descriptor) == f"<FabricDescriptor: {descriptor}>"
    with open_fabric(["127.0.0.1", "this host"]) as one_card:
        assert len(bytes(one_card.register(fresh(8), "readable").descriptor)) < 100
    moves.here.write(moves.memory, descriptor).wait(SECONDS)
    assert moves.target.tobytes() == moves.source.tobytes()


def test_groups_are_opened_by_hand_and_described(pair):
    here, _ = pair
    (group,) = here.groups()
    assert [nic.name for nic in group.nics] == ["127.0.0.1", "127.0.0.2"]
    assert all(nic.provider == "tcp" and nic.up and nic.address.startswith("tcp:") for nic in group.nics)
    assert group.device is None
    assert "127.0.0.2" in repr(group)
    assert "name='127.0.0.1'" in repr(group.nics[0])
    assert here.bits_per_second >= 0
    options = headrace.FabricGroupOptions(["127.0.0.1"], cpus=[0])
    assert repr(options) == "FabricGroupOptions(nics=['127.0.0.1'], cpus=[0], device=None)"
    with headrace.Fabric(groups=[options], spin="always") as other:
        assert other.groups()[0].cpus == [0]


@pytest.mark.parametrize("kind", ["bytearray", "array", "numpy", "torch", "pointer", "range"])
def test_memory_of_every_kind_is_written_and_read(pair, kind):
    here, there = pair
    content = fresh(1000)
    held = {
        "bytearray": lambda: bytearray(1000),
        "array": lambda: array.array("h", [0] * 500),
        "numpy": lambda: numpy.zeros((10, 25), numpy.float32).T,  # another order of dimensions
        "torch": lambda: pytest.importorskip("torch").zeros(250),
        "pointer": lambda: (ctypes.c_char * 1000)(),
        "range": lambda: (ctypes.c_char * 1000)(),
    }[kind]()
    given = held
    if kind == "pointer":
        given = (ctypes.addressof(held), 1000)
    if kind == "range":
        given = headrace.MemoryRange(address=ctypes.addressof(held), length_bytes=1000)
    memory = there.register(given, "writable")
    assert (memory.length_bytes, memory.access, memory.device, memory.group) == (1000, "writable", None, 0)
    here.write(here.register(content), memory.descriptor).wait(SECONDS)
    assert ctypes.string_at(memory.address, 1000) == content.tobytes()
    back = numpy.zeros(1000, numpy.uint8)
    here.read(here.register(back), memory.descriptor).wait(SECONDS)
    assert back.tobytes() == content.tobytes()


def test_memory_is_kept_alive_until_it_is_deregistered_or_the_fabric_closed(pair):
    here, there = pair

    class Kept(bytearray):
        pass

    kept = [Kept(16) for _ in range(3)]
    gone = [weakref.ref(each) for each in kept]
    first, second = here.register(kept[0]), here.register(kept[1])
    there.register(kept[2])
    del kept
    gc.collect()
    assert all(each() is not None for each in gone)
    here.deregister(first)
    assert gone[0]() is None
    with pytest.raises(headrace.NotFound, match="deregistered"):
        here.deregister(first)
    del second
    assert gone[1]() is not None, "it stays registered without its handle"
    here.close()
    assert gone[1]() is None
    assert gone[2]() is not None
    with pytest.raises(BufferError):
        gone[2]().append(1)


def test_deregistered_memory_is_not_reached(moves):
    moves.there.deregister(moves.there.register(bytearray(1)))
    far = moves.there.register(bytearray(64), "writable")
    moves.there.deregister(far)
    work = moves.here.write(moves.memory, far.descriptor, 64)
    with pytest.raises(headrace.Error):
        work.wait(SECONDS)
    assert work.state == "failed"


def test_buffers_of_a_pool_are_taken_used_and_given_back(moves):
    pool = moves.here.host_buffers(2, 100)
    assert (pool.free, pool.bytes_each) == (2, 100)
    with pool.take() as first, pool.take() as second:
        assert first.offset_bytes != second.offset_bytes
        with pytest.raises(headrace.WouldBlock, match="all buffers are taken"):
            pool.take()
        content = fresh(100)
        view = numpy.frombuffer(second, numpy.uint8)
        memoryview(second)[:] = content.tobytes()
        moves.here.write(
            second.memory, moves.descriptor, 100, source_offset=second.offset_bytes, target_offset=7
        ).wait(SECONDS)
        assert moves.target[7:107].tobytes() == content.tobytes()
        with pytest.raises(BufferError, match="views of the buffer exist"):
            second.release()
        del view
    assert pool.free == 2
    with pytest.raises(headrace.InvalidArgument, match="given back"):
        memoryview(second)
    with pytest.raises(headrace.InvalidArgument, match="at least one"):
        moves.here.host_buffers(0, 8)


# ------------------------------------------------------------------ posts


def test_ranges_are_written_and_read_at_offsets(moves):
    before = moves.target.copy()
    work = moves.write(1000, source_offset=24, target_offset=99)
    work.wait(SECONDS)
    before[99:1099] = moves.source[24:1024]
    assert moves.target.tobytes() == before.tobytes()
    assert (work.state, work.done, work.error, work.length_bytes) == ("done", True, None, 1000)
    assert repr(work) == "FabricWork(state='done', length_bytes=1000)"
    back = numpy.zeros(500, numpy.uint8)
    moves.here.read(
        moves.here.register(back), moves.descriptor, 400, target_offset=100, source_offset=11
    ).wait(SECONDS)
    assert back.tobytes() == bytes(100) + before[11:411].tobytes()
    moves.write(0).wait(SECONDS)


@pytest.mark.parametrize("kind", ["uint32", "int32", "int64", "uint16", "list", "range", "torch"])
def test_pages_are_written_and_read_by_index_arrays(moves, kind):
    page, count = 96, 200
    order = numpy.random.default_rng().permutation(count)
    indices = {
        "list": lambda: order.tolist(),
        "range": lambda: range(count - 1, -1, -1),
        "torch": lambda: pytest.importorskip("torch").from_numpy(order),
    }.get(kind, lambda: order.astype(kind))()
    moves.here.write_pages(
        moves.memory,
        moves.descriptor,
        page,
        source_indices=indices,
        source_stride=100,
        source_offset=3,
        target_offset=40,
    ).wait(SECONDS)
    numbers = numpy.asarray(indices)
    expected = numpy.concatenate([moves.source[3 + 100 * k :][:page] for k in numbers])
    assert moves.target[40 : 40 + page * count].tobytes() == expected.tobytes()
    back = numpy.zeros(page * count, numpy.uint8)
    moves.here.read_pages(
        moves.here.register(back), moves.descriptor, page, target_indices=indices, source_offset=40
    ).wait(SECONDS)
    assert back.reshape(count, page)[numbers].tobytes() == expected.tobytes()


def test_pages_without_indices_need_their_count(moves):
    with pytest.raises(headrace.InvalidArgument, match="needs `count`"):
        moves.here.write_pages(moves.memory, moves.descriptor, 64)
    moves.here.write_pages(moves.memory, moves.descriptor, 64, count=10, target_stride=128).wait(SECONDS)
    written = moves.target[:1280].reshape(10, 128)[:, :64]
    assert written.tobytes() == moves.source[:640].tobytes()


def test_a_scatter_reaches_every_peer_and_each_counts_its_own(moves):
    with open_fabric() as third:
        block = fresh(64)
        far = third.register(block, "writable")
        targets = [
            headrace.FabricTarget(moves.descriptor, 100, source_offset=5, target_offset=6),
            headrace.FabricTarget(far.descriptor, 64),
        ]
        assert "length_bytes=100, source_offset=5, target_offset=6" in repr(targets[0])
        counts = [fabric.expect(8, 1, scope=3) for fabric in (moves.there, third)]
        moves.here.scatter(moves.memory, targets, immediate=8, scope=3, spread="by_peer").wait(SECONDS)
        for count in counts:
            count.wait(SECONDS)
        assert moves.target[6:106].tobytes() == moves.source[5:105].tobytes()
        assert block.tobytes() == moves.source[:64].tobytes()


@pytest.mark.parametrize(
    "options", [{"spread": "free"}, {"spread": "in_turn"}, {"nic": 1}, {"nic": 0, "spread": "pinned"}]
)
def test_network_cards_are_chosen_by_post(moves, options):
    moves.write(**options).wait(SECONDS)
    assert moves.target.tobytes() == moves.source.tobytes()
    counters = moves.here.telemetry().counters
    sent = {name: value for name, value in counters.items() if name.endswith("written_bytes")}
    assert sum(sent.values()) >= 64 * KIB, sent


# ------------------------------------------------------------------ ends


def test_callbacks_future_descriptor_and_wait_tell_the_same_end(moves):
    work = moves.write()
    ended, seen = threading.Event(), []
    for number in range(3):
        work.add_done_callback(lambda done, number=number: seen.append((number, done is work, done.state)))
    future = work.get_future()
    work.wait(SECONDS)
    work.add_done_callback(lambda done: ended.set())
    assert ended.wait(SECONDS)
    assert seen == [(number, True, "done") for number in range(3)]
    assert future.result(SECONDS) is None
    assert select.select([work], [], [], SECONDS)[0] == [work]


@pytest.fixture
def never_done():
    """A post to a peer that takes connections and answers nothing."""
    with open_fabric(["127.0.0.1"]) as here, socket.create_server(("127.0.0.1", 0)) as silent:
        descriptor = descriptor_at(silent.getsockname()[1])
        work = here.write(here.register(bytearray(64)), descriptor, 64)
        assert work.state == "posted"
        yield here, work


def descriptor_at(port):
    """A descriptor of memory whose owner had this port: its bytes with another port."""
    with open_fabric(["127.0.0.1"]) as gone:
        descriptor = gone.register(bytearray(64), "writable").descriptor
        (nic,) = gone.groups()[0].nics
        own = int(nic.address.split("/")[0].split(":")[-1])
    before, after = (bytes([127, 0, 0, 1]) + number.to_bytes(2, "little") for number in (own, port))
    data = bytes(descriptor)
    assert data.count(before) == 1, "the address and the port are in the descriptor"
    return headrace.FabricDescriptor(data.replace(before, after))


def test_a_post_to_a_silent_peer_times_out_and_is_canceled(never_done):
    here, work = never_done
    with pytest.raises(headrace.TimedOut, match="still in flight when the timeout of wait expired"):
        work.wait(0.01)
    future = work.get_future()
    work.cancel()
    with pytest.raises(headrace.Canceled, match="write of 64 bytes"):
        work.wait(SECONDS)
    assert work.state == "canceled"
    assert isinstance(future.exception(SECONDS), headrace.Canceled)
    assert here.counters().failed == 1


def test_a_peer_that_is_gone_is_named(moves):
    with open_fabric() as gone:
        descriptor = gone.register(bytearray(64), "writable").descriptor
    work = moves.here.write(moves.memory, descriptor, 64)
    with pytest.raises(headrace.PeerLost, match="write of 64 bytes to tcp:127.0.0.1:"):
        work.wait(SECONDS)
    assert isinstance(work.error, headrace.PeerLost)
    assert "failed=1" in repr(moves.here.counters())


def test_work_and_rounds_are_awaited(moves):
    async def main() -> None:
        expectation = moves.there.expect(5, 2)
        rounds = [asyncio.create_task(take(expectation)) for _ in range(3)]
        for _ in range(4):
            await moves.write(immediate=5)
        await asyncio.wait_for(await_two(rounds), SECONDS)
        assert sum(each.done() for each in rounds) == 2
        moves.there.close()
        (last,) = [each for each in rounds if not each.done()]
        with pytest.raises(headrace.Canceled, match="removed, or the fabric was closed"):
            await asyncio.wait_for(last, SECONDS)

    async def take(expectation):
        await expectation

    async def await_two(rounds):
        while sum(each.done() for each in rounds) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert moves.target.tobytes() == moves.source.tobytes()


def test_an_awaited_post_is_canceled_with_its_task(never_done):
    _, work = never_done

    async def main() -> None:
        async def wait() -> None:
            await work

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert work.state == "canceled"


def test_a_close_ends_posts_and_refuses_later_calls(never_done):
    here, work = never_done
    states = []
    work.add_done_callback(lambda done: states.append(done.state))
    here.close()
    assert states == ["canceled"], "the last callback has returned when close returns"
    assert here.closed
    for call in (
        lambda: here.register(bytearray(1)),
        lambda: here.expect(1, 1),
        lambda: here.connect(open_address()),
        lambda: here.host_buffers(1, 1),
    ):
        with pytest.raises(headrace.InvalidArgument, match="the fabric is closed: open another"):
            call()
    here.close()


def test_a_callback_may_close_its_fabric(pair):
    here, there = pair
    closed = threading.Event()

    def close(_work) -> None:
        here.close()
        closed.set()

    target = there.register(bytearray(8), "writable")
    here.write(here.register(bytearray(8)), target.descriptor).add_done_callback(close)
    assert closed.wait(SECONDS)
    assert here.closed


def test_threads_post_wait_and_register_while_another_closes(moves):
    here, ended, posted = moves.here, [], threading.Semaphore(0)

    def post_until_closed():
        try:
            while True:
                block = here.register(bytearray(64))
                work = here.write(block, moves.descriptor, 64, immediate=1)
                work.add_done_callback(lambda work: ended.append(work.state))
                work.wait(SECONDS)
                here.deregister(block)
                posted.release()
        except (headrace.Canceled, headrace.InvalidArgument) as error:
            assert "clos" in str(error) or work.state == "canceled", error

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        running = [threads.submit(post_until_closed) for _ in range(4)]
        for _ in range(20):
            assert posted.acquire(timeout=SECONDS)
        here.close()
        for each in running:
            each.result(SECONDS)
    assert set(ended) <= {"done", "canceled"}
    assert len(ended) >= 20


# ------------------------------------------------------------------ callbacks that raise


def test_an_exception_in_a_callback_goes_to_on_error_and_all_goes_on(moves):
    errors, calls = [], []
    moves.there.on_error(errors.append)
    expectation = moves.there.expect(1, 1)

    def reached():
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyError("the first call")

    expectation.on_reached(reached)
    for _ in range(3):
        moves.write(immediate=1).wait(SECONDS)
    await_true(lambda: len(calls) == 3)
    assert [repr(each) for each in errors] == ["KeyError('the first call')"]
    assert errors[0].__traceback__ is not None
    assert moves.there.counters().callbacks_failed == 1


def test_without_on_error_an_exception_goes_to_the_unraisable_hook(moves, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: seen.append(told.exc_value))

    def fail(_work) -> None:
        raise ValueError("nobody takes it")

    moves.here.on_error(None)
    work = moves.write()
    work.add_done_callback(fail)
    work.wait(SECONDS)
    await_true(lambda: seen)
    assert repr(seen[0]) == "ValueError('nobody takes it')"


def test_an_exception_of_on_error_itself_is_not_lost_either(moves, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: seen.append(repr(told.exc_value)))

    def fail(_given) -> None:
        raise ValueError("again")

    moves.here.on_error(fail)
    moves.write().add_done_callback(fail)
    await_true(lambda: seen)
    assert seen == ["ValueError('again')"]
    moves.write().wait(SECONDS)


# ------------------------------------------------------------------ messages


def test_a_message_fills_the_next_receive_and_tells_its_length(moves):
    peer = moves.here.connect(moves.there.address)
    room = numpy.zeros(1000, numpy.uint8)
    memory = moves.there.register(room)
    sent = moves.here.send(peer, moves.memory, 300, source_offset=11)  # before there is a receive
    received = moves.there.receive(memory, target_offset=7)
    sent.wait(SECONDS)
    received.wait(SECONDS)
    assert received.length_bytes == 300
    assert room.tobytes() == bytes(7) + moves.source[11:311].tobytes() + bytes(693)


def test_a_message_that_is_too_long_or_finds_no_receive_ends_with_a_sentence(moves):
    peer = moves.here.connect(moves.there.address)
    room = moves.there.register(bytearray(100))
    late = moves.here.send(peer, moves.memory, 50, timeout=datetime.timedelta(milliseconds=20))
    with pytest.raises(headrace.TimedOut):
        late.wait(SECONDS)
    received = moves.there.receive(room)
    with pytest.raises(headrace.InvalidArgument, match=r"101\D.*\b100\b|100\D.*\b101\b"):
        moves.here.send(peer, moves.memory, 101).wait(SECONDS)
    assert received.state == "posted"
    moves.here.send(peer, moves.memory, 100).wait(SECONDS)
    received.wait(SECONDS)
    for call, words in [
        (lambda: moves.here.send(peer, moves.memory, 1 << 20), "of the source"),
        (lambda: moves.there.receive(room, 101), "of the target"),
        (lambda: moves.there.receive_all(0, 1, print), "at least one buffer"),
        (lambda: moves.there.receive_all(1, 1, 7), "7 cannot be called"),
    ]:
        with pytest.raises(headrace.InvalidArgument, match=words):
            call()


def test_a_receiver_tells_each_message_in_order_also_when_its_callback_raises(moves):
    errors, got = [], []

    def received(message):
        got.append(message)
        if len(got) == 3:
            raise ValueError(len(message))

    moves.there.on_error(errors.append)
    receiver = moves.there.receive_all(2, 1000, received)
    peer = moves.here.connect(moves.there.address)
    works = [moves.here.send(peer, moves.memory, 900 + i, source_offset=i) for i in range(20)]
    for work in works:
        work.wait(SECONDS)
    await_true(lambda: len(got) == 20)
    assert got == [moves.source[i : 900 + 2 * i].tobytes() for i in range(20)]
    await_true(lambda: errors)
    assert [repr(each) for each in errors] == ["ValueError(902)"]
    receiver.stop()


# ------------------------------------------------------------------ counting


def test_arrivals_are_counted_in_rounds(moves):
    for _ in range(3):
        moves.write(8, immediate=4, scope=2).wait(SECONDS)  # before anybody expects it
    await_true(lambda: moves.there.counters().arrivals == 3)
    expectation = moves.there.expect(4, 2, scope=2)
    assert (expectation.immediate, expectation.scope, expectation.arrivals_each) == (4, 2, 2)
    expectation.wait(SECONDS)
    assert expectation.rounds == 1
    assert not expectation.poll()
    with pytest.raises(headrace.TimedOut, match="immediate 4 in scope 2: no round of 2 arrivals"):
        expectation.wait(0.01)
    assert repr(expectation) == "FabricExpectation(immediate=4, scope=2, arrivals_each=2, rounds=1)"
    assert expectation.remove() == 1
    for ask in (expectation.wait, expectation.poll):
        with pytest.raises(headrace.Canceled, match="removed"):
            ask()
    moves.there.expect(4, 1, scope=2)


def test_a_post_counts_once_for_each_page_or_card(moves):
    pages, shards = moves.there.expect(1, 16), moves.there.expect(2, 2)
    moves.here.write_pages(moves.memory, moves.descriptor, 64, count=16, immediate=1, count_by="page")
    moves.write(immediate=2, count_by="shard")
    pages.wait(SECONDS)
    shards.wait(SECONDS)
    assert (pages.remove(), shards.remove()) == (0, 0)


def test_a_full_round_has_its_bytes_for_word_descriptor_and_callback(moves):
    expectation = moves.there.expect(1, 1)
    word = expectation.word()
    view = numpy.asarray(word)
    assert (view.dtype, view.tolist(), view.ctypes.data) == (numpy.int64, [0], word.address)
    seen = []
    expectation.on_reached(lambda: seen.append(moves.target.tobytes()) or len(seen) < 2)
    for number in range(1, 4):
        moves.source[:] = number
        moves.write(immediate=1)
        await_true(lambda number=number: view[0] == number)
        assert (moves.target == number).all()
        if number <= 2:
            await_true(lambda number=number: len(seen) == number)
    assert select.select([expectation], [], [], 0)[0] == [expectation]
    assert seen == [bytes([1]) * 64 * KIB, bytes([2]) * 64 * KIB], "it has declined"


def test_futures_of_rounds_end_in_their_order_and_with_the_expectation(moves):
    expectation = moves.there.expect(1, 2)
    futures = [expectation.get_future() for _ in range(3)]
    moves.write(8, immediate=1).wait(SECONDS)
    assert not futures[0].done()
    moves.write(8, immediate=1)
    assert futures[0].result(SECONDS) is None
    assert not futures[1].done()
    expectation.remove()
    for future in futures[1:]:
        assert isinstance(future.exception(SECONDS), headrace.Canceled)


def test_unexpected_arrivals_go_to_the_callback_or_are_kept(moves):
    told = []
    moves.write(8, immediate=7).wait(SECONDS)
    moves.there.on_unexpected(lambda *arrival: told.append(arrival))
    moves.here.post_immediate(moves.here.connect(moves.there.address), 8, scope=5)
    await_true(lambda: sorted(told) == [(7, 0, 1), (8, 5, 1)])
    moves.there.on_unexpected(None)
    moves.write(8, immediate=7)
    moves.there.expect(7, 1).wait(SECONDS)


def test_peers_meet_in_a_barrier_and_join_and_leave(pair):
    here, there = pair
    groups = [here.peer_group(9, [there.address]), there.peer_group(9, [here.address])]
    works = [fabric.barrier(group, 3) for fabric, group in zip(pair, groups, strict=True)]
    for work in works:
        work.wait(SECONDS)
    group = groups[0]
    (member,) = group.members
    assert (group.scope, len(group), member.address) == (9, 1, there.address)
    assert member == here.connect(there.address)
    assert repr(group) == "<FabricPeers: scope 9, 1 members>"
    group.join(member)
    assert len(group) == 1
    group.leave(member)
    with pytest.raises(headrace.NotFound, match="no member"):
        group.leave(member)
    here.barrier(group, 4).wait(SECONDS)
    group.join(member)
    alone = here.barrier(group, 5, timeout=datetime.timedelta(milliseconds=20))
    with pytest.raises(headrace.TimedOut, match="barrier 5 of 1 peers"):
        alone.wait(SECONDS)
    here.forget(member)


# ------------------------------------------------------------------ what is refused


def test_each_bad_post_is_refused_with_a_sentence(moves):
    here, memory, far = moves.here, moves.memory, moves.descriptor
    peer = here.connect(moves.there.address)
    readable = moves.there.register(bytearray(8), "readable").descriptor
    foreign = moves.there.register(bytearray(8))
    fixed = here.register(b"12345678")
    pages = {"page_bytes": 64}
    for call, words in [
        (lambda: moves.write(64 * KIB + 1), "of the source, whose memory has 65536"),
        (lambda: moves.write(target_offset=1), "of the target"),
        (lambda: moves.write(source_offset=64 * KIB + 1), "of the source"),
        (lambda: moves.write(-1), "the length is -1: give an int"),
        (lambda: moves.write(source_offset=1 << 64), "the source's offset is"),
        (lambda: here.write(memory, readable, 8), "not writable"),
        (lambda: here.read(fixed, far, 8), "not writable"),
        (lambda: here.write(foreign, far, 8), "another fabric"),
        (lambda: moves.write(immediate=1 << 32), "the immediate is 4294967296: give an int of 32 bits"),
        (lambda: moves.write(immediate=-1), "the immediate is -1"),
        (lambda: moves.write(immediate=1, scope=1 << 32), "the scope is 4294967296"),
        (lambda: moves.write(immediate=1, scope=1 << 31), "scope"),
        (lambda: here.post_immediate(peer, 1 << 40), "the immediate is"),
        (lambda: here.expect(1 << 32, 1), "the immediate is"),
        (lambda: here.expect(1, 0), "arrival"),
        (lambda: moves.write(count_by="byte"), 'count_by is "byte": give one of "request", "page", "shard"'),
        (lambda: moves.write(spread="wide"), 'spread is "wide"'),
        (lambda: moves.write(spread="pinned"), "needs `nic`"),
        (lambda: moves.write(nic=2), "there is no network card 2: the group has 2"),
        (lambda: moves.write(nic=1, spread="in_turn"), "leave `spread` out"),
        (lambda: moves.write(timeout=-1), "the timeout is"),
        (lambda: here.scatter(memory, []), "at least one target"),
        (lambda: here.scatter(memory, [headrace.FabricTarget(far, 1 << 20)]), "target 0"),
        (lambda: here.write_pages(memory, far, **pages, source_indices=[0, 1024]), "index 1024"),
        (lambda: here.write_pages(memory, far, **pages, source_indices=[0, -1]), "index -1"),
        (
            lambda: here.write_pages(memory, far, **pages, source_indices=[0], target_indices=[]),
            "1 source_ind",
        ),
        (
            lambda: here.write_pages(memory, far, **pages, source_indices=[0], count=2),
            "1 indices for 2 pages",
        ),
        (lambda: here.write_pages(memory, far, **pages, source_indices=[0.5]), r"source_indices\[0\] is 0.5"),
        (lambda: here.write_pages(memory, far, **pages, target_indices=numpy.ones(2)), "are integers"),
        (
            lambda: here.write_pages(memory, far, **pages, target_indices=numpy.arange(8)[::2]),
            "target_indices is a int64 array of shape",
        ),
        (lambda: here.read_pages(memory, far, **pages, count=1 << 60), "page 1024 of the target"),
    ]:
        with pytest.raises(headrace.InvalidArgument, match=words):
            call()
    with pytest.raises(headrace.InvalidArgument) as refused:
        here.write_pages(memory, far, 64, source_indices=[0, 1, 5000])
    assert refused.value.page == 2
    moves.write().wait(SECONDS)
    assert moves.here.counters().failed == 0


def test_a_descriptor_of_local_memory_is_refused_with_advice(moves):
    for call in (
        lambda: moves.here.write(moves.memory, moves.memory.descriptor),
        lambda: moves.here.read(moves.memory, None),
        lambda: moves.here.write_pages(moves.memory, None, 64, count=1),
        lambda: moves.here.read_pages(moves.memory, None, 64, count=1),
    ):
        with pytest.raises(headrace.InvalidArgument, match='register it as "writable"'):
            call()


def test_each_bad_memory_is_refused_with_a_sentence(pair):
    here, there = pair
    for given, access, words in [
        (numpy.zeros((4, 4))[:, 1], "local", "float64 array of shape .* is not contiguous"),
        (numpy.zeros(8)[::2], "writable", "not contiguous"),
        (object(), "local", "cannot be registered: give an object with the buffer protocol"),
        (None, "local", "cannot be registered"),
        (bytearray(), "local", "at least one byte"),
        ((0, 8), "local", "address"),
        ((8, -1), "local", "the length is -1"),
        (b"read-only", "writable", "not writable"),
        ((0x1000, 4096), "writable", "are not all memory of this process"),
        (numpy.array([1, "text"], object), "readable", "array of Python objects"),
        (numpy.zeros(2, [("a", int), ("b", object)]), "readable", "array of Python objects"),
        (bytearray(8), "shared", 'the access is "shared": give one of "local", "readable", "writable"'),
        (headrace.MemoryRange("file", path="x"), "local", "not file"),
    ]:
        with pytest.raises(headrace.InvalidArgument, match=words):
            here.register(given, access)
    torch = pytest.importorskip("torch")
    with pytest.raises(headrace.InvalidArgument, match="is not contiguous"):
        here.register(torch.zeros(4, 4)[:, 0])
    with pytest.raises(headrace.InvalidArgument, match="there is no group 1"):
        here.register(bytearray(8), group=1)
    assert there.register(b"read-only", "readable").descriptor.access == "readable"
    assert here.register(numpy.zeros(2, [("Object", int)]), "readable").length_bytes == 16
    assert here.register(bytearray(8)).descriptor is None


def test_damaged_addresses_and_descriptors_are_refused(moves):
    data = bytes(moves.descriptor)
    for cut in range(len(data)):
        with pytest.raises(headrace.Corrupt, match="descriptor"):
            headrace.FabricDescriptor(data[:cut])
    for wrong in (b"", b"x" * 40, data):
        with pytest.raises(headrace.Corrupt, match="address"):
            headrace.FabricAddress(wrong)
    with pytest.raises(headrace.Corrupt, match="digits"):
        headrace.FabricAddress("no hex")
    with pytest.raises(TypeError, match="bytes"):
        headrace.FabricDescriptor("text")


def test_groups_that_cannot_be_opened_are_refused():
    def hand(*nics, **more):
        return headrace.FabricGroupOptions(list(nics), **more)

    for groups, error, words in [
        ([hand()], headrace.InvalidArgument, "no network card"),
        ([hand("127.0.0.1", "127.0.0.1")], headrace.InvalidArgument, "given twice"),
        ([hand("no_such_card")], headrace.NotFound, "no_such_card"),
        ([hand("lo", cpus=[4095])], headrace.InvalidArgument, "4095"),
        ([hand("lo", device=77)], headrace.InvalidArgument, "GPU 77"),
    ]:
        with pytest.raises(error, match=words):
            headrace.Fabric(groups=groups)
    with pytest.raises(headrace.InvalidArgument, match="exclude each other"):
        headrace.Fabric([0], groups=[hand("lo")])
    with pytest.raises(headrace.InvalidArgument, match='spin is "never": give one of "brief", "always"'):
        headrace.Fabric(groups=[hand("lo")], spin="never")


def test_fabrics_with_the_same_secret_meet_and_others_hear_why_not(tmp_path):
    file = tmp_path / "secret"
    file.write_text("one\n")
    group = [headrace.FabricGroupOptions(["127.0.0.1"])]
    with (
        headrace.Fabric(groups=group, options={"auth_token_file": str(file)}) as here,
        headrace.Fabric(groups=group, options={"auth_token": "one"}) as there,
        headrace.Fabric(groups=group, options={"auth_token": "two"}) as stranger,
    ):
        here.post_immediate(here.connect(there.address), 1).wait(datetime.timedelta(seconds=SECONDS))
        there.expect(1, 1).wait(datetime.timedelta(seconds=SECONDS))
        with pytest.raises(headrace.PeerLost, match="different shared tokens"):
            stranger.post_immediate(stranger.connect(there.address), 1).wait(SECONDS)
    with pytest.raises(headrace.InvalidArgument, match="auth_token"):
        headrace.Fabric(groups=group, options={"auth_tokens": "one"})


def test_what_belongs_to_its_process_refuses_to_be_pickled_with_advice(moves):
    peers = moves.here.peer_group(0, [])
    pool = moves.here.host_buffers(1, 8)
    things = [moves.here, moves.memory, moves.write(8), moves.there.expect(1, 1), peers, pool, pool.take()]
    things.append(moves.there.receive_all(1, 8, print))
    for thing in [*things, moves.there.expect(2, 1).word(), moves.here.connect(moves.there.address)]:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)


# ------------------------------------------------------------------ lives


def test_a_fabric_that_its_own_callbacks_use_is_collected():
    def use_itself():
        fabric = open_fabric()
        expectation = fabric.expect(1, 1)
        expectation.on_reached(lambda: (fabric, expectation))
        fabric.on_error(lambda error: fabric)
        fabric.on_unexpected(lambda *arrival: fabric)
        return weakref.ref(fabric), weakref.ref(expectation)

    gone = use_itself()
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_works_and_handles_outlive_their_fabric():
    with open_fabric() as there:
        target = there.register(bytearray(8), "writable").descriptor
        here = open_fabric()
        work, expectation = here.write(here.register(bytearray(8)), target), here.expect(1, 1)
        peers, pool = here.peer_group(1, [there.address]), here.host_buffers(1, 8)
        buffer = pool.take()
        work.wait(SECONDS)
        del here
        gc.collect()
        assert work.state == "done"
        with pytest.raises(headrace.Canceled):
            expectation.wait()
        assert len(peers) == 1
        memoryview(buffer)[:] = bytes(8)


def test_in_a_forked_child_every_call_is_refused_and_the_parent_goes_on(run_script):
    code, out, err = run_script(FORK)
    assert code == 0, err
    assert out.splitlines() == ["child: 16 of 16 refused, 8 shown", "parent: done"]


FORK = """
import os, sys
import headrace
hand = [headrace.FabricGroupOptions(["127.0.0.1"])]
fabric = headrace.Fabric(groups=hand)
memory = fabric.register(bytearray(8), "writable")
far = memory.descriptor
work, expectation = fabric.write(memory, far), fabric.expect(1, 1)
peers, pool = fabric.peer_group(1, [fabric.address]), fabric.host_buffers(1, 8)
peer = peers.members[0]
work.wait(30)
child = os.fork()
if child == 0:
    calls = [lambda: fabric.write(memory, far), lambda: fabric.read(memory, far), lambda: fabric.expect(2, 1),
             lambda: fabric.register(bytearray(8)), lambda: fabric.deregister(memory), fabric.groups,
             lambda: fabric.connect(fabric.address), lambda: fabric.barrier(peers, 1), fabric.counters,
             lambda: fabric.on_error(print), lambda: fabric.on_unexpected(print), pool.take,
             lambda: work.wait(1), lambda: work.add_done_callback(print), lambda: expectation.wait(1),
             lambda: peers.join(peer)]
    refused = 0
    for call in calls:
        try:
            call()
        except headrace.InvalidArgument as error:
            refused += "fork" in str(error)
    shown = [repr(each) for each in (fabric, memory, far, work, expectation, peers, peer, pool)]
    print(f"child: {refused} of {len(calls)} refused, {len(shown)} shown", flush=True)
    with headrace.Fabric(groups=hand) as own:
        block = own.register(bytearray(8), "writable")
        own.write(block, block.descriptor).wait(30)
    fabric.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
fabric.write(memory, far, immediate=1)
expectation.wait(30)
print("parent: done", flush=True)
"""


def test_the_interpreter_ends_while_posts_and_callbacks_are_under_way(run_script):
    assert run_script("""
import contextlib, headrace
fabric = headrace.Fabric(groups=[headrace.FabricGroupOptions(["127.0.0.1"])])
memory = fabric.register(bytearray(8), "writable")
def post():
    with contextlib.suppress(headrace.Error):  # it is closed meanwhile
        fabric.write(memory, memory.descriptor, immediate=1).add_done_callback(lambda work: work.state)
fabric.expect(1, 1).on_reached(post)
for _ in range(100):
    post()
""") == (0, "", "")
