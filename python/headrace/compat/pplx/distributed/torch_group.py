# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed.torch_group: a group of ranks on groups of torch.distributed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import accumulate
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import GroupMember, ReduceOp, Work

from ..utils.torch import profile_range
from ._backends import OF_HOST_MEMORY, backend_of
from .distributed_ops import Reducer
from .nccl_all_reduce import NcclAllReduce
from .parallel_group import ParallelGroup

T = TypeVar("T")


class TorchParallelGroup(ParallelGroup):
    """Two groups of torch with the same ranks: one for tensors on devices, one for host memory and objects.

    All ranks of the default group of torch, which must be there, make it together: `slice_by_lens` does.
    """

    def __init__(
        self, device: torch.device, node_rank: int, local_rank: int, global_rank: int, ranks: list[int]
    ) -> None:
        """ranks: of the new group, by their number in the default group; this rank is among them."""
        if global_rank not in ranks:
            raise ValueError(f"rank {global_rank} is not among the ranks of its own group: {ranks}")
        self._device = device
        self._node_rank = node_rank
        self._local_rank = local_rank
        self._global_rank = global_rank
        self._ranks = ranks
        self._rank = ranks.index(global_rank)
        self._device_group, self._cpu_group = _new_groups(device, ranks)
        self._reducer = NcclAllReduce(self._device_group)
        self._is_inter_node = len(set(self.all_gather_object(node_rank))) > 1

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def node_rank(self) -> int:
        return self._node_rank

    @property
    def global_rank(self) -> int:
        return self._global_rank

    @property
    def local_rank(self) -> int:
        return self._local_rank

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def is_inter_node(self) -> bool:
        return self._is_inter_node

    # --- on the devices

    @profile_range("reducer")
    def reducer(
        self, shape: torch.Size, dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM
    ) -> Reducer:
        return self._reducer.reducer(shape, dtype, op)

    @profile_range("all_reduce")
    def all_reduce(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> torch.Tensor:
        return self._reducer.all_reduce(x, op)

    @profile_range("all_gather")
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(
                f"dim {dim} is not in a tensor of shape {tuple(x.shape)}: give {-x.dim()} to {x.dim() - 1}"
            )
        if x.device != self._device:
            raise ValueError(f"the tensor is on {x.device}, and this rank's device is {self._device}")
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), self._device_group)
        return torch.cat(parts, dim)

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        dist.broadcast(tensor, self._global(root), self._device_group)
        return tensor

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[0] != self.size:
            raise ValueError(
                f"the tensor has {tensor.shape[0]} rows, and the group {self.size} ranks: give a row for each"
            )
        result = torch.empty_like(tensor)
        dist.all_to_all_single(result, tensor, group=self._device_group)
        return result

    def barrier(self) -> None:
        on_gpu = self._device.type == "cuda"
        dist.barrier(self._device_group, device_ids=[self._device.index] if on_gpu else None)

    def capture(self) -> AbstractContextManager[None]:
        return self._reducer.capture()

    # --- in host memory

    @profile_range("all_reduce_cpu_async")
    def all_reduce_cpu_async(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> Work:
        _check_host_memory(x)
        return cast(Work, dist.all_reduce(x, op, self._cpu_group, async_op=True))

    def broadcast_cpu_tensor_async(self, tensor: torch.Tensor, root: int) -> Work:
        _check_host_memory(tensor)
        return cast(Work, dist.broadcast(tensor, self._global(root), self._cpu_group, async_op=True))

    def all_gather_object(self, obj: T) -> list[T]:
        objects: list[T | None] = [None] * self.size
        dist.all_gather_object(objects, obj, self._cpu_group)
        return cast("list[T]", objects)

    def broadcast_object(self, obj: T | None, root: int) -> T:
        objects = [obj]
        dist.broadcast_object_list(objects, self._global(root), self._cpu_group)
        return cast(T, objects[0])

    def _global(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a group of {self.size}")
        return self._ranks[rank]

    # --- parts

    def slice_by_count(self, slice_count: int) -> ParallelGroup:
        if slice_count < 1 or self.size % slice_count:
            raise ValueError(f"{self.size} ranks cannot be divided into {slice_count} equal parts")
        return self.slice_by_lens([self.size // slice_count] * slice_count)

    def slice_by_lens(self, slice_lens: list[int]) -> ParallelGroup:
        if sum(slice_lens) != self.size:
            raise ValueError(
                f"the parts {slice_lens} have {sum(slice_lens)} ranks, and the group {self.size}"
            )
        mine: ParallelGroup | None = None
        for end, length in zip(accumulate(slice_lens), slice_lens, strict=True):
            ranks = self._ranks[end - length : end]
            if self._global_rank in ranks:
                mine = TorchParallelGroup(
                    self._device, self._node_rank, self._local_rank, self._global_rank, ranks
                )
            else:
                _new_groups(self._device, ranks)  # torch wants the call on all ranks, in the same order
        assert mine is not None
        return mine

    def destroy(self) -> None:
        self._reducer.destroy()
        for group in (self._cpu_group, self._device_group):
            dist.destroy_process_group(group)


def _new_groups(device: torch.device, ranks: list[int]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """For tensors on devices, and for host memory; GroupMember.NON_GROUP_MEMBER for ranks outside."""
    backends = backend_of(device), OF_HOST_MEMORY
    made = [dist.new_group(ranks, backend=backend) for backend in backends]
    assert made.count(GroupMember.NON_GROUP_MEMBER) in (0, len(made))
    return cast("tuple[dist.ProcessGroup, dist.ProcessGroup]", tuple(made))


def _check_host_memory(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}: this operation takes tensors in host memory")
