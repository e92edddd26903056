# SPDX-License-Identifier: Apache-2.0
"""torch's reductions as those of Headrace."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

import headrace

from .tensors import MOVED_AS_BYTES

_NAMES = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
# By torch's numbers, and by the identity of its constants: its own objects are slow as keys.
_OF_TORCH: dict[int, headrace.ReduceOp] = {
    int(getattr(ReduceOp, name)): getattr(headrace.ReduceOp, name) for name in _NAMES
}
_OF_CONSTANT: dict[int, headrace.ReduceOp] = {
    id(getattr(ReduceOp, name)): getattr(headrace.ReduceOp, name) for name in _NAMES
}


def reduction_of(op: Any, *tensors: Tensor) -> headrace.ReduceOp:
    """
    op: a torch.distributed.ReduceOp, or its RedOpType.
    tensors: what is reduced.
    Errors: ValueError (torch has it, and Headrace does not).
    """
    for tensor in tensors:
        if tensor.dtype in MOVED_AS_BYTES:
            raise ValueError(f"{tensor.dtype} is moved and not reduced: convert it by tensor.float()")
    found = _OF_CONSTANT.get(id(op))
    if found is not None:
        return found
    kind = getattr(op, "op", op)
    found = _OF_TORCH.get(int(kind))
    if found is not None:
        return found
    if kind == ReduceOp.PREMUL_SUM:
        return headrace.ReduceOp.PREMUL_SUM(float(op.__getstate__()[1]))
    raise ValueError(f"{kind} is no reduction of Headrace: it has {', '.join(_NAMES)}")
