# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed on a TorchComm."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore

import headrace
from headrace._torch.group import HeadraceProcessGroup

from . import _hook_args as told
from ._comm import TorchComm


class _BackendWrapper(HeadraceProcessGroup):
    """torchcomms has a c10d::Backend of this name; here it is the process group itself."""

    def __init__(self, comm: TorchComm) -> None:
        options = comm.get_options()
        hooked: Any = _Hooked(comm)
        self._hooked: headrace.Comm = hooked
        super().__init__(
            HashStore(),
            comm.get_rank(),
            comm.get_size(),
            options.timeout,
            name=comm.get_name(),
            comm=hooked,
        )
        self._torchcomm = comm

    def _open_for_gpu(self, device: torch.device) -> headrace.Comm:
        own = self._torchcomm.get_device()
        if own != device:
            raise RuntimeError(f"the tensor is on {device}, and the communicator is for {own}")
        return self._hooked

    @property
    def comm(self) -> headrace.Comm:
        """The communicator itself: its operations call no hooks of the TorchComm."""
        comm: headrace.Comm = self._torchcomm.get_backend_impl()
        return comm

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> _BackendWrapper | None:
        """The same as of every group, by the split of the TorchComm."""
        mine = new_ranks if self.rank() in new_ranks else []
        name = group_name or f"{self.options.group_name}:{','.join(map(str, new_ranks))}"
        part = self._torchcomm.split(mine, name, timeout=timeout)
        if part is None:
            return None
        group = _BackendWrapper(part)
        group.options.global_ranks_in_group = part.get_ranks()
        group.setGroupDesc(group_desc or "")
        return group

    def get_comm(self) -> TorchComm:
        return self._torchcomm

    def name(self) -> str:
        return self._torchcomm.get_backend()

    def get_mem_allocator(self) -> Any:
        return self._torchcomm.get_mem_allocator()


class _Hooked:
    """A headrace.Comm whose operations call the hooks of a TorchComm."""

    def __init__(self, torchcomm: TorchComm) -> None:
        self._torchcomm = torchcomm

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._torchcomm.get_backend_impl(), name)
        kind = told.KINDS.get(name)
        return found if kind is None else partial(self._call, found, kind)

    def _call(self, operation: Any, kind: Any, *arguments: Any, **more: Any) -> Any:
        def call() -> Any:
            return operation(*arguments, **more)

        seen = [argument for argument in arguments if not isinstance(argument, headrace.ReduceOp)]
        if len(seen) < len(kind._fields):
            seen.append(more.get("async_op", False))
        return self._torchcomm.with_hooks(kind, tuple(seen[: len(kind._fields)]), call)
