# SPDX-License-Identifier: Apache-2.0
"""NIXL's exceptions, and the mapping from Headrace's exceptions.

The text begins with NIXL's name of the status, because programs search for it. Headrace's sentence follows.
"""

from __future__ import annotations

import headrace


class nixlNotPostedError(Exception):
    """The transfer was not posted yet."""

    status = "NIXL_ERR_NOT_POSTED"


class nixlInvalidParamError(Exception):
    """The call is wrong."""

    status = "NIXL_ERR_INVALID_PARAM"


class nixlBackendError(Exception):
    """The path failed."""

    status = "NIXL_ERR_BACKEND"


class nixlNotFoundError(Exception):
    """No such agent, memory, plugin or path."""

    status = "NIXL_ERR_NOT_FOUND"


class nixlMismatchError(Exception):
    """Received bytes are damaged or malformed."""

    status = "NIXL_ERR_MISMATCH"


class nixlNotAllowedError(Exception):
    """The call is not allowed in this state."""

    status = "NIXL_ERR_NOT_ALLOWED"


class nixlRepostActiveError(Exception):
    """The transfer is still in flight."""

    status = "NIXL_ERR_REPOST_ACTIVE"


class nixlUnknownError(Exception):
    """Any other error."""

    status = "NIXL_ERR_UNKNOWN"


class nixlNotSupportedError(Exception):
    """No backend can do this."""

    status = "NIXL_ERR_NOT_SUPPORTED"


class nixlRemoteDisconnectError(Exception):
    """The peer died or cannot be reached."""

    status = "NIXL_ERR_REMOTE_DISCONNECT"


class nixlCancelledError(Exception):
    """The transfer was canceled."""

    status = "NIXL_ERR_CANCELED"


class nixlNoTelemetryError(Exception):
    """Telemetry is off."""

    status = "NIXL_ERR_NO_TELEMETRY"


EXCEPTIONS = (
    nixlNotPostedError,
    nixlInvalidParamError,
    nixlBackendError,
    nixlNotFoundError,
    nixlMismatchError,
    nixlNotAllowedError,
    nixlRepostActiveError,
    nixlUnknownError,
    nixlNotSupportedError,
    nixlRemoteDisconnectError,
    nixlCancelledError,
    nixlNoTelemetryError,
)

BY_CODE = {
    "would_block": nixlBackendError,
    "invalid_argument": nixlInvalidParamError,
    "not_found": nixlNotFoundError,
    "not_supported": nixlNotSupportedError,
    "timed_out": nixlBackendError,
    "canceled": nixlCancelledError,
    "peer_lost": nixlRemoteDisconnectError,
    "exhausted": nixlBackendError,
    "corrupt": nixlMismatchError,
    "backend_failed": nixlBackendError,
    "internal": nixlUnknownError,
}


def failure(kind: type[Exception], why: str) -> Exception:
    """Returns an exception of that kind with the status and the reason as its text."""
    return kind(f"{kind.status}: {why}")  # type: ignore[attr-defined]


def translated(error: headrace.Error) -> Exception:
    """Returns NIXL's exception for an exception of Headrace."""
    return failure(BY_CODE.get(error.code, nixlUnknownError), str(error))
