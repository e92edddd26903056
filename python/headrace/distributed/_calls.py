# SPDX-License-Identifier: Apache-2.0
"""How an operation of a communicator begins for a function of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

import headrace
from headrace._torch import profiling
from headrace._torch.errors import as_torch_error
from headrace._torch.opening import comm_of
from headrace._torch.tensors import Staged
from headrace._torch.work import GroupWork

# Others (DTensor, fake tensors of a compiler) have functions of their own, which torch's functions call.
_PLAIN = (Tensor, Parameter)


class Block:
    """What the calls of a coalescing block have in common."""

    def __init__(self) -> None:
        self.result: list[Any] = []
        self.staged: list[Staged] = []


# The blocks that are open, by thread and communicator.
blocks: dict[tuple[int, int], Block] = {}


def comm_for(tensor: object, group: ProcessGroup | None) -> headrace.Comm | None:
    """The communicator that serves the call; None: torch's own function does, which also words the errors of
    wrong types, shows its ranges to a profiler that runs, and knows the streams of GPUs."""
    if type(tensor) not in _PLAIN or profiling.is_enabled() or not tensor.is_cpu:  # type: ignore[attr-defined]
        return None
    return comm_of(group)


def comm_for_all(tensors: object, group: ProcessGroup | None) -> headrace.Comm | None:
    """The same for a list of tensors."""
    if not isinstance(tensors, list):
        return None
    if any(type(tensor) not in _PLAIN or not tensor.is_cpu for tensor in tensors):
        return None
    return None if profiling.is_enabled() else comm_of(group)


def start(
    operation: Callable[..., headrace.Work],
    arguments: tuple[Any, ...],
    async_op: bool,
    result: list[Any],
    staged: Sequence[Staged] = (),
    **more: Any,
) -> GroupWork | None:
    """Runs an operation, or begins it.

    result: what the future of the work gets.
    staged: outputs with gaps, which are copied from their contiguous memory at the end.
    Returns: the work if async_op, and not in a coalescing block.
    """
    try:
        if blocks and (block := blocks.get((get_ident(), id(operation.__self__)))):  # type: ignore[attr-defined]
            operation(*arguments, True, **more)
            block.result += result
            block.staged += staged
            return None
        work = operation(*arguments, async_op, **more)
    except headrace.Error as error:
        raise as_torch_error(error) from None
    if async_op:
        return GroupWork([work], result, staged)
    if staged:
        GroupWork.done(result, staged)
    return None
