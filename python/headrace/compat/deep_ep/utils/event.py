# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils.event: events of operations. In host memory an operation has ended when its call returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EventHandle:
    """An event that has come."""

    def current_stream_wait(self) -> None:
        """Returns at once."""


class EventOverlap:
    """An event, and what is done after it."""

    def __init__(
        self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], object] | None = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Waits for the event, then calls the hook once.

        Errors: ValueError (it has no event).
        """
        if self.event is None:
            raise ValueError(
                "there is no event to wait for: it was released, or the call was not asynchronous"
            )
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], object]) -> None:
        if self.hook_after_wait is not None:
            raise ValueError("the event has a hook already: wait for it first")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        self._releases = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *error: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases)
        self._releases = False
