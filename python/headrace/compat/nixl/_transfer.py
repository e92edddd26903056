# SPDX-License-Identifier: Apache-2.0
"""A transfer: a request of Headrace's with the notification that its next post carries, and NIXL's errors for how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import headrace

from ._descriptors import as_bytes
from ._errors import failure, nixlBackendError, nixlCancelledError, nixlInvalidParamError, nixlNotFoundError, nixlNotPostedError, nixlRepostActiveError, translated
from ._peers import Life, Peers

BUSY_SECONDS = 30.0
"""How long a full queue is tried again before it counts as a failure: NIXL has no word for it."""
QUIET_SECONDS = 5.0
"""How long releasing a transfer that is under way waits until nothing writes any more; Headrace needs 1 s at most."""


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


def error_of(error: headrace.Error, peer: str, life: Life | None, peers: Peers) -> Exception:
    """A peer that is lost is disconnected; one that was removed or has come again since is not found, as it is to NIXL. What no
    path moves inside one agent, from file to file for instance, is a wrong call."""
    if life is None and isinstance(error, headrace.NotSupported):
        return failure(nixlInvalidParamError, str(error))
    if isinstance(error, headrace.PeerLost) and life != peers.life(peer):
        return failure(nixlNotFoundError, str(error))
    return translated(error)


class Transfer:
    """post and poll give Headrace's word for a state that is no failure ("posted", "canceling", "done") and raise for the others.

    They are on the way of every transfer: what they do when all goes well is a line or two.
    """

    __slots__ = ("request", "notification", "_life", "_peers")

    def __init__(self, request: headrace.Request, notification: bytes | None, life: Life | None, peers: Peers):
        self.request, self.notification, self._life, self._peers = request, notification, life, peers

    def post(self, notification: str | bytes) -> str:
        """A notification that is not empty takes the place of the one before, for later posts too."""
        if notification:
            self.notification = message(notification)
        request = self.request
        try:
            request.post(self.notification)
        except headrace.Error as error:
            self._post_again(error)
        state = request.state
        return state if state == "done" or state == "posted" else self._other(state)

    def poll(self) -> str:
        """How far it is, after doing some of the work."""
        state = self.request.poll()
        return state if state == "done" or state == "posted" else self._other(state)

    def end(self) -> None:
        """Cancels it if it is under way, and returns when nothing reads or writes for it any more."""
        if self.request.state not in ("posted", "canceling"):
            return
        self.request.cancel()
        try:
            self.request.wait(QUIET_SECONDS)
        except headrace.Error as error:
            if not self.request.done:
                raise failure(nixlBackendError, f"it could not be ended in {QUIET_SECONDS} s") from error

    def _post_again(self, error: headrace.Error) -> None:
        """Where a queue was full; everything else is raised."""
        if isinstance(error, headrace.InvalidArgument) and self.request.poll() in ("posted", "canceling"):
            raise failure(nixlRepostActiveError, "it is still under way: wait for its end") from error
        if not isinstance(error, headrace.WouldBlock):
            self._fail(error)
        try:
            patiently(lambda: (self.request.poll(), self.request.post(self.notification)))
        except headrace.Error as later:
            self._fail(later)

    def _other(self, state: str) -> str:
        if state == "canceling":
            return state
        if state == "prepared":
            raise failure(nixlNotPostedError, "it was not posted")
        error = self.request.error
        # The call was right, else it would not have been posted: a file ends before the read does, or is not open for writing.
        if isinstance(error, headrace.InvalidArgument):
            raise failure(nixlBackendError, str(error)) from error
        if error is not None:
            self._fail(error)
        raise failure(nixlCancelledError, "it was canceled")

    def _fail(self, error: headrace.Error) -> NoReturn:
        raise error_of(error, self.request.peer, self._life, self._peers) from error
