# SPDX-License-Identifier: Apache-2.0
# The docstrings of the module and its functions stand in bindings/compat_nixl/module.cpp.

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

def capture_rows(rows: object, /) -> tuple[int, int, int, int, int, bytes | None, bytes | None] | None: ...
def pack_tuples(rows: list[tuple[int, int, int]], /) -> bytes | None: ...
