# SPDX-License-Identifier: Apache-2.0
"""The communicator of a process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

import headrace

from .errors import as_torch_error


def open_comm(
    store: Store, rank: int, size: int, timeout: timedelta, name: str, hints: dict[str, Any] | None
) -> headrace.Comm:
    """Meets the other ranks at the store."""
    with as_torch_errors():
        return headrace.new_comm(
            rank=rank,
            size=size,
            store=store,
            name=name or "world",
            timeout=timeout,
            meeting_timeout=timeout,
            hints=hints,
        )


@contextmanager
def as_torch_errors() -> Iterator[None]:
    """Raises errors of Headrace as torch's users catch them."""
    try:
        yield
    except headrace.Error as error:
        raise as_torch_error(error) from None
