# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.native.cumem: GPU memory that other processes map. Its names are here, and what they raise."""

from __future__ import annotations

from enum import Enum
from typing import Any

import headrace

USE_AGENTS = (
    "register a torch tensor with headrace.Agent in the process that has it, and use Agent.map(peer, region, "
    "device=) in the other one"
)


class CUMemHandleKind(Enum):
    """How an allocation leaves its process."""

    Local = 0
    FileDescriptor = 1
    Fabric = 2


class _NotThere:
    _why = f"no GPU memory is exported by it: {USE_AGENTS}"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise headrace.NotSupported(f"pplx_garden.native.cumem.{type(self).__name__}: {self._why}")


class CUMemAllocHandle(_NotThere):
    """Memory of a GPU, in whole granules.

    Errors: NotSupported.
    """

    _why = f"Headrace allocates no GPU memory for it: {USE_AGENTS}"


class CUMemExportHandle(_NotThere):
    """What travels to another process. Comes from CUMemAllocHandle.export."""


class CUMemImportHandle(_NotThere):
    """Memory of another process. Comes from CUMemExportHandle.bind."""


class CUMemMapping(_NotThere):
    """Memory at an address. Comes from `map` of a handle."""


class CUMulticastHandle(_NotThere):
    """Memory of several GPUs that one store reaches.

    Errors: NotSupported.
    """

    _why = "Headrace uses no multicast addresses of NVLink: headrace.Comm reduces and broadcasts without them"


class CUMulticastExportHandle(_NotThere):
    """Comes from CUMulticastHandle.export."""

    _why = CUMulticastHandle._why
