# SPDX-License-Identifier: Apache-2.0
"""The compiled backend of torch.distributed, if one was built for this Python and for torch's version."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from . import PREFIX, compiled_torch_binding
from .opening import as_torch_errors, open_comm


def is_for_this_torch() -> bool:
    return compiled_torch_binding() == _torch_version()


def _torch_version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def load() -> Any:
    """The extension module.

    Errors: ImportError (none was built for this torch and this Python, or it does not load: why).
    """
    version, built = _torch_version(), compiled_torch_binding()
    if built != version:
        raise ImportError(
            f"the compiled process group is for torch {built}, and this is torch {version}: build Headrace "
            "with this torch installed"
            if built
            else "Headrace was built without a compiled process group for this Python: build it where torch "
            "2.13 is installed"
        )
    return importlib.import_module(f"{__package__}.{PREFIX}{version.replace('.', '_')}")


def new_backend(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    name: str = "",
    hints: dict[str, Any] | None = None,
    comm: Any = None,
    backend: str = "headrace",
) -> Any:
    """The Backend of one rank; it meets the others at the store.

    comm: the communicator instead of a new one.
    backend: what it calls itself.
    """
    options = load().Options(backend, timeout)
    options.group_name = name
    return _with(comm or open_comm(store, rank, size, timeout, name, hints), options)


def _with(comm: Any, options: Any) -> Any:
    options.hints = comm.get_options().hints
    options.global_ranks_in_group = comm.get_ranks()
    return load().Backend(comm, options)


# --- what the Backend calls for groups that are made of it


def split(comm: Any, ranks: Sequence[int], options: Any) -> Any:
    """The Backend of some ranks; None: this rank is not among them."""
    mine = list(ranks) if comm.get_rank() in ranks else []
    hints, timeout = _changes(comm, options), options._timeout
    child = _call(lambda: comm.split(mine, options.group_name, hints=hints, timeout=timeout))
    return _with(child, options) if child else None


def shrink(comm: Any, excluded: Sequence[int], options: Any) -> Any:
    """The Backend of all ranks but some."""
    hints, timeout = _changes(comm, options), options._timeout
    left = _call(lambda: comm.shrink(list(excluded), hints=hints, timeout=timeout))
    return _with(left, options)


def merge(store: Any, rank: int, size: int, options: Any) -> Any:
    """The Backend of ranks that meet at a store."""
    return new_backend(
        store,
        rank,
        size,
        options._timeout,
        name=options.group_name,
        hints=options.hints,
        backend=options.backend,
    )


def _changes(comm: Any, options: Any) -> dict[str, str]:
    """Hints of a new communicator that are not those of this one, which it has anyway."""
    own = comm.get_options().hints
    return {hint: value for hint, value in options.hints.items() if own.get(hint) != value}


def _call(call: Callable[[], Any]) -> Any:
    with as_torch_errors():
        return call()
