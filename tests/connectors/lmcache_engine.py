# SPDX-License-Identifier: Apache-2.0
"""LMCache's NIXL channels over a buffer of pages in host memory: that of its storage backends for peers and
for disaggregated prefill (NixlChannel), and that of its multi-process server (NixlTransferChannelContext).
engines.py starts it as a process.

Usage: lmcache_engine.py SEED CHANNEL_PORT SERVER_PORT

What is LMCache's: the channels, the allocators of pages and their memory objects. What is ours: this loop.
"""

import base64
import sys

import torch
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.transfer_channel.impl.nixl_impl import create_nixl_transfer_channel_context
from lmcache.v1.memory_allocators.paged_tensor_memory_allocator import PagedTensorMemoryAllocator
from lmcache.v1.transfer_channel import CreateTransferChannel

import engines

PAGES, SHAPE = 32, torch.Size([2, 2, 16, 64])  # keys and values, layers, tokens, hidden size
PAGE_BYTES = SHAPE.numel() * 4


class Engine:
    def __init__(self, seed, channel_port, server_port):
        torch.manual_seed(seed)
        self.buffer = torch.randn(PAGES, *SHAPE)
        allocator = PagedTensorMemoryAllocator(self.buffer, [SHAPE], [torch.float32])
        # The address of a page's object is its number.
        self.objects = allocator.batched_allocate(SHAPE, torch.float32, PAGES)
        self.channel = CreateTransferChannel(
            channel_type="nixl",
            async_mode=False,
            role="both",
            buffer_ptr=allocator.buffer_ptr,
            buffer_size=allocator.buffer_size,
            align_bytes=allocator.align_bytes,
            tp_rank=0,
            peer_init_url=f"127.0.0.1:{channel_port}",
            device="cpu",
            backends=["UCX"],
        )
        url = f"127.0.0.1:{server_port}"
        memory = L1MemoryDesc(
            ptr=allocator.buffer_ptr, size=allocator.buffer_size, align_bytes=allocator.align_bytes
        )
        self.server = create_nixl_transfer_channel_context(memory, url, url, backends=["UCX"])

    def connect(self, peer, channel_port):
        self.channel.lazy_init_peer_connection("here", peer, f"127.0.0.1:{channel_port}")

    def write(self, peer, pages, there):
        objects = [self.objects[page] for page in pages]
        return self.channel.batched_write(objects, {"receiver_id": peer, "remote_indexes": there})

    def read(self, peer, pages, there):
        objects = [self.objects[page] for page in pages]
        return self.channel.batched_read(objects, {"sender_id": peer, "remote_indexes": there})

    def read_from_server(self, server_port, pages, there):
        """Returns for each page whether it has arrived."""
        client = self.server.get_transfer_channel_client(f"127.0.0.1:{server_port}")
        here, remote = (
            self.server.get_transfer_channel_address([(page * PAGE_BYTES, PAGE_BYTES) for page in side])
            for side in (pages, there)
        )
        task = client.submit_read(here, remote)
        state = engines.until(lambda: (state := client.query_read_status(task)).finished and state)
        return state.succeeded_mask

    def pages(self, pages):
        return [base64.b64encode(self.buffer[page].numpy().tobytes()).decode() for page in pages]


if __name__ == "__main__":
    engines.serve(Engine(*map(int, sys.argv[1:])))
