# SPDX-License-Identifier: Apache-2.0
"""torchcomms' windows: memory of every rank that the others write without its help."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import headrace
from headrace._torch.errors import as_torch_error

from ._work import DONE, TorchWork, on_thread

Hints = dict[str, str] | None
_MOST_OF_KERNELS = 16  # HEADRACE_DEVICE_WINDOW_SIGNALS, _COUNTERS, _BARRIERS


class TorchCommWinAccessType(Enum):
    WIN_ACCESS_TYPE_UNIFIED = 0
    WIN_ACCESS_TYPE_SEPARATE = 1


class TorchCommWindowAttr:
    """How a rank reaches the memory of another one."""

    def __init__(self) -> None:
        self.access_type = TorchCommWinAccessType.WIN_ACCESS_TYPE_SEPARATE


class TorchCommWindow:
    """Memory of every rank of a communicator, from TorchComm.new_window. hints are not used."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._window: headrace.Window = _checked(comm.new_window)
        self._tensor: Tensor | None = None
        self._buffers: dict[int, Tensor] = {}  # from which kernels put

    def __copy__(self) -> TorchCommWindow:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchCommWindow:
        copy = memo[id(self)] = self.clone()
        if self._tensor is not None:
            memo[id(self._tensor)] = copy._tensor
        return copy

    def clone(self) -> TorchCommWindow:
        """Another window with a copy of the tensor. All ranks call it."""
        copy = TorchCommWindow(self._comm)
        if self._tensor is not None:
            copy.tensor_register(self._tensor.clone())
        return copy

    # --- its memory

    def tensor_register(self, tensor: Tensor, owning: bool = True) -> None:
        """Makes a tensor the memory of this rank. All ranks call this or allocate.

        owning: keep the tensor until tensor_deregister; False: the program does.
        """
        _checked(self._window.tensor_register, tensor, owning)
        self._tensor = tensor

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The same with new memory, which holds zeros, and which the other ranks of the host map: their
        access is WIN_ACCESS_TYPE_UNIFIED. torchcomms has an allocator for this."""
        count = torch.Size(shape).numel()
        memory = _checked(self._window.allocate, count, dtype)
        self._tensor = from_dlpack(memory).reshape(shape)
        return self._tensor

    def tensor_deregister(self) -> None:
        """Takes the memory back. All ranks call it."""
        _checked(self._window.tensor_deregister)
        self._tensor = None

    def get_tensor(self) -> Tensor | None:
        """The memory of this rank; None: it has none."""
        return self._tensor

    def get_size(self) -> int:
        """Bytes of this rank; 0: it has no memory."""
        return 0 if self._tensor is None else self._tensor.nbytes

    @property
    def dtype(self) -> torch.dtype:
        return self._registered().dtype

    @property
    def shape(self) -> list[int]:
        return list(self._registered().shape)

    @property
    def device(self) -> torch.device:
        return self._registered().device

    def _registered(self) -> Tensor:
        if self._tensor is None:
            raise RuntimeError("the window has no memory: call tensor_register or allocate")
        return self._tensor

    # --- operations

    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        hints: Hints = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Writes a tensor to the memory of a rank, from that element on."""
        work = _checked(self._window.put, tensor, dst_rank, target_offset_nelems, async_op, timeout)
        return TorchWork(work) if async_op else DONE

    def signal(
        self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Tells a rank that what was put before is there."""
        work = _checked(self._window.signal, peer_rank, async_op, timeout=timeout)
        return TorchWork(work) if async_op else DONE

    def wait_signal(
        self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: timedelta | None = None
    ) -> TorchWork:
        """Waits for one signal of a rank; with async_op a thread waits."""
        if async_op:
            return on_thread(lambda: self._window.wait_signal(peer_rank, timeout=timeout))
        _checked(self._window.wait_signal, peer_rank, timeout=timeout)
        return DONE

    def map_remote_tensor(self, rank: int) -> Tensor:
        """The memory of a rank as a tensor, in the shape of this rank's if the counts are equal.

        Errors: RuntimeError (its access is WIN_ACCESS_TYPE_SEPARATE: why).
        """
        mine = self._registered()
        if rank == self._comm.get_rank():
            return mine
        memory = from_dlpack(_checked(self._window.map_remote_tensor, rank))
        return memory.reshape(mine.shape) if memory.numel() == mine.numel() else memory

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """How this rank reaches the memory of another one."""
        attr = TorchCommWindowAttr()
        if _checked(self._window.get_attr, peer_rank).access_type == "unified":
            attr.access_type = TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED
        return attr

    # --- of kernels

    def get_device_window(
        self, signal_count: int = -1, counter_count: int = -1, barrier_count: int = 1
    ) -> int:
        """The address of the window for kernels on a GPU, whose functions are those of headrace.triton and of
        headrace/device/window.cuh. It has 16 of each count."""
        counts = {"signals": signal_count, "counters": counter_count, "barriers": barrier_count}
        for name, count in counts.items():
            if count > _MOST_OF_KERNELS:
                raise RuntimeError(f"{count} {name}: a window has {_MOST_OF_KERNELS} of them for kernels")
        return int(_checked(self._window.get_device_window))

    def register_local_buffer(self, tensor: Tensor) -> int:
        """The address of a tensor, from which kernels put: any memory of the GPU. Keeps the tensor."""
        self.get_device_window()
        if tensor.device != self._registered().device:
            raise RuntimeError(f"the tensor is on {tensor.device}, the window on {self._registered().device}")
        self._buffers[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def deregister_local_buffer(self, handle: int) -> None:
        """Lets go of the tensor."""
        if self._buffers.pop(handle, None) is None:
            raise RuntimeError(
                f"no buffer at {handle:#x} is registered: give what register_local_buffer returned"
            )


def _checked(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    try:
        return call(*arguments, **more)
    except headrace.Error as error:
        raise as_torch_error(error) from None
