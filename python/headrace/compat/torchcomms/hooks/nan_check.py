# SPDX-License-Identifier: Apache-2.0
"""A hook that refuses operations whose tensors have a NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .._comm import TorchComm
from .._types import OpName

__all__ = ["NanCheckHook"]


class NanCheckHook:
    """Refuses operations on the communicators that were registered: RuntimeError, with the operation.

    check_inputs: look at what an operation reads. What is read and written in place counts as read.
    check_outputs: look at the memory of the results, too, before the operation.
    """

    def __init__(self, check_inputs: bool = True, check_outputs: bool = False) -> None:
        self._fields = [
            *(["input"] if check_inputs else []),
            *(["output"] if check_outputs else []),
        ]
        self._in_place = check_inputs or check_outputs
        self._registered = 0

    def register_with_comm(self, comm: TorchComm) -> None:
        name = comm.get_name()

        def check(operation: OpName, number: int, args: Any) -> None:
            for field, tensor in self._tensors(operation, args):
                if tensor.is_floating_point() and torch.isnan(tensor).any():
                    raise RuntimeError(
                        f"NaN detected in {field} tensor for '{operation.name}' on comm '{name}': "
                        "the operation was not called"
                    )

        comm.register_pre_hook(check)
        self._registered += 1

    def is_enabled(self) -> bool:
        """Whether a communicator was registered."""
        return self._registered > 0

    def _tensors(self, operation: OpName, args: Any) -> Iterable[tuple[str, torch.Tensor]]:
        if hasattr(args, "tensor"):
            field = "output" if operation is OpName.recv else "input"
            if field in self._fields or (self._in_place and operation not in (OpName.send, OpName.recv)):
                yield field, args.tensor
            return
        for field in self._fields:
            found = getattr(args, field, None)
            for tensor in found if isinstance(found, (list, tuple)) else [found]:
                if tensor is not None:
                    yield field, tensor
