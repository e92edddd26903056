# SPDX-License-Identifier: Apache-2.0
"""Handles of prepared lists and transfers, as programs hold them.

A handle is released once, at the latest with the last reference to it. The raw agent knows a prepared list by
a number, and a transfer by none until somebody asks for it: few do, and a request is made before every
transfer.
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
    """What is raised for the use of a handle after its release."""
    return failure(nixlInvalidParamError, "the handle was released")


def _free_with_last_reference(handle: Any) -> None:
    try:
        handle.release()
    except Exception as error:
        logger.error("%s was not freed: %s", repr(handle), str(error))


def _described(handle: Any) -> str:
    return f"{type(handle).__name__}({handle._handle:#x}, released={handle._released})"


class _Released:
    """In the place of a prepared list that was released: whoever uses it is told."""

    def __getattr__(self, name: str) -> NoReturn:
        raise was_released()


class nixl_prepped_dlist_handle:
    """A prepared list. Transfers made of it go on after it is released."""

    __slots__ = ("_handle", "_agent", "_released", "_thing", "_pages")

    _pages: headrace.PageList | None
    """For requests that nothing need be asked about; None: it may go by some backends alone, or was
    released."""

    def __init__(self, agent: nixlAgent, value: int):
        self._agent = agent
        self._handle = value
        self._thing: Any = agent._list(value)
        self._pages = self._thing.pages if self._thing.paths is None else None
        self._released = False

    __repr__ = _described

    def __reduce__(self) -> Any:
        raise TypeError("a nixl_prepped_dlist_handle cannot be pickled: it is of its agent alone")

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if not self._released:
            self._agent.releasedDlistH(self._handle)
            self._released = True
            self._thing, self._pages = _Released(), None

    def __del__(self) -> None:
        # One whose constructor failed has no such attribute.
        if not getattr(self, "_released", True):
            _free_with_last_reference(self)


class nixl_xfer_handle(Transfer):
    """A transfer. Releasing it while it is under way ends it and waits until nothing reads or writes for it
    any more."""

    __slots__ = ("_number",)

    _number: int
    """That the raw agent knows it by; not set: by none."""

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
        raise TypeError("a nixl_xfer_handle cannot be pickled: it is of its agent alone")

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if self._remote is None:
            return
        self.end()
        if hasattr(self, "_number"):
            self._remote.lent.take_back(self._number)
        self._remote = None
        del self.notification

    def __del__(self) -> None:
        # One whose making failed has no such attribute.
        if getattr(self, "_remote", None) is not None:
            _free_with_last_reference(self)
