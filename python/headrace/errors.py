# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Headrace. A code says what the caller can do next. Most classes also derive from the
built-in exception that fits best."""

from __future__ import annotations


class Error(Exception):
    """The base of all errors of Headrace. The text is a sentence with the values and the next step."""

    code: str = "internal"
    """The code's name: "would_block", "peer_lost", ..., as in the C++ header result.hpp."""

    page: int | None = None
    """The index that failed, in the page list or in the list of memory to register; None if no one index
    failed."""


class WouldBlock(Error, BlockingIOError):
    """The call cannot be done now: poll and retry."""

    code = "would_block"


class InvalidArgument(Error, ValueError):
    """The call is wrong: correct the caller."""

    code = "invalid_argument"


class NotFound(Error, LookupError):
    """The peer, region or name does not exist, or no longer exists: fetch the metadata again."""

    code = "not_found"


class NotSupported(Error, NotImplementedError):
    """No path can do this: use another backend or another kind of memory."""

    code = "not_supported"


class TimedOut(Error, TimeoutError):
    """The deadline passed."""

    code = "timed_out"


class Canceled(Error):
    """The request was canceled."""

    code = "canceled"


class PeerLost(Error, ConnectionError):
    """The peer died, restarted or cannot be reached: reconnect or give up."""

    code = "peer_lost"


class Exhausted(Error, MemoryError):
    """Memory, file descriptors or a declared limit ran out: release some, or raise the limit."""

    code = "exhausted"


class Corrupt(Error):
    """Received or stored bytes are damaged or malformed."""

    code = "corrupt"


class BackendFailed(Error):
    """The path failed: another path may work, or the same path later."""

    code = "backend_failed"


class Internal(Error):
    """Headrace broke an invariant of its own: report it."""

    code = "internal"
