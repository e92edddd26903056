# SPDX-License-Identifier: Apache-2.0
"""torchcomms' torch.distributed look-alike: headrace.distributed, and what distwrap has besides.

Names that are not here are those of headrace.distributed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torch.distributed import is_available as is_available

import headrace
import headrace.distributed as dist
from headrace._torch.errors import as_torch_error
from headrace._torch.reductions import reduction_of

from . import _environment as environment
from ._comm import mem_allocator
from ._new_comm import SERVED_BY
from ._window import TorchCommWindow
from ._work import DONE, TorchWork

# What a backend of torchcomms is for torch.
_FOR_TORCH = {**dict.fromkeys(SERVED_BY, "headrace"), "host": "headrace"}


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    use_torchcomms: bool = False,
) -> None:
    """Makes the default group.

    use_torchcomms: a group of Headrace, with the backend gloo; False: a group of torch's own backend.
    pg_options: of a group of Headrace: hints, a dict; other options are not used.
    """
    if backend is None:
        raise ValueError("backend must be specified: give gloo")
    if use_torchcomms:
        backend = _for_torch(backend)
        pg_options = pg_options if isinstance(pg_options, dict) else None
        device_id = None
        if init_method is None and (rank < 0 or world_size < 0):
            rank, world_size = environment.rank_and_size()
    dist.init_process_group(
        backend, init_method, timeout, world_size, rank, store, group_name, pg_options, device_id
    )


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Makes groups of the ranks of a group; without split_ranks one of all of them."""
    if split_ranks is None:
        split_ranks = [list(range(dist.get_world_size(parent_pg)))]
    if dist.comm_of(parent_pg) is not None:
        backend = None if backend is None else _for_torch(backend)
        pg_options = pg_options if isinstance(pg_options, dict) else None
    return dist.split_group(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)


def _for_torch(backend: str) -> str:
    """gloo and cpu:gloo are Headrace's. Parts for other devices stay, and torch takes or refuses them."""
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    return ",".join(f"{device}{colon}{_FOR_TORCH.get(name, name)}" for device, colon, name in parts)


def new_window(group: ProcessGroup | None = None, backend: str | None = None) -> TorchCommWindow:
    """Makes a window of the ranks of a group."""
    return TorchCommWindow(_comm_of(group, "new_window"))


def reduce_scatter_quantized(
    output: Tensor,
    input: Tensor,
    op: Any,
    seed: Any,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> TorchWork:
    """reduce_scatter_tensor of float32 that sends bfloat16.

    seed: a number, or a tensor of one element, the same on all ranks.
    """
    comm = _comm_of(group, "reduce_scatter_quantized")
    try:
        work = comm.reduce_scatter_quantized(output, input, reduction_of(op), int(seed), async_op)
    except headrace.Error as error:
        raise as_torch_error(error) from None
    return TorchWork(work) if async_op else DONE


def get_mem_allocator(group: ProcessGroup | None, device: torch.device) -> Any:
    """The allocator of torch.cuda.MemPool for a GPU; the CPU needs none: see the error."""
    return mem_allocator("headrace", torch.device(device))


def register_mem_pool(group: ProcessGroup | None, device: torch.device, pool: Any) -> None:
    """Does nothing: operations on the host take any memory as it is."""


def _comm_of(group: ProcessGroup | None, name: str) -> headrace.Comm:
    comm = dist.comm_of(group)
    if comm is None:
        raise AssertionError(f"{name} needs a group of Headrace: init_process_group(use_torchcomms=True)")
    return comm


def __getattr__(name: str) -> Any:
    return getattr(dist, name)
