# SPDX-License-Identifier: Apache-2.0
"""Futures of works of communicators and fabrics: one thread of the process waits for all of them.

The compiled module imports this file at first use.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ._headrace import CompletionQueue, Work

if TYPE_CHECKING:
    from ._headrace import FabricWork
    from .errors import Error


def future_of(work: Work | FabricWork) -> Future[None]:
    """Returns a future that ends with the operation of the work."""
    return _Futures.of_process().add(work)


class _Futures:
    """The futures that have not ended, and the thread that ends them."""

    _of_process: _Futures | None = None
    _lock = threading.Lock()

    @classmethod
    def of_process(cls) -> _Futures:
        with cls._lock:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    @classmethod
    def forget(cls) -> None:
        """In a forked child, which has neither the thread nor its works."""
        cls._of_process, cls._lock = None, threading.Lock()

    def __init__(self) -> None:
        self._queue = CompletionQueue()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[Work | FabricWork, Future[None]]] = {}
        threading.Thread(target=self._run, name="headrace-futures", daemon=True).start()

    def add(self, work: Work | FabricWork) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled: other processes take part
        number = next(self._numbers)
        self._waiting[number] = work, future
        self._queue.add(work, number)
        return future

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._queue.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for number in self._queue.take():
                work, future = self._waiting.pop(number)
                end(future, work.exception() if isinstance(work, Work) else work.error)


def end(future: Future[None], error: Error | None) -> None:
    """Ends the future with the error, or well."""
    try:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    except BaseException:  # of a callback, or its caller has ended it: the other futures end all the same
        logging.getLogger("concurrent.futures").exception("exception at the end of %r", future)


os.register_at_fork(after_in_child=_Futures.forget)
