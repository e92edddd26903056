# SPDX-License-Identifier: Apache-2.0
"""Handles of prepared lists and transfers, as programs hold them."""

from __future__ import annotations

from typing import Any

from ._agent import nixlAgent
from .logging import get_logger

logger = get_logger("api")


class _Handle:
    """Released once, at the latest with the last reference to it. Its number is known to the raw agent alone."""

    __slots__ = ("_handle", "_agent", "_released")

    def __init__(self, agent: nixlAgent, value: int):
        self._handle = int(value)
        self._agent = agent
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._handle:#x}, released={self._released})"

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it is of its agent alone")

    def _free(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Frees it; nothing happens the second time."""
        if not self._released:
            self._free()
            self._released = True

    def __del__(self) -> None:
        # One whose constructor failed has no such attribute.
        if getattr(self, "_released", True):
            return
        try:
            self._free()
        except Exception as error:
            logger.error("%r was not freed: %s", self, error)


class nixl_prepped_dlist_handle(_Handle):
    """A prepared list. Transfers made of it go on after it is released."""

    __slots__ = ()

    def _free(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer. Releasing it while it is under way ends it and waits until nothing reads or writes for it any more."""

    __slots__ = ()

    def _free(self) -> None:
        self._agent.releaseXferReq(self._handle)
