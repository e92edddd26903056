# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.native.p2p_all_to_all: the all-to-all whose tensors are addresses."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

import headrace

from ..._moe_ranks import JOIN_LIMIT, MoEWindow
from .._experts import Exchange, Shape
from .._fabric_types import DomainAddress
from .._regions import MemoryRegionDescriptor

# Types of so many bytes, for rows that are moved and not read.
_OPAQUE = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


class AllToAllContext:
    """Dispatch and combine of a rank, over addresses in host memory. Made by create()."""

    def __init__(self, agent: headrace.Agent, window: MoEWindow, shape: Shape, local_experts: int) -> None:
        self._agent, self._window, self._shape = agent, window, shape
        self._local_experts = local_experts
        self._exchange = Exchange(window, shape)

    @classmethod
    def create(
        cls,
        hidden_dim: int,
        hidden_dim_scale: int | None,
        in_elemsize: int,
        out_elemsize: int,
        out_dtype: torch.dtype,
        scale_elemsize: int | None,
        max_num_tokens: int,
        max_recv_tokens: int,
        max_private_tokens: int,
        num_experts: int,
        expert_padding: int,
        num_experts_per_token: int,
        rank: int,
        dp_size: int,
        node_size: int,
        world_size: int,
        num_routed_ptr: int,
        num_routed_mr: Any,
        send_buffer_ptr: int,
        send_buffer_mr: Any,
        recv_buffer_ptr: int,
        recv_buffer_mr: Any,
        sync_ptrs: list[int],
        send_ptrs: list[int],
        recv_ptrs: list[int],
        device: int | None,
        imm_base: int,
        ranks: list[tuple[DomainAddress, MemoryRegionDescriptor, MemoryRegionDescriptor]],
        transfer_engine: Any,
        worker_cpu: int | None,
    ) -> AllToAllContext:
        """Meets the other ranks of `ranks`, which are on this host. The window of a MoE takes the place of
        the buffers, of the engine and of the worker.

        device: None: host memory.
        Errors: ValueError (numbers that do not fit), headrace.NotSupported (a GPU), headrace.TimedOut.
        """
        if device is not None and device >= 0:
            raise headrace.NotSupported(
                f"device is {device}: this MoE moves host memory; give None, and addresses of host memory"
            )
        if len(ranks) != world_size or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size} has addresses of {len(ranks)} ranks")
        if out_dtype.itemsize != out_elemsize or in_elemsize not in _OPAQUE:
            raise ValueError(
                f"{out_dtype} has {out_dtype.itemsize} bytes, and out_elemsize is {out_elemsize}; "
                f"in_elemsize is {in_elemsize}, expected one of {list(_OPAQUE)}"
            )
        shape = Shape(
            max_num_tokens, num_experts, expert_padding, hidden_dim, hidden_dim_scale or 0,
            _OPAQUE[in_elemsize], out_dtype, _OPAQUE[scale_elemsize or 4], num_experts_per_token, dp_size,
        )  # fmt: skip
        met = _meeting(ranks, imm_base)
        agent = headrace.Agent(met.names[rank], backends=["shm"], store=f"file://{met.folder}")
        config = headrace.MoEConfig(rank=rank, ranks=world_size, **shape.config(world_size))  # type: ignore[arg-type]
        moe = headrace.MoE(agent, config)
        agent.publish()
        moe.join(met.names, timeout=JOIN_LIMIT)
        return cls(agent, MoEWindow(moe, config), shape, shape.local_experts(world_size))

    def dispatch_send(
        self,
        num_tokens: int,
        x_ptr: int,
        x_stride: int,
        x_scale_ptr: int | None,
        x_scale_stride_elem: int | None,
        x_scale_stride_token: int | None,
        indices_ptr: int,
        indices_stride: int,
        weights_ptr: int,
        weights_stride: int,
        bound_m_ptr: int | None,
        stream: int,
    ) -> None:
        """Strides: of x in bytes, of the others in elements."""
        tokens, top_k = num_tokens, self._shape.top_k
        scales = None
        if x_scale_ptr is not None:
            strides = (x_scale_stride_token or 0, x_scale_stride_elem or 0)
            scales = _tensor(x_scale_ptr, (tokens, self._shape.scales), strides, self._shape.scale_dtype)
        indices = _tensor(indices_ptr, (tokens, top_k), (indices_stride, 1), torch.int32)
        weights = _tensor(weights_ptr, (tokens, top_k), (weights_stride, 1), torch.float32)
        rows = self._rows(x_ptr, tokens, x_stride, self._shape.in_dtype)
        count = _tensor(bound_m_ptr, (1,), (1,), torch.int32) if bound_m_ptr else None
        self._exchange.dispatch_send(rows, scales, indices, weights, count)

    def dispatch_recv(
        self,
        out_num_tokens_ptr: int,
        out_x_ptr: int,
        out_x_stride: int,
        out_x_scale_ptr: int | None,
        out_x_scale_stride_elem: int | None,
        out_x_scale_stride_token: int | None,
        stream: int,
    ) -> None:
        """Writes as many rows as came, with padding: the caller's memory has room for all that can come."""
        counts = _tensor(out_num_tokens_ptr, (self._local_experts,), (1,), torch.int32)
        used = self._exchange.dispatch_receive(counts, None, None)
        self._rows(out_x_ptr, used, out_x_stride, self._shape.in_dtype).copy_(self._exchange.rows[:used])
        if out_x_scale_ptr is not None and self._exchange.scales is not None:
            strides = (out_x_scale_stride_token or 0, out_x_scale_stride_elem or 0)
            to = _tensor(out_x_scale_ptr, (used, self._shape.scales), strides, self._shape.scale_dtype)
            to.copy_(self._exchange.scales[:used])

    def combine_send(self, expert_x_ptr: int, expert_x_stride: int, stream: int) -> None:
        """Takes rows of out_dtype. Stride: in bytes."""
        rows = self._rows(expert_x_ptr, self._exchange.used_rows, expert_x_stride, self._shape.out_dtype)
        self._exchange.combine_send(rows)

    def combine_recv(
        self,
        num_tokens: int,
        num_recv_tokens: int,
        expert_y_dtype: torch.dtype,
        out_tokens_ptr: int,
        out_tokens_stride: int,
        indices_ptr: int,
        indices_stride: int,
        weights_ptr: int,
        weights_stride: int,
        bound_m_ptr: int | None,
        accumulate: bool,
        stream: int,
    ) -> None:
        """Strides: in elements. The bound is that of the dispatch.

        Errors: headrace.NotSupported (rows that are not of out_dtype; other weights than dispatch had).
        """
        shape = self._shape
        if expert_y_dtype != shape.out_dtype:
            raise headrace.NotSupported(
                f"expert_y_dtype is {expert_y_dtype}, and the results were sent as {shape.out_dtype}: make "
                f"them of that type"
            )
        out = self._rows(
            out_tokens_ptr, num_tokens, out_tokens_stride * shape.out_dtype.itemsize, shape.out_dtype
        )
        weights = _tensor(weights_ptr, (num_tokens, shape.top_k), (weights_stride, 1), torch.float32)
        self._exchange.check_weights(weights)
        self._exchange.combine_receive(out, accumulate)

    def _rows(self, address: int, count: int, stride_bytes: int, dtype: torch.dtype) -> Tensor:
        if stride_bytes % dtype.itemsize:
            raise ValueError(
                f"a stride is {stride_bytes} bytes, expected a multiple of {dtype.itemsize}, the bytes of "
                f"{dtype}"
            )
        return _tensor(address, (count, self._shape.hidden), (stride_bytes // dtype.itemsize, 1), dtype)

    def close(self) -> None:
        """Leaves the other ranks. Headrace's own: pplx-garden's ends with its last reference."""
        self._window.moe.close()
        self._agent.close()

    def __del__(self) -> None:
        if hasattr(self, "_agent"):
            self.close()


class _Meeting:
    """Where the ranks of a context meet: names and a folder that follow from their addresses."""

    def __init__(self, digest: str, size: int) -> None:
        self.names = [f"pplx-{digest}-{rank}" for rank in range(size)]
        self.folder = os.path.join(tempfile.gettempdir(), f"headrace-pplx-{os.getuid()}")
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if os.stat(self.folder).st_uid != os.getuid():
            raise headrace.InvalidArgument(
                f"{self.folder} is another user's: set TMPDIR to a folder of yours"
            )


def _meeting(
    ranks: Sequence[tuple[DomainAddress, MemoryRegionDescriptor, MemoryRegionDescriptor]], imm_base: int
) -> _Meeting:
    text = sha256(str(imm_base).encode())
    for each in ranks:
        for part in each:
            text.update(part.as_bytes())
    return _Meeting(text.hexdigest()[:20], len(ranks))


def _tensor(address: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor over memory of the caller."""
    if 0 in shape:
        return torch.empty(*shape, dtype=dtype)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)
