# SPDX-License-Identifier: Apache-2.0
"""The configuration of a raw agent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ._enums import nixl_thread_sync_t
from ._exchange import DEFAULT_COMM_PORT

FIELDS: dict[str, tuple[type, Any]] = {
    "useProgThread": (bool, False),
    "useListenThread": (bool, False),
    "listenPort": (int, DEFAULT_COMM_PORT),
    "syncMode": (nixl_thread_sync_t, nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE),
    "captureTelemetry": (bool, False),
    "pthrDelay": (int, 0),
    "lthrDelay": (int, 100000),
    "etcdWatchTimeout": (timedelta, timedelta(seconds=5)),
}
"""Name, type and default of each attribute."""

POSITIONS = (
    "useProgThread",
    "useListenThread",
    "listenPort",
    "syncMode",
    None,
    "pthrDelay",
    "lthrDelay",
    "captureTelemetry",
)
"""The attributes that the constructor's arguments set. The fifth, a number of workers, has no effect in NIXL
either."""


class nixlAgentConfig:
    """Takes up to eight arguments by position; the other fields are attributes.

    useProgThread, syncMode and the delays are kept and have no effect: Headrace's agents always make progress
    by themselves, and any thread may use them.
    """

    __slots__ = tuple(FIELDS)

    useProgThread: bool
    useListenThread: bool
    listenPort: int
    syncMode: nixl_thread_sync_t
    captureTelemetry: bool
    pthrDelay: int
    lthrDelay: int
    etcdWatchTimeout: timedelta

    def __init__(self, *values: Any):
        if len(values) > len(POSITIONS):
            raise TypeError(f"nixlAgentConfig takes up to {len(POSITIONS)} arguments, not {len(values)}")
        for name, (_, default) in FIELDS.items():
            setattr(self, name, default)
        for field, value in zip(POSITIONS, values, strict=False):
            if field is not None:
                setattr(self, field, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in FIELDS:
            raise AttributeError(f"nixlAgentConfig has no attribute {name!r}: it has {', '.join(FIELDS)}")
        wanted = FIELDS[name][0]
        if wanted is bool and isinstance(value, int):
            value = bool(value)
        if wanted is timedelta and isinstance(value, int | float):
            value = timedelta(seconds=value)
        if not isinstance(value, wanted):
            raise TypeError(f"nixlAgentConfig.{name} must be a {wanted.__name__}, not {value!r}")
        object.__setattr__(self, name, value)
