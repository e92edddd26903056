# SPDX-License-Identifier: Apache-2.0
"""torchcomms' log of calls, which Headrace writes in a layout of its own."""

from __future__ import annotations

__all__ = ["clog"]


class clog:
    """There is none: see the error."""

    def __init__(self, output: str, events: list[str], verbose: list[str] | None = None) -> None:
        raise RuntimeError(
            f"Headrace writes its log of calls without a hook: set HEADRACE_COMM_LOG={output} before "
            "communicators open"
        )
