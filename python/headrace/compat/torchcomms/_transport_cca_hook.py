# SPDX-License-Identifier: Apache-2.0
"""torchcomms' second name for the hook of the caching allocator."""

from ._transport import attach_rdma_memory_hook

__all__ = ["attach_rdma_memory_hook"]
