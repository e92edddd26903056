# SPDX-License-Identifier: Apache-2.0
"""`await request` and `async for ... in agent.notifications()`."""

import asyncio
import gc
import os
import threading
import traceback

import pytest

import headrace
from conftest import HERE, introduce, unique, until
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
    return sum(len(of_loop.waiting) for of_loop in list(_asyncio._of_loops.values()))


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


class ScriptedQueue:
    """A stand-in for a completion queue of Scripted requests."""

    def __init__(self):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.numbers = []

    def add(self, request, number):
        request.listeners.append((self, number))

    def take(self):
        os.eventfd_read(self.fd)
        taken, self.numbers = self.numbers, []
        return taken

    def fileno(self):
        return self.fd


class Scripted:
    """A stand-in for a request. It ends when the test calls `end`, so that the test decides the moment of a
    cancel."""

    def __init__(self):
        self.state, self.calls, self.listeners = "posted", [], []
        self.polls = 0

    def poll(self):
        self.polls += 1
        return self.state

    def cancel(self):
        self.calls.append("cancel")
        self.state = "canceling"

    def wait(self, timeout):
        self.calls.append("wait")

    def tell(self):
        told, self.listeners = self.listeners, []
        for queue, number in told:
            queue.numbers.append(number)
            os.eventfd_write(queue.fd, 1)

    def end(self, state):
        self.state = state
        self.tell()


@pytest.fixture
def scripted_queue(monkeypatch):
    if not hasattr(os, "eventfd"):
        pytest.skip("this Python has no os.eventfd")
    monkeypatch.setattr(_asyncio, "CompletionQueue", ScriptedQueue)


def test_a_canceled_task_cancels_its_request_and_ends_after_the_request(scripted_queue):
    async def main():
        request = Scripted()
        task = asyncio.create_task(_asyncio.ended(request))
        await asyncio.sleep(0)
        task.cancel()
        while request.calls != ["cancel"]:
            await asyncio.sleep(0)
        request.tell()  # the number came, but the request has not ended
        while not request.listeners:  # the task waits again
            await asyncio.sleep(0)
        assert not task.done()
        request.end("canceled")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.calls == ["cancel"]

    asyncio.run(main())


def test_a_task_that_is_canceled_again_and_again_ends_after_its_request(scripted_queue):
    async def main():
        request = Scripted()
        task = asyncio.create_task(_asyncio.ended(request))
        await asyncio.sleep(0)
        for _ in range(5):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert request.calls == ["cancel"] and not task.done()
        request.end("canceled")
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_of_many_requests_that_are_awaited_together_one_is_polled(scripted_queue):
    async def main():
        requests = [Scripted() for _ in range(100)]
        for _ in range(2):
            tasks = [asyncio.create_task(_asyncio.ended(request)) for request in requests]
            await asyncio.sleep(0)
            assert waiting() == 100
            for request in requests:
                request.end("done")
            await asyncio.gather(*tasks)
            for request in requests:
                request.state = "posted"
        assert [request.polls for request in requests] == [2] + [0] * 99

    asyncio.run(main())


def test_awaits_that_were_canceled_leave_nothing_behind_once_their_requests_have_ended(stopped):
    requests = [stopped.make_request() for _ in range(8)]

    async def main():
        for request in requests:
            request.post()
        tasks = [asyncio.ensure_future(request) for request in requests]
        while waiting() < len(requests):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        assert all(request.state == "canceled" for request in requests)
        while waiting() > 0:
            await asyncio.sleep(0)

    asyncio.run(main())


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_loop_has_one_descriptor_for_all_the_requests_that_it_awaits(stopped):
    requests = [stopped.make_request() for _ in range(100)]

    async def main():
        for request in requests:
            request.post()
        before = descriptors()
        tasks = [asyncio.ensure_future(request) for request in requests]
        while waiting() < len(requests):
            await asyncio.sleep(0)
        assert descriptors() == before + 1
        stopped.peer.resume()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert (stopped.here == stopped.there).all()


def test_the_descriptor_of_a_loop_goes_with_the_loop(request_of_pair):
    request, *_ = request_of_pair

    async def main():
        for _ in range(100):
            request.post()
            await _asyncio._Completions.of(asyncio.get_running_loop()).next(request)

    asyncio.run(main())
    before = descriptors()
    for _ in range(5):
        asyncio.run(main())
    assert descriptors() == before


