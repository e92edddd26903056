# SPDX-License-Identifier: Apache-2.0
"""Immediates of posts and the counters of the peers that count them."""

import asyncio
import os
import select
import threading

import numpy
import pytest

import headrace
from conftest import until
from gpus import count_gpus
from sleeping import sleeps_in_epoll

PAGE = 4096


@pytest.fixture(params=["shm", "tcp"])
def pair(request):
    """Two agents that know each other, with a region of 4 pages each."""
    with (
        headrace.Agent("counting", backends=[request.param]) as there,
        headrace.Agent("writing", backends=[request.param]) as here,
    ):
        source = here.allocate(4 * PAGE, name="source")
        target = there.allocate(4 * PAGE, name="target")
        here.import_metadata(there.export_metadata())
        there.import_metadata(here.export_metadata())
        yield here, there, source, target


def pages(region):
    return headrace.UniformPages(region, 0, PAGE, PAGE, 4)


def write(pair, **options):
    here, _, source, _ = pair
    far = here.peer_region("counting", "target")
    return here.write("counting", pages(source), pages(far), **options)


def test_posts_with_an_immediate_are_counted_after_their_bytes(pair):
    _, there, source, target = pair
    counter = there.counter(5, scope=2)
    assert (counter.value, counter.immediate, counter.scope) == (0, 5, 2)
    memoryview(source)[:] = bytes([7]) * len(memoryview(source))
    write(pair, immediate=5, scope=2, notification=b"and a notification")
    counter.wait(1, timeout=30)
    assert bytes(memoryview(target)) == bytes(memoryview(source))
    assert there.wait_notification(30)[1] == b"and a notification"
    write(pair, immediate=5)
    write(pair)
    there.counter(5).wait(1, timeout=30)
    assert counter.value == 1
    assert repr(counter) == "Counter(immediate=5, scope=2, value=1)"


def test_a_request_may_have_another_immediate_at_each_post(pair):
    here, there, source, _ = pair
    far = here.peer_region("counting", "target")
    request = here.make_request("write", here.prepare(pages(source)), here.prepare(pages(far), "counting"))
    for immediate in (1, 2, 2):
        request.post(immediate=immediate)
        request.wait(30)
    there.counter(2).wait(2, timeout=30)
    there.counter(1).wait(1, timeout=30)
    assert there.counter(1).value == 1


def test_a_wait_times_out_with_the_count_and_ends_with_the_agent(pair):
    _, there, *_ = pair
    counter = there.counter(9)
    with pytest.raises(headrace.TimedOut, match="immediate 9 in scope 0 is at 0 of 3"):
        counter.wait(3, timeout=0.01)
    waiting = threading.main_thread().native_id

    def close():
        until(lambda: sleeps_in_epoll(waiting))
        there.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(headrace.Canceled, match="agent was closed"):
        counter.wait(1, timeout=30)
    closing.join()


def test_a_counter_is_awaited(pair):
    _, there, *_ = pair

    async def count() -> None:
        counter = there.counter(1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(counter.reached(2), 0.01)
        waiting = [asyncio.create_task(counter.reached(n)) for n in (1, 2, 2)]
        await asyncio.to_thread(write, pair, immediate=1)
        await asyncio.wait_for(waiting[0], 30)
        assert not waiting[1].done()
        await asyncio.to_thread(write, pair, immediate=1)
        await asyncio.wait_for(asyncio.gather(*waiting), 30)
        await counter.reached(1)

    asyncio.run(count())


def test_an_await_ends_with_the_agent(pair):
    _, there, *_ = pair

    async def count() -> None:
        waiting = asyncio.create_task(there.counter(1).reached(1))
        await asyncio.sleep(0)
        await asyncio.to_thread(there.close)
        with pytest.raises(headrace.Canceled):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(count())


def test_a_descriptor_becomes_readable_at_its_count(pair):
    _, there, *_ = pair
    counter = there.counter(3)
    fd = counter.event_fd(2)
    try:
        write(pair, immediate=3)
        counter.wait(1, timeout=30)
        assert select.select([fd], [], [], 0)[0] == []
        write(pair, immediate=3)
        assert select.select([fd], [], [], 30)[0] == [fd]
    finally:
        os.close(fd)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_and_awaits_that_are_given_up_leave_few_descriptors(pair):
    _, there, *_ = pair

    async def give_up(count):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(there.counter(count).reached(count), 0.0001)

    before = descriptors()
    for count in range(1, 101):
        os.close(there.counter(7).event_fd(count))
        os.close(there.counter(count).event_fd(1))
        asyncio.run(give_up(count))
    assert descriptors() <= before + 10


def test_an_immediate_has_32_bits(pair):
    for wrong in (-1, 1 << 32):
        with pytest.raises(TypeError):
            write(pair, immediate=wrong)
        with pytest.raises(TypeError):
            pair[1].counter(wrong)


def test_a_word_in_host_memory_follows_the_count(pair):
    _, there, *_ = pair
    counter = there.counter(4)
    word = counter.word()
    view = numpy.asarray(word)
    assert (word.device, view.dtype, view.shape, int(view[0])) == (-1, numpy.int64, (1,), 0)
    assert view.ctypes.data == word.address and not view.flags.writeable
    write(pair, immediate=4)
    counter.wait(1, timeout=30)
    assert int(view[0]) == 1
    del counter, word
    there.close()
    assert int(view[0]) == 1, "a view keeps the word"


@pytest.mark.skipif(count_gpus() > 0, reason="this machine has a GPU")
def test_a_word_in_gpu_memory_needs_a_driver(pair):
    with pytest.raises(headrace.NotSupported, match="driver"):
        pair[1].counter(4).word(device=0)
