# SPDX-License-Identifier: Apache-2.0
"""Operations of communicators as operators of torch, `torch.ops.headrace`, which torch.compile traces.

    name = headrace.torch_ops.register(comm)  # or a process group of torch.distributed
    total = torch.ops.headrace.all_reduce(tensor, "sum", name)

Each returns a new tensor, and waits in the call. They have gradients where the reduction has one: "sum" and
"avg". All ranks call the same operators in the same order; torch.compile leaves out one whose result nobody
uses, so compile the same program on all ranks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import headrace

__all__ = ["register", "unregister"]

_comms: dict[str, headrace.Comm] = {}
_REDUCTIONS: dict[str, headrace.ReduceOp] = {
    name: getattr(headrace.ReduceOp, name.upper())
    for name in ("sum", "product", "min", "max", "avg", "band", "bor", "bxor")
}


def register(comm: headrace.Comm | torch.distributed.ProcessGroup) -> str:
    """Makes a communicator known to the operators, and keeps it. Returns its name.

    Errors: InvalidArgument (another communicator of this name is registered).
    """
    ours = comm if isinstance(comm, headrace.Comm) else _comm_of(comm)
    name = ours.get_name()
    if _comms.setdefault(name, ours) is not ours:
        raise headrace.InvalidArgument(
            f'another communicator "{name}" is registered: unregister it, or give this one a name of its own'
        )
    return name


def _comm_of(group: Any) -> headrace.Comm:
    comm: headrace.Comm = group._get_backend(torch.device("cpu")).comm
    return comm


def unregister(name: str) -> None:
    """Forgets a communicator. Does nothing if the name is not registered."""
    _comms.pop(name, None)


def _comm(name: str) -> headrace.Comm:
    if name not in _comms:
        known = ", ".join(_comms) or "none"
        raise headrace.NotFound(f'no communicator "{name}" is registered: {known}. Call register(comm)')
    return _comms[name]


def _reduction(name: str) -> headrace.ReduceOp:
    if name not in _REDUCTIONS:
        raise headrace.InvalidArgument(f'there is no reduction "{name}": {", ".join(_REDUCTIONS)}')
    return _REDUCTIONS[name]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.contiguous().resolve_conj().resolve_neg()


def _rows(tensor: Tensor, rows: Any) -> Tensor:
    """A new tensor of as many rows."""
    return tensor.new_empty([rows, *tensor.shape[1:]])


def _check_rows(tensor: Tensor, size: int) -> None:
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise headrace.InvalidArgument(
            f"a tensor of shape {list(tensor.shape)} has no equal rows for {size} ranks"
        )


# --- all_reduce


@torch.library.custom_op("headrace::all_reduce", mutates_args=())
def all_reduce(input: Tensor, op: str, comm: str) -> Tensor:
    output = _plain(input).clone(memory_format=torch.contiguous_format)
    _comm(comm).all_reduce(output, _reduction(op))
    return output


@all_reduce.register_fake
def _(input: Tensor, op: str, comm: str) -> Tensor:
    return input.new_empty(input.shape)


def _keep_reduction(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *_, ctx.op, ctx.comm = inputs
    if ctx.op not in ("sum", "avg"):
        raise headrace.NotSupported(f'reduction "{ctx.op}" has no gradient: "sum" and "avg" have one')


def _all_reduce_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return all_reduce(gradient, ctx.op, ctx.comm), None, None


all_reduce.register_autograd(_all_reduce_gradient, setup_context=_keep_reduction)


# --- all_gather_single and reduce_scatter_single, each of which is the other's gradient


@torch.library.custom_op("headrace::all_gather_single", mutates_args=())
def all_gather_single(input: Tensor, comm: str) -> Tensor:
    """The rows of all ranks, one after another."""
    output = _rows(input, input.shape[0] * _comm(comm).get_size())
    _comm(comm).all_gather_single(output, _plain(input))
    return output


@all_gather_single.register_fake
def _(input: Tensor, comm: str) -> Tensor:
    return _rows(input, input.shape[0] * _comm(comm).get_size())


@torch.library.custom_op("headrace::reduce_scatter_single", mutates_args=())
def reduce_scatter_single(input: Tensor, op: str, comm: str) -> Tensor:
    """Each rank gets its part of the rows, reduced."""
    size = _comm(comm).get_size()
    _check_rows(input, size)
    output = _rows(input, input.shape[0] // size)
    _comm(comm).reduce_scatter_single(output, _plain(input), _reduction(op))
    return output


@reduce_scatter_single.register_fake
def _(input: Tensor, op: str, comm: str) -> Tensor:
    return _rows(input, input.shape[0] // _comm(comm).get_size())


def _keep_comm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.comm = inputs[-1]


def _all_gather_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return reduce_scatter_single(gradient, "sum", ctx.comm), None


def _reduce_scatter_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    gathered = all_gather_single(gradient, ctx.comm)
    return gathered if ctx.op == "sum" else gathered / _comm(ctx.comm).get_size(), None, None


all_gather_single.register_autograd(_all_gather_gradient, setup_context=_keep_comm)
reduce_scatter_single.register_autograd(_reduce_scatter_gradient, setup_context=_keep_reduction)


# --- all_to_all_single


@torch.library.custom_op("headrace::all_to_all_single", mutates_args=())
def all_to_all_single(input: Tensor, output_rows: list[int], input_rows: list[int], comm: str) -> Tensor:
    """Each rank sends `input_rows[r]` rows to rank r, and gets `output_rows[r]` from it."""
    output = _rows(input, sum(output_rows))
    of_row = math.prod(input.shape[1:])
    _comm(comm).all_to_all_v_single(
        output, _plain(input), [rows * of_row for rows in output_rows], [rows * of_row for rows in input_rows]
    )
    return output


@all_to_all_single.register_fake
def _(input: Tensor, output_rows: list[int], input_rows: list[int], comm: str) -> Tensor:
    return _rows(input, sum(output_rows))


def _keep_splits(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.output_rows, ctx.input_rows, ctx.comm = inputs


def _all_to_all_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return all_to_all_single(gradient, ctx.input_rows, ctx.output_rows, ctx.comm), None, None, None


all_to_all_single.register_autograd(_all_to_all_gradient, setup_context=_keep_splits)


# --- broadcast


@torch.library.custom_op("headrace::broadcast", mutates_args=())
def broadcast(input: Tensor, root: int, comm: str) -> Tensor:
    """The root's tensor, in a new one on every rank."""
    output = _plain(input).clone(memory_format=torch.contiguous_format)
    _comm(comm).broadcast(output, root)
    return output


@broadcast.register_fake
def _(input: Tensor, root: int, comm: str) -> Tensor:
    return input.new_empty(input.shape)


def _keep_root(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.root, ctx.comm = inputs


def _broadcast_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    total = all_reduce(gradient, "sum", ctx.comm)
    at_root = _comm(ctx.comm).get_rank() == ctx.root
    return total if at_root else torch.zeros_like(total), None, None


broadcast.register_autograd(_broadcast_gradient, setup_context=_keep_root)
