# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Works: async operations, await, futures, the memory that they keep, and signals while a call waits."""

import asyncio
import concurrent.futures
import datetime
import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest

import headrace
from conftest import unique, until
from headrace import ReduceOp
from ranks import open_rank, two_ranks


@pytest.fixture
def pair():
    ranks = two_ranks()
    yield ranks
    for comm in ranks:
        comm.abort("the test has ended")


def add(comm, value=1.0, **options):
    mine = np.full(3, value)
    return mine, comm.all_reduce(mine, ReduceOp.SUM, **options)


def test_a_synchronous_operation_returns_a_work_that_is_done(pair):
    other = threading.Thread(target=lambda: add(pair[1]))
    other.start()
    _, work = add(pair[0])
    other.join()
    assert (work.status, work.is_completed(), work.exception(), work.source()) == (
        "completed",
        True,
        None,
        -1,
    )
    work.wait()
    work.wait_blocking(0)
    assert repr(work) == "Work(status='completed')"


def test_an_asynchronous_operation_ends_when_all_ranks_have_come(pair):
    mine, work = add(pair[0], async_op=True)
    assert not work.is_completed()
    assert work.status in ("not_started", "in_progress")
    with pytest.raises(headrace.TimedOut, match="it still waits for rank 1; it goes on"):
        work.wait(datetime.timedelta(milliseconds=20))
    add(pair[1], 2.0)
    work.wait(30)
    assert mine.tolist() == [3.0] * 3
    assert work.is_completed()


def test_an_asynchronous_operation_that_ends_in_its_call_lets_its_tensor_go_there():
    comm = headrace.new_comm("fake", rank=0, size=2)
    mine = np.zeros(3)
    seen = weakref.ref(mine)
    work = comm.all_reduce(mine, ReduceOp.SUM, async_op=True)
    del mine
    assert seen() is None and work.status == "completed"
    assert comm.barrier(async_op=True) is work  # one for all that are done


def test_messages_cross_without_an_order(pair):
    got = [np.empty(3), np.empty(3)]
    receives = [comm.recv(room, headrace.any_source, async_op=True) for comm, room in zip(pair, got)]
    sends = [comm.send(np.full(3, float(rank)), 1 - rank, async_op=True) for rank, comm in enumerate(pair)]
    for work in (*sends, *receives):
        work.wait(30)
    assert [work.source() for work in receives] == [1, 0]
    assert [room[0] for room in got] == [1.0, 0.0]


def test_works_are_awaited_and_one_that_was_canceled_goes_on(pair):
    async def main():
        mine, work = add(pair[0], async_op=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(_wait(work)), 0.02)
        assert not work.is_completed()
        other, second = add(pair[1], 2.0, async_op=True)
        await asyncio.gather(_wait(work), _wait(second))
        await work  # again
        return mine.tolist(), other.tolist()

    assert asyncio.run(main()) == ([3.0] * 3, [3.0] * 3)


async def _wait(work):
    await work


def test_many_works_are_awaited_at_once(pair):
    async def rank(comm):
        arrays = [np.full(3, float(number)) for number in range(50)]
        works = [comm.all_reduce(mine, ReduceOp.SUM, async_op=True) for mine in arrays]
        await asyncio.gather(*works)
        assert [mine[0] for mine in arrays] == [2.0 * number for number in range(50)]

    async def main():
        await asyncio.gather(*(rank(comm) for comm in pair))

    asyncio.run(main())


def test_await_raises_the_error_of_the_operation(pair):
    async def main():
        _, work = add(pair[0], async_op=True)
        pair[1].abort("enough")
        with pytest.raises(headrace.Canceled, match="rank 1 aborted .*: enough"):
            await work
        return work

    work = asyncio.run(main())
    assert work.status == "aborted"
    assert isinstance(work.exception(), headrace.Canceled)


def test_futures_end_with_their_works_on_one_thread(pair):
    works = [add(pair[0], async_op=True)[1] for _ in range(3)]
    futures = [work.get_future() for work in works]
    threads = set()
    for future in futures:
        future.add_done_callback(lambda _: threads.add(threading.current_thread().name))
    assert not futures[0].done()
    assert not futures[0].cancel()
    for _ in range(3):
        add(pair[1])
    concurrent.futures.wait(futures, 30)
    assert [future.result(0) for future in futures] == [None] * 3
    until(lambda: threads == {"headrace-futures"})
    failed = add(pair[0], async_op=True)[1].get_future()
    pair[1].abort("enough")
    assert isinstance(failed.exception(30), headrace.Canceled)
    done = works[0].get_future()
    assert done.result(30) is None


def test_a_future_that_cannot_end_leaves_the_others_alone(pair, caplog):
    def leave(_):
        raise SystemExit("a callback ends its thread")

    futures = [add(pair[0], async_op=True)[1].get_future() for _ in range(3)]
    futures[0].add_done_callback(leave)
    futures[1].set_result(None)
    for _ in range(3):
        add(pair[1])
    assert futures[2].result(30) is None
    assert "a callback ends its thread" in caplog.text
    assert "InvalidStateError" in caplog.text


class Watched(np.ndarray):
    """An array of which a test learns when it is freed."""


def watched(value):
    return np.full(3, value).view(Watched)


