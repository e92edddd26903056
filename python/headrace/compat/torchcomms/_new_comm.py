# SPDX-License-Identifier: Apache-2.0
"""Opens communicators, and says which backends there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import torch

import headrace
from headrace._torch.errors import as_torch_error

from . import _environment as environment
from ._comm import TorchComm, known, mem_allocator
from ._python_backend import PythonComm, TorchCommBackend
from ._types import CommOptions

# Backends of torchcomms, and those of Headrace that serve them.
SERVED_BY = {"gloo": "host", "fake": "fake", "xccl": "oneccl"}

_python_backends: dict[str, type[TorchCommBackend]] = {}


def new_comm(
    backend: str,
    device: torch.device | str,
    name: str,
    abort_process_on_timeout_or_error: bool | None = None,
    timeout: timedelta | None = None,
    is_high_priority_stream: bool | None = None,
    store: Any = None,
    enable_reconfigure: bool = False,
    hints: dict[str, str] | None = None,
) -> TorchComm:
    """Opens a communicator: meets the other ranks and connects to each.

    Rank and size are those that the launcher has set.

    backend: "gloo" is the backend "host" of Headrace; built_backends() has the others. For tensors on GPUs
    these are "auto", "nccl" and "p2p".
    name: the same on all ranks. Communicators that are open at one place have different names.
    abort_process_on_timeout_or_error: off by default, where torchcomms has it on.
    timeout: of each operation and of the meeting; None: 600 s.
    is_high_priority_stream: not used, the host has no streams.
    store: a torch Store in which the ranks meet; None: that of the launcher, or MASTER_ADDR and MASTER_PORT.
    enable_reconfigure: the communicator has no ranks before the first reconfigure, and meets nobody.
    hints: those of headrace.list_comm_hints(); others are dropped, as backends of torchcomms drop them.
    Errors: ModuleNotFoundError (no such backend: which there are), RuntimeError.
    """
    options = _options(abort_process_on_timeout_or_error, timeout, store, enable_reconfigure, hints)
    if backend in _python_backends:
        comm: Any = PythonComm(_python_backends[backend], torch.device(device), name, options)
        return TorchComm(comm, backend, name, options)
    rank, size = (0, 1) if backend == "fake" or enable_reconfigure else environment.rank_and_size()
    try:
        comm = headrace.new_comm(
            SERVED_BY.get(backend, backend),
            str(device),
            rank=rank,
            size=size,
            store=store if size > 1 else None,
            name=name,
            timeout=options.timeout,
            meeting_timeout=timeout,
            abort_process_on_timeout_or_error=options.abort_process_on_timeout_or_error,
            hints=known(hints),
            enable_reconfigure=enable_reconfigure,
        )
    except headrace.Error as error:
        if isinstance(error, headrace.NotFound) or not is_backend_built(backend):
            _no_backend(backend, error)
        raise as_torch_error(error) from None
    return TorchComm(comm, backend, name, options, is_ready=not enable_reconfigure)


def _options(
    abort: bool | None,
    timeout: timedelta | None,
    store: Any,
    enable_reconfigure: bool,
    hints: dict[str, str] | None,
) -> CommOptions:
    options = CommOptions()
    options.abort_process_on_timeout_or_error = environment.abort_on_error() if abort is None else abort
    options.timeout = timeout or environment.timeout() or options.timeout
    options.store = store
    options.enable_reconfigure = enable_reconfigure
    options.hints = dict(hints or {})
    return options


def _no_backend(name: str, reason: headrace.Error | None = None) -> NoReturn:
    raise ModuleNotFoundError(
        f"failed to find backend {name}: Headrace has {', '.join(built_backends())}, of which gloo and host "
        f"are the same one, for tensors on the CPU{f' ({reason})' if reason else ''}"
    )


def built_backends() -> list[str]:
    """The names that new_comm takes: torchcomms' that are served, those of Headrace, those that were
    registered."""
    served = [name for name, ours in SERVED_BY.items() if ours in headrace.list_comm_backends()]
    return sorted({*served, *headrace.list_comm_backends(), *_python_backends})


def is_backend_built(backend: str) -> bool:
    return backend in built_backends()


def register_backend(name: str, backend_class: type[TorchCommBackend]) -> None:
    """Makes a Python class a backend: new_comm(name) makes an object of it."""
    _python_backends[name] = backend_class


def _is_backend_registered(name: str) -> bool:
    return is_backend_built(name)


def _load_backend(backend: str) -> None:
    if not is_backend_built(backend):
        _no_backend(backend)


def get_mem_allocator(backend: str) -> Any:
    """The allocator of torch.cuda.MemPool, for backends of GPUs; others need none: see the error."""
    return mem_allocator(backend)
