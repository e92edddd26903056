# SPDX-License-Identifier: Apache-2.0
"""How the ranks of gloo find each other: in the store of the communicator that opens, or by the one that is
split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

import headrace


class MeetingStore(Store):
    """The store of a communicator as one of torch."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        return value

    def check(self, keys: list[str]) -> bool:
        found: bool = self._store.check(keys)
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._store.wait(keys, timeout)


def wait_for_readers(store: Any, rank: int, size: int) -> None:
    """Rank 0 waits until all ranks have read what they need, because the store may end with it."""
    store.set(f"connected/{rank}", b"")
    if rank == 0:
        store.wait([f"connected/{other}" for other in range(size)])


class PartStore(Store):
    """The store of a part of a communicator: what each rank sets is gathered by the communicator.

    Gloo sets one key on each rank, which ends with its rank, and reads those of the others.
    gather: brings bytes of all ranks of the communicator to all. Each calls it once, also without a part.
    """

    def __init__(self, gather: Callable[[bytes], list[bytes]], ranks: list[int], name: str) -> None:
        super().__init__()
        self._gather, self._ranks = gather, ranks
        self._mark = hashlib.sha256(repr((ranks, name)).encode()).digest()
        self._has_come = False
        self._values: list[bytes] = []

    def come(self) -> None:
        """Takes part with nothing, unless gloo has set its key."""
        if not self._has_come:
            self._has_come = True
            self._gather(b"")

    def set(self, key: str, value: str | bytes) -> None:
        assert isinstance(value, bytes) and not self._has_come, key
        self._has_come = True
        given = self._gather(self._mark + value)
        self._values = [self._value_of(given[rank], rank) for rank in self._ranks]

    def _value_of(self, given: bytes, rank: int) -> bytes:
        if not given:
            raise headrace.BackendFailed(f"rank {rank} opens no part: it has an error, or gave no ranks")
        if not given.startswith(self._mark):
            raise headrace.InvalidArgument(f"rank {rank} gave other ranks or another name: give the same")
        return given[len(self._mark) :]

    def get(self, key: str) -> bytes:
        return self._values[int(key.rpartition("/")[2])]

    def check(self, keys: list[str]) -> bool:
        return bool(self._values)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """They are there once this rank has set its own."""
