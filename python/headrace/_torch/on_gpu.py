# SPDX-License-Identifier: Apache-2.0
"""A communicator on a GPU, called as one on the CPU is: in the order of torch's current stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import headrace

_ON_A_STREAM = {
    *("all_reduce", "all_gather", "all_gather_v", "all_gather_single", "all_gather_p_exec"),
    *("reduce_scatter", "reduce_scatter_v", "reduce_scatter_single", "reduce_scatter_quantized"),
    *("all_to_all", "all_to_all_single", "all_to_all_v_single", "device_all_to_all_v_single"),
    *("broadcast", "reduce", "gather", "gather_single", "scatter", "barrier", "send", "recv"),
}


def waits_on_host() -> bool:
    """Whether the program has asked torch's groups of GPUs to wait on the host, and to raise there what
    fails."""
    return os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0").lower() in {"1", "y", "yes", "t", "true"}


class GpuWork:
    """An operation on a GPU. It is a headrace.Work whose wait holds up the current stream, as torch's do."""

    __slots__ = ("_on_gpu", "_work")

    def __init__(self, work: headrace.Work, on_gpu: OnGpu) -> None:
        self._work, self._on_gpu = work, on_gpu

    def wait(self, timeout: float | timedelta | None = None) -> None:
        """Later work of the current stream waits for the operation. With a timeout the caller waits."""
        if timeout is None and not self._on_gpu.waits_on_host:
            self._work.wait_on(self._on_gpu.current_stream())
        else:
            self._work.wait_blocking(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class GpuBatch:
    """A batch of messages that is issued on the current stream."""

    def __init__(self, batch: headrace.BatchSendRecv, on_gpu: OnGpu) -> None:
        self._batch, self._on_gpu = batch, on_gpu
        self.send, self.recv = batch.send, batch.recv

    def issue(self, async_op: bool = False, hints: Any = None, timeout: Any = None) -> GpuWork:
        work = self._batch.issue(async_op, hints, timeout, self._on_gpu.current_stream())
        return GpuWork(work, self._on_gpu)


class OnGpu:
    """A headrace.Comm on a GPU. Its operations run on the current stream of the GPU and return a GpuWork."""

    def __init__(self, comm: headrace.Comm, device: torch.device, *, waits_on_host: bool = False) -> None:
        self.comm, self.device, self.waits_on_host = comm, device, waits_on_host

    def current_stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self.device.index)  # which torch.compile does not trace

    def batch_op_create(self) -> GpuBatch:
        return GpuBatch(self.comm.batch_op_create(), self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        if name not in _ON_A_STREAM:
            return found
        operation: Callable[..., headrace.Work] = found

        def call(*arguments: Any, **more: Any) -> GpuWork:
            return GpuWork(operation(*arguments, stream=self.current_stream(), **more), self)

        setattr(self, name, call)
        return call
