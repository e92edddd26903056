# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.fabric_lib: writes to any peer over all network cards."""

from ._fabric_types import DomainAddress, DomainInfo, PageIndices, TopologyGroup

__all__ = ["DomainAddress", "DomainInfo", "PageIndices", "TopologyGroup"]
