# SPDX-License-Identifier: Apache-2.0
"""Handles of prepared lists and transfers, as programs hold them.

A handle has the number by which the raw agent knows what it stands for, and beside it the thing itself, so that posting and
polling look nothing up.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ._agent import nixlAgent
from ._errors import failure, nixlInvalidParamError
from .logging import get_logger

logger = get_logger("api")


class _Released:
    """In the place of what was released: whoever uses it is told."""

    def __getattr__(self, name: str) -> NoReturn:
        raise failure(nixlInvalidParamError, "the handle was released")


class _Handle:
    """Released once, at the latest with the last reference to it."""

    __slots__ = ("_handle", "_agent", "_released", "_thing")

    def __init__(self, agent: nixlAgent, value: int, thing: Any = None):
        """thing: if the caller has it at hand; otherwise the agent is asked for it."""
        self._agent = agent
        self._handle = value
        self._thing = self._find() if thing is None else thing
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._handle:#x}, released={self._released})"

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it is of its agent alone")

    def _find(self) -> Any:
        raise NotImplementedError

    def _free(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if not self._released:
            self._free()
            self._released = True
            self._thing = _Released()

    def __del__(self) -> None:
        # One whose constructor failed has no such attribute.
        if getattr(self, "_released", True):
            return
        try:
            self._free()
        except Exception as error:
            logger.error("%s was not freed: %s", repr(self), str(error))


class nixl_prepped_dlist_handle(_Handle):
    """A prepared list. Transfers made of it go on after it is released."""

    __slots__ = ()

    def _find(self) -> Any:
        return self._agent._list(self._handle)

    def _free(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer. Releasing it while it is under way ends it and waits until nothing reads or writes for it any more."""

    __slots__ = ()

    def _find(self) -> Any:
        return self._agent._transfer(self._handle)

    def _free(self) -> None:
        self._agent.releaseXferReq(self._handle)
