# SPDX-License-Identifier: Apache-2.0
"""What Headrace raises. A code says what the caller can do next; each class is also the built-in that fits it
best."""

from __future__ import annotations


class Error(Exception):
    """Anything that Headrace reports. The text is a sentence with the values, and what to do."""

    code: str = "internal"
    """What the caller can do next: "would_block", "peer_lost", ..., as in the C++ header result.hpp."""

    page: int | None = None
    """The index in the page list, or in the list that was to be registered, that the error is about."""


class WouldBlock(Error, BlockingIOError):
    """Not now: poll and try again."""

    code = "would_block"


class InvalidArgument(Error, ValueError):
    """The call is wrong: mend the caller."""

    code = "invalid_argument"


class NotFound(Error, LookupError):
    """No such peer, region or name (or no longer): refresh the metadata."""

    code = "not_found"


class NotSupported(Error, NotImplementedError):
    """No path can do this: use another backend, memory or kind."""

    code = "not_supported"


class TimedOut(Error, TimeoutError):
    """The deadline passed."""

    code = "timed_out"


class Canceled(Error):
    """Somebody asked for it to end."""

    code = "canceled"


class PeerLost(Error, ConnectionError):
    """The peer died, restarted or cannot be reached: reconnect or give up."""

    code = "peer_lost"


class Exhausted(Error, MemoryError):
    """Memory, descriptors or a declared limit ran out: release some, or raise the limit."""

    code = "exhausted"


class Corrupt(Error):
    """Bytes that came in are not what they should be."""

    code = "corrupt"


class BackendFailed(Error):
    """The path failed: another path, or the same one later, may work."""

    code = "backend_failed"


class Internal(Error):
    """A broken promise of Headrace's: report it."""

    code = "internal"
