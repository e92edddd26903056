# SPDX-License-Identifier: Apache-2.0
"""The operations of a TorchComm while torch.compile traces a program.

torch traces these functions, so they are plain: they call an operator, and copy what it returns to where the
program wants it. An async operation copies when the program waits for it, as it has no result before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .._batch import BatchSendRecv
from .._comm import TorchComm
from .operations import NO_TIMEOUT, SEPARATOR, is_under_way


class TracedWork:
    """An operation of a compiled program. Like TorchWork."""

    def __init__(self, outputs: list[Tensor], results: list[Tensor], has_ended: bool) -> None:
        self._outputs = outputs
        self._results = results
        self._has_ended = has_ended

    def wait(self) -> None:
        """Waits until it has ended, and copies its results."""
        if self._has_ended:
            return
        self._has_ended = True
        _copy(self._outputs, torch.ops.torchcomms.torchcomm_wait_tensors(self._results))

    def is_completed(self) -> bool:
        return self._has_ended or not is_under_way(self._results[0])


def _copy(outputs: list[Tensor], results: list[Tensor]) -> None:
    for output, result in zip(outputs, results):
        output.copy_(result)


def _start(
    comm: Any,
    call: Any,
    inputs: list[Tensor],
    outputs: list[Tensor],
    rest: tuple[Any, ...],
    *,
    numbers: Sequence[int] = (),
    op: str = "",
    in_place: bool = False,
) -> TracedWork:
    async_op, hints, timeout = rest
    likes = [] if in_place else outputs
    results = call(
        inputs, likes, comm.key, list(numbers), op, async_op, _text_of(hints), _seconds_of(timeout)
    )
    if not async_op:
        _copy(outputs, results)
    return TracedWork(outputs, results, not async_op)


def _text_of(hints: dict[str, str] | None) -> str:
    parts: list[str] = []
    for name, value in (hints or {}).items():
        parts.append(name)
        parts.append(value)
    return SEPARATOR.join(parts)


def _seconds_of(timeout: timedelta | None) -> float:
    if timeout is None:
        return NO_TIMEOUT
    # torch cannot trace total_seconds()
    return timeout.days * 86400.0 + timeout.seconds + timeout.microseconds * 1e-6


# --- methods of TorchComm: the same parameters

Hints = dict[str, str] | None
Timeout = timedelta | None
Tensors = list[Tensor]


def _send(
    comm: TorchComm, tensor: Tensor, dst: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_send
    return _start(comm, call, [tensor], [], (async_op, hints, timeout), numbers=[dst])


def _recv(
    comm: TorchComm, tensor: Tensor, src: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_recv
    return _start(comm, call, [], [tensor], (async_op, hints, timeout), numbers=[src])


def _broadcast(
    comm: TorchComm, tensor: Tensor, root: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_broadcast, (async_op, hints, timeout)
    return _start(comm, call, [tensor], [tensor], rest, numbers=[root], in_place=True)


def _all_reduce(
    comm: TorchComm, tensor: Tensor, op: Any, async_op: bool, hints: Hints = None, timeout: Timeout = None
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_all_reduce, (async_op, hints, timeout)
    return _start(comm, call, [tensor], [tensor], rest, op=op.text, in_place=True)


def _reduce(
    comm: TorchComm,
    tensor: Tensor,
    root: int,
    op: Any,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_reduce, (async_op, hints, timeout)
    return _start(comm, call, [tensor], [tensor], rest, numbers=[root], op=op.text, in_place=True)


def _all_gather(
    comm: TorchComm,
    tensor_list: Tensors,
    tensor: Tensor,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_gather
    return _start(comm, call, [tensor], tensor_list, (async_op, hints, timeout))


def _all_gather_v(
    comm: TorchComm,
    tensor_list: Tensors,
    tensor: Tensor,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_gather_v
    return _start(comm, call, [tensor], tensor_list, (async_op, hints, timeout))


def _all_gather_single(
    comm: TorchComm,
    output: Tensor,
    input: Tensor,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_gather_single
    return _start(comm, call, [input], [output], (async_op, hints, timeout))


def _reduce_scatter(
    comm: TorchComm,
    output: Tensor,
    input_list: Tensors,
    op: Any,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_reduce_scatter
    return _start(comm, call, input_list, [output], (async_op, hints, timeout), op=op.text)


def _reduce_scatter_v(
    comm: TorchComm,
    output: Tensor,
    input_list: Tensors,
    op: Any,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_reduce_scatter_v
    return _start(comm, call, input_list, [output], (async_op, hints, timeout), op=op.text)


def _reduce_scatter_single(
    comm: TorchComm,
    output: Tensor,
    input: Tensor,
    op: Any,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_reduce_scatter_single
    return _start(comm, call, [input], [output], (async_op, hints, timeout), op=op.text)


def _all_to_all(
    comm: TorchComm,
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_to_all
    return _start(comm, call, input_tensor_list, output_tensor_list, (async_op, hints, timeout))


def _all_to_all_single(
    comm: TorchComm,
    output: Tensor,
    input: Tensor,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_to_all_single
    return _start(comm, call, [input], [output], (async_op, hints, timeout))


def _all_to_all_v_single(
    comm: TorchComm,
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call = torch.ops.torchcomms.torchcomm_all_to_all_v_single
    splits = [*output_split_sizes, *input_split_sizes]
    return _start(comm, call, [input], [output], (async_op, hints, timeout), numbers=splits)


def _barrier(comm: TorchComm, async_op: bool, hints: Hints = None, timeout: Timeout = None) -> TracedWork:
    return _start(comm, torch.ops.torchcomms.torchcomm_barrier, [], [], (async_op, hints, timeout))


def _scatter(
    comm: TorchComm,
    output_tensor: Tensor,
    input_tensor_list: Tensors | None,
    root: int,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_scatter, (async_op, hints, timeout)
    return _start(comm, call, input_tensor_list or [], [output_tensor], rest, numbers=[root])


def _gather(
    comm: TorchComm,
    output_tensor_list: Tensors | None,
    input_tensor: Tensor,
    root: int,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_gather, (async_op, hints, timeout)
    return _start(comm, call, [input_tensor], output_tensor_list or [], rest, numbers=[root])


def _gather_single(
    comm: TorchComm,
    output: Tensor | None,
    input: Tensor,
    root: int,
    async_op: bool,
    hints: Hints = None,
    timeout: Timeout = None,
) -> TracedWork:
    call, rest = torch.ops.torchcomms.torchcomm_gather_single, (async_op, hints, timeout)
    return _start(comm, call, [input], [] if output is None else [output], rest, numbers=[root])


# --- methods of BatchSendRecv: issue() is called outside of compiled programs


def _batch_send(batch: BatchSendRecv, tensor: Tensor, dst: int) -> None:
    torch.ops.torchcomms.torchcomm_batch_send(tensor, batch.key, dst)


def _batch_recv(batch: BatchSendRecv, tensor: Tensor, src: int) -> None:
    torch.ops.torchcomms.torchcomm_batch_recv(tensor, batch.key, src)


def _either(eager: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(eager)
    def method(self: Any, *arguments: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return traced(self, *arguments, **more)
        return eager(self, *arguments, **more)

    return method


TRACED: dict[type, dict[str, Callable[..., Any]]] = {
    TorchComm: {
        "send": _send,
        "recv": _recv,
        "broadcast": _broadcast,
        "all_reduce": _all_reduce,
        "reduce": _reduce,
        "all_gather": _all_gather,
        "all_gather_v": _all_gather_v,
        "all_gather_single": _all_gather_single,
        "reduce_scatter": _reduce_scatter,
        "reduce_scatter_v": _reduce_scatter_v,
        "reduce_scatter_single": _reduce_scatter_single,
        "all_to_all": _all_to_all,
        "all_to_all_single": _all_to_all_single,
        "all_to_all_v_single": _all_to_all_v_single,
        "barrier": _barrier,
        "scatter": _scatter,
        "gather": _gather,
        "gather_single": _gather_single,
    },
    BatchSendRecv: {"send": _batch_send, "recv": _batch_recv},
}


def enable() -> None:
    """Makes the methods choose, at each call, whether torch traces them."""
    for kind, methods in TRACED.items():
        for name, traced in methods.items():
            setattr(kind, name, _either(getattr(kind, name), traced))
