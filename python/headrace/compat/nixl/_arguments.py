# SPDX-License-Identifier: Apache-2.0
"""Checks of what raw calls are given, in the place of those that NIXL's binding makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._descriptors import is_array
from ._enums import nixl_mem_t, nixl_xfer_op_t
from ._errors import failure, nixlInvalidParamError

NIXL_INIT_AGENT = ""


def need(value: object, kind: type, what: str) -> None:
    """Errors: TypeError (it is something else)."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {kind.__name__}, not {value!r}")


def indices(value: Any) -> Any:
    """Integer arrays as they are. Others that NIXL takes (with gaps, of floats or bools) are copied into
    integers, as it does."""
    if is_array(value):
        if value.ndim != 1:
            raise ValueError(
                f"indices are an array of one dimension, and this one has the shape {value.shape}"
            )
        return value if value.dtype.kind in "iu" and value.flags.c_contiguous else value.astype("int64")
    if isinstance(value, str | bytes):
        raise TypeError(f"indices are a list or an array of ints, not {value!r}")
    return value if isinstance(value, list) else list(value)


def word_of(operation: nixl_xfer_op_t) -> str:
    """Headrace's word for an operation."""
    need(operation, nixl_xfer_op_t, "the operation")
    if operation is nixl_xfer_op_t.NIXL_READ:
        return "read"
    if operation is nixl_xfer_op_t.NIXL_WRITE:
        return "write"
    raise failure(nixlInvalidParamError, f"there is no operation {int(operation)}")


def no_handle(handle: object, what: str) -> Exception:
    """What is raised for a handle that was not found."""
    if not isinstance(handle, int):
        return TypeError(f"a handle is an int, not {handle!r}")
    return failure(nixlInvalidParamError, f"{handle} is no {what} of this agent, or was released")


def of_prepare(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[str, nixl_mem_t | None, Any, Sequence[int]]:
    """Which of prepXferDlist's three forms it is: agent's name, kind of memory (of an array), descriptors,
    backends."""
    given = list(arguments)
    if "agent_name" in named:
        given.insert(0, named.pop("agent_name"))
    name = given.pop(0) if given and isinstance(given[0], str | bytes) else NIXL_INIT_AGENT
    memory = given.pop(0) if given and isinstance(given[0], nixl_mem_t) else named.pop("mem_type", None)
    source = given.pop(0) if given else named.pop("descs", None)
    backends = given.pop(0) if given else named.pop("backend", ())
    if given or named:
        raise TypeError(
            f"prepXferDlist: {len(given)} arguments too many, or unknown ones: {', '.join(named)}"
        )
    if memory is not None and not is_array(source):
        raise TypeError(f"with a kind of memory descriptors are an array, not {source!r}")
    return name, memory, source, backends
