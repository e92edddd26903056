# SPDX-License-Identifier: Apache-2.0
"""What is known of peers' memory, as tables to look addresses up in.

A table is made at the first use and made anew when the peer's metadata has changed. That is seen by the
peer's incarnation, the metadata's version and the number of regions, as PeerInfo has them: metadata also
comes in without a call of ours.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import headrace

from ._errors import failure, nixlNotFoundError
from ._regions import RegionTable, extent_of

DEVICE_NOTE = b"device="
"""A region's note says its device, unless that is 0: dram of Headrace's has none, and NIXL's descriptors
do."""


def device_note(device: int) -> bytes:
    """The note of a region on that device."""
    return DEVICE_NOTE + str(device).encode() if device else b""


def device_of(region: headrace.Region) -> int:
    """The device that the note of a region names."""
    note = region.note
    digits = note[len(DEVICE_NOTE) :]
    return int(digits) if note.startswith(DEVICE_NOTE) and digits.isdigit() else 0


class Life(NamedTuple):
    """A peer as it was when a list was prepared for it: another start of it, or forgetting it between, makes
    another life."""

    incarnation: int
    forgotten: int


class _Known(NamedTuple):
    stamp: tuple[int, int, int]
    tables: dict[str, RegionTable]


class Peers:
    """Threads: any."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._forgotten: dict[str, int] = {}

    def info(self, name: str) -> headrace.PeerInfo | None:
        """What Headrace says of the peer, if it knows how to reach it: parts of metadata may have come before
        that."""
        return next((info for info in self._agent.peers() if info.name == name and info.backends), None)

    def life(self, name: str) -> Life | None:
        """The peer as it is now; None: unknown."""
        info = self.info(name)
        return self._life(info) if info else None

    def _life(self, info: headrace.PeerInfo) -> Life:
        return Life(info.incarnation, self._forgotten.get(info.name, 0))

    def table(self, name: str, kind: str) -> RegionTable:
        """The peer's regions of one kind."""
        return self.side(name, kind)[1]

    def side(self, name: str, kind: str) -> tuple[Life, RegionTable]:
        """The peer as it is now, and its regions of one kind."""
        info = self.info(name)
        if info is None:
            raise failure(nixlNotFoundError, f"agent {name!r} is unknown here: add its metadata first")
        stamp = (info.incarnation, info.version, info.regions)
        with self._lock:
            known = self._known.get(name)
            if known is None or known.stamp != stamp:
                known = self._known[name] = _Known(stamp, self._tables(name))
        return self._life(info), known.tables.get(kind) or RegionTable([])

    def forget(self, name: str) -> bool:
        """Ends what goes on with the peer and drops its metadata. False: it was not known."""
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
