# SPDX-License-Identifier: Apache-2.0
"""Futures of rounds of a fabric's expectations: one thread of the process waits for all of them.

The compiled module imports this file at first use.
"""

from __future__ import annotations

import collections
import os
import select
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ._work_futures import end
from .errors import Error

if TYPE_CHECKING:
    from ._headrace import FabricExpectation

# Told once for each change of an eventfd, and reading nothing from it: it may have other readers.
CHANGES = select.EPOLLIN | select.EPOLLET


def future_of(expectation: FabricExpectation) -> Future[None]:
    """Returns a future that takes the next round that was not taken."""
    return _Rounds.of_process().add(expectation)


class _Waiting:
    """The futures of one expectation that have not ended."""

    def __init__(self, expectation: FabricExpectation) -> None:
        self._expectation = expectation
        self.futures: collections.deque[Future[None]] = collections.deque()

    def take(self) -> list[tuple[Future[None], Error | None]]:
        """Removes the futures whose rounds are full; all, with the error, if the expectation has ended."""
        ended: list[tuple[Future[None], Error | None]] = []
        try:
            while self.futures and self._expectation.poll():
                ended.append((self.futures.popleft(), None))
        except Error as error:
            ended.extend((future, error) for future in self.futures)
            self.futures.clear()
        return ended


class _Rounds:
    """The expectations that have futures, by their eventfds, and the thread that ends these futures."""

    _of_process: _Rounds | None = None
    _process_lock = threading.Lock()

    @classmethod
    def of_process(cls) -> _Rounds:
        with cls._process_lock:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    @classmethod
    def forget(cls) -> None:
        """In a forked child, which has neither the thread nor its expectations."""
        cls._of_process, cls._process_lock = None, threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._changes = select.epoll()
        threading.Thread(target=self._run, name="headrace-rounds", daemon=True).start()

    def add(self, expectation: FabricExpectation) -> Future[None]:
        descriptor = expectation.fileno()
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled: it may have taken its round
        with self._lock:
            is_new = descriptor not in self._waiting
            self._waiting.setdefault(descriptor, _Waiting(expectation)).futures.append(future)
            if is_new:
                self._changes.register(descriptor, CHANGES)
            else:
                self._changes.modify(descriptor, CHANGES)  # tells again of what is there
        return future

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._changes.poll():
                for future, error in self._take(descriptor):
                    end(future, error)

    def _take(self, descriptor: int) -> list[tuple[Future[None], Error | None]]:
        with self._lock:
            waiting = self._waiting[descriptor]
            ended = waiting.take()
            if not waiting.futures:
                del self._waiting[descriptor]
                self._changes.unregister(descriptor)
        return ended


os.register_at_fork(after_in_child=_Rounds.forget)
