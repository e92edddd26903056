# SPDX-License-Identifier: Apache-2.0
"""From addresses to regions. NIXL's programs name memory by address, Headrace by (region, offset); this is
the border.

A RegionTable holds the regions of one agent and one kind of memory, and finds the one that a descriptor lies
in. A list that lies in one region is handed on as it is kept. Of all others short ones are looked up one by
one, long ones all at once with NumPy where it is installed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import headrace

from ._errors import failure, nixlNotFoundError
from ._rows import Rows

FEW = 32
"""Up to so many descriptors a loop is quicker than NumPy's calls."""

UNBOUNDED = 1 << 63


class Extent(NamedTuple):
    """A region as NIXL's addresses see it."""

    region: int
    device: int
    start: int
    length: int
    origin: int
    """Headrace's offset 0: the start for memory, 0 for files, where NIXL's addresses are offsets already."""


def extent_of(kind: str, region: int, device: int, start: int, length: int) -> Extent:
    """Of a region of that kind; a file, block device or object of length 0 is unbounded."""
    if kind in ("dram", "vram"):
        return Extent(region, device, start, length, start)
    return Extent(region, device, start, length or UNBOUNDED, 0)


def uncovered(index: int, address: int, length: int, device: int) -> Exception:
    """What a descriptor outside all regions gets."""
    return failure(
        nixlNotFoundError,
        f"descriptor {index} (address {address:#x}, {length} bytes, device {device}) lies in no registered "
        f"memory that is known here",
    )


class _Device:
    """The extents of one device, by start.

    Extents may overlap. Of those that begin at or before an address, the one that ends last covers a range if
    any does: so `widest[i]` names, for extent i, the one among the first i + 1 that ends last.
    """

    def __init__(self, extents: list[Extent]):
        extents.sort(key=lambda extent: extent.start)
        self.extents = extents
        self.starts = [extent.start for extent in extents]
        self.widest: list[int] = []
        last = 0
        for i, extent in enumerate(extents):
            if extent.start + extent.length >= extents[last].start + extents[last].length:
                last = i
            self.widest.append(last)
        self._columns: tuple[Any, ...] | None = None

    def find(self, address: int, length: int) -> Extent | None:
        """The extent that covers the range."""
        i = bisect_right(self.starts, address) - 1
        if i < 0:
            return None
        extent = self.extents[self.widest[i]]
        return extent if address + length <= extent.start + extent.length else None

    def columns(self) -> tuple[Any, ...]:
        """Starts, then region, start, length and origin of the widest one of each place; made at the first
        long list."""
        if self._columns is None:
            numpy = _numpy()
            widest = [self.extents[i] for i in self.widest]
            fields = (
                self.starts,
                *(
                    [getattr(extent, name) for extent in widest]
                    for name in ("region", "start", "length", "origin")
                ),
            )
            self._columns = tuple(numpy.array(field, numpy.uint64) for field in fields)
        return self._columns


