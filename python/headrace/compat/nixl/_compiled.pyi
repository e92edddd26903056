# SPDX-License-Identifier: Apache-2.0
"""The compiled part of headrace.compat.nixl."""

from collections.abc import Callable
from typing import Any

import headrace

class QuickMake:
    """nixl_agent.make_prepped_xfer in compiled code. It replaces the Python method and calls it for unusual
    arguments."""

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: Callable[..., Any],
        make_request: Callable[..., headrace.Request],
        error: type[Exception],
        handle: type,
        transfer: type,
    ) -> None:
        """
        function: the method; its class has Headrace's agent in a slot _native. make_request:
        headrace.Agent.make_request. error: the exception that it raises and that the method handles. handle:
        the class of prepared lists, with the slots _pages and _thing. transfer: a subclass of
        headrace.Request with the slots notification and _remote.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __set_name__(self, owner: type, name: str, /) -> None: ...

def capture_rows(rows: object, /) -> tuple[int, int, int, int, int, bytes | None, bytes | None] | None:
    """Copies rows of (address, length, device) in a short form; None if they name several devices.

    rows: a contiguous buffer of three uint64 a row, at least one row. It is not kept. Returns (count, device,
    address, step, length, addresses, lengths). address, length: those of the first row. step: the distance of
    neighbouring addresses if all distances and all lengths are equal, else 0. addresses: all addresses as
    uint64 if step is 0, else None. lengths: all lengths as uint64 if they differ, else None.
    """

def pack_tuples(rows: list[tuple[int, int, int]], /) -> bytes | None:
    """Packs tuples of (address, length, device) as three uint64 each.

    rows: a list of tuples. Returns None if an item is not a tuple of three ints of 64 bits without a sign;
    the caller then reads the rows one by one and reports the error.
    """
