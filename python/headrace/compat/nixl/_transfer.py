# SPDX-License-Identifier: Apache-2.0
"""A transfer: a request of Headrace's with the notification that its next post carries, and NIXL's errors for
how it ends."""

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
"""How long a full queue is tried again before it counts as a failure: NIXL has no word for it."""
QUIET_SECONDS = 5.0
"""How long releasing a transfer that is under way waits until nothing writes any more; Headrace needs 1 s at
most."""


def patiently(act: Callable[[], object]) -> None:
    """Tries again while a queue is full."""
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
    """A notification; an empty one means none."""
    return as_bytes(value, "a notification") or None


class Lent:
    """Numbers for transfers that somebody else keeps, each for as long as he does. Threads: any."""

    def __init__(self, numbers: Iterator[int]):
        self._numbers = numbers
        self._transfers: weakref.WeakValueDictionary[int, Transfer] = weakref.WeakValueDictionary()

    def lend(self, transfer: Transfer) -> int:
        """A number that was never given before."""
        number = next(self._numbers)
        self._transfers[number] = transfer
        return number

    def take_back(self, number: int) -> None:
        """Nothing is known by it any more."""
        self._transfers.pop(number, None)

    def __getitem__(self, number: int) -> Transfer:
        return self._transfers[number]


class PreparedList:
    """A prepared list and what requests must know of it. It does not keep the agent of NIXL's, which keeps
    it."""

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
        """Of the peer whose memory it is; None: ours."""
        self.paths = paths
        """Of Headrace's backends, those that it may go by; None: any."""
        self.lent = lent
        """The numbers of its agent."""
        self._peers = peers

    def error_of(self, error: headrace.Error) -> Exception:
        """What becomes of an error of a request of which this is the far side.

        A peer that is lost is disconnected; one that was removed or has come again since is not found, as it
        is to NIXL. What no path moves inside one agent, from file to file for instance, is a wrong call.
        """
        if self.life is None and isinstance(error, headrace.NotSupported):
            return failure(nixlInvalidParamError, str(error))
        if isinstance(error, headrace.PeerLost) and self.life != self._peers.life(self.pages.peer):
            return failure(nixlNotFoundError, str(error))
        return translated(error)


class Transfer(headrace.Request):
    """A request with what NIXL has beside it, in one object: posting and polling look nothing up.

    start and look give Headrace's word for a state that is no failure ("posted", "canceling", "done") and
    raise for the others. They are on the way of every transfer, where a frame of Python counts:
    nixl_agent.transfer and check_xfer_state do the same themselves, and call again and other where not all
    goes well.
    """

    __slots__ = ("notification", "_remote")

    notification: bytes | None
    _remote: PreparedList | None
    """The far side; None: it was released."""

    def start(self, notification: str | bytes) -> str:
        """Posts it. A notification that is not empty takes the place of the one before, for later posts
        too."""
        if notification:
            self.notification = message(notification)
        try:
            state = self.post(self.notification)
        except headrace.Error as error:
            state = self.again(error)
        return state if state == "done" else self.other(state)

    def look(self) -> str:
        """How far it is, after doing some of the work."""
        state = self.poll()
        return state if state == "done" else self.other(state)

    def end(self) -> None:
        """Cancels it if it is under way, and returns when nothing reads or writes for it any more."""
        if self.state not in ("posted", "canceling"):
            return
        self.cancel()
        try:
            self.wait(QUIET_SECONDS)
        except headrace.Error as error:
            if not self.done:
                raise failure(nixlBackendError, f"it could not be ended in {QUIET_SECONDS} s") from error

    def again(self, error: headrace.Error) -> str:
        """After a post that was refused: where a queue was full; everything else is raised. Gives the
        state."""
        if isinstance(error, headrace.InvalidArgument) and self.poll() in ("posted", "canceling"):
            raise failure(nixlRepostActiveError, "it is still under way: wait for its end") from error
        if not isinstance(error, headrace.WouldBlock):
            self._fail(error)
        try:
            patiently(lambda: (self.poll(), self.post(self.notification)))
        except headrace.Error as later:
            self._fail(later)
        return self.state

    def other(self, state: str) -> str:
        """A state as it is, unless it is one to raise for."""
        if state in ("posted", "canceling", "done"):
            return state
        if state == "prepared":
            raise failure(nixlNotPostedError, "it was not posted")
        error = self.error
        # The call was right, else it would not have been posted: a file ends before the read does, or is not
        # open for writing.
        if isinstance(error, headrace.InvalidArgument):
            raise failure(nixlBackendError, str(error)) from error
        if error is not None:
            self._fail(error)
        raise failure(nixlCancelledError, "it was canceled")

    def _fail(self, error: headrace.Error) -> NoReturn:
        raise (self._remote.error_of(error) if self._remote is not None else translated(error)) from error
