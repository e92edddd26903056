# SPDX-License-Identifier: Apache-2.0
"""Backends of torchcomms in Python: a class whose methods are the operations.

They get the program's tensors as they are. headrace.register_backend has more: hooks, timeouts, hints, errors
of other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import headrace

from ._types import OF_HEADRACE, CommOptions, ReduceOp
from ._work import DONE, PythonWork


class TorchCommBackend:
    """The base of backends in Python.

    A backend has init(device, name, options), finalize(), get_rank(), get_size(), get_backend_name(),
    get_comm_name(), split(ranks, name, options) and the operations, with the arguments of TorchComm's up to
    async_op. An operation returns None (it is done) or an object with wait().
    """


class PythonComm:
    """What TorchComm needs of a communicator, by the methods of a backend."""

    def __init__(
        self, kind: type[TorchCommBackend], device: torch.device, name: str, options: CommOptions
    ) -> None:
        made: Any = kind()
        self.backend = made
        self._device = device
        self._options = options
        self.backend.init(device, name, options)

    @classmethod
    def _of(cls, backend: Any, parent: PythonComm) -> PythonComm:
        made = cls.__new__(cls)
        made.backend, made._device, made._options = backend, parent._device, parent._options
        return made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation: its arguments, then async_op, hints and timeout. The backend does not get the last
        two."""
        if name.startswith("_"):
            raise AttributeError(name)
        operation = getattr(self.backend, name, None)
        if operation is None:
            raise RuntimeError(f"{name} not implemented: {type(self.backend).__name__} has no such method")

        def call(*arguments: Any) -> Any:
            *own, async_op, _, _ = arguments
            work = operation(*[_as_torchcomms(argument) for argument in own], async_op)
            return DONE if work is None else PythonWork(work)

        return call

    def get_rank(self) -> int:
        rank: int = self.backend.get_rank()
        return rank

    def get_size(self) -> int:
        size: int = self.backend.get_size()
        return size

    def get_device(self) -> torch.device:
        return self._device

    def get_backend_version(self) -> str:
        return str(getattr(self.backend, "version", ""))

    def set_timeout(self, timeout: timedelta) -> None:
        self.backend.set_timeout(timeout)

    def set_hints(self, hints: dict[str, str]) -> None:
        self.backend.set_hints(hints)

    def split(self, ranks: list[int], name: str, hints: Any, timeout: Any) -> PythonComm | None:
        backend = self.backend.split(ranks, name, self._options)
        return None if backend is None else PythonComm._of(backend, self)

    def finalize(self) -> None:
        self.backend.finalize()

    def abort(self, reason: str = "") -> None:
        self.backend.abort()

    def is_aborted(self) -> bool:
        return False

    def batch_op_create(self) -> Any:
        raise RuntimeError(
            "batches are not implemented for backends in Python: use headrace.register_backend"
        )

    def new_window(self) -> Any:
        raise RuntimeError("windows are not implemented for backends in Python")


def _as_torchcomms(argument: Any) -> Any:
    """TorchComm passes Headrace's reductions."""
    if not isinstance(argument, headrace.ReduceOp):
        return argument
    known = OF_HEADRACE.get(argument)
    return known or ReduceOp.PREMUL_SUM(argument.factor)
