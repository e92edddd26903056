# SPDX-License-Identifier: Apache-2.0
"""After `import headrace.compat.torchcomms.install`, a program that imports torchcomms imports Headrace.

A torchcomms that was imported before stays with the modules that imported it. torch takes the names for its
switch TORCH_DISTRIBUTED_USE_TORCHCOMMS, dist.config.use_torchcomms: then each backend is one of ours.
"""

from __future__ import annotations

from torch.distributed import distributed_c10d

from .._names import provide
from ._new_comm import new_comm
from ._torch_group import _BackendWrapper
from .hooks import FlightRecorderHook

MODULES = (
    "_comms",
    "_comms_gloo",
    "_transport",
    "_transport_cca_hook",
    "device_mesh",
    "distwrap",
    "functional",
    "functional.async_tensor",
    "hooks",
    "hooks.clog",
    "hooks.fr",
    "hooks.nan_check",
    "objcol",
)

provide("torchcomms", "headrace.compat.torchcomms", MODULES)


def _enter_into_torch() -> None:
    """torch looks for torchcomms when it is imported itself, which is before this package."""
    found = {
        "new_comm": new_comm,
        "_BackendWrapper": _BackendWrapper,
        "FlightRecorderHook": FlightRecorderHook,
    }
    for name, value in found.items():
        setattr(distributed_c10d, name, value)
    distributed_c10d._TORCHCOMM_AVAILABLE = True


_enter_into_torch()