def test_arrays_are_kept_until_their_operation_has_ended_also_without_a_work(pair):
    mine, got = watched(1.0), watched(0.0)
    references = [weakref.ref(mine), weakref.ref(got)]
    pair[0].all_reduce(mine, ReduceOp.SUM, async_op=True)
    pair[0].recv(got, 1, async_op=True)
    del mine, got
    gc.collect()
    assert all(reference() is not None for reference in references)
    add(pair[1])
    until(lambda: references[0]() is None)
    assert references[1]() is not None
    pair[1].send(np.ones(3), 0)
    until(lambda: references[1]() is None)


def test_arrays_are_freed_although_no_call_follows_each_time(pair):
    def of_the_first_rank():
        mine = watched(1.0)
        pair[0].all_reduce(mine, ReduceOp.SUM, async_op=True)
        return weakref.ref(mine)

    for _ in range(300):
        mine = of_the_first_rank()
        add(pair[1])
        until(lambda mine=mine: mine() is None)


def test_torch_tensors_are_kept_too(pair):
    torch = pytest.importorskip("torch")
    mine = torch.ones(3)
    reference = weakref.ref(mine)
    parts = [torch.empty(3) for _ in range(2)]
    of_parts = [weakref.ref(part) for part in parts]
    work = pair[0].all_gather(parts, mine, async_op=True)
    del mine, parts
    gc.collect()
    assert None not in [reference(), *(part() for part in of_parts)]
    pair[1].all_gather([torch.empty(3), torch.empty(3)], torch.ones(3))
    work.wait(30)
    until(lambda: [reference(), *(part() for part in of_parts)] == [None] * 3)


def test_a_buffer_cannot_be_resized_while_its_operation_runs(pair):
    mine = bytearray(3)
    work = pair[0].all_reduce(mine, ReduceOp.SUM, async_op=True)
    with pytest.raises(BufferError):
        mine.append(1)
    pair[1].all_reduce(bytearray(3), ReduceOp.SUM)
    work.wait(30)
    mine.append(1)


def test_dropped_communicators_abort_what_is_under_way_and_free_it():
    left, right = two_ranks()
    mine = watched(1.0)
    reference = weakref.ref(mine)
    left.all_reduce(mine, ReduceOp.SUM, async_op=True)
    del mine, left
    gc.collect()
    until(lambda: reference() is None)
    with pytest.raises(headrace.Canceled, match="it left while operations were under way"):
        right.barrier()


# --- signals


class Interrupt(Exception):
    pass


@pytest.fixture
def interrupt_soon():
    """Interrupts the call in which the test's thread waits. Signals come again and again; the handler raises
    when one finds the thread at the instruction of the one before, so that the call has begun."""
    raised, seen = threading.Event(), []

    def handle(_, frame):
        at = id(frame), frame.f_lasti
        if at in seen[-1:] and not raised.is_set():
            raised.set()
            raise Interrupt
        seen.append(at)

    def signal_on():
        while not raised.wait(0.05):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=signal_on)
    yield thread.start
    raised.set()
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_a_wait_and_the_operation_goes_on(pair, interrupt_soon):
    mine, work = add(pair[0], async_op=True)
    interrupt_soon()
    with pytest.raises(Interrupt):
        work.wait()
    assert not work.is_completed()
    add(pair[1])
    work.wait(30)
    assert mine.tolist() == [2.0] * 3


def test_a_signal_ends_a_collective_before_its_exception_is_raised(pair, interrupt_soon):
    interrupt_soon()
    with pytest.raises(Interrupt):
        add(pair[0])
    assert pair[0].is_aborted()
    with pytest.raises(headrace.Canceled, match="rank 0, all_reduce number .*: its caller interrupted it"):
        pair[1].barrier()


def test_a_signal_ends_a_receive_alone(pair, interrupt_soon):
    room = np.empty(3)
    interrupt_soon()
    with pytest.raises(Interrupt):
        pair[0].recv(room, 1)
    assert not pair[0].is_aborted()
    pair[1].send(np.ones(3), 0)
    pair[0].recv(room, 1)
    assert room.tolist() == [1.0] * 3


def test_a_signal_whose_handler_returns_ends_nothing(pair, interrupt_soon):
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    interrupt_soon()

    def come_later():
        until(lambda: seen)
        add(pair[1], 2.0)

    other = threading.Thread(target=come_later)
    other.start()
    mine, _ = add(pair[0])
    other.join()
    assert mine.tolist() == [3.0] * 3


@pytest.mark.parametrize("meeting", ["memory:nobody", "tcp://127.0.0.1:1"])
def test_a_signal_ends_a_meeting(interrupt_soon, meeting):
    interrupt_soon()
    with pytest.raises(Interrupt):
        open_rank(1, 2, unique("comm"), meeting=meeting)


def test_a_signal_ends_finalize(pair, interrupt_soon):
    _, work = add(pair[0], async_op=True)
    interrupt_soon()
    with pytest.raises(Interrupt):
        pair[0].finalize()
    assert work.status == "aborted"


def test_abort_from_another_thread_ends_a_call(pair):
    timer = threading.Timer(0.05, pair[0].abort, ("enough",))
    timer.start()
    with pytest.raises(headrace.Canceled, match='rank 0 aborted ".*": enough'):
        add(pair[0])
    timer.join()


def test_an_exception_in_a_with_statement_aborts(pair):
    with pytest.raises(KeyError), pair[0]:
        raise KeyError("lost")
    with pytest.raises(headrace.Canceled, match=r"rank 0 aborted .*KeyError\('lost'\)"):
        pair[1].barrier()
