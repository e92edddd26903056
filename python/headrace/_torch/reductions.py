# SPDX-License-Identifier: Apache-2.0
"""torch's reductions as those of Headrace."""

from __future__ import annotations

from typing import Any

from torch.distributed import ReduceOp

import headrace

_OF_TORCH: dict[Any, headrace.ReduceOp] = {
    getattr(ReduceOp, name): getattr(headrace.ReduceOp, name)
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
}


def reduction_of(op: Any) -> headrace.ReduceOp:
    """
    op: a torch.distributed.ReduceOp, or its RedOpType.
    Errors: ValueError (torch has it, and Headrace does not).
    """
    kind = getattr(op, "op", op)
    found = _OF_TORCH.get(kind)
    if found is not None:
        return found
    if kind == ReduceOp.PREMUL_SUM:
        return headrace.ReduceOp.PREMUL_SUM(float(op.__getstate__()[1]))
    raise ValueError(f"{kind} is no reduction of Headrace: it has {', '.join(k.name for k in _OF_TORCH)}")
