# SPDX-License-Identifier: Apache-2.0
"""Tensors as a communicator takes them: dense, contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

DENSE = torch.strided
# Headrace has no such numbers: their bytes move, and reductions refuse them (reductions.py).
MOVED_AS_BYTES = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}

# An output and the contiguous memory that stands for it until the operation has ended.
Staged = tuple[Tensor, Tensor]


def only(tensors: Sequence[Tensor]) -> Tensor:
    """The tensor of a list of one: torch passes lists, which had an entry for each GPU of a process."""
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors were given: an operation takes one, or its _coalesced form")
    return tensors[0]


def as_input(tensor: Tensor, staged: list[Staged] | None = None) -> Tensor:
    """The tensor, or a copy that is contiguous memory, which `staged` then has beside it.

    Errors: RuntimeError (not dense: what to do instead).
    """
    if tensor.layout is not DENSE:
        _refuse(tensor)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return _elements(tensor)
    memory = _plain_copy(tensor)
    if staged is not None:
        staged.append((tensor, memory))
    return _elements(memory)


# The same, with `staged`: what is written to the copy has to reach the tensor.
as_output = as_input


def as_outputs(tensors: Sequence[Tensor], staged: list[Staged]) -> list[Tensor]:
    """The same for a list. Where several are the same memory, as in `[tensor] * size`, the last one wins."""
    memories: list[Tensor] = []
    seen: set[int] = set()
    for tensor in tensors:
        memory = as_output(tensor, staged)
        if tensor.data_ptr() in seen and memory.data_ptr() == tensor.data_ptr() and tensor.numel():
            copy = tensor.detach().clone()
            staged.append((tensor, copy))
            memory = _elements(copy)
        seen.add(tensor.data_ptr())
        memories.append(memory)
    return memories


def _elements(memory: Tensor) -> Tensor:
    return memory.view(torch.uint8) if memory.dtype in MOVED_AS_BYTES else memory


def _refuse(tensor: Tensor) -> NoReturn:
    raise RuntimeError(
        f"the tensor has the layout {tensor.layout}, which all_reduce alone takes: give tensor.to_dense()"
    )


def split_elements(tensor: Tensor, rows: Sequence[int] | None, size: int) -> list[int]:
    """The elements of each rank's part.

    rows: of each part; none: one part of all rows for each of `size` ranks.
    """
    count = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if count % size:
            raise RuntimeError(
                f"Tensor's dim 0 does not divide equally across group size: {count} rows, {size} ranks. Give "
                "split sizes"
            )
        rows = [count // size] * size
    if sum(rows) != count:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: {rows} are {sum(rows)} rows, and the tensor has "
            f"{count}"
        )
    of_row = tensor.numel() // count if count else 0
    return [part * of_row for part in rows]


def _plain_copy(tensor: Tensor) -> Tensor:
    """Without the bits by which torch conjugates or negates when it reads."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
