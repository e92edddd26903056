# SPDX-License-Identifier: Apache-2.0
"""Operations of gloo in the order of their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from .gloo_errors import as_headrace_error

Run = Callable[[], object]


class InOrder:
    """A thread that runs one operation after the other.

    torch begins an operation before those that were called earlier have ended. Then copies of its input would
    be made too early, and some of its outputs would be written too late.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Run, Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headrace-gloo-order", daemon=True)
        self._thread.start()

    def add(self, run: Run) -> Future[None]:
        future: Future[None] = Future()
        self._queue.put((run, future))
        return future

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            run, future = one
            try:
                run()
            except BaseException as error:  # all of them end the operation
                future.set_exception(as_headrace_error(error))
            else:
                future.set_result(None)
            del one, run, future  # with their tensors, before the wait for the next

    def close(self) -> None:
        """Runs what is left, and ends the thread."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
