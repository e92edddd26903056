# SPDX-License-Identifier: Apache-2.0
"""The operations of a TorchComm as operators of torch, which torch.compile keeps in its graphs.

An operator writes to no tensor that it is given: it returns new ones. Its side effect is registered as
ordered, so a graph calls all operators in the program's order, and drops none. All have one schema:

    inputs   what the operation reads; of one that works in place also what it begins with
    outputs  tensors like those that it returns; none if it works in place, or returns nothing
    comm     the key of the TorchComm
    numbers  root, peer or splits
    op       the text of a ReduceOp; "": the operation reduces nothing
    hints, timeout  as traced.py writes them

An async operator has begun when it returns. torchcomm_wait_tensors waits for what it has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from .._batch import BatchSendRecv, batch_of_key
from .._comm import TorchComm, comm_of_key
from .._types import ReduceOp
from .._work import TorchWork

NAMESPACE = "torchcomms"
SCHEMA = (
    "(Tensor[] inputs, Tensor[] outputs, str comm, SymInt[] numbers, str op, bool async_op, str hints, "
    "float timeout) -> Tensor[]"
)
SEPARATOR = "\x1f"  # of keys and values of hints
NO_TIMEOUT = -1.0

LIBRARY = torch.library.Library(NAMESPACE, "DEF")


@dataclass
class Call:
    """One call of an operator, for the function that makes it a call of the TorchComm."""

    comm: TorchComm
    inputs: list[Tensor]
    results: list[Tensor]
    """What the operator returns: the operation writes here."""
    numbers: list[int]
    op: Any
    rest: tuple[Any, ...]
    """async_op, hints and timeout."""


@dataclass(frozen=True)
class Operation:
    begin: Callable[[Call], TorchWork]
    in_place: bool = False
    """It reads and writes the same tensor."""
    keeps_outputs: bool = False
    """It leaves outputs of some ranks as they are."""


def _splits(call: Call) -> tuple[list[int], list[int]]:
    size = call.comm.get_size()
    return call.numbers[:size], call.numbers[size:]


# The methods as they are here: traced.py replaces those of the class.
_EAGER = dict(vars(TorchComm))

OPERATIONS: dict[str, Operation] = {
    "send": Operation(lambda c: _EAGER["send"](c.comm, c.inputs[0], c.numbers[0], *c.rest)),
    "recv": Operation(lambda c: _EAGER["recv"](c.comm, c.results[0], c.numbers[0], *c.rest)),
    "broadcast": Operation(
        lambda c: _EAGER["broadcast"](c.comm, c.results[0], c.numbers[0], *c.rest), in_place=True
    ),
    "all_reduce": Operation(
        lambda c: _EAGER["all_reduce"](c.comm, c.results[0], c.op, *c.rest), in_place=True
    ),
    "reduce": Operation(
        lambda c: _EAGER["reduce"](c.comm, c.results[0], c.numbers[0], c.op, *c.rest), in_place=True
    ),
    "all_gather": Operation(lambda c: _EAGER["all_gather"](c.comm, c.results, c.inputs[0], *c.rest)),
    "all_gather_v": Operation(lambda c: _EAGER["all_gather_v"](c.comm, c.results, c.inputs[0], *c.rest)),
    "all_gather_single": Operation(
        lambda c: _EAGER["all_gather_single"](c.comm, c.results[0], c.inputs[0], *c.rest)
    ),
    "reduce_scatter": Operation(
        lambda c: _EAGER["reduce_scatter"](c.comm, c.results[0], c.inputs, c.op, *c.rest)
    ),
    "reduce_scatter_v": Operation(
        lambda c: _EAGER["reduce_scatter_v"](c.comm, c.results[0], c.inputs, c.op, *c.rest)
    ),
    "reduce_scatter_single": Operation(
        lambda c: _EAGER["reduce_scatter_single"](c.comm, c.results[0], c.inputs[0], c.op, *c.rest)
    ),
    "all_to_all": Operation(lambda c: _EAGER["all_to_all"](c.comm, c.results, c.inputs, *c.rest)),
    "all_to_all_single": Operation(
        lambda c: _EAGER["all_to_all_single"](c.comm, c.results[0], c.inputs[0], *c.rest)
    ),
    "all_to_all_v_single": Operation(
        lambda c: _EAGER["all_to_all_v_single"](c.comm, c.results[0], c.inputs[0], *_splits(c), *c.rest)
    ),
    "barrier": Operation(lambda c: _EAGER["barrier"](c.comm, *c.rest)),
    "scatter": Operation(lambda c: _EAGER["scatter"](c.comm, c.results[0], c.inputs, c.numbers[0], *c.rest)),
    "gather": Operation(
        lambda c: _EAGER["gather"](c.comm, c.results, c.inputs[0], c.numbers[0], *c.rest),
        keeps_outputs=True,
    ),
    "gather_single": Operation(
        lambda c: _EAGER["gather_single"](c.comm, c.results[0], c.inputs[0], c.numbers[0], *c.rest),
        keeps_outputs=True,
    ),
}


def operator(name: str) -> Any:
    """The operator of an operation: torch.ops.torchcomms.torchcomm_all_reduce."""
    return getattr(getattr(torch.ops, NAMESPACE), f"torchcomm_{name}")


# --- what runs

_under_way: dict[int, tuple[TorchWork, list[Tensor]]] = {}
"""Async operations that nobody has waited for, by the address of their first result, and what they use."""


def _run(name: str, operation: Operation, *arguments: Any) -> list[Tensor]:
    inputs, outputs, comm, numbers, op, async_op, hints, timeout = arguments
    inputs = [tensor.contiguous() for tensor in inputs]
    results = _new_results(operation, inputs, outputs)
    rest = async_op, _hints_of(hints), None if timeout == NO_TIMEOUT else timedelta(seconds=timeout)
    reduction = ReduceOp.of_text(op) if op else None
    work = operation.begin(Call(comm_of_key(comm), inputs, results, list(numbers), reduction, rest))
    if async_op:
        _under_way[results[0].data_ptr()] = work, [*inputs, *results]
    return results


def _new_results(operation: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    if operation.in_place:
        return [inputs[0].clone()]
    if operation.keeps_outputs:
        return [tensor.contiguous().clone() for tensor in outputs]
    results = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in outputs]
    return results or [torch.zeros(1)]  # by which a program waits


def _like_results(operation: Operation, inputs: list[Tensor], outputs: list[Tensor], *_: Any) -> list[Tensor]:
    """The same for tensors without data."""
    like = inputs[:1] if operation.in_place else outputs
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like] or [
        torch.empty(1)
    ]


def _hints_of(text: str) -> dict[str, str] | None:
    parts = text.split(SEPARATOR) if text else []
    return dict(zip(parts[::2], parts[1::2])) or None


def is_under_way(result: Tensor) -> bool:
    entry = _under_way.get(result.data_ptr())
    return entry is not None and not entry[0].is_completed()


def _wait(inputs: list[Tensor]) -> list[Tensor]:
    if inputs and (entry := _under_way.pop(inputs[0].data_ptr(), None)):
        entry[0].wait()
    return [tensor.clone() for tensor in inputs]


# --- what is registered


def _register(name: str, operation: Operation) -> None:
    qualified = f"{NAMESPACE}::torchcomm_{name}"
    LIBRARY.define(f"torchcomm_{name}{SCHEMA}", tags=[torch.Tag.pt2_compliant_tag])

    def run(*arguments: Any) -> list[Tensor]:
        return _run(name, operation, *arguments)

    def like(*arguments: Any) -> list[Tensor]:
        return _like_results(operation, *arguments)

    LIBRARY.impl(f"torchcomm_{name}", run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, like, lib=LIBRARY)
    _register_effectful_op(qualified, _EffectType.ORDERED)


def _register_waits() -> None:
    qualified = f"{NAMESPACE}::torchcomm_wait_tensors"
    LIBRARY.define("torchcomm_wait_tensors(Tensor[] inputs) -> Tensor[]", tags=[torch.Tag.pt2_compliant_tag])
    LIBRARY.impl("torchcomm_wait_tensors", _wait, "CompositeExplicitAutograd")
    torch.library.register_fake(
        qualified, lambda inputs: [torch.empty_like(tensor) for tensor in inputs], lib=LIBRARY
    )
    torch.library.register_autograd(
        qualified, lambda context, gradients: list(gradients), setup_context=_keep_nothing, lib=LIBRARY
    )
    _register_effectful_op(qualified, _EffectType.ORDERED)
    # torchcomms has a second one, which returns the tensors themselves. Here it is the first by another name.
    LIBRARY.define("torchcomm_wait_tensors_(Tensor[] inputs) -> Tensor[]")
    LIBRARY.impl("torchcomm_wait_tensors_", _wait_again, "CompositeImplicitAutograd")


def _register_batches() -> None:
    eager = {"send": BatchSendRecv.send, "recv": BatchSendRecv.recv}
    for name, add in eager.items():
        qualified = f"{NAMESPACE}::torchcomm_batch_{name}"
        LIBRARY.define(f"torchcomm_batch_{name}(Tensor tensor, str batch, SymInt peer) -> ()")

        def run(tensor: Tensor, batch: str, peer: int, add: Any = add) -> None:
            add(batch_of_key(batch), tensor, peer)

        LIBRARY.impl(f"torchcomm_batch_{name}", run, "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, lambda tensor, batch, peer: None, lib=LIBRARY)
        _register_effectful_op(qualified, _EffectType.ORDERED)


def _keep_nothing(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    pass


def _wait_again(inputs: list[Tensor]) -> list[Tensor]:
    waited: list[Tensor] = operator("wait_tensors")(inputs)
    return waited


for _name, _operation in OPERATIONS.items():
    _register(_name, _operation)
_register_waits()
_register_batches()
