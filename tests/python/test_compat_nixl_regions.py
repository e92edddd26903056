# SPDX-License-Identifier: Apache-2.0
"""From NIXL's addresses to Headrace's regions: one by one and with NumPy the same, and both right."""

from array import array

import numpy as np
import pytest

import headrace
from headrace.compat.nixl import _regions
from headrace.compat.nixl._errors import nixlNotFoundError
from headrace.compat.nixl._regions import Extent, RegionTable, extent_of, strided_pages

MANY = _regions.FEW + 1


def rows_of(pages):
    """Whatever a lookup gave, as a list of (region, offset, length)."""
    if isinstance(pages, headrace.UniformPages):
        stride = pages.stride_bytes or pages.page_bytes
        return [(pages.region, pages.base_bytes + i * stride, pages.page_bytes) for i in range(pages.count)]
    return [tuple(row) for row in (pages.tolist() if isinstance(pages, np.ndarray) else pages)]


def looked_up(table, descriptors):
    """The list, or the error's text, one by one and with NumPy."""
    results = []
    words = array("Q", [word for descriptor in descriptors for word in descriptor])
    for look in (table._pages_one_by_one, lambda words: table.page_rows(np.frombuffer(words, np.uint64).reshape(-1, 3))):
        try:
            results.append(rows_of(look(words)))
        except nixlNotFoundError as error:
            results.append(str(error))
    return results


def covering(extents, address, length, device):
    """What the reference says: all extents that the range lies in."""
    return {e.region for e in extents if e.device == device and e.start <= address and address + length <= e.start + e.length}


@pytest.mark.parametrize("seed", range(20))
def test_a_descriptor_is_found_in_a_region_that_covers_it_however_regions_overlap(seed):
    rng = np.random.default_rng(seed)
    extents = [
        Extent(region=i + 1, device=int(rng.integers(0, 3)), start=int(at), length=int(rng.integers(1, 4000)), origin=int(at))
        for i, at in enumerate(rng.integers(1, 20_000, int(rng.integers(1, 40))))
    ]
    by_region = {e.region: e for e in extents}
    table = RegionTable(extents)
    found = 0
    for _ in range(300):
        address, length, device = int(rng.integers(0, 25_000)), int(rng.integers(1, 500)), int(rng.integers(0, 4))
        regions = covering(extents, address, length, device)
        one_by_one, at_once = looked_up(table, [(address, length, device)])
        if not regions:
            assert "lies in no registered memory" in one_by_one
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
    assert [(extents[region - 1].start + offset, length) for region, offset, length in one_by_one] == [d[:2] for d in descriptors]
    descriptors[321] = (9_500, 600, 0)
    assert "descriptor 321 " in looked_up(table, descriptors)[0]
    assert looked_up(table, descriptors)[0] == looked_up(table, descriptors)[1]


def test_a_regular_list_in_one_region_becomes_a_line():
    table = RegionTable([extent_of("dram", 7, 0, 1000, 100_000)])
    words = array("Q", [word for i in range(MANY) for word in (1000 + 256 * i, 128, 0)])
    pages = table.pages(words)
    assert isinstance(pages, headrace.UniformPages)
    assert rows_of(pages) == rows_of(table._pages_one_by_one(words))


@pytest.mark.parametrize("change", ["order", "length", "distance"])
def test_a_list_that_is_not_regular_does_not(change):
    table = RegionTable([extent_of("dram", 7, 0, 1000, 100_000)])
    rows = np.array([(1000 + 256 * i, 128, 0) for i in range(MANY)], np.uint64)
    if change == "order":
        rows = rows[::-1].copy()
    elif change == "length":
        rows[5, 1] = 64
    else:
        rows[5, 0] += 1
    pages = table.page_rows(rows)
    assert isinstance(pages, np.ndarray)
    assert rows_of(pages) == rows_of(table._pages_one_by_one(array("Q", rows.tobytes())))


PIECE_ROWS = _regions.PIECE // 3


