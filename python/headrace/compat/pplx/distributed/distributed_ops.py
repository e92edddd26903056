# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed.distributed_ops: what reduces tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import torch
from torch.distributed import ReduceOp


class Reducer(ABC):
    """Reduces tensors of one shape."""

    @property
    @abstractmethod
    def input(self) -> torch.Tensor | None:
        """The tensor to fill before `reduce`; None: any tensor may be given."""

    @abstractmethod
    def reduce(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Reduces x over all ranks, into `out`, or else in place. Returns the result."""


class ReducerBuilder(ABC):
    """Makes reducers, and reduces tensors of any shape."""

    @abstractmethod
    def reducer(
        self, shape: torch.Size, dtype: torch.dtype, op: ReduceOp.RedOpType = ReduceOp.SUM
    ) -> Reducer: ...

    @abstractmethod
    def destroy(self) -> None: ...

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> torch.Tensor:
        """Reduces x in place, and returns it."""

    @abstractmethod
    def capture(self) -> AbstractContextManager[None]:
        """Surrounds the capture of a graph that has reductions in it."""
