# SPDX-License-Identifier: Apache-2.0
"""NIXL's telemetry of a completed transfer, and the switch that turns it on."""

from __future__ import annotations

import os
from typing import NoReturn

import headrace


def microseconds(nanoseconds: int) -> int:
    """Returns at least one: zero means not measured."""
    return max(1, nanoseconds // 1000)


class nixlXferTelemetry:
    """The telemetry of one transfer. Times are in microseconds; startTime is on the clock of
    time.monotonic()."""

    __slots__ = ("_start", "_post", "_transfer", "_bytes", "_count")

    def __init__(self) -> None:
        self._start = self._post = self._transfer = self._bytes = self._count = 0

    @classmethod
    def _of(cls, times: headrace.RequestTimes) -> nixlXferTelemetry:
        self = cls()
        self._start = times.posted_at_ns // 1000
        self._post = microseconds(times.post_ns)
        # Headrace reads two clocks one after the other: a request that completes at once may have a transfer
        # time shorter than its post.
        self._transfer = max(self._post, microseconds(times.transfer_ns))
        self._bytes, self._count = times.bytes, times.pages
        return self

    @property
    def startTime(self) -> int:
        """The time of the post."""
        return self._start

    @property
    def postDuration(self) -> int:
        """The time spent in the post call."""
        return self._post

    @property
    def xferDuration(self) -> int:
        """The time from post to completion."""
        return self._transfer

    @property
    def totalBytes(self) -> int:
        """The bytes that moved."""
        return self._bytes

    @property
    def descCount(self) -> int:
        """The descriptors of the request, counted before Headrace merges neighbours."""
        return self._count

    def __reduce__(self) -> NoReturn:
        raise TypeError("a nixlXferTelemetry cannot be pickled")


def is_collected(asked_for: bool) -> bool:
    """Returns whether telemetry is on: NIXL_TELEMETRY_ENABLE decides if it is set, otherwise the
    configuration."""
    word = os.environ.get("NIXL_TELEMETRY_ENABLE", "").strip().lower()
    if word in ("y", "yes", "1", "true", "on", "enable"):
        return True
    return asked_for if not word else False
