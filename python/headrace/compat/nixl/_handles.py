# SPDX-License-Identifier: Apache-2.0
"""Handles of prepared lists and transfers, as programs hold them.

A handle is released once, at the latest with the last reference to it. The raw agent knows a prepared list by a number, and a
transfer by none until somebody asks for it: few do, and a request is made before every transfer.
"""

from __future__ import annotations

from typing import Any, NoReturn

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

    __slots__ = ("_handle", "_agent", "_released", "_thing")

    def __init__(self, agent: nixlAgent, value: int):
        self._agent = agent
        self._handle = value
        self._thing: Any = agent._list(value)
        self._released = False

    __repr__ = _described

    def __reduce__(self) -> Any:
        raise TypeError("a nixl_prepped_dlist_handle cannot be pickled: it is of its agent alone")

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if not self._released:
            self._agent.releasedDlistH(self._handle)
            self._released = True
            self._thing = _Released()

    def __del__(self) -> None:
        # One whose constructor failed has no such attribute.
        if not getattr(self, "_released", True):
            _free_with_last_reference(self)


class nixl_xfer_handle(Transfer):
    """A transfer. Releasing it while it is under way ends it and waits until nothing reads or writes for it any more."""

    __slots__ = ("_agent", "_number")

    _agent: nixlAgent | None
    """None: it was released."""
    _number: int
    """That the raw agent knows it by; 0: by none."""

    @property
    def _handle(self) -> int:
        if not self._number and self._agent is not None:
            self._number = self._agent._lend(self)
        return self._number

    @property
    def _released(self) -> bool:
        return self._agent is None

    __repr__ = _described

    def __reduce__(self) -> NoReturn:
        raise TypeError("a nixl_xfer_handle cannot be pickled: it is of its agent alone")

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if self._agent is None:
            return
        self.end()
        if self._number:
            self._agent._lent.pop(self._number, None)
        self._agent = None

    def __del__(self) -> None:
        # One whose making failed has no such attribute.
        if getattr(self, "_agent", None) is not None:
            _free_with_last_reference(self)