@pytest.mark.parametrize("count", [2, 3, PIECE_ROWS - 1, PIECE_ROWS, PIECE_ROWS + 1, PIECE_ROWS + 2, 2 * PIECE_ROWS + 3])
def test_one_row_that_is_out_of_step_anywhere_is_seen(count):
    table = RegionTable([Extent(7, 0, 4096, count * 64 + 64, 4096), Extent(8, 0, 0, 4096, 0)])
    rows = np.stack([4096 + np.arange(count) * 64, np.full(count, 64), np.zeros(count)], axis=1).astype(np.uint64)
    line = table.page_rows(rows)
    assert isinstance(line, headrace.UniformPages)
    assert rows_of(line) == [(7, i * 64, 64) for i in range(count)]
    for row in {0, 1, count // 2, PIECE_ROWS - 1, PIECE_ROWS, PIECE_ROWS + 1, count - 2, count - 1} & set(range(count)):
        if count == 2:
            break  # two rows are always in step
        changed = rows.copy()
        changed[row, 0] += np.uint64(1)
        assert rows_of(table.page_rows(changed)) == [(7, i * 64 + (i == row), 64) for i in range(count)]
    for row in {0, 1, PIECE_ROWS, PIECE_ROWS + 1, count - 1} & set(range(count)):
        changed = rows.copy()
        changed[row, 1] -= np.uint64(1)
        assert rows_of(table.page_rows(changed)) == [(7, i * 64, 64 - (i == row)) for i in range(count)]


def test_a_regular_list_over_neighbouring_regions_goes_row_by_row():
    table = RegionTable([Extent(1, 0, 0, 256, 0), Extent(2, 0, 256, 256, 256)])
    rows = np.stack([np.arange(8) * 64, np.full(8, 64), np.zeros(8)], axis=1).astype(np.uint64)
    assert rows_of(table.page_rows(rows)) == [(1 + i // 4, i % 4 * 64, 64) for i in range(8)]


def test_pages_of_several_lengths_up_to_the_end_of_their_region_are_found():
    table = RegionTable([Extent(3, 0, 1000, 500, 1000)])
    rows = np.array([(1000, 500, 0), (1490, 10, 0), (1100, 64, 0)], np.uint64)
    assert rows_of(table.page_rows(rows)) == [(3, 0, 500), (3, 490, 10), (3, 100, 64)]
    rows[1, 1] = 11
    with pytest.raises(nixlNotFoundError, match="descriptor 1 "):
        table.page_rows(rows)


def to_prepare(table, rows):
    """What is handed to Headrace, and the table that it may have been written into."""
    room = np.full((len(rows), 3), 2**64 - 1, np.uint64)
    return table.rows_to_prepare(rows, room), room


def shuffled(start, count, device=0):
    rows = np.stack([start + np.arange(count) * 64, np.full(count, 64), np.full(count, device)], axis=1).astype(np.uint64)
    return rows[np.random.default_rng(count).permutation(count)]


def test_rows_that_one_region_alone_can_hold_are_moved_into_the_room_and_not_looked_at():
    table = RegionTable([Extent(3, 5, 1000, 64 * 50, 1000), Extent(4, 6, 0, 1 << 20, 0)])
    rows = shuffled(1000, 50, device=5)
    pages, room = to_prepare(table, rows)
    assert pages is room
    assert rows_of(pages) == rows_of(table.page_rows(rows))
    rows[7, 0] = 999  # Headrace refuses it: an offset of nearly 2^64 lies in no region
    assert rows_of(to_prepare(table, rows)[0])[7] == (3, 2**64 - 1, 64)


def test_all_other_rows_are_looked_at_before_they_are_prepared():
    one = Extent(3, 0, 1000, 64 * 50, 1000)
    two = RegionTable([one, Extent(4, 0, 1 << 20, 1 << 20, 1 << 20)])
    devices = RegionTable([one, Extent(4, 1, 1000, 64 * 50, 1000)])
    file = RegionTable([extent_of("file", 3, 0, 1000, 64 * 50)])
    mixed = np.concatenate([shuffled(1000, 50), shuffled(1000, 50, device=1)])
    for table, rows in ((two, shuffled(1000, 50)), (devices, mixed), (file, shuffled(1000, 50))):
        pages, room = to_prepare(table, rows)
        assert pages is not room
        assert rows_of(pages) == rows_of(table.page_rows(rows))
        rows[20, 0] = 999
        with pytest.raises(nixlNotFoundError, match="descriptor 20 "):
            to_prepare(table, rows)
    with pytest.raises(nixlNotFoundError, match="descriptor 0 "):
        to_prepare(RegionTable([one]), shuffled(1000, 50, device=2))


def test_a_room_is_used_again_by_nobody_else_meanwhile_and_kept_up_to_a_size():
    rooms = _regions.Rooms()
    with rooms.room(100) as first, rooms.room(100) as second:
        assert first.shape == second.shape == (100, 3)
        assert not np.shares_memory(first, second)
    with rooms.room(40) as again, rooms.room(40) as fresh:
        assert np.shares_memory(again, first)
        assert not np.shares_memory(fresh, first)
    with rooms.room(rooms.KEPT_ROWS + 1) as large:
        assert len(large) == rooms.KEPT_ROWS + 1
    with rooms.room(100) as next_one:
        assert not np.shares_memory(next_one, large)


@pytest.mark.parametrize("address, length", [(999, 1), (1000, 101), (1100, 1), (2**64 - 1, 2**64 - 1), (1000, 2**64 - 1), (2**64 - 8, 16)])
def test_ranges_past_the_end_or_past_the_address_space_lie_nowhere(address, length):
    for extents in ([extent_of("dram", 1, 0, 1000, 100)], [extent_of("dram", 1, 0, 1000, 100), extent_of("dram", 2, 0, 500, 10)]):
        one_by_one, at_once = looked_up(RegionTable(extents), [(address, length, 0)])
        assert "lies in no registered memory" in one_by_one
        assert one_by_one == at_once


def test_addresses_in_a_file_are_offsets_and_a_file_of_length_0_has_no_end():
    table = RegionTable([extent_of("file", 3, 17, 0, 0), extent_of("file", 4, 18, 4096, 100)])
    assert looked_up(table, [(10**12, 4096, 17)]) == [[(3, 10**12, 4096)]] * 2
    assert looked_up(table, [(4096, 100, 18)]) == [[(4, 4096, 100)]] * 2
    assert "lies in no registered memory" in looked_up(table, [(0, 100, 18)])[0]


def strided(table, *rows):
    return strided_pages(table, np.array(rows, np.uint64))


def test_strided_rows_become_a_block_each():
    table = RegionTable([extent_of("dram", 1, 0, 1000, 10_000), extent_of("dram", 2, 5, 1000, 10_000)])
    one = strided(table, (1100, 16, 0, 32, 5))
    assert isinstance(one, headrace.UniformPages)
    assert rows_of(one) == [(1, 100 + 32 * i, 16) for i in range(5)]
    several = strided(table, (1100, 16, 0, 32, 3), (2000, 8, 5, 8, 2), (1000, 1, 0, 0, 1))
    assert rows_of(several) == [(1, 100, 16), (1, 132, 16), (1, 164, 16), (2, 1000, 8), (2, 1008, 8), (1, 0, 1)]


@pytest.mark.parametrize("row", [(1000, 16, 0, 8, 2), (1000, 16, 0, 16, 0), (1000, 16, 0, 5000, 3), (1000, 16, 1, 16, 1), (1000, 16, 0, 16, 2**63)])
def test_strided_rows_that_overlap_are_none_or_leave_their_memory_are_refused(row):
    with pytest.raises(nixlNotFoundError):
        strided(RegionTable([extent_of("dram", 1, 0, 1000, 10_000)]), row)


def test_long_lists_work_without_numpy(monkeypatch):
    monkeypatch.setattr(_regions, "_found", None)
    table = RegionTable([extent_of("dram", 7, 0, 1000, 100_000)])
    words = array("Q", [word for i in range(MANY) for word in (1000 + 256 * i, 128, 0)])
    assert table.pages(words) == [(7, 256 * i, 128) for i in range(MANY)]
