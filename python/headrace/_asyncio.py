# SPDX-License-Identifier: Apache-2.0
"""`await request`, `await work`, `await expectation` and `agent.notifications()`: the running asyncio loop
watches eventfds of Headrace.

The compiled module imports this file at first use, so that `import headrace` does not import asyncio.
"""

from __future__ import annotations

import asyncio
import os
import select
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ._headrace import CompletionQueue
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._headrace import Agent, Counter, FabricExpectation, FabricWork, Request, Work


async def ended(request: Request) -> None:
    """Waits until the request has completed, and raises its error.

    When the waiting task is canceled, the request is canceled too.
    """
    if request.state in _IN_FLIGHT:
        completions = _Completions.of(asyncio.get_running_loop())
        if not completions.waiting:  # else the loop wakes soon, and a poll of each request is a system call
            request.poll()
        try:
            while request.state in _IN_FLIGHT:
                await completions.next(request)
        except asyncio.CancelledError:
            request.cancel()
            while request.state in _IN_FLIGHT:
                await _quiet(completions, request)
            raise
    request.wait(0)


async def fabric_work_ended(work: FabricWork) -> None:
    """Waits until the post has ended, and raises its error.

    When the waiting task is canceled, the post is canceled too.
    """
    completions = _Completions.of(asyncio.get_running_loop())
    try:
        await completions.next(work)
    except asyncio.CancelledError:
        work.cancel()
        await _quiet(completions, work)
        raise
    work.wait(0)


async def round_taken(expectation: FabricExpectation) -> None:
    """Takes the next full round that was not taken, and raises Canceled when the expectation has ended."""
    if expectation.poll():
        return
    with select.epoll() as changes:
        # Told once for each change, and reading nothing: the eventfd may have other readers.
        changes.register(expectation.fileno(), select.EPOLLIN | select.EPOLLET)
        while not expectation.poll():
            await _any_readable(asyncio.get_running_loop(), [changes.fileno()])
            changes.poll(0)


async def work_ended(work: Work) -> None:
    """Waits until the operation has ended, and raises its error.

    When the waiting task is canceled, the operation goes on: other ranks take part in it.
    """
    if not work.is_completed():
        await _Completions.of(asyncio.get_running_loop()).next(work)
    work.wait(0)


async def _quiet(completions: _Completions, canceled: Request | FabricWork) -> None:
    """Waits for the completion of what is being canceled, which takes at most a second.

    Further cancels of the task do not end this wait: code that canceled it relies on quiet memory.
    """
    while True:
        try:
            return await completions.next(canceled)
        except asyncio.CancelledError:
            continue


_IN_FLIGHT = ("posted", "canceling")  # of the states of a request

# By the id of their loop, which they keep: so it is no other loop's. A loop owns its completions as a reader.
# Neither this table nor a request keeps a loop, and closing the loop closes the eventfd.
_of_loops: weakref.WeakValueDictionary[int, _Completions] = weakref.WeakValueDictionary()


class _Completions:
    """The completions that the tasks of one event loop wait for: one eventfd for all of them."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Completions:
        completions = _of_loops.get(id(loop))
        if completions is None:
            completions = _of_loops[id(loop)] = cls(loop)
        return completions

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue = CompletionQueue()
        self._last_number = 0
        self.waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self._queue.fileno(), self._wake)

    def next(self, request: Request | Work | FabricWork) -> asyncio.Future[None]:
        """A future of the completion of the post in flight, or of the end of the operation.

        No coroutine: with ten thousand requests in flight the memory of their frames makes an await slow.
        """
        self._last_number = number = self._last_number + 1
        self._queue.add(request, number)  # its completion comes to _wake, hence later
        future = self.waiting[number] = self._loop.create_future()
        return future

    def _wake(self) -> None:
        for number in self._queue.take():
            future = self.waiting.pop(number)
            if not future.done():  # done: the task that waited was canceled
                future.set_result(None)


async def reached(counter: Counter, at_least: int) -> None:
    """Waits until the count is at least that."""
    fd = counter.event_fd(at_least)
    try:
        if counter.value < at_least:
            await _any_readable(asyncio.get_running_loop(), [fd])
        counter.wait(at_least, 0)  # raises if the agent was closed instead
    finally:
        os.close(fd)


async def notifications(agent: Agent, peer: str, prefix: bytes) -> AsyncIterator[tuple[str, bytes]]:
    """Yields the notifications (peer, bytes) that arrive until the agent is closed."""
    loop = asyncio.get_running_loop()
    watch = agent._watch_notifications(peer, prefix)
    # A duplicate: the agent closes its own descriptor.
    closing = os.dup(agent._closing_fd())
    try:
        while not agent.closed:
            # One at a time: an iteration that ends early leaves the others to the next.
            notification = agent._take_notification(peer, prefix)
            if notification is not None:
                yield notification
            else:
                await _any_readable(loop, [watch.fileno(), closing])
                watch.drain()
    except InvalidArgument:
        if not agent.closed:  # another thread closed the agent during the poll: the iteration ends
            raise
    finally:
        os.close(closing)


async def _any_readable(loop: asyncio.AbstractEventLoop, fds: list[int]) -> None:
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    for fd in fds:
        loop.add_reader(fd, wake)
    try:
        await future
    finally:
        for fd in fds:
            loop.remove_reader(fd)
