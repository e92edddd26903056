# SPDX-License-Identifier: Apache-2.0
"""The communicator of a process group on a GPU, called as that of the CPU is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import headrace


class GpuWork:
    """An operation on a GPU. It is a headrace.Work whose wait holds up the current stream, as torch's do."""

    __slots__ = ("_device", "_work")

    def __init__(self, work: headrace.Work, device: torch.device) -> None:
        self._work, self._device = work, device

    def wait(self, timeout: float | timedelta | None = None) -> None:
        """Later work of the current stream waits for the operation. With a timeout the caller waits."""
        if timeout is None:
            self._work.wait_on(torch.cuda.current_stream(self._device))
        else:
            self._work.wait_blocking(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class OnGpu:
    """A communicator on a GPU. Its operations run on the current stream of the GPU and return a GpuWork."""

    def __init__(self, comm: headrace.Comm, device: torch.device) -> None:
        self.comm, self.device = comm, device

    def current_stream(self) -> int:
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def __getattr__(self, name: str) -> Callable[..., GpuWork]:
        operation = getattr(self.comm, name)

        def call(*arguments: Any, **more: Any) -> GpuWork:
            return GpuWork(operation(*arguments, stream=self.current_stream(), **more), self.device)

        setattr(self, name, call)
        return call
