# SPDX-License-Identifier: Apache-2.0
"""Handles of prepared lists and transfers, for programs.

A handle is released once, at the latest with the last reference to it. The raw agent has a number for each
prepared list. A transfer gets a number only when a program reads it: few programs do, and a number for each
would cost time in every transfer.
"""

from __future__ import annotations

from typing import Any, NoReturn

import headrace

from ._agent import nixlAgent
from ._errors import failure, nixlInvalidParamError
from ._transfer import Transfer
from .logging import get_logger

logger = get_logger("api")


def was_released() -> Exception:
    """Returns the exception for the use of a handle after its release."""
    return failure(nixlInvalidParamError, "the handle was released")


def _free_with_last_reference(handle: Any) -> None:
    try:
        handle.release()
    except Exception as error:
        logger.error("%s was not freed: %s", repr(handle), str(error))


def _described(handle: Any) -> str:
    return f"{type(handle).__name__}({handle._handle:#x}, released={handle._released})"


class _Released:
    """Replaces a released prepared list: every use of it raises."""

    def __getattr__(self, name: str) -> NoReturn:
        raise was_released()


class nixl_prepped_dlist_handle:
    """A prepared list. Transfers made of it stay valid after its release."""

    __slots__ = ("_handle", "_agent", "_released", "_thing", "_pages")

    _pages: headrace.PageList | None
    """The pages, for compiled code; None: the list is limited to some backends, or was released."""

    def __init__(self, agent: nixlAgent, value: int):
        self._agent = agent
        self._handle = value
        self._thing: Any = agent._list(value)
        self._pages = self._thing.pages if self._thing.paths is None else None
        self._released = False

    __repr__ = _described

    def __reduce__(self) -> Any:
        raise TypeError("a nixl_prepped_dlist_handle cannot be pickled: only its agent can use it")

    def release(self) -> None:
        """Frees it. A second call has no effect."""
        if not self._released:
            self._agent.releasedDlistH(self._handle)
            self._released = True
            self._thing, self._pages = _Released(), None

    def __del__(self) -> None:
        # The attribute is missing if the constructor failed.
        if not getattr(self, "_released", True):
            _free_with_last_reference(self)


class nixl_xfer_handle(Transfer):
    """A transfer. Its release cancels it if it is in flight and waits until its memory is quiet."""

    __slots__ = ("_number",)

    _number: int
    """Its number in the raw agent; not set until it is read."""

    @property
    def _handle(self) -> int:
        if self._remote is not None and not hasattr(self, "_number"):
            self._number = self._remote.lent.lend(self)
        return getattr(self, "_number", 0)

    @property
    def _released(self) -> bool:
        return self._remote is None

    __repr__ = _described

    def __reduce__(self) -> NoReturn:
        raise TypeError("a nixl_xfer_handle cannot be pickled: only its agent can use it")

    def release(self) -> None:
        """Frees it. A second call has no effect."""
        if self._remote is None:
            return
        self.end()
        if hasattr(self, "_number"):
            self._remote.lent.take_back(self._number)
        self._remote = None
        del self.notification

    def __del__(self) -> None:
        # The attribute is missing if making the request failed.
        if getattr(self, "_remote", None) is not None:
            _free_with_last_reference(self)
