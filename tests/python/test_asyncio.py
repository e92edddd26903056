# SPDX-License-Identifier: Apache-2.0
"""`await request` and `async for ... in agent.notifications()`."""

import asyncio
import gc
import os
import select
import threading

import pytest

import headrace
from conftest import introduce, unique, until
from headrace import _asyncio


@pytest.fixture
def request_of_pair(pair):
    left, right = pair
    here, there = left.allocate(1 << 20), right.allocate(1 << 20, name="there")
    there.numpy()[:] = 7
    left.import_metadata(right.export_metadata())
    request = left.make_request(
        "read", left.prepare([here]), left.prepare([left.peer_region(right.name, "there")], right.name)
    )
    return request, here, there


def test_a_request_is_awaited_again_and_again(request_of_pair):
    request, here, there = request_of_pair

    async def main():
        for value in range(20):
            there.numpy()[:] = value
            request.post()
            await request
            assert request.state == "done" and (here.numpy() == value).all()
            await request  # the request has ended: this returns at once

    asyncio.run(main())


def waiting():
    """How many tasks and threads sleep in an await of a request."""
    return sum(len(futures) for futures in list(_asyncio._waiting.values()))


def test_many_tasks_may_await_one_request(stopped):
    request = stopped.make_request()

    async def wait():
        await request
        return request.state

    async def main():
        request.post()
        tasks = [asyncio.create_task(wait()) for _ in range(8)]
        while waiting() < 8:
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        stopped.peer.resume()
        assert await asyncio.gather(*tasks) == ["done"] * 8
        for _ in range(10):
            request.post()
            assert await asyncio.gather(*(wait() for _ in range(8))) == ["done"] * 8

    asyncio.run(main())
    assert (stopped.here == stopped.there).all()


def test_two_loops_may_await_one_request(stopped):
    request = stopped.make_request()
    ended = []

    async def wait():
        await request
        ended.append(request.state)

    def two_loops():
        return [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(2)]

    request.post()
    threads = two_loops()
    for thread in threads:
        thread.start()
    until(lambda: waiting() == 2)
    assert ended == []
    stopped.peer.resume()
    for thread in threads:
        thread.join()
    assert ended == ["done"] * 2
    for posts in range(2, 12):
        request.post()
        threads = two_loops()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ended == ["done"] * 2 * posts


def test_awaiting_a_request_that_was_never_posted_is_invalid(request_of_pair):
    request, *_ = request_of_pair

    async def main():
        with pytest.raises(headrace.InvalidArgument, match="has not been posted"):
            await request

    asyncio.run(main())


def test_awaiting_raises_the_requests_error(pair, request_of_pair):
    request, *_ = request_of_pair
    _left, right = pair

    async def main():
        right.close()
        with pytest.raises(headrace.PeerLost, match=right.name):
            request.post()
            await request

    asyncio.run(main())


class Scripted:
    """A stand-in for a request. It ends when the test calls `end`, so that the test decides the moment of a
    cancel."""

    def __init__(self):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, "eventfd") else None
        self.state, self.calls = "posted", []

    done = property(lambda self: self.state in ("done", "failed", "canceled"))

    def poll(self):
        return self.state

    def fileno(self):
        return self.fd

    def cancel(self):
        self.calls.append("cancel")
        self.state = "canceling"

    def wait(self, timeout):
        self.calls.append("wait")

    def end(self, state):
        self.state = state
        os.eventfd_write(self.fd, 1)


def test_a_canceled_task_cancels_its_request_and_ends_after_the_request():
    if not hasattr(os, "eventfd"):
        pytest.skip("this Python has no os.eventfd")

    async def main():
        request = Scripted()
        task = asyncio.create_task(_asyncio.ended(request))
        await asyncio.sleep(0)
        task.cancel()
        while request.calls != ["cancel"]:
            await asyncio.sleep(0)
        os.eventfd_write(request.fd, 1)  # the descriptor is readable, but the request has not ended
        while select.select([request.fd], [], [], 0)[0]:  # the task drains it
            await asyncio.sleep(0)
        assert not task.done()
        request.end("canceled")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.calls == ["cancel"]
        os.close(request.fd)

    asyncio.run(main())


def test_a_timeout_around_an_awaited_request_cancels_it(stopped):
    request = stopped.make_request()

    async def main():
        request.post()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.1)
        assert request.state == "canceled"

    asyncio.run(main())
    stopped.peer.resume()
    request.post()
    request.wait(30)
    assert (stopped.here == stopped.there).all()


def test_notifications_are_iterated_until_the_agent_is_closed(pair):
    left, right = pair

    async def main():
        got = []

        async def read():
            async for peer, payload in right.notifications():
                got.append((peer, payload))

        task = asyncio.create_task(read())
        for i in range(50):
            left.notify(right.name, str(i).encode())
            await asyncio.sleep(0)
        while len(got) < 50:
            await asyncio.sleep(0.001)
        assert got == [(left.name, str(i).encode()) for i in range(50)]
        assert not task.done()
        await asyncio.to_thread(right.close)
        await asyncio.wait_for(task, 30)

    asyncio.run(main())


def test_two_iterators_with_filters_each_get_their_own(pair):
    left, right = pair

    async def collect(prefix, count):
        got = []
        async for _, payload in right.notifications(prefix=prefix):
            got.append(payload)
            if len(got) == count:
                return got

    async def main():
        left.notify(right.name, b"nobody wants this")
        tasks = [asyncio.create_task(collect(prefix, 10)) for prefix in (b"a", b"b")]
        for i in range(10):
            left.notify(right.name, b"a%d" % i)
            left.notify(right.name, b"b%d" % i)
            await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == [
            [b"a%d" % i for i in range(10)],
            [b"b%d" % i for i in range(10)],
        ]

    asyncio.run(main())
    assert right.take_notifications() == [(left.name, b"nobody wants this")]


class CountsLooks:
    """An agent that counts how often its notifications are asked for."""

    def __init__(self, agent):
        self._agent = agent
        self.looks = 0

    def take_notifications(self, peer, prefix):
        self.looks += 1
        return self._agent.take_notifications(peer, prefix)

    def __getattr__(self, name):
        return getattr(self._agent, name)


def test_an_iterator_with_a_filter_looks_only_when_something_arrives_that_passes_it(pair):
    left, right = pair

    async def main():
        counted = CountsLooks(right)
        left.notify(right.name, b"for somebody else")
        wanted = asyncio.ensure_future(anext(_asyncio.notifications(counted, left.name, b"wanted")))
        for i in range(20):
            left.notify(right.name, b"neither is this %d" % i)
            await asyncio.sleep(0.01)
        assert counted.looks <= 2
        left.notify(right.name, b"wanted now")
        assert await asyncio.wait_for(wanted, 30) == (left.name, b"wanted now")

    asyncio.run(main())
    assert len(right.take_notifications()) == 21


def test_iterating_leaves_no_descriptor_behind(backend):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async def take(agent):
        async for _ in agent.notifications():
            return

    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend]) as right,
    ):
        introduce(left, right)
        before = None
        for _ in range(5):
            left.notify(right.name, b"x")
            asyncio.run(take(right))
            if before is None:
                before = descriptors()
        until(lambda: descriptors() == before)
