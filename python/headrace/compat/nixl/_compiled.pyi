# SPDX-License-Identifier: Apache-2.0
"""The compiled part of headrace.compat.nixl."""

from collections.abc import Callable
from typing import Any

import headrace

class QuickMake:
    """nixl_agent.make_prepped_xfer in the place of the method in Python, which does what is unusual."""

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
        function: the method; its class has the agent of Headrace's in a slot _native.
        make_request: headrace.Agent's. error: what it raises, and the method knows what to do about.
        handle: of prepared lists, with the slots _pages and _thing. transfer: a subclass of headrace.Request
        with the slots notification and _remote.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __set_name__(self, owner: type, name: str, /) -> None: ...

def capture_rows(rows: object, /) -> tuple[int, int, int, int, int, bytes | None, bytes | None] | None:
    """What rows of (address, length, device) are, kept as short as they can be; None if they lie on several
    devices.

    rows: a contiguous buffer of three uint64 each, at least one. Nothing of it is kept.
    Returns (count, device, address, step, length, addresses, lengths): address and length are those of the
    first row. step: how far apart neighbours begin, if that is the same all along and so is their length;
    else 0, and `addresses` has them as uint64. `lengths` has the lengths as uint64 if they differ, else it is
    None.
    """

def pack_tuples(rows: list[tuple[int, int, int]], /) -> bytes | None:
    """Tuples of (address, length, device) as three uint64 each; None if one is anything else than a tuple of
    three plain integers that fit.

    rows: a list of them. What is wrong with one is not said: whoever goes through them by itself finds it.
    """
