# SPDX-License-Identifier: Apache-2.0
"""Maps addresses to regions: NIXL's programs name memory by address, Headrace by (region, offset).

A RegionTable has the regions of one agent and one kind of memory, and finds the region of a descriptor. A
list that is in one region is passed on in its short form. The descriptors of other lists are looked up one by
one if the list is short, and all at once with NumPy if it is long and NumPy is installed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import headrace

from ._errors import failure, nixlNotFoundError
from ._rows import Rows

FEW = 32
"""Up to this number of descriptors a loop is faster than NumPy's calls."""

UNBOUNDED = 1 << 63


class Extent(NamedTuple):
    """The addresses of a region in NIXL's terms."""

    region: int
    device: int
    start: int
    length: int
    origin: int
    """The address of Headrace's offset 0: the start for memory; 0 for files, whose addresses are offsets."""


def extent_of(kind: str, region: int, device: int, start: int, length: int) -> Extent:
    """Returns the extent of a region. A file, block device or object of length 0 is unbounded."""
    if kind in ("dram", "vram"):
        return Extent(region, device, start, length, start)
    return Extent(region, device, start, length or UNBOUNDED, 0)


def uncovered(index: int, address: int, length: int, device: int) -> Exception:
    """Returns the exception for a descriptor outside all regions."""
    return failure(
        nixlNotFoundError,
        f"descriptor {index} (address {address:#x}, {length} bytes, device {device}) is not inside any known "
        f"registered memory",
    )


class _Device:
    """The extents of one device, by start.

    Extents may overlap. Of the extents that begin at or before an address, the one that ends last covers a
    range if any does. So `widest[i]` is the index of the extent that ends last among the first i + 1.
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
        """Returns the extent that covers the range, or None."""
        i = bisect_right(self.starts, address) - 1
        if i < 0:
            return None
        extent = self.extents[self.widest[i]]
        return extent if address + length <= extent.start + extent.length else None

    def columns(self) -> tuple[Any, ...]:
        """Returns arrays: the starts, then region, start, length and origin of the widest extent of each
        index. They are made for the first long list."""
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
    """The regions of one agent and one kind. Threads: any, since it does not change."""

    def __init__(self, extents: Iterable[Extent]):
        by_device: dict[int, list[Extent]] = {}
        for extent in extents:
            by_device.setdefault(extent.device, []).append(extent)
        self._devices = {device: _Device(found) for device, found in by_device.items()}

    def find(self, index: int, address: int, length: int, device: int) -> Extent:
        """Returns the extent that covers descriptor `index`.

        errors   nixlNotFoundError (no extent covers it)
        """
        found = self._devices.get(device)
        extent = found.find(address, length) if found else None
        if extent is None:
            raise uncovered(index, address, length, device)
        return extent

    def pages(self, words: Sequence[int]) -> Any:
        """Returns the descriptors, three words each, as Headrace's pages: (region, offset, length) each, in
        the same order."""
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
        """Returns the pages of rows, for preparing them at once.

        If there is only one region, Headrace checks that each page is inside it. After an error the caller
        runs `pages`, which names the descriptor.
        """
        found = self._devices.get(rows.device)
        if rows.addresses is None and found is not None:
            extent = found.find(rows.address, rows.step * (rows.count - 1) + rows.length)
            if extent is not None:
                return headrace.UniformPages(
                    extent.region, rows.address - extent.origin, rows.step, rows.length, rows.count
                )
        # Not for files: their addresses are offsets already, and an extent of length 0 has no end to check.
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
        """Returns the pages of an array of three columns of uint64."""
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
        """Returns the pages of rows of one device. places: their indices in the list; None: they are the
        whole list."""
        found = self._devices.get(int(rows[0, 2]))
        if found is None:
            raise _uncovered_row(rows, places, 0)
        if len(found.extents) == 1:
            return self._in_one(rows, places, found.extents[0])
        return self._in_many(rows, places, found)

    @staticmethod
    def _in_one(rows: Any, places: Any, extent: Extent) -> Any:
        """Returns the pages of rows in one extent, without a search: many agents register one region."""
        numpy = _numpy()
        inside, lengths = rows[:, 0] - numpy.uint64(extent.start), rows[:, 1]
        size = numpy.uint64(extent.length)
        longest = lengths.max()
        # Fast test: the longest descriptor fits even at the last address. Otherwise each one is tested.
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
    """Returns the words of a long list as an array of three columns, without a copy; None: the list is short,
    or NumPy is not installed."""
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
    """Returns the pages of rows of (address, length, device, stride, count): `count` blocks, `stride` bytes
    apart.

    A single row stays in its short form.
    """
    places = []
    for i, (address, length, device, stride, count) in enumerate(rows.view(_numpy().uint64).tolist()):
        if count < 1 or (count > 1 and stride < length):
            raise failure(
                nixlNotFoundError,
                f"descriptor {i} has {count} blocks of {length} bytes, {stride} bytes apart: there must be "
                "at least one block, and blocks must not overlap",
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
    """Returns rows of (region, offset, length, stride, count) as one row per block."""
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
    """Returns NumPy, or None if it is not installed."""
    global _found
    if _found is _unset:
        try:
            import numpy
        except ImportError:
            _found = None
        else:
            _found = numpy
    return _found
