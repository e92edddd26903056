# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of raw calls, as NIXL's binding makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._descriptors import is_array
from ._enums import nixl_mem_t, nixl_xfer_op_t
from ._errors import failure, nixlInvalidParamError

NIXL_INIT_AGENT = ""


def need(value: object, kind: type, what: str) -> None:
    """Raises TypeError unless `value` is of type `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {value!r}")


def indices(value: Any) -> Any:
    """Returns contiguous integer arrays as they are. Copies other arrays (with gaps, of floats or bools) into
    integers, as NIXL does."""
    if is_array(value):
        if value.ndim != 1:
            raise ValueError(
                f"an array of indices must have one dimension, and this one has the shape {value.shape}"
            )
        return value if value.dtype.kind in "iu" and value.flags.c_contiguous else value.astype("int64")
    if isinstance(value, str | bytes):
        raise TypeError(f"indices must be a list or an array of ints, not {value!r}")
    return value if isinstance(value, list) else list(value)


def word_of(operation: nixl_xfer_op_t) -> str:
    """Returns Headrace's word for an operation."""
    need(operation, nixl_xfer_op_t, "the operation")
    if operation is nixl_xfer_op_t.NIXL_READ:
        return "read"
    if operation is nixl_xfer_op_t.NIXL_WRITE:
        return "write"
    raise failure(nixlInvalidParamError, f"there is no operation {int(operation)}")


def no_handle(handle: object, what: str) -> Exception:
    """Returns the exception for a handle that was not found."""
    if not isinstance(handle, int):
        return TypeError(f"a handle must be an int, not {handle!r}")
    return failure(nixlInvalidParamError, f"{handle} is not a {what} of this agent, or was released")


def of_prepare(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[str, nixl_mem_t | None, Any, Sequence[int]]:
    """Reads the three forms of prepXferDlist's arguments. Returns the agent's name, the kind of memory (of an
    array), the descriptors and the backends."""
    given = list(arguments)
    if "agent_name" in named:
        given.insert(0, named.pop("agent_name"))
    name = given.pop(0) if given and isinstance(given[0], str | bytes) else NIXL_INIT_AGENT
    memory = given.pop(0) if given and isinstance(given[0], nixl_mem_t) else named.pop("mem_type", None)
    source = given.pop(0) if given else named.pop("descs", None)
    backends = given.pop(0) if given else named.pop("backend", ())
    if given or named:
        raise TypeError(
            f"prepXferDlist: {len(given)} arguments too many, or unknown arguments: {', '.join(named)}"
        )
    if memory is not None and not is_array(source):
        raise TypeError(f"with a kind of memory, descriptors must be an array, not {source!r}")
    return name, memory, source, backends
