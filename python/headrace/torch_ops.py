# SPDX-License-Identifier: Apache-2.0
"""Operations of communicators as operators of torch, `torch.ops.headrace`, which torch.compile traces.

    name = headrace.torch_ops.register(comm)  # or a process group of torch.distributed
    total = torch.ops.headrace.all_reduce(tensor, "sum", name)

Each returns a new tensor. On the CPU it waits in the call, on a GPU it runs on the current stream, as kernels
of torch do. They have gradients where the reduction has one: "sum" and
"avg". All ranks call the same operators in the same order; torch.compile leaves out one whose result nobody
uses, so compile the same program on all ranks. It leaves out none of batch_send_recv and of windows, and
keeps the order of these among themselves:

    headrace.torch_ops.register_window(window, "kv")
    torch.ops.headrace.window_put(tensor, 1, 0, "kv")

Operators of a mixture of experts are in docs/moe.md:

    headrace.torch_ops.register_moe(moe, "layer")
    ops = torch.ops.headrace
    rows, _, counts, first_rows, *_, routing = ops.moe_dispatch(x, experts, weights, None, "layer")
    sums = ops.moe_combine(results, weights, routing, [], "layer")
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import headrace

from ._torch.moe_ops import register_moe, unregister_moe
from ._torch.on_gpu import OnGpu
from ._torch.opening import comm_of
from ._torch.window_ops import in_order, register_window, unregister_window

__all__ = [
    "register",
    "register_moe",
    "register_window",
    "unregister",
    "unregister_moe",
    "unregister_window",
]


@dataclass
class _Registered:
    comm: headrace.Comm
    group: torch.distributed.ProcessGroup | None  # has another communicator for tensors on a GPU
    on_gpu: OnGpu | None = None

    def serving(self, device: torch.device) -> OnGpu:
        if self.on_gpu is None:
            comm = self.comm if self.group is None else comm_of(self.group, device)
            if comm is None or comm.get_device() != str(device):
                raise headrace.NotSupported(
                    f'the tensor is on {device}, and "{self.comm.get_name()}" takes none there: open a '
                    f'communicator by new_comm("auto", "{device}"), or make the group after '
                    'headrace.distributed.register("python")'
                )
            self.on_gpu = OnGpu(comm, device)
        return self.on_gpu


_registered: dict[str, _Registered] = {}
_REDUCTIONS: dict[str, headrace.ReduceOp] = {
    name: getattr(headrace.ReduceOp, name.upper())
    for name in ("sum", "product", "min", "max", "avg", "band", "bor", "bxor")
}


def register(comm: headrace.Comm | torch.distributed.ProcessGroup) -> str:
    """Makes a communicator known to the operators, and keeps it. Returns its name.

    Errors: InvalidArgument (another communicator of this name is registered; a group of another backend).
    """
    given = _Registered(comm, None) if isinstance(comm, headrace.Comm) else _Registered(_comm_of(comm), comm)
    name = given.comm.get_name()
    if _registered.setdefault(name, given).comm is not given.comm:
        raise headrace.InvalidArgument(
            f'another communicator "{name}" is registered: unregister it, or give this one a name of its own'
        )
    return name


def _comm_of(group: torch.distributed.ProcessGroup) -> headrace.Comm:
    comm = comm_of(group)
    if comm is None:
        raise headrace.InvalidArgument(
            f'{group} is none of Headrace: give a headrace.Comm, or a group of the backend "headrace"'
        )
    return comm


def unregister(name: str) -> None:
    """Forgets a communicator. Does nothing if the name is not registered."""
    _registered.pop(name, None)


def _known(name: str) -> _Registered:
    if name not in _registered:
        known = ", ".join(_registered) or "none"
        raise headrace.NotFound(
            f'no communicator "{name}" is registered: call register(comm). Registered: {known}'
        )
    return _registered[name]


def _comm(name: str) -> headrace.Comm:
    return _known(name).comm


def _on(name: str, tensor: Tensor) -> Any:
    """What has the operations for a tensor: on a GPU they run on the current stream."""
    return _known(name).serving(tensor.device) if tensor.is_cuda else _comm(name)


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
    _on(comm, output).all_reduce(output, _reduction(op))
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
    _on(comm, output).all_gather_single(output, _plain(input))
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
    _on(comm, output).reduce_scatter_single(output, _plain(input), _reduction(op))
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
    _on(comm, output).all_to_all_v_single(
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
    _on(comm, output).broadcast(output, root)
    return output


@broadcast.register_fake
def _(input: Tensor, root: int, comm: str) -> Tensor:
    return input.new_empty(input.shape)


def _keep_root(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.root, ctx.comm = inputs


def _broadcast_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return sum_at(gradient, ctx.root, ctx.comm), None, None


broadcast.register_autograd(_broadcast_gradient, setup_context=_keep_root)


@torch.library.custom_op("headrace::sum_at", mutates_args=())
def sum_at(input: Tensor, root: int, comm: str) -> Tensor:
    """The sum at the root, and zeros on the other ranks. One operator, because a compiler would leave out the
    sum on ranks that do not use it."""
    output = _plain(input).clone(memory_format=torch.contiguous_format)
    _on(comm, output).all_reduce(output, headrace.ReduceOp.SUM)
    return output if _comm(comm).get_rank() == root else output.zero_()


@sum_at.register_fake
def _(input: Tensor, root: int, comm: str) -> Tensor:
    return input.new_empty(input.shape)


sum_at.register_autograd(
    lambda ctx, gradient: (broadcast(gradient, ctx.root, ctx.comm), None, None), setup_context=_keep_root
)


# --- messages, issued together


@in_order
@torch.library.custom_op("headrace::batch_send_recv", mutates_args=())
def batch_send_recv(
    inputs: list[Tensor], destinations: list[int], like: list[Tensor], sources: list[int], comm: str
) -> list[Tensor]:
    """Sends inputs[i] to rank destinations[i], and receives from rank sources[i] a new tensor of the shape
    and type of like[i], all of them together."""
    outputs = _empty_like(like)
    batch = _for_all(comm, [*inputs, *outputs]).batch_op_create()
    for tensor, rank in _pairs("inputs", inputs, "destinations", destinations):
        batch.send(_plain(tensor), rank)
    for output, rank in _pairs("like", outputs, "sources", sources):
        batch.recv(output, rank)
    batch.issue(False)
    return outputs


@batch_send_recv.register_fake
def _(
    inputs: list[Tensor], destinations: list[int], like: list[Tensor], sources: list[int], comm: str
) -> list[Tensor]:
    return _empty_like(like)


def _for_all(name: str, tensors: list[Tensor]) -> Any:
    """What has the operations for tensors of one device."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        named = ", ".join(sorted(map(str, devices)))
        raise headrace.InvalidArgument(f"the tensors are on {named}: give tensors of one device")
    return _on(name, tensors[0]) if tensors else _comm(name)


def _empty_like(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _pairs(name: str, tensors: list[Tensor], name_of_ranks: str, ranks: list[int]) -> Any:
    if len(tensors) != len(ranks):
        raise headrace.InvalidArgument(
            f"{name} has {len(tensors)} tensors, {name_of_ranks} has {len(ranks)} ranks: give a rank for each"
        )
    return zip(tensors, ranks)


def _keep_messages(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    sent, ctx.destinations, _, ctx.sources, ctx.comm = inputs
    ctx.sent = [(tensor.shape, tensor.dtype, tensor.device) for tensor in sent]


def _messages_gradient(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    """The gradient of what was received goes back to its sender."""
    like = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.sent]
    back = batch_send_recv(list(gradients), ctx.sources, like, ctx.destinations, ctx.comm)
    return back, None, [None] * len(gradients), None, None


batch_send_recv.register_autograd(_messages_gradient, setup_context=_keep_messages)
