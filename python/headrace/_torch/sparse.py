# SPDX-License-Identifier: Apache-2.0
"""The sum of sparse COO tensors: every rank gathers the entries of all and adds them."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import Tensor

import headrace


def all_reduce_sparse(comm: headrace.Comm, tensor: Tensor, timeout: timedelta | None) -> None:
    """Replaces the tensor by the sum of those of all ranks, in rank order.

    shapes: the same on all ranks, with as many sparse dimensions; the number of entries may differ.
    """
    mine = tensor.coalesce()
    entries = _entries_of_ranks(comm, mine, timeout)
    indices = _gather(comm, mine.indices().t(), entries, timeout)
    values = _gather(comm, mine.values(), entries, timeout)
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
    tensor.copy_(total)


def _entries_of_ranks(comm: headrace.Comm, mine: Tensor, timeout: timedelta | None) -> list[int]:
    count = torch.tensor([mine._nnz()], dtype=torch.int64)
    counts = torch.empty(comm.get_size(), dtype=torch.int64)
    comm.all_gather_single(counts, count, timeout=timeout)
    return [int(entries) for entries in counts]


def _gather(comm: headrace.Comm, rows: Tensor, counts: list[int], timeout: timedelta | None) -> Tensor:
    """The rows of all ranks in one tensor."""
    gathered = rows.new_empty((sum(counts), *rows.shape[1:]))
    comm.all_gather_v(list(gathered.split(counts)), rows.contiguous(), timeout=timeout)
    return gathered
