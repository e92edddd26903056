# SPDX-License-Identifier: Apache-2.0
"""A transfer: a request of Headrace with the notification of its next post, and with NIXL's errors."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import NoReturn

import headrace

from ._descriptors import as_bytes
from ._errors import (
    failure,
    nixlBackendError,
    nixlCancelledError,
    nixlInvalidParamError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRepostActiveError,
    translated,
)
from ._peers import Life, Peers

BUSY_SECONDS = 30.0
"""The time for which posts to a full queue are retried. NIXL has no status for a full queue."""
QUIET_SECONDS = 5.0
"""The time for which the release of a transfer in flight waits until its memory is quiet. Headrace needs at
most 1 s."""


def patiently(act: Callable[[], object]) -> None:
    """Retries `act` while a queue is full, for BUSY_SECONDS."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            act()
            return
        except headrace.WouldBlock:
            if time.monotonic() > end:
                raise
            time.sleep(0.0001)


def message(value: object) -> bytes | None:
    """Returns the bytes of a notification; None for an empty one."""
    return as_bytes(value, "a notification") or None


class Lent:
    """Numbers of transfers. It does not keep the transfers alive. Threads: any."""

    def __init__(self, numbers: Iterator[int]):
        self._numbers = numbers
        self._transfers: weakref.WeakValueDictionary[int, Transfer] = weakref.WeakValueDictionary()

    def lend(self, transfer: Transfer) -> int:
        """Returns a new number for the transfer."""
        number = next(self._numbers)
        self._transfers[number] = transfer
        return number

    def take_back(self, number: int) -> None:
        """Frees a number."""
        self._transfers.pop(number, None)

    def __getitem__(self, number: int) -> Transfer:
        return self._transfers[number]


class PreparedList:
    """A prepared list with the facts that requests need. It does not reference NIXL's agent, because the
    agent references it."""

    __slots__ = ("pages", "life", "paths", "lent", "_peers")

    def __init__(
        self,
        pages: headrace.PageList,
        life: Life | None,
        peers: Peers,
        lent: Lent,
        paths: frozenset[str] | None,
    ):
        self.pages = pages
        self.life = life
        """The life of the peer that owns the memory; None: this agent owns it."""
        self.paths = paths
        """The backends of Headrace that may carry it; None: any."""
        self.lent = lent
        """The numbers of its agent."""
        self._peers = peers

    def error_of(self, error: headrace.Error) -> Exception:
        """Returns NIXL's exception for an error of a request whose remote list this is.

        A lost peer gives a disconnect. A peer that was removed, or that has restarted, gives "not found", as
        in NIXL. If no path moves the pages inside one agent, for example from file to file, the call is
        wrong.
        """
        if self.life is None and isinstance(error, headrace.NotSupported):
            return failure(nixlInvalidParamError, str(error))
        if isinstance(error, headrace.PeerLost) and self.life != self._peers.life(self.pages.peer):
            return failure(nixlNotFoundError, str(error))
        return translated(error)


class Transfer(headrace.Request):
    """A request and NIXL's additions to it in one object, so that posting and polling look nothing up.

    start and look return Headrace's word for a state that is no failure ("posted", "canceling", "done"), and
    raise for other states. nixl_agent.transfer and check_xfer_state repeat their code, because every transfer
    runs it and a Python frame takes time; they call `again` and `other` for the unusual cases.
    """

    __slots__ = ("notification", "_remote")

    notification: bytes | None
    _remote: PreparedList | None
    """The remote list; None: the transfer was released."""

    def start(self, notification: str | bytes) -> str:
        """Posts the transfer. A notification that is not empty replaces the earlier one, for later posts
        too."""
        if notification:
            self.notification = message(notification)
        try:
            state = self.post(self.notification)
        except headrace.Error as error:
            state = self.again(error)
        return state if state == "done" else self.other(state)

    def look(self) -> str:
        """Polls the transfer and returns its state."""
        state = self.poll()
        return state if state == "done" else self.other(state)

    def end(self) -> None:
        """Cancels the transfer if it is in flight, and waits until its memory is quiet."""
        if self.state not in ("posted", "canceling"):
            return
        self.cancel()
        try:
            self.wait(QUIET_SECONDS)
        except headrace.Error as error:
            if not self.done:
                raise failure(
                    nixlBackendError, f"the transfer did not become quiet within {QUIET_SECONDS} s"
                ) from error

    def again(self, error: headrace.Error) -> str:
        """Handles a refused post: retries if a queue was full, raises every other error. Returns the
        state."""
        if isinstance(error, headrace.InvalidArgument) and self.poll() in ("posted", "canceling"):
            raise failure(
                nixlRepostActiveError, "the transfer is still in flight: wait for its completion"
            ) from error
        if not isinstance(error, headrace.WouldBlock):
            self._fail(error)
        try:
            patiently(lambda: (self.poll(), self.post(self.notification)))
        except headrace.Error as later:
            self._fail(later)
        return self.state

    def other(self, state: str) -> str:
        """Returns the state if it is no failure; raises for other states."""
        if state in ("posted", "canceling", "done"):
            return state
        if state == "prepared":
            raise failure(nixlNotPostedError, "the transfer was not posted")
        error = self.error
        # The arguments were right, otherwise the post would have failed: the file is too short for the read,
        # or is not open for writing.
        if isinstance(error, headrace.InvalidArgument):
            raise failure(nixlBackendError, str(error)) from error
        if error is not None:
            self._fail(error)
        raise failure(nixlCancelledError, "the transfer was canceled")

    def _fail(self, error: headrace.Error) -> NoReturn:
        raise (self._remote.error_of(error) if self._remote is not None else translated(error)) from error
