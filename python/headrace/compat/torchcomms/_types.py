# SPDX-License-Identifier: Apache-2.0
"""Reductions, options and enums of torchcomms."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

import headrace


class RedOpType(Enum):
    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    PREMUL_SUM = 7
    AVG = 8


class ReduceOp:
    """How the elements of all ranks become one."""

    __slots__ = ("op", "text", "type")

    SUM: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]

    def __init__(self, opType: RedOpType) -> None:
        if opType is RedOpType.PREMUL_SUM:
            raise ValueError("PREMUL_SUM has a factor: use ReduceOp.PREMUL_SUM(factor)")
        self.type: RedOpType = opType
        self.op: headrace.ReduceOp = getattr(headrace.ReduceOp, opType.name)
        """The reduction of Headrace."""
        self.text = opType.name
        """It in compiled programs: of_text makes it again."""

    @staticmethod
    def of_text(text: str) -> ReduceOp:
        kind, _, factor = text.partition(" ")
        return ReduceOp.PREMUL_SUM(float(factor)) if factor else ReduceOp(RedOpType[kind])

    @staticmethod
    def PREMUL_SUM(factor: Any) -> ReduceOp:
        """The sum of each rank's elements times the factor, a number or a tensor of one element."""
        made = ReduceOp(RedOpType.SUM)
        made.type = RedOpType.PREMUL_SUM
        made.op = headrace.ReduceOp.PREMUL_SUM(float(factor))
        made.text = f"{made.type.name} {float(factor)!r}"
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceOp) and self.op == other.op

    def __hash__(self) -> int:
        return hash(self.op)

    def __copy__(self) -> ReduceOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ReduceOp:
        memo[id(self)] = self  # it does not change
        return self

    def __repr__(self) -> str:
        return f"ReduceOp.{self.type.name}"


for _kind in RedOpType:
    if _kind is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _kind.name, ReduceOp(_kind))
OF_HEADRACE = {
    op.op: op for name in RedOpType.__members__ if isinstance(op := getattr(ReduceOp, name), ReduceOp)
}


class OpName(Enum):
    """The operation of a hook."""

    send = 0
    recv = 1
    broadcast = 2
    all_reduce = 3
    reduce = 4
    all_gather = 5
    all_gather_v = 6
    all_gather_single = 7
    reduce_scatter = 8
    reduce_scatter_v = 9
    reduce_scatter_single = 10
    all_to_all_single = 11
    all_to_all_v_single = 12
    all_to_all = 13
    barrier = 14
    scatter = 15
    gather = 16
    gather_single = 17
    split = 18
    new_window = 19
    finalize = 20


class CommOptions:
    """The options of a communicator."""

    def __init__(self) -> None:
        self.abort_process_on_timeout_or_error = False
        self.timeout = timedelta(seconds=600)
        self.store: Any = None
        self.enable_reconfigure = False
        self.hints: dict[str, str] = {}


class BatchP2POptions:
    """The options of BatchSendRecv.issue. timeout: zero is that of the communicator."""

    def __init__(self) -> None:
        self.hints: dict[str, str] = {}
        self.timeout = timedelta(0)


class ReconfigureOptions:
    """The arguments of TorchComm.reconfigure, for programs that keep them together."""

    def __init__(
        self,
        uuid: int = 0,
        init_handles: Iterable[str] = (),
        timeout: timedelta | None = None,
        hints: dict[str, str] | None = None,
    ) -> None:
        self.uuid = uuid
        self.init_handles = init_handles
        self.timeout = timeout
        self.hints = hints or {}
