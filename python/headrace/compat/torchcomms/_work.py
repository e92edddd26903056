# SPDX-License-Identifier: Apache-2.0
"""torchcomms' work: an operation that is under way, or done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from threading import Thread
from typing import Any, NoReturn

import headrace
from headrace._torch.errors import as_torch_error


class WorkStatus(Enum):
    NOT_STARTED = 0
    INPROGRESS = 1
    COMPLETED = 2
    TIMEDOUT = 3
    ERROR = 4


class TorchWork:
    """An operation of a communicator. Its memory stays in place until it has ended."""

    __slots__ = ("_work",)

    def __init__(self, work: Any) -> None:
        self._work = work

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        ended: bool = self._work.is_completed()
        return ended

    def wait(self) -> None:
        """Waits until it has ended. On a GPU later work of the current stream waits, and this returns.

        Errors: RuntimeError, those of the operation; also where torchcomms' backends return silently.
        """
        try:
            self._work.wait()
        except headrace.Error as error:
            raise as_torch_error(error) from None

    def wait_blocking(self) -> None:
        """The same, and on a GPU the caller waits."""
        try:
            getattr(self._work, "wait_blocking", self._work.wait)()
        except headrace.Error as error:
            raise as_torch_error(error) from None

    def _set_status(self, status: WorkStatus) -> None:
        if not isinstance(self._work, PythonWork):
            raise RuntimeError("_set_status is for the works of Python backends: this one is Headrace's")
        self._work.status = status


class GlooWork(TorchWork):
    """The same for programs that open gloo, whose works have no wait_blocking in torchcomms."""

    __slots__ = ()

    def wait_blocking(self) -> NoReturn:
        raise RuntimeError(
            "waitBlocking not implemented by gloo: call wait(), or open the backend host, whose works have it"
        )


class _Ended:
    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass


DONE = TorchWork(_Ended())
"""Of operations that were not async: what is done needs no work of its own."""


class PythonWork:
    """What an operation of a Python backend returned: an object with wait()."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.status = WorkStatus.INPROGRESS

    def is_completed(self) -> bool:
        return self.status is not WorkStatus.INPROGRESS

    def wait(self) -> None:
        self._work.wait()
        self.status = WorkStatus.COMPLETED


class FutureWork:
    """A call that a thread makes."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def is_completed(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        self._future.result()


def on_thread(call: Callable[[], Any]) -> TorchWork:
    """Makes a call on a thread of its own. For what waits and has no async form."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="headrace-wait", daemon=True).start()
    return TorchWork(FutureWork(future))
