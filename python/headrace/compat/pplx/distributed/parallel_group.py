# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed.parallel_group: what a group of ranks can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch.distributed import ReduceOp, Work

from .distributed_ops import Reducer

T = TypeVar("T")


class ParallelGroup(ABC):
    """A group of ranks, each with a device. Ranks and roots are counted within the group."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Of this rank."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """In this group."""

    @property
    @abstractmethod
    def global_rank(self) -> int:
        """Among all ranks."""

    @property
    @abstractmethod
    def node_rank(self) -> int:
        """The number of this rank's node."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """On its node."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Ranks of the group."""

    @property
    @abstractmethod
    def is_inter_node(self) -> bool:
        """Whether its ranks are on several nodes."""

    @abstractmethod
    def broadcast_object(self, obj: T | None, root: int) -> T:
        """The root's object, on all ranks."""

    @abstractmethod
    def broadcast_cpu_tensor_async(self, tensor: torch.Tensor, root: int) -> Work:
        """Fills the tensor with that of the root, in host memory."""

    @abstractmethod
    def reducer(
        self, shape: torch.Size, dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM
    ) -> Reducer:
        """What reduces tensors of this shape on the devices."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> torch.Tensor:
        """Reduces x in place, on the devices, and returns it."""

    @abstractmethod
    def all_reduce_cpu_async(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> Work:
        """Reduces x in place, in host memory."""

    def all_reduce_cpu(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Reduces x in place, in host memory, and waits."""
        self.all_reduce_cpu_async(x, op).wait()

    @abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The tensors of all ranks, one after the other along `dim`."""

    @abstractmethod
    def all_gather_object(self, obj: T) -> list[T]:
        """The objects of all ranks."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Fills the tensor with that of the root, on the devices, and returns it."""

    @abstractmethod
    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Row i goes to rank i. Shape of both sides: (size, ...)."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    @abstractmethod
    def capture(self) -> AbstractContextManager[None]:
        """Surrounds the capture of a graph that has operations of the group in it."""

    @abstractmethod
    def destroy(self) -> None: ...

    @abstractmethod
    def slice_by_count(self, slice_count: int) -> ParallelGroup:
        """Divides the group into so many equal parts. Returns the part that this rank is in."""

    @abstractmethod
    def slice_by_lens(self, slice_lens: list[int]) -> ParallelGroup:
        """Divides the group into parts of these sizes. Returns the part that this rank is in."""

    @property
    def has_nvshmem(self) -> bool:
        return False
