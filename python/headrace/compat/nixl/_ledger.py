# SPDX-License-Identifier: Apache-2.0
"""The registrations of an agent: the region of each of NIXL's descriptors, and tables that map addresses to
regions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ._regions import Extent, RegionTable, extent_of


class Registered(NamedTuple):
    """One registered descriptor."""

    kind: str
    address: int
    length: int
    device: int


class Ledger:
    """The registrations of one agent. Threads: any. A descriptor that is registered several times has several
    regions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[Registered, list[int]] = {}
        self._tables: dict[str, RegionTable] = {}
        self._file_devices: Counter[int] = Counter()

    def add(self, registered: Iterable[tuple[Registered, int]]) -> None:
        """Adds registrations. Region 0 means no region, for an empty descriptor."""
        with self._lock:
            for entry, region in registered:
                self._regions.setdefault(entry, []).append(region)
                if entry.kind == "file":
                    self._file_devices[entry.device] += 1
            self._tables.clear()

    def take(self, entries: list[Registered]) -> tuple[list[tuple[Registered, int]], list[Registered]]:
        """Removes one region of each entry. Returns the removed ones, and the entries that have no region."""
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
        """Returns the latest region of each entry, and the entries that have none."""
        with self._lock:
            regions = [self._regions[entry][-1] for entry in entries if entry in self._regions]
            return regions, [entry for entry in entries if entry not in self._regions]

    def names_file(self, device: int) -> bool:
        """Returns whether this device number stands for a file."""
        with self._lock:
            return self._file_devices[device] > 0

    def table(self, kind: str) -> RegionTable:
        """Returns the table of all regions of one kind."""
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
