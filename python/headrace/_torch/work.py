# SPDX-License-Identifier: Apache-2.0
"""torch's Work for operations of a communicator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Work

import headrace

from .errors import as_torch_error
from .tensors import Staged
from .to_itself import SelfWork

NO_TIMEOUT = timedelta(0)


class GroupWork(Work):
    """Operations that belong to one call: all of them, until they have ended."""

    __slots__ = (
        "_copied",
        "_copying",
        "_number",
        "_registered",
        "_result",
        "_staged",
        "_works",
    )  # without a dict it is made faster

    def __init__(
        self,
        works: Sequence[headrace.Work | SelfWork],
        result: list[Any],
        staged: Sequence[Staged] = (),
        number: int = 0,
    ) -> None:
        """
        result: what the future of the work gets, and result().
        staged: outputs, copied from their contiguous memory when all works have ended.
        number: of the operation, in its group.
        """
        Work.__init__(self)
        self._works = works
        self._result = result
        self._staged = staged
        self._copying = threading.Lock() if staged else None
        self._copied: tuple[torch.cuda.Event, torch.device] | None = None  # the event after copies on a GPU
        self._number = number
        self._registered = False

    @classmethod
    def done(cls, result: list[Any], staged: Sequence[Staged]) -> GroupWork:
        """Of operations that have ended."""
        work = cls((), result, staged)
        work._copy_staged()
        return work

    @classmethod
    def of_all(cls, works: Sequence[Any]) -> GroupWork:
        """One work for several."""
        return cls(
            [one for work in works for one in work._works],
            [one for work in works for one in work._result],
            [pair for work in works for pair in work._staged],
        )

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits until the operations have ended, and raises the error of the first that failed."""
        try:
            if timeout:
                self._wait_until(time.monotonic() + timeout.total_seconds())
            else:
                for work in self._works:
                    work.wait()
        except headrace.Error as error:
            raise as_torch_error(error) from None
        if self._copying is not None:
            self._copy_staged()
        if self._registered:
            self._unregister()
        return True

    def register(self) -> None:
        """Makes the work known to torch by its tensors, until it has been waited for."""
        self._registered = True
        for tensor in self._result:
            c10d._register_work(tensor, self)

    def _unregister(self) -> None:
        self._registered = False
        for tensor in self._result:
            torch.ops._c10d_functional.wait_tensor(tensor)  # it waits for this work, too

    def _wait_until(self, deadline: float) -> None:
        for work in self._works:
            work.wait(max(0.0, deadline - time.monotonic()))

    def is_completed(self) -> bool:
        """Whether all have ended, well or not. The outputs are there if it is_success, too."""
        ended = [work.is_completed() for work in self._works]  # all of them: each call makes progress
        if not all(ended):
            return False
        if self._staged and self._error() is None:
            self._copy_staged()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error() is None

    def exception(self) -> headrace.Error | None:
        """Why the first failed; None if none did, or they have not ended."""
        error = self._error()
        return as_torch_error(error) if error else None

    def _error(self) -> headrace.Error | None:
        return next((error for work in self._works if (error := work.exception())), None)

    def _get_sequence_number(self) -> int:
        return self._number

    def source_rank(self) -> int:
        """Of a receive: the rank that sent."""
        return self._works[0].source() if self._works else -1

    def _source_rank(self) -> int:
        return self.source_rank()

    def result(self) -> list[Any]:
        return self._result

    def synchronize(self) -> None:
        """The same as wait, which holds up the current stream where tensors are on a GPU."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as wait."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future with the result, or the error. Its callbacks run on Headrace's thread for futures.

        On a GPU it is there at once, and waiting for it holds up the current stream.
        """
        device = next((tensor.device for tensor in self._result if tensor.is_cuda), None)
        if device is not None:
            return self._future_on_gpu(device)
        future: torch.futures.Future[Any] = torch.futures.Future()

        def end() -> None:
            try:
                if error := self.exception():
                    raise error
                self._copy_staged()
            except Exception as failed:
                future.set_exception(failed)
            else:
                future.set_result(self._result)

        self.on_end(end)
        return future

    def _future_on_gpu(self, device: torch.device) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device])
        # A capture takes no streams but those that it has begun.
        is_captured = torch.cuda.is_current_stream_capturing()
        stream = torch.cuda.current_stream(device) if is_captured else torch.cuda.Stream(device)
        try:
            with torch.cuda.stream(stream):
                self.wait()
                future.set_result(self._result)
        except Exception as failed:
            future.set_exception(failed)
        return future

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A future with the number of a WorkResult. It raises nothing."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        self.on_end(lambda: future.set_result(_result_of(self._error())))
        return future

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls it when all operations have ended: at once, or on Headrace's thread for futures."""
        if not self._works:
            callback()
            return
        left = len(self._works)
        lock = threading.Lock()

        def one_ended(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                callback()

        for work in self._works:
            work.get_future().add_done_callback(one_ended)

    def _copy_staged(self) -> None:
        """Once: the caller may have changed the outputs since."""
        if self._copying is None:
            return
        with self._copying, torch.no_grad():
            if self._copied is not None:
                event, device = self._copied
                torch.cuda.current_stream(device).wait_event(event)
            for tensor, memory in self._staged:
                tensor.detach().copy_(memory)
            on_gpu = [one for pair in self._staged if pair[0].is_cuda for one in pair]
            if on_gpu:
                self._copied = _event_after(on_gpu)
            self._staged = ()


def _event_after(memories: list[torch.Tensor]) -> tuple[torch.cuda.Event, torch.device]:
    """After what the current stream has copied between them."""
    device = memories[0].device
    stream = torch.cuda.current_stream(device)
    for memory in memories:
        memory.record_stream(stream)
    return stream.record_event(), device


def _result_of(error: headrace.Error | None) -> Any:
    results: Any = c10d.WorkResult  # type: ignore[attr-defined]
    if error is None:
        return results.SUCCESS.value
    return (results.TIMEOUT if isinstance(error, headrace.TimedOut) else results.COMM_ERROR).value
