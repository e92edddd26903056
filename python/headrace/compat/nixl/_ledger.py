# SPDX-License-Identifier: Apache-2.0
"""What an agent has registered, by NIXL's descriptors: which region each became, and the table to look
addresses up in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ._regions import Extent, RegionTable, extent_of


class Registered(NamedTuple):
    """One descriptor as it was registered."""

    kind: str
    address: int
    length: int
    device: int


class Ledger:
    """Threads: any. The same descriptor may be registered several times, and then has several regions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[Registered, list[int]] = {}
        self._tables: dict[str, RegionTable] = {}
        self._file_devices: Counter[int] = Counter()

    def add(self, registered: Iterable[tuple[Registered, int]]) -> None:
        """Enters them; a region of 0 stands for nothing, as an empty descriptor has it."""
        with self._lock:
            for entry, region in registered:
                self._regions.setdefault(entry, []).append(region)
                if entry.kind == "file":
                    self._file_devices[entry.device] += 1
            self._tables.clear()

    def take(self, entries: list[Registered]) -> tuple[list[tuple[Registered, int]], list[Registered]]:
        """Takes out one region of each, and says which entries there were none of."""
        taken, missing = [], []
        with self._lock:
            for entry in entries:
                found = self._regions.get(entry)
                if not found:
                    missing.append(entry)
                    continue
                taken.append((entry, found.pop()))
                if entry.kind == "file":
                    self._file_devices[entry.device] -= 1
                if not found:
                    del self._regions[entry]
            self._tables.clear()
        return taken, missing

    def regions_of(self, entries: list[Registered]) -> tuple[list[int], list[Registered]]:
        """The latest region of each, and the entries that have none."""
        with self._lock:
            regions = [self._regions[entry][-1] for entry in entries if entry in self._regions]
            return regions, [entry for entry in entries if entry not in self._regions]

    def names_file(self, device: int) -> bool:
        """Whether this device number stands for a file."""
        with self._lock:
            return self._file_devices[device] > 0

    def table(self, kind: str) -> RegionTable:
        """All of one kind."""
        with self._lock:
            if kind not in self._tables:
                self._tables[kind] = RegionTable(self._extents(kind))
            return self._tables[kind]

    def _extents(self, kind: str) -> list[Extent]:
        return [
            extent_of(kind, regions[-1], entry.device, entry.address, entry.length)
            for entry, regions in self._regions.items()
            if entry.kind == kind and regions[-1]
        ]
