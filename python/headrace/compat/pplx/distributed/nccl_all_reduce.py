# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed.nccl_all_reduce: reductions by a group of torch, whatever its backend is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from .distributed_ops import Reducer, ReducerBuilder


class NcclReducer(Reducer):
    def __init__(self, group: ProcessGroup, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        self._group = group
        self._op = op

    @property
    def input(self) -> torch.Tensor | None:
        return None

    def reduce(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        result = x if out is None else out
        if result is not x:
            result.copy_(x)
        dist.all_reduce(result, self._op, self._group)
        return result


class NcclAllReduce(ReducerBuilder):
    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def reducer(
        self, shape: torch.Size, dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM
    ) -> Reducer:
        return NcclReducer(self._group, op)

    def destroy(self) -> None:
        """Nothing: the group belongs to its maker."""

    def all_reduce(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> torch.Tensor:
        return NcclReducer(self._group, op).reduce(x)

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()
