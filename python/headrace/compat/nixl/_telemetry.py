# SPDX-License-Identifier: Apache-2.0
"""What NIXL tells of a transfer that has ended, and whether an agent collects it."""

from __future__ import annotations

import os
from typing import NoReturn

import headrace


def microseconds(nanoseconds: int) -> int:
    """At least one: a duration of nothing reads as not measured."""
    return max(1, nanoseconds // 1000)


class nixlXferTelemetry:
    """Times are microseconds; startTime is on the clock of time.monotonic()."""

    __slots__ = ("_start", "_post", "_transfer", "_bytes", "_count")

    def __init__(self) -> None:
        self._start = self._post = self._transfer = self._bytes = self._count = 0

    @classmethod
    def _of(cls, times: headrace.RequestTimes) -> nixlXferTelemetry:
        self = cls()
        self._start = times.posted_at_ns // 1000
        self._post = microseconds(times.post_ns)
        # Headrace's two clocks are read one after the other, so a request that is done at once may end
        # "before" its post.
        self._transfer = max(self._post, microseconds(times.transfer_ns))
        self._bytes, self._count = times.bytes, times.pages
        return self

    @property
    def startTime(self) -> int:
        """When it was posted."""
        return self._start

    @property
    def postDuration(self) -> int:
        """Spent in posting."""
        return self._post

    @property
    def xferDuration(self) -> int:
        """From post to end."""
        return self._transfer

    @property
    def totalBytes(self) -> int:
        """That moved."""
        return self._bytes

    @property
    def descCount(self) -> int:
        """Descriptors of the request; Headrace counts them before it merges neighbours."""
        return self._count

    def __reduce__(self) -> NoReturn:
        raise TypeError("a nixlXferTelemetry cannot be pickled")


def is_collected(asked_for: bool) -> bool:
    """NIXL_TELEMETRY_ENABLE decides if it is set, else the configuration."""
    word = os.environ.get("NIXL_TELEMETRY_ENABLE", "").strip().lower()
    if word in ("y", "yes", "1", "true", "on", "enable"):
        return True
    return asked_for if not word else False
