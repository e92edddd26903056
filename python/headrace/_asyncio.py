# SPDX-License-Identifier: Apache-2.0
"""`await request` and `agent.notifications()`: the running asyncio loop watches eventfds of Headrace.

The compiled module imports this file at first use, so that `import headrace` does not import asyncio.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._headrace import Agent, Counter, Request

_ONE = (1).to_bytes(8, "little")

# A loop accepts one reader per descriptor, but several tasks may wait for one request: the waiting futures of
# each loop and descriptor.
_waiting: dict[tuple[asyncio.AbstractEventLoop, int], list[asyncio.Future[None]]] = {}


async def ended(request: Request) -> None:
    """Waits until the request has completed, and raises its error.

    When the waiting task is canceled, the request is canceled too.
    """
    request.poll()
    if request.state in ("prepared", "captured"):
        request.wait(0)  # raises: no post is in flight
    try:
        while not request.done:
            await _readable(request)
    except asyncio.CancelledError:
        request.cancel()
        # Canceling takes at most a second. After it the memory is quiet: code that canceled the task relies
        # on that.
        while not request.done:
            await _readable(request)
        raise
    request.wait(0)


async def _readable(request: Request) -> None:
    """Waits until the request's eventfd is readable: the request has completed, or may have."""
    loop = asyncio.get_running_loop()
    fd = request.fileno()
    key = (loop, fd)
    future: asyncio.Future[None] = loop.create_future()
    futures = _waiting.setdefault(key, [])
    futures.append(future)
    if len(futures) == 1:
        loop.add_reader(fd, _wake, key, request)
    try:
        if not request.done:  # the completion may precede add_reader
            await future
    finally:
        futures.remove(future)
        if not futures:
            loop.remove_reader(fd)
            del _waiting[key]


def _wake(key: tuple[asyncio.AbstractEventLoop, int], request: Request) -> None:
    if not request.done:
        # The eventfd is readable from an earlier post: drain it. If the request completes between the read
        # and the next test of `done`, write the eventfd again for the other loops.
        try:
            os.read(key[1], 8)
        except BlockingIOError:
            pass
        if not request.done:
            return
        os.write(key[1], _ONE)
    for future in _waiting[key]:
        if not future.done():
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
            watch.drain()
            came = agent.take_notifications(peer, prefix)
            for notification in came:
                yield notification
            if not came:
                await _any_readable(loop, [watch.fileno(), closing])
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
