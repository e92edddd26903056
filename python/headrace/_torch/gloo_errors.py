# SPDX-License-Identifier: Apache-2.0
"""Errors of gloo as those of Headrace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import headrace

_CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "caused pair closure")


def as_headrace_error(error: BaseException) -> BaseException:
    """The same error if it is none of gloo, whose texts do not tell ranks."""
    if not isinstance(error, RuntimeError) or isinstance(error, NotImplementedError):
        return error
    text = str(error).partition(". This is typically")[0]
    if any(words in text for words in _CLOSED):
        return headrace.PeerLost(
            f"a connection is closed: its rank is gone, or has ended the communicator ({text})"
        )
    return headrace.BackendFailed(text)


@contextmanager
def gloo_errors() -> Iterator[None]:
    try:
        yield
    except NotImplementedError:  # NotSupported, too
        raise
    except RuntimeError as error:
        raise as_headrace_error(error) from error
