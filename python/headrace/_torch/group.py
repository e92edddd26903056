# SPDX-License-Identifier: Apache-2.0
"""The process group of torch.distributed on headrace.Comm."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store
from torch.distributed.distributed_c10d import _world

import headrace

from . import batches, symmetric
from .backend import HeadraceBackend, new_options, torch_takes_it
from .opening import open_comm, open_on_gpu
from .operations import Operations

DEFAULT_TIMEOUT = timedelta(minutes=30)  # as torch's
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass
class GroupOptions:
    """What a group was made with, where torch takes no Backend in Python."""

    _timeout: timedelta
    backend: str = "headrace"
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_name: str = ""


class HeadraceProcessGroup(Operations, ProcessGroup):  # type: ignore[misc]  # torch has overloads
    """A torch.distributed.ProcessGroup whose operations are those of a communicator.

    It takes tensors on the CPU, and on one GPU by a communicator of its own. Where torch takes a Backend in
    Python, it has one of the CPU's communicator, for functions of torch that want one.
    """

    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = False  # by torch.distributed.shrink_group, as in backend.py: shrink() is here
    supports_tensor_alloc = False
    supports_time_estimate = False

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta | None = None,
        *,
        name: str = "",
        hints: dict[str, Any] | None = None,
        comm: headrace.Comm | None = None,
    ) -> None:
        """Meets the other ranks at the store.

        name: of the group, for errors.
        hints: of the communicator: headrace.list_comm_hints().
        comm: the communicator instead of a new one: then the store is for torch alone.
        """
        # pybind11 makes no subclass of the form that takes the store
        ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]
        self._store = store
        self._description = ""
        timeout = timeout or DEFAULT_TIMEOUT
        self._on_gpu_at = partial(open_on_gpu, store=store, rank=rank, size=size, timeout=timeout, name=name)
        self._begin_on(comm or open_comm(store, rank, size, timeout, name, hints), self._open_for_gpu)
        if torch.version.cuda:
            batches.install()
            symmetric.add(self)
        self._backend: HeadraceBackend | None = None
        if torch_takes_it():
            self.options = new_options(timeout, name, list(range(size)), self.getBackendName())
            self._take_backend()
        else:
            self.options = GroupOptions(timeout, self.getBackendName(), list(range(size)), name)

    def _take_backend(self) -> None:
        self._backend = HeadraceBackend(self._comm, self.options)
        kind = ProcessGroup.BackendType.CUSTOM
        self._register_backend(CPU, kind, self._backend)
        self._set_default_backend(kind)

    def _open_for_gpu(self, device: torch.device) -> headrace.Comm:
        """Errors: RuntimeError (the group was made with another backend for GPUs)."""
        asked = _world.pg_backend_config.get(self, "")
        for_gpu = dict(pair.split(":", 1) for pair in asked.split(",") if ":" in pair).get(GPU.type)
        if for_gpu not in (None, self.getBackendName(), "headrace"):
            raise RuntimeError(
                f'the group was made as "{asked}", and before torch 2.15 a group in Python is one for all '
                'devices: make it as "headrace", or a second group for GPUs'
            )
        return self._on_gpu_at(device)

    # --- what it is

    def get_group_store(self) -> Store:
        return self._store

    def getGroupName(self) -> str:
        return str(self.options.group_name)

    def setGroupName(self, name: str) -> None:
        self.options.group_name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, GPU] if torch.version.cuda else [CPU]

    def _get_backend(self, device: torch.device) -> Any:
        """Itself, where torch takes no Backend in Python."""
        kind = torch.device(device).type
        if torch.device(kind) not in self._device_types:
            served = "the CPU and on a GPU" if GPU in self._device_types else "the CPU"
            raise RuntimeError(f'"headrace" has no backend for {device}: it takes tensors on {served}')
        return (self._backend if kind == "cpu" else None) or self

    def __repr__(self) -> str:
        return f"HeadraceProcessGroup({self.options.group_name!r}, rank={self.rank()}, size={self.size()})"

    # --- other groups

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> HeadraceProcessGroup | None:
        """Makes a group of some ranks of this one. All ranks of this one call it.

        new_ranks: the group of this rank; a rank that is not in it gets None.
        """
        mine = new_ranks if self.rank() in new_ranks else []
        name = group_name or f"{self.options.group_name}:{','.join(map(str, new_ranks))}"
        comm = self._call(lambda: self._comm.split(mine, name, timeout=timeout))
        return self._with(comm, timeout, name, group_desc) if comm else None

    def shrink(
        self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts: Any = None
    ) -> HeadraceProcessGroup:
        """Makes a group of all ranks but some, which died or are to go. All that stay call it.

        This group is aborted if it has not ended.
        """
        comm = self._call(lambda: self._comm.shrink(ranks_to_exclude))
        return self._with(comm, None, f"{self.options.group_name}:shrunk", None)

    def _with(
        self, comm: headrace.Comm, timeout: timedelta | None, name: str, description: str | None
    ) -> HeadraceProcessGroup:
        store = PrefixStore(f"{name}/", self.get_group_store())
        timeout = timeout or self.options._timeout
        group = type(self)(store, comm.get_rank(), comm.get_size(), timeout, name=name, comm=comm)
        group.options.global_ranks_in_group = comm.get_ranks()
        group.setGroupDesc(description or "")
        return group


def new_group(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    name: str = "",
    hints: dict[str, Any] | None = None,
    comm: headrace.Comm | None = None,
    torchs_group: ProcessGroup | None = None,
) -> HeadraceProcessGroup | HeadraceBackend:
    """A group that stands for torch's; a backend in torch's, if that serves other devices or is debugged.

    torchs_group: as torch has begun it.
    """
    if not (torch_takes_it() and _needs_backend(torchs_group)):
        return HeadraceProcessGroup(store, rank, size, timeout, name=name, hints=hints, comm=comm)
    comm = comm or open_comm(store, rank, size, timeout, name, hints)
    backend = HeadraceBackend(comm, new_options(timeout, name, list(range(size))))
    if _is_debugged():
        backend.keep()
    return backend


def _is_debugged() -> bool:
    return bool(c10d.get_debug_level() == c10d.DebugLevel.DETAIL)


def _needs_backend(torchs_group: ProcessGroup | None) -> bool:
    if torchs_group is None:
        return False
    # "custom" is the name of all backends that torch does not know, this one too.
    others = bool(torchs_group._device_types) or torchs_group._get_backend_name() != "custom"
    return others or _is_debugged()
