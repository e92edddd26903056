# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The translation of NIXL's addresses into Headrace's regions gives the same result one by one and with
NumPy, and that result is correct."""

from array import array

import numpy as np
import pytest

import headrace
from headrace.compat.nixl import _regions
from headrace.compat.nixl._errors import nixlNotFoundError
from headrace.compat.nixl._regions import Extent, RegionTable, extent_of, strided_pages
from headrace.compat.nixl._rows import captured

MANY = _regions.FEW + 1


def rows_of(pages):
    """The result of a lookup as a list of (region, offset, length)."""
    if isinstance(pages, headrace.UniformPages):
        stride = pages.stride_bytes or pages.page_bytes
        return [(pages.region, pages.base_bytes + i * stride, pages.page_bytes) for i in range(pages.count)]
    return [tuple(row) for row in (pages.tolist() if isinstance(pages, np.ndarray) else pages)]


def table_of(words):
    return np.frombuffer(words, np.uint64).reshape(-1, 3)


def looked_up(table, descriptors):
    """The list, or the text of the error: once looked up one by one, once with NumPy."""
    results = []
    words = array("Q", [word for descriptor in descriptors for word in descriptor])
    for look in (table._pages_one_by_one, lambda words: table._row_by_row(table_of(words))):
        try:
            results.append(rows_of(look(words)))
        except nixlNotFoundError as error:
            results.append(str(error))
    return results


def covering(extents, address, length, device):
    """The reference: all extents that hold the whole range."""
    return {
        e.region
        for e in extents
        if e.device == device and e.start <= address and address + length <= e.start + e.length
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_descriptor_is_found_in_a_region_that_covers_it_even_if_regions_overlap(seed):
    rng = np.random.default_rng(seed)
    extents = [
        Extent(
            region=i + 1,
            device=int(rng.integers(0, 3)),
            start=int(at),
            length=int(rng.integers(1, 4000)),
            origin=int(at),
        )
        for i, at in enumerate(rng.integers(1, 20_000, int(rng.integers(1, 40))))
    ]
    by_region = {e.region: e for e in extents}
    table = RegionTable(extents)
    found = 0
    for _ in range(300):
        address, length, device = (
            int(rng.integers(0, 25_000)),
            int(rng.integers(1, 500)),
            int(rng.integers(0, 4)),
        )
        regions = covering(extents, address, length, device)
        one_by_one, at_once = looked_up(table, [(address, length, device)])
        if not regions:
            assert "is not inside any known registered memory" in one_by_one
            assert at_once == one_by_one
            continue
        found += 1
        for result in (one_by_one, at_once):
            ((region, offset, size),) = result
            assert region in regions
            assert (by_region[region].start + offset, size) == (address, length)
    assert found


@pytest.mark.parametrize("seed", range(5))
def test_long_lists_over_several_devices_keep_their_order(seed):
    rng = np.random.default_rng(seed)
    extents = [extent_of("dram", 1 + i, i % 3, 10_000 * i, 9_000) for i in range(12)]
    table = RegionTable(extents)
    descriptors = []
    for _ in range(500):
        i = int(rng.integers(0, 12))
        descriptors.append((10_000 * i + int(rng.integers(0, 8_000)), int(rng.integers(1, 1000)), i % 3))
    one_by_one, at_once = looked_up(table, descriptors)
    assert one_by_one == at_once
    assert [(extents[region - 1].start + offset, length) for region, offset, length in one_by_one] == [
        d[:2] for d in descriptors
    ]
    descriptors[321] = (9_500, 600, 0)
    assert "descriptor 321 " in looked_up(table, descriptors)[0]
    assert looked_up(table, descriptors)[0] == looked_up(table, descriptors)[1]


def test_a_regular_list_in_one_region_becomes_uniform_pages():
    table = RegionTable([extent_of("dram", 7, 0, 1000, 100_000)])
    words = array("Q", [word for i in range(MANY) for word in (1000 + 256 * i, 128, 0)])
    pages = table.pages_of(captured(words))
    assert isinstance(pages, headrace.UniformPages)
    assert rows_of(pages) == rows_of(table._pages_one_by_one(words))


def test_a_regular_list_over_neighbouring_regions_is_looked_up_row_by_row():
    table = RegionTable([Extent(1, 0, 0, 256, 0), Extent(2, 0, 256, 256, 256)])
    rows = np.stack([np.arange(8) * 64, np.full(8, 64), np.zeros(8)], axis=1).astype(np.uint64)
    assert rows_of(table.pages_of(captured(rows))) == [(1 + i // 4, i % 4 * 64, 64) for i in range(8)]


def test_pages_of_several_lengths_up_to_the_end_of_their_region_are_found():
    table = RegionTable([Extent(3, 0, 1000, 500, 1000)])
    rows = np.array([(1000, 500, 0), (1490, 10, 0), (1100, 64, 0)], np.uint64)
    assert rows_of(table._row_by_row(rows)) == [(3, 0, 500), (3, 490, 10), (3, 100, 64)]
    rows[1, 1] = 11
    with pytest.raises(nixlNotFoundError, match="descriptor 1 "):
        table._row_by_row(rows)


def shuffled(start, count, device=0):
    rows = np.stack(
        [start + np.arange(count) * 64, np.full(count, 64), np.full(count, device)], axis=1
    ).astype(np.uint64)
    return rows[np.random.default_rng(count).permutation(count)]


@pytest.mark.parametrize("lengths", ["one", "several"])
def test_rows_that_only_one_region_can_hold_are_passed_on_unchecked(lengths):
    start = 1000
    table = RegionTable([Extent(3, 5, start, 64 * 50, start), Extent(4, 6, 0, 1 << 20, 0)])
    rows = shuffled(start, 50, device=5)
    if lengths == "several":
        rows[:, 1] -= np.arange(50, dtype=np.uint64)
    pages = table.pages_of(captured(rows))
    assert isinstance(pages, headrace.RegionPages)
    assert (pages.region, pages.count, pages.origin_bytes) == (3, 50, start)
    rows[7, 0] = 999  # Headrace refuses this row: no region holds an offset of nearly 2^64
    assert isinstance(table.pages_of(captured(rows)), headrace.RegionPages)


def test_all_other_rows_are_checked_before_they_are_prepared():
    one = Extent(3, 0, 1000, 64 * 50, 1000)
    two = RegionTable([one, Extent(4, 0, 1 << 20, 1 << 20, 1 << 20)])
    file = RegionTable([extent_of("file", 3, 0, 1000, 64 * 50)])
    for table in (two, file):
        rows = shuffled(1000, 50)
        assert rows_of(table.pages_of(captured(rows))) == rows_of(table._row_by_row(rows))
        rows[20, 0] = 999
        with pytest.raises(nixlNotFoundError, match="descriptor 20 "):
            table.pages_of(captured(rows))
    with pytest.raises(nixlNotFoundError, match="descriptor 0 "):
        RegionTable([one]).pages_of(captured(shuffled(1000, 50, device=2)))


@pytest.mark.parametrize(
    "address, length",
    [(999, 1), (1000, 101), (1100, 1), (2**64 - 1, 2**64 - 1), (1000, 2**64 - 1), (2**64 - 8, 16)],
)
def test_ranges_beyond_a_region_or_beyond_the_address_space_are_not_found(address, length):
    for extents in (
        [extent_of("dram", 1, 0, 1000, 100)],
        [extent_of("dram", 1, 0, 1000, 100), extent_of("dram", 2, 0, 500, 10)],
    ):
        one_by_one, at_once = looked_up(RegionTable(extents), [(address, length, 0)])
        assert "is not inside any known registered memory" in one_by_one
        assert one_by_one == at_once


def test_addresses_in_a_file_are_offsets_and_a_file_of_length_0_has_no_end():
    table = RegionTable([extent_of("file", 3, 17, 0, 0), extent_of("file", 4, 18, 4096, 100)])
    assert looked_up(table, [(10**12, 4096, 17)]) == [[(3, 10**12, 4096)]] * 2
    assert looked_up(table, [(4096, 100, 18)]) == [[(4, 4096, 100)]] * 2
    assert "is not inside any known registered memory" in looked_up(table, [(0, 100, 18)])[0]


def strided(table, *rows):
    return strided_pages(table, np.array(rows, np.uint64))


def test_each_strided_row_becomes_its_pages():
    table = RegionTable([extent_of("dram", 1, 0, 1000, 10_000), extent_of("dram", 2, 5, 1000, 10_000)])
    one = strided(table, (1100, 16, 0, 32, 5))
    assert isinstance(one, headrace.UniformPages)
    assert rows_of(one) == [(1, 100 + 32 * i, 16) for i in range(5)]
    several = strided(table, (1100, 16, 0, 32, 3), (2000, 8, 5, 8, 2), (1000, 1, 0, 0, 1))
    assert rows_of(several) == [
        (1, 100, 16),
        (1, 132, 16),
        (1, 164, 16),
        (2, 1000, 8),
        (2, 1008, 8),
        (1, 0, 1),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1000, 16, 0, 8, 2), "2 blocks of 16 bytes, 8 bytes apart: .* must not overlap"),
        ((1000, 16, 0, 16, 0), "0 blocks of 16 bytes.*: there must be at least one block"),
        ((1000, 16, 0, 5000, 3), "10016 bytes, device 0. is not inside any known registered memory"),
        ((1000, 16, 1, 16, 1), "16 bytes, device 1. is not inside any known registered memory"),
        ((1000, 16, 0, 16, 2**63), f"{2**67} bytes, device 0. is not inside any known registered memory"),
    ],
)
def test_strided_rows_that_overlap_are_empty_or_leave_their_memory_are_refused(row, words):
    with pytest.raises(nixlNotFoundError, match=words):
        strided(RegionTable([extent_of("dram", 1, 0, 1000, 10_000)]), row)


def test_long_lists_work_without_numpy(monkeypatch):
    monkeypatch.setattr(_regions, "_found", None)
    table = RegionTable([extent_of("dram", 7, 0, 1000, 100_000)])
    words = array("Q", [word for i in range(MANY) for word in (1000 + 256 * i, 128, 0)])
    assert table.pages(words) == [(7, 256 * i, 128) for i in range(MANY)]
