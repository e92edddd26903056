# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.fabric_lib: writes to any peer over all network cards."""

from ._engine import TransferEngine, TransferEngineBuilder
from ._fabric_types import DomainAddress, DomainInfo, PageIndices, TopologyGroup
from ._regions import MemoryRegionDescriptor, MemoryRegionHandle

__all__ = [
    "DomainAddress",
    "DomainInfo",
    "MemoryRegionDescriptor",
    "MemoryRegionHandle",
    "PageIndices",
    "TopologyGroup",
    "TransferEngine",
    "TransferEngineBuilder",
]
