# SPDX-License-Identifier: Apache-2.0
"""The gradients of the operators: each is the operation that brings them back to the ranks they belong to.

A rank's loss is its own, and the gradient of an input is that of the sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._comm import comm_of_key
from .operations import LIBRARY, NAMESPACE, operator

LINEAR = ("SUM", "AVG")


def _begin(
    name: str,
    context: Any,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    numbers: Sequence[int] = (),
    op: str = "",
) -> list[Tensor]:
    """Calls an operator with gradients, and with hints and timeout of the operator whose they are."""
    whole = [tensor.contiguous() for tensor in inputs]
    rest = False, context.hints, context.timeout
    found: list[Tensor] = operator(name)(whole, list(outputs), context.comm, list(numbers), op, *rest)
    return found


def _of_all_reduce(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    return _begin("all_reduce", context, gradients, [], op=context.op)


def _of_all_gather(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    mine = gradients[comm_of_key(context.comm).get_rank()]
    return _begin("reduce_scatter_v", context, gradients, [mine], op="SUM")


def _of_all_gather_single(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    like = gradients[0].new_empty(context.shapes[0])
    return _begin("reduce_scatter_single", context, gradients, [like], op="SUM")


def _of_reduce_scatter(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    like = [gradients[0].new_empty(shape) for shape in context.shapes]
    return _averaged(context, _begin("all_gather_v", context, gradients, like))


def _of_reduce_scatter_single(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    like = gradients[0].new_empty(context.shapes[0])
    return _averaged(context, _begin("all_gather_single", context, gradients, [like]))


def _of_all_to_all(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    like = [gradients[0].new_empty(shape) for shape in context.shapes]
    return _begin("all_to_all", context, gradients, like)


def _of_all_to_all_single(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    return _begin("all_to_all_single", context, gradients, [torch.empty_like(gradients[0])])


def _of_all_to_all_v_single(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    like = gradients[0].new_empty(context.shapes[0])
    half = len(context.numbers) // 2
    back = [*context.numbers[half:], *context.numbers[:half]]
    return _begin("all_to_all_v_single", context, gradients, [like], numbers=back)


def _averaged(context: Any, gradients: list[Tensor]) -> list[Tensor]:
    if context.op == "SUM":
        return gradients
    size = comm_of_key(context.comm).get_size()
    return [gradient / size for gradient in gradients]


GRADIENTS: dict[str, Callable[[Any, list[Tensor]], list[Tensor]]] = {
    "all_reduce": _of_all_reduce,
    "all_gather": _of_all_gather,
    "all_gather_v": _of_all_gather,
    "all_gather_single": _of_all_gather_single,
    "reduce_scatter": _of_reduce_scatter,
    "reduce_scatter_v": _of_reduce_scatter,
    "reduce_scatter_single": _of_reduce_scatter_single,
    "all_to_all": _of_all_to_all,
    "all_to_all_single": _of_all_to_all_single,
    "all_to_all_v_single": _of_all_to_all_v_single,
}


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    tensors, outputs, ctx.comm, ctx.numbers, ctx.op, _, ctx.hints, ctx.timeout = inputs
    ctx.shapes = [tensor.shape for tensor in tensors]
    ctx.outputs = len(outputs)


def _register(name: str, gradient: Callable[[Any, list[Tensor]], list[Tensor]]) -> None:
    def backward(context: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
        if context.op not in ("", *LINEAR):
            raise RuntimeError(
                f"{name} has gradients for {' and '.join(LINEAR)} alone, and it was {context.op}"
            )
        # torch wants a list for each list of tensors, and takes an empty list for one
        nothing = [None] * context.outputs, None, None if context.numbers else [], *[None] * 4
        return gradient(context, list(gradients)), *nothing

    torch.library.register_autograd(
        f"{NAMESPACE}::torchcomm_{name}", backward, setup_context=_keep, lib=LIBRARY
    )


for _name, _gradient in GRADIENTS.items():
    _register(_name, _gradient)
