# SPDX-License-Identifier: Apache-2.0
"""The c10d::Backend in Python: what a group has for one device. torch takes one from 2.15 on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, Store, Work

import headrace

from .opening import open_comm
from .operations import DEFAULTS, Operations

FIRST_TORCH = (2, 15)


def torch_takes_it() -> bool:
    """Whether this torch calls the methods of a Backend that is written in Python."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= FIRST_TORCH


# Backends in torch's wrapper for debugging, which keeps the C++ half of an object alone.
_kept: set[HeadraceBackend] = set()


class HeadraceBackend(Operations, Backend):
    """A torch.distributed.Backend whose operations are those of a communicator.

    A group whose only backend it is has the operations itself: group.py. What torch's own group calls here
    returns a work that knows no more than wait and get_future: torch hides the rest of a work in Python.
    """

    # torch asks for each of them by its name, and asks itself where a class in Python has none.
    supports_splitting = True
    supports_coalescing = True
    # torch.distributed.shrink_group makes torch take the new backend for gloo's: DDP would read past its end.
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(self, comm: headrace.Comm, options: Any) -> None:
        """options: as new_options returns them."""
        Backend.__init__(self, comm.get_rank(), comm.get_size())
        self._options = options
        self._begin_on(comm)

    @property
    def options(self) -> Any:
        return self._options

    def keep(self) -> None:
        """Keeps this object until it has ended."""
        _kept.add(self)

    def abort(self) -> None:
        super().abort()
        _kept.discard(self)

    def shutdown(self) -> None:
        super().shutdown()
        _kept.discard(self)

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any = DEFAULTS) -> Work:
        return self.allreduce(tensors, opts)

    # --- other backends

    def split(self, store: Store, ranks: Sequence[int], opts: Any) -> HeadraceBackend:
        """The backend of some ranks. All ranks call it.

        Errors: RuntimeError (this rank is in none of the new groups, once it has done its part).
        """
        mine = list(ranks) if self.rank() in ranks else []
        timeout, name = opts._timeout, opts.group_name
        comm = self._call(lambda: self._comm.split(mine, name, timeout=timeout))
        if comm is None:  # torch would read through a null pointer
            raise RuntimeError(
                f"rank {self.rank()} is not among the ranks {list(ranks)}: torch splits a group that has "
                "backends for several devices in Python into groups of which each rank is in one. Give the "
                "other ranks a group too, or call torch.distributed.new_group"
            )
        return self._of(comm, timeout, name)

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts: Any = None) -> HeadraceBackend:
        """The backend of all ranks but some, which died or are to go. All that stay call it.

        This one is aborted if it has not ended.
        """
        comm = self._call(lambda: self._comm.shrink(ranks_to_exclude))
        timeout = opts._timeout if opts else None
        return self._of(comm, timeout, f"{self.options.group_name}:shrunk")

    def merge(self, store: Store, opts: Any, rank: int, size: int) -> HeadraceBackend:
        """The backend of ranks that meet at a store."""
        timeout, name = opts._timeout, opts.group_name
        return self._of(open_comm(store, rank, size, timeout, name, None), timeout, name)

    def _of(self, comm: headrace.Comm, timeout: timedelta | None, name: str) -> HeadraceBackend:
        options = new_options(timeout or self.options._timeout, name, comm.get_ranks())
        return HeadraceBackend(comm, options)


def new_options(timeout: timedelta, name: str, ranks: list[int], backend: str = "headrace") -> Any:
    """torch's options of a backend.

    ranks: of the group, as numbers in the default group.
    """
    options: Any = c10d.Backend.Options(backend, timeout)
    options.group_name = name
    options.global_ranks_in_group = ranks
    return options
