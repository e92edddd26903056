# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed on a TorchComm."""

from __future__ import annotations

from typing import NoReturn

from torch._C._distributed_c10d import HashStore

from headrace._torch.group import HeadraceProcessGroup

from ._comm import TorchComm


class _BackendWrapper(HeadraceProcessGroup):
    """torchcomms has a c10d::Backend of this name; here it is the process group itself.

    The hooks of the TorchComm are not called for its operations; those of headrace.Comm.add_hooks are.
    """

    def __init__(self, comm: TorchComm) -> None:
        options = comm.get_options()
        super().__init__(
            HashStore(),
            comm.get_rank(),
            comm.get_size(),
            options.timeout,
            name=comm.get_name(),
            comm=comm.get_backend_impl(),
        )
        self._torchcomm = comm

    def get_comm(self) -> TorchComm:
        return self._torchcomm

    def name(self) -> str:
        return self._torchcomm.get_backend()

    def get_mem_allocator(self) -> NoReturn:
        self._torchcomm.get_mem_allocator()
