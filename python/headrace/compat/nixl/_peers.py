# SPDX-License-Identifier: Apache-2.0
"""Tables that map addresses to regions of peers.

A table is made at the first use, and made again when the peer's metadata has changed: metadata also arrives
without a call of this file. A change is visible in PeerInfo: the peer's incarnation, the metadata's version,
the number of regions.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import headrace

from ._errors import failure, nixlNotFoundError
from ._regions import RegionTable, extent_of

DEVICE_NOTE = b"device="
"""The beginning of a region's note that names its device, if it is not 0. NIXL's descriptors of dram have a
device, Headrace's regions of dram do not."""


def device_note(device: int) -> bytes:
    """Returns the note of a region on that device."""
    return DEVICE_NOTE + str(device).encode() if device else b""


def device_of(region: headrace.Region) -> int:
    """Returns the device in the note of a region."""
    note = region.note
    digits = note[len(DEVICE_NOTE) :]
    return int(digits) if note.startswith(DEVICE_NOTE) and digits.isdigit() else 0


class Life(NamedTuple):
    """A peer at the time when a list was prepared for it. It changes when the peer restarts or is
    forgotten."""

    incarnation: int
    forgotten: int


class _Known(NamedTuple):
    stamp: tuple[int, int, int]
    tables: dict[str, RegionTable]


class Peers:
    """The peers of one agent. Threads: any."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._forgotten: dict[str, int] = {}

    def info(self, name: str) -> headrace.PeerInfo | None:
        """Returns Headrace's facts about a peer that can be reached, else None: parts of its metadata may
        arrive before its addresses."""
        return next((info for info in self._agent.peers() if info.name == name and info.backends), None)

    def is_alive(self, name: str) -> bool:
        """Returns whether a peer can be reached as far as is known: no link has told that it died or left."""
        info = self.info(name)
        return info is not None and not info.lost

    def life(self, name: str) -> Life | None:
        """Returns the current life of a peer; None if it is unknown."""
        info = self.info(name)
        return self._life(info) if info else None

    def _life(self, info: headrace.PeerInfo) -> Life:
        return Life(info.incarnation, self._forgotten.get(info.name, 0))

    def table(self, name: str, kind: str) -> RegionTable:
        """Returns the table of the peer's regions of one kind."""
        return self.side(name, kind)[1]

    def side(self, name: str, kind: str) -> tuple[Life, RegionTable]:
        """Returns the current life of a peer, and the table of its regions of one kind."""
        info = self.info(name)
        if info is None:
            raise failure(nixlNotFoundError, f"agent {name!r} is unknown: add its metadata first")
        stamp = (info.incarnation, info.version, info.regions)
        with self._lock:
            known = self._known.get(name)
            if known is None or known.stamp != stamp:
                known = self._known[name] = _Known(stamp, self._tables(name))
        return self._life(info), known.tables.get(kind) or RegionTable([])

    def forget(self, name: str) -> bool:
        """Ends the requests with a peer and drops its metadata. Returns false if it was unknown."""
        with self._lock:
            self._known.pop(name, None)
            self._forgotten[name] = self._forgotten.get(name, 0) + 1
        try:
            self._agent.forget(name)
        except headrace.NotFound:
            return False
        return True

    def _tables(self, name: str) -> dict[str, RegionTable]:
        by_kind: dict[str, list[headrace.Region]] = {}
        for region in self._agent.peer_regions(name):
            by_kind.setdefault(region.kind, []).append(region)
        return {
            kind: RegionTable(
                extent_of(kind, region.id, device_of(region), region.address, region.length_bytes)
                for region in regions
            )
            for kind, regions in by_kind.items()
        }
