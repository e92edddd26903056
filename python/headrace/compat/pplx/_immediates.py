# SPDX-License-Identifier: Apache-2.0
"""Counts the immediates that arrive as pplx-garden does, and loses none that come early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .utils import logging_utils

logger = logging_utils.get_logger(__name__)

MOST_KEPT = 16384  # different immediates that nobody has asked for


@dataclass
class _Counter:
    expected: int
    on_reached: Callable[[], object]
    count: int = 0


class Immediates:
    """An immediate goes to its counter, if it has one that is not full; else to the callback; without one it
    is kept for a later counter or callback. A counter ends when it is full.

    Functions of the program run in `arrived` alone, one at a time; one that raises is logged.
    """

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        """later: runs a function on the thread that calls `arrived`."""
        self._later = later
        self._lock = threading.Lock()
        self._counters: dict[int, _Counter] = {}
        self._kept: dict[int, int] = {}
        self._callback: Callable[[int], object] | None = None

    def set_callback(self, callback: Callable[[int], object]) -> None:
        with self._lock:
            self._callback = callback
            kept, self._kept = self._kept, {}
        self._arrive_later(kept)

    def expect(self, immediate: int, count: int, on_reached: Callable[[], object]) -> tuple[int, int] | None:
        """Begins a counter at what was kept. Returns count and expected count of the one that it replaces."""
        check_immediate(immediate)
        if count < 1:
            raise ValueError("the expected count is 0: give at least 1")
        with self._lock:
            before = self._counters.pop(immediate, None)
            self._counters[immediate] = _Counter(count, on_reached)
            kept = self._kept.pop(immediate, 0)
        self._arrive_later({immediate: kept} if kept else {})
        return _told(before)

    def remove(self, immediate: int) -> tuple[int, int] | None:
        """Ends a counter. Returns its count and expected count."""
        with self._lock:
            return _told(self._counters.pop(immediate, None))

    def arrived(self, immediate: int, arrivals: int) -> None:
        with self._lock:
            counter = self._counters.get(immediate)
            left = self._count(counter, arrivals) if counter else arrivals
            is_full = counter is not None and counter.count == counter.expected
            if is_full:
                del self._counters[immediate]
            callback = self._callback
            if callback is None and left:
                self._keep(immediate, left)
        if counter and is_full:
            _call(counter.on_reached)
        if callback:
            for _ in range(left):
                _call(partial(callback, immediate))

    @staticmethod
    def _count(counter: _Counter, arrivals: int) -> int:
        """Returns the arrivals that exceed it."""
        taken = min(arrivals, counter.expected - counter.count)
        counter.count += taken
        return arrivals - taken

    def _keep(self, immediate: int, arrivals: int) -> None:
        if immediate in self._kept or len(self._kept) < MOST_KEPT:
            self._kept[immediate] = self._kept.get(immediate, 0) + arrivals
        else:
            logger.warning("immediate %d is lost: %d others wait for a counter", immediate, MOST_KEPT)

    def _arrive_later(self, kept: dict[int, int]) -> None:
        for immediate, arrivals in kept.items():
            self._later(partial(self.arrived, immediate, arrivals))


def check_immediate(immediate: int) -> None:
    if not 0 <= immediate < 2**32:
        raise OverflowError(f"the immediate {immediate} has more than 32 bits: give 0 to {2**32 - 1}")


def _told(counter: _Counter | None) -> tuple[int, int] | None:
    return (counter.count, counter.expected) if counter else None


def _call(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:
        logger.exception("a callback failed; the engine goes on")
