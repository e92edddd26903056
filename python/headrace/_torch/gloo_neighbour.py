# SPDX-License-Identifier: Apache-2.0
"""Ranks of gloo hear how a communicator ends, also those that wait for others.

Gloo tells a rank that a connection has closed only if it waits for that rank. So each rank waits for a
message of the next one, the last one for that of rank 0: why it has ended the communicator, or that it
leaves. The end of the connection without a message means that the next rank is gone. A rank that hears of an
end ends, too, and tells the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import headrace

NEIGHBOUR_TAG = 2**31 - 1  # the last one that torch takes
# For each wait of a message: without it the limit is the one with which the connections were made.
NO_LIMIT = timedelta(days=365)
_BYTES = 512  # of a message: a text, zeros behind it
_SOON = timedelta(milliseconds=100)


class Neighbour:
    """A thread that waits for the next rank.

    ended: called with an error when that rank has ended the communicator, or is gone.
    """

    def __init__(self, group: Any, rank: int, size: int, ended: Callable[[BaseException], None]) -> None:
        self._group, self._next, self._before = group, (rank + 1) % size, (rank - 1) % size
        self._ended = ended
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name="headrace-gloo", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        message = torch.zeros(_BYTES, dtype=torch.uint8)
        try:
            self._group.recv([message], self._next, NEIGHBOUR_TAG).wait(NO_LIMIT)
        except RuntimeError:
            if not self._leaving:
                self._ended(headrace.PeerLost(f"rank {self._next} is gone: its connection has closed"))
            return
        reason = bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")
        if reason:
            self._ended(headrace.Canceled(reason))

    def tell(self, reason: str) -> None:
        """Tells the rank before this one that this one ends the communicator, or leaves (no reason)."""
        self._leaving = True
        text = reason.encode(errors="replace")[:_BYTES].ljust(_BYTES, b"\0")
        try:
            self._group.send([torch.tensor(list(text), dtype=torch.uint8)], self._before, NEIGHBOUR_TAG).wait(
                _SOON
            )
        except RuntimeError:
            pass  # that rank is gone, or has ended it already

    def join(self) -> None:
        """When the connections are closed."""
        self._group = None
        if self._thread is not threading.current_thread():
            self._thread.join()
