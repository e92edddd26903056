# SPDX-License-Identifier: Apache-2.0
"""`await request` and `agent.notifications()`: descriptors of Headrace's in the running asyncio loop.

Imported at first use, so that `import headrace` does not import asyncio.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._headrace import Agent, Request

_ONE = (1).to_bytes(8, "little")

# A loop has one reader a descriptor, and several tasks may wait for one request: who waits, by loop and
# descriptor.
_waiting: dict[tuple[asyncio.AbstractEventLoop, int], list[asyncio.Future[None]]] = {}


async def ended(request: Request) -> None:
    """Waits until the request has ended; raises its error. A task that is canceled here cancels the
    request."""
    request.poll()
    if request.state in ("prepared", "captured"):
        request.wait(0)  # raises: there is no end to wait for
    try:
        while not request.done:
            await _readable(request)
    except asyncio.CancelledError:
        request.cancel()
        # Canceling lasts a second at most; then the memory is quiet, which who canceled the task may rely on.
        while not request.done:
            await _readable(request)
        raise
    request.wait(0)


async def _readable(request: Request) -> None:
    """Waits until the request's descriptor says that it has ended, or may have."""
    loop = asyncio.get_running_loop()
    fd = request.fileno()
    key = (loop, fd)
    future: asyncio.Future[None] = loop.create_future()
    futures = _waiting.setdefault(key, [])
    futures.append(future)
    if len(futures) == 1:
        loop.add_reader(fd, _wake, key, request)
    try:
        if not request.done:  # the end may have come before the reader
            await future
    finally:
        futures.remove(future)
        if not futures:
            loop.remove_reader(fd)
            del _waiting[key]


def _wake(key: tuple[asyncio.AbstractEventLoop, int], request: Request) -> None:
    if not request.done:
        # Readable from an earlier post. If the end comes between reading and looking, it is said again for
        # other loops.
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


# Notifications that a filter leaves where they are keep the descriptor readable: look again after this many
# seconds.
_PATIENCE = 0.005


async def notifications(agent: Agent, peer: str, prefix: bytes) -> AsyncIterator[tuple[str, bytes]]:
    """Yields what comes in until the agent is closed."""
    loop = asyncio.get_running_loop()
    # Copies: several iterators may wait on one agent, and the agent's own descriptors go when it is closed.
    fds = [os.dup(agent.notification_fd()), os.dup(agent._closing_fd())]
    in_vain = False  # the last look found nothing that fits
    try:
        while not agent.closed:
            came = agent.take_notifications(peer, prefix)
            for notification in came:
                yield notification
            if came:
                in_vain = False
                continue
            # Woken, and nothing fits: what woke us is still there.
            if in_vain and (peer or prefix):
                await asyncio.sleep(_PATIENCE)
            await _any_readable(loop, fds)
            in_vain = True
    except InvalidArgument:
        if not agent.closed:  # closed by another thread while we looked: that ends it
            raise
    finally:
        for fd in fds:
            os.close(fd)


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