class RegionTable:
    """Immutable once made, so that any thread may look things up."""

    def __init__(self, extents: Iterable[Extent]):
        by_device: dict[int, list[Extent]] = {}
        for extent in extents:
            by_device.setdefault(extent.device, []).append(extent)
        self._devices = {device: _Device(found) for device, found in by_device.items()}

    def find(self, index: int, address: int, length: int, device: int) -> Extent:
        """The extent that covers descriptor `index`."""
        found = self._devices.get(device)
        extent = found.find(address, length) if found else None
        if extent is None:
            raise uncovered(index, address, length, device)
        return extent

    def pages(self, words: Sequence[int]) -> Any:
        """The descriptors, three words each, as Headrace's pages: (region, offset, length) each, of the same
        count and order."""
        rows = _rows_in(words)
        return self._pages_one_by_one(words) if rows is None else self._row_by_row(rows)

    def _pages_one_by_one(self, words: Sequence[int]) -> list[tuple[int, int, int]]:
        pages = []
        for at in range(0, len(words), 3):
            address, length, device = words[at : at + 3]
            extent = self.find(at // 3, address, length, device)
            pages.append((extent.region, address - extent.origin, length))
        return pages

    def pages_of(self, rows: Rows) -> Any:
        """The same for rows that are to be prepared at once.

        Where one region is all that they can lie in, whether each does is left to Headrace, which looks
        anyway: pages finds the words for what it refuses.
        """
        found = self._devices.get(rows.device)
        if rows.addresses is None and found is not None:
            extent = found.find(rows.address, rows.step * (rows.count - 1) + rows.length)
            if extent is not None:
                return headrace.UniformPages(
                    extent.region, rows.address - extent.origin, rows.step, rows.length, rows.count
                )
        # In files an address is an offset already, and one of length 0 has no end that Headrace knew.
        if (
            rows.addresses is not None
            and found is not None
            and len(found.extents) == 1
            and found.extents[0].origin
        ):
            extent = found.extents[0]
            lengths = rows.length if rows.lengths is None else memoryview(rows.lengths).cast("Q")
            return headrace.RegionPages(
                extent.region, memoryview(rows.addresses).cast("Q"), lengths, extent.origin
            )
        return self.pages(rows.words())

    def _row_by_row(self, rows: Any) -> Any:
        """The same for an array of three columns of uint64."""
        devices = rows[:, 2]
        if (devices == devices[0]).all():
            return self._on_device(rows, None)
        numpy = _numpy()
        pages = numpy.empty_like(rows)
        for device in numpy.unique(devices):
            places = numpy.flatnonzero(devices == device)
            pages[places] = self._on_device(rows[places], places)
        return pages

    def _on_device(self, rows: Any, places: Any) -> Any:
        """Rows of one device; places: where they come from in the list, None: they are all of it."""
        found = self._devices.get(int(rows[0, 2]))
        if found is None:
            raise _uncovered_row(rows, places, 0)
        if len(found.extents) == 1:
            return self._in_one(rows, places, found.extents[0])
        return self._in_many(rows, places, found)

    @staticmethod
    def _in_one(rows: Any, places: Any, extent: Extent) -> Any:
        """Most agents register one piece, or few: then nothing is to be searched."""
        numpy = _numpy()
        inside, lengths = rows[:, 0] - numpy.uint64(extent.start), rows[:, 1]
        size = numpy.uint64(extent.length)
        longest = lengths.max()
        # Mostly even the longest would have room where the last begins. If not, each is looked at.
        if longest > size or inside.max() > size - longest:
            missing = (inside > size) | (lengths > size - inside)
            if missing.any():
                raise _uncovered_row(rows, places, int(missing.argmax()))
        return _columns_of(extent.region, rows[:, 0] - numpy.uint64(extent.origin), lengths)

    @staticmethod
    def _in_many(rows: Any, places: Any, found: _Device) -> Any:
        numpy = _numpy()
        addresses, lengths = rows[:, 0], rows[:, 1]
        starts, regions, begins, sizes, origins = found.columns()
        at = numpy.searchsorted(starts, addresses, side="right") - 1
        before_all = at < 0
        at[before_all] = 0
        inside, size = addresses - begins[at], sizes[at]
        missing = before_all | (inside > size) | (lengths > size - inside)
        if missing.any():
            raise _uncovered_row(rows, places, int(missing.argmax()))
        return _columns_of(regions[at], addresses - origins[at], lengths)


def _rows_in(words: Sequence[int]) -> Any:
    """Words of a long list as an array of three columns, where they lie; None: the list is short, or there is
    no NumPy."""
    if len(words) <= 3 * FEW or _numpy() is None:
        return None
    return _numpy().frombuffer(words, _numpy().uint64).reshape(-1, 3)


def _uncovered_row(rows: Any, places: Any, i: int) -> Exception:
    address, length, device = rows[i].tolist()
    return uncovered(i if places is None else int(places[i]), address, length, device)


def _columns_of(regions: Any, offsets: Any, lengths: Any) -> Any:
    pages = _numpy().empty((len(offsets), 3), _numpy().uint64)
    pages[:, 0], pages[:, 1], pages[:, 2] = regions, offsets, lengths
    return pages


def strided_pages(table: RegionTable, rows: Any) -> Any:
    """Headrace's pages for rows of (address, length, device, stride, count): `count` blocks, each `stride`
    after the one before.

    A single row stays as short as it is.
    """
    places = []
    for i, (address, length, device, stride, count) in enumerate(rows.view(_numpy().uint64).tolist()):
        if count < 1 or (count > 1 and stride < length):
            raise failure(
                nixlNotFoundError,
                f"descriptor {i} has {count} blocks of {length} bytes, {stride} apart: they overlap, or are "
                f"none",
            )
        extent = table.find(i, address, (count - 1) * stride + length, device)
        places.append((extent.region, address - extent.origin, length, stride, count))
    if not places:
        raise failure(nixlNotFoundError, "there are no descriptors")
    if len(places) == 1:
        region, offset, length, stride, count = places[0]
        return headrace.UniformPages(region, offset, stride, length, count)
    return _expanded(_numpy().array(places, _numpy().uint64))


def _expanded(places: Any) -> Any:
    """Rows of (region, offset, length, stride, count) as one row for each block."""
    numpy = _numpy()
    counts = places[:, 4].astype(numpy.int64)
    blocks = numpy.repeat(places[:, :3], counts, axis=0)
    first = numpy.repeat(numpy.cumsum(counts) - counts, counts)
    blocks[:, 1] += (numpy.arange(len(blocks)) - first).astype(numpy.uint64) * numpy.repeat(
        places[:, 3], counts
    )
    return blocks


_unset = object()
_found: Any = _unset


def _numpy() -> Any:
    """NumPy, or None where it is not installed."""
    global _found
    if _found is _unset:
        try:
            import numpy
        except ImportError:
            _found = None
        else:
            _found = numpy
    return _found