AWAITS_AT_A_LOW_LIMIT = """
import asyncio, resource, sys
sys.path.insert(0, sys.argv[1])
import headrace
from conftest import introduce

async def main(requests):
    for request in requests:
        request.post()
    await asyncio.gather(*requests)

with headrace.Agent("left", [sys.argv[2]]) as left, headrace.Agent("right", [sys.argv[2]]) as right:
    here, there = left.allocate(1 << 20), right.allocate(1 << 20, name="there")
    there.numpy()[:] = 7
    introduce(left, right)
    lists = left.prepare([here]), left.prepare([left.peer_region("right", "there")], "right")
    requests = [left.make_request("read", *lists) for _ in range(300)]
    left.connect("right", 30)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    asyncio.run(main(requests))
    assert all(request.state == "done" for request in requests) and (here.numpy() == 7).all()
"""


def test_more_requests_are_awaited_than_the_process_may_have_descriptors(run_script, backend):
    code, _, errors = run_script(AWAITS_AT_A_LOW_LIMIT, str(HERE), backend)
    assert code == 0, errors


def test_a_loop_that_is_closed_while_a_request_is_in_flight_leaves_nothing_behind(stopped):
    request = stopped.make_request()

    def abandon():
        """A loop that ends beside its task, as a program does that gives up on it."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(_asyncio.ended(request))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False

    request.post()
    before = descriptors()
    for _ in range(3):
        abandon()
    assert descriptors() == before
    assert waiting() == 0
    stopped.peer.resume()
    request.wait(30)

    async def main():
        request.post()
        await request

    asyncio.run(main())
    assert (stopped.here == stopped.there).all()


def test_an_agent_that_is_closed_ends_the_awaits_of_its_requests(stopped):
    requests = [stopped.make_request() for _ in range(8)]

    async def main():
        for request in requests:
            request.post()
        tasks = [asyncio.ensure_future(request) for request in requests]
        while waiting() < len(requests):
            await asyncio.sleep(0)
        await asyncio.to_thread(stopped.agent.close)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, headrace.Canceled)

    asyncio.run(main())


def test_a_forked_child_awaits_requests_of_its_own_alone(stopped):
    request = stopped.make_request()

    async def in_child():
        with pytest.raises(headrace.InvalidArgument, match="after the fork"):
            await request
        with (
            headrace.Agent(unique("left"), ["tcp"]) as left,
            headrace.Agent(unique("right"), ["tcp"]) as right,
        ):
            right.allocate(1 << 20, name="there")
            introduce(left, right)
            pages = (
                left.prepare([left.allocate(1 << 20)]),
                left.prepare([left.peer_region(right.name, "there")], right.name),
            )
            own = left.make_request("read", *pages)
            own.post()
            await own

    async def main():
        request.post()
        task = asyncio.ensure_future(request)
        while waiting() < 1:
            await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(in_child())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert not task.done()
        stopped.peer.resume()
        await task

    asyncio.run(main())
    assert (stopped.here == stopped.there).all()


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

    def _take_notification(self, peer, prefix):
        self.looks += 1
        return self._agent._take_notification(peer, prefix)

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


def notify_ten(left, right):
    before = right.telemetry().counters["notifications.received"]
    for i in range(10):
        left.notify(right.name, b"%d" % i)
    until(lambda: right.telemetry().counters["notifications.received"] == before + 10)


def test_an_iteration_that_ends_early_leaves_the_other_notifications(pair):
    left, right = pair

    async def first():
        async for _, payload in right.notifications():
            return payload

    async def canceled_in_its_body():
        seen = []

        async def read():
            async for _, payload in right.notifications():
                seen.append(payload)
                await asyncio.Event().wait()

        task = asyncio.create_task(read())
        while not seen:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    notify_ten(left, right)
    assert [asyncio.run(asyncio.wait_for(first(), 30)) for _ in range(3)] == [b"0", b"1", b"2"]
    assert asyncio.run(canceled_in_its_body()) == [b"3"]
    assert [payload for _, payload in right.take_notifications()] == [b"%d" % i for i in range(4, 10)]


def test_iterating_leaves_no_descriptor_behind(backend):
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
