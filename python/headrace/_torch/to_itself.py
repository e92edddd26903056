# SPDX-License-Identifier: Apache-2.0
"""Messages of a rank to itself on a GPU, as NCCL has them: a send and its receive are a copy."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

import torch
from torch import Tensor


class SelfWork:
    """A message to itself. It has what GroupWork asks a headrace.Work for."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._future: Future[None] = Future()
        self._device: torch.device | None = None
        self._event: torch.cuda.Event | None = None

    def end(self, *memories: Tensor) -> None:
        """The current stream copies from or to this memory, which stays until it has."""
        for memory in memories:
            if memory.is_cuda:
                memory.record_stream(torch.cuda.current_stream(memory.device))
                self._device, self._event = memory.device, _mark_on(memory)
        self._future.set_result(None)

    def wait(self, timeout: float | None = None) -> None:
        """Later work of the current stream waits for the copy.

        Errors: RuntimeError (the other half has not been called).
        """
        if not self._future.done():
            raise RuntimeError(
                f"rank {self._rank} receives from itself what it has not sent: call send first, or both in "
                "batch_isend_irecv"
            )
        if self._event is None:
            return
        torch.cuda.current_stream(self._device).wait_event(self._event)
        if timeout is not None:
            self._event.synchronize()

    def is_completed(self) -> bool:
        return self._future.done() and (self._event is None or self._event.query())

    def exception(self) -> None:
        return None

    def source(self) -> int:
        return self._rank

    def get_future(self) -> Future[None]:
        return self._future


class ToItself:
    """The n-th send belongs to the n-th receive, whichever is called first. A send that is first is kept as a
    copy.

    Threads: any.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._sent: deque[tuple[Tensor, SelfWork]] = deque()
        # A receive, and the work of its stream after which its memory may be written.
        self._awaited: deque[tuple[Tensor, torch.cuda.Event | None, SelfWork]] = deque()

    def send(self, memory: Tensor) -> SelfWork:
        work = SelfWork(self._rank)
        with self._lock:
            if not self._awaited:
                kept = memory.detach().clone()
                work.end(kept)
                self._sent.append((kept, work))
                return work
            target, free, receive = self._awaited[0]
            if free is not None:
                torch.cuda.current_stream(target.device).wait_event(free)
            self._copy(target, memory)
            self._awaited.popleft()
        receive.end(target)
        work.end(memory)
        return work

    def recv(self, memory: Tensor) -> SelfWork:
        work = SelfWork(self._rank)
        with self._lock:
            if not self._sent:
                self._awaited.append((memory, _mark_on(memory), work))
                return work
            kept, send = self._sent[0]
            send.wait()
            self._copy(memory, kept)
            self._sent.popleft()
        work.end(memory, kept)
        return work

    def _copy(self, target: Tensor, memory: Tensor) -> None:
        if target.numel() != memory.numel() or target.dtype != memory.dtype:
            raise RuntimeError(
                f"rank {self._rank} sends {memory.numel()} elements of {memory.dtype} to itself, and "
                f"receives {target.numel()} of {target.dtype}: give the same"
            )
        with torch.no_grad():
            target.detach().view(-1).copy_(memory.detach().view(-1))


def _mark_on(memory: Tensor) -> torch.cuda.Event | None:
    """After what the current stream of its GPU holds; None: it is on the CPU."""
    return torch.cuda.current_stream(memory.device).record_event() if memory.is_cuda else None
