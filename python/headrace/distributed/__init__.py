# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's functions over headrace.Comm.

    import headrace.distributed as dist

    dist.init_process_group()  # torch's, with the backend "headrace"
    dist.all_reduce(tensor)

The functions have the names, arguments and defaults of torch's. On a group of Headrace they call its
communicator directly; groups of other backends go to torch's own functions. Groups are torch's, so DDP, FSDP
and DeviceMesh take them. Every other name of torch.distributed is there, too: it is torch's own.

Importing this module makes the backend "headrace" known to torch, also where TORCH_DEVICE_BACKEND_AUTOLOAD=0
switches that off. Without torch it can be imported, and every name but is_available says that torch is
missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_HAS_TORCH = find_spec("torch") is not None

if _HAS_TORCH or TYPE_CHECKING:
    from headrace._torch.opening import comm_of
    from headrace_torch import register

    from ._coalescing import _coalescing_manager
    from ._collectives import (
        all_gather,
        all_gather_into_tensor,
        all_gather_single,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        monitored_barrier,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        scatter,
    )
    from ._groups import (
        init_process_group,
        is_enabled,
        new_group,
        shrink_group,
        split_group,
    )
    from ._messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
    from ._objects import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )

    register()

    __all__ = [
        "P2POp",
        "_coalescing_manager",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_single",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "batch_isend_irecv",
        "broadcast",
        "broadcast_object_list",
        "comm_of",
        "gather",
        "gather_object",
        "init_process_group",
        "irecv",
        "is_enabled",
        "isend",
        "monitored_barrier",
        "new_group",
        "recv",
        "recv_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "register",
        "scatter",
        "scatter_object_list",
        "send",
        "send_object_list",
        "shrink_group",
        "split_group",
    ]


def is_available() -> bool:
    """Whether there is a torch with torch.distributed."""
    if not _HAS_TORCH:
        return False
    import torch.distributed

    return torch.distributed.is_available()


def __getattr__(name: str) -> Any:
    """torch's own, for names that are not here."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _HAS_TORCH:
        raise ImportError(
            f"headrace.distributed.{name} needs torch, which is not installed: install it, or use "
            "headrace.new_comm"
        )
    import torch.distributed

    return getattr(torch.distributed, name)
