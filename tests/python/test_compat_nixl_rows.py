# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Descriptors are stored in their shortest form, and that form loses no information."""

import re
import sys
import threading
from array import array

import numpy as np
import pytest

from headrace.compat.nixl._bindings import nixl_mem_t, nixlXferDList
from headrace.compat.nixl._compiled import capture_rows, pack_tuples
from headrace.compat.nixl._descriptors import DescriptorList
from headrace.compat.nixl._rows import Rows, captured

PIECE = 1024  # rows that are checked together
COUNTS = [2, 3, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3]


def regular(count, address=4096, step=256, length=64, device=3):
    return np.stack(
        [address + np.arange(count) * step, np.full(count, length), np.full(count, device)], axis=1
    ).astype(np.uint64)


@pytest.mark.parametrize("count", COUNTS)
def test_a_regular_list_is_stored_without_arrays(count):
    table = regular(count)
    rows = captured(table)
    assert rows == Rows(count, 3, 4096, 256, 64, None, None)
    assert rows.words().tobytes() == table.tobytes()


@pytest.mark.parametrize(
    ("count", "column"),
    [(count, column) for count in COUNTS for column in range(3) if (count, column) != (2, 0)],
)  # two rows always have one step
def test_one_irregular_row_anywhere_is_noticed(count, column):
    for row in {0, 1, count // 2, PIECE - 1, PIECE, count - 2, count - 1} & set(range(count)):
        table = regular(count)
        table[row, column] += np.uint64(1)
        rows = captured(table)
        if column == 2:
            assert rows is None
            continue
        assert rows.step == 0
        assert (rows.lengths is None) == (column == 0)
        assert rows.words().tobytes() == table.tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_any_order_store_their_addresses_and_their_lengths_if_these_differ(seed):
    rng = np.random.default_rng(seed)
    table = regular(int(rng.integers(2, 5000)))[::-1].copy()
    assert captured(table).addresses == table[:, 0].tobytes()
    assert captured(table)[4:] == (64, table[:, 0].tobytes(), None)
    rng.shuffle(table)
    table[:, 1] = rng.integers(1, 2**63, len(table))
    rows = captured(table)
    assert (rows.count, rows.device, rows.address, rows.length) == (len(table), 3, table[0, 0], table[0, 1])
    assert (rows.addresses, rows.lengths) == (table[:, 0].tobytes(), table[:, 1].tobytes())
    assert rows.words().tobytes() == table.tobytes()


@pytest.mark.parametrize(
    "rows",
    [
        [(5, 6, 7)],
        [(5, 6, 7), (5, 6, 7)],
        [(2**64 - 8, 8, 0), (8, 8, 0)],  # the distance equals a step of 16 that wraps around
        [(2**64 - 64, 8, 0), (2**64 - 32, 8, 0)],
        [(0, 1, 0), (2**63, 1, 0)],
        [(0, 0, 2**64 - 1), (2**63 - 1, 0, 2**64 - 1)],
        [(2**64 - 1, 2**64 - 1, 2**64 - 1)],
    ],
)
def test_the_largest_numbers_are_stored_exactly(rows):
    words = array("Q", [word for row in rows for word in row])
    assert captured(words).words() == words


def test_rows_of_several_devices_and_empty_lists_have_no_short_form():
    assert captured(np.zeros((0, 3), np.uint64)) is None
    assert captured(array("Q")) is None
    table = regular(100)
    table[99, 2] += np.uint64(1)
    assert captured(table) is None


def test_wrong_buffers_are_refused():
    for wrong in (b"", b"x" * 23, b"x" * 25):
        with pytest.raises(ValueError, match=f"a buffer of {len(wrong)} bytes"):
            capture_rows(wrong)
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'int'"):
        capture_rows(5)
    with pytest.raises((BufferError, ValueError), match="not C-contiguous"):
        capture_rows(np.zeros((6, 6), np.uint64)[:, :3])


@pytest.mark.parametrize("order", ["regular", "shuffled", "devices"])
def test_a_list_from_an_array_equals_the_list_from_tuples_and_keeps_no_reference_to_it(order):
    table = regular(50)
    if order == "shuffled":
        np.random.default_rng(1).shuffle(table)
    if order == "devices":
        table[7, 2] = 9
    tuples = [tuple(row) for row in table.tolist()]
    expected = nixlXferDList(nixl_mem_t.DRAM_SEG, tuples)

    def made():
        given = table.copy()
        descs = nixlXferDList(nixl_mem_t.DRAM_SEG, given)
        given[:] = 0
        return descs

    assert made().descCount() == 50 and not made().isEmpty()
    assert made() == expected and expected == made()
    assert list(made()) == tuples
    assert made().__getstate__() == expected.__getstate__()
    assert made().index(tuples[20]) == 20
    changed = made()
    changed.addDesc((1, 2, 3))
    changed[0] = (4, 5, 6)
    changed.remDesc(1)
    assert list(changed) == [(4, 5, 6), *tuples[2:], (1, 2, 3)]
    emptied = made()
    emptied.clear()
    assert emptied.isEmpty() and list(emptied) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_list_from_tuples_equals_the_list_from_an_array(seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2**64, (int(rng.integers(1, 3000)), 3), dtype=np.uint64)
    if seed % 2:
        table[:, 2] = 3
    tuples = [tuple(int(value) for value in row) for row in table]
    assert pack_tuples(tuples) == table.tobytes()
    made = nixlXferDList(nixl_mem_t.DRAM_SEG, tuples)
    assert made == nixlXferDList(nixl_mem_t.DRAM_SEG, table)
    assert [made[i] for i in range(len(tuples))] == tuples
    made.addDesc((1, 2, 3))
    assert made.descCount() == len(tuples) + 1 and made[len(tuples)] == (1, 2, 3)


class Odd(int):
    pass


@pytest.mark.parametrize(
    "row",
    [
        (1, 2),
        (1, 2, 3, 4),
        [1, 2, 3],
        (1, 2, -1),
        (1, 2**64, 3),
        (1, 2, None),
        (1, 2, 3.0),
        (1, 2, Odd(3)),
        7,
    ],
)
def test_tuples_that_are_not_plain_are_left_to_the_code_that_raises_the_error(row):
    assert pack_tuples([(1, 2, 3), row]) is None
    with pytest.raises(TypeError, match="must be a list of tuples"):
        pack_tuples(((1, 2, 3),))


def test_tuples_of_other_integer_types_are_accepted():
    made = nixlXferDList(nixl_mem_t.DRAM_SEG, [(np.uint64(2**63), np.int32(2), True), (1, 2, Odd(3))])
    assert [made[0], made[1]] == [(2**63, 2, 1), (1, 2, 3)]


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ((1, 2), ValueError, "each descriptor must have 3 elements, and this one is (1, 2)"),
        ([1, 2, 3], TypeError, "each descriptor must be a tuple, not [1, 2, 3]"),
        ((1, 2, -1), OverflowError, "can't convert negative int to unsigned"),
        ((1, 2, None), TypeError, "'NoneType' object cannot be interpreted as an integer"),
    ],
)
def test_a_wrong_tuple_among_right_ones_raises_the_same_error_as_alone(row, error, words):
    for before in (0, 100):
        with pytest.raises(error, match=re.escape(words)):
            nixlXferDList(nixl_mem_t.DRAM_SEG, [(1, 2, 3)] * before + [row])


def test_an_empty_list_of_tuples_gives_an_empty_list():
    assert pack_tuples([]) == b""
    assert nixlXferDList(nixl_mem_t.DRAM_SEG, []).isEmpty()


def interrupted(function, code, at, other):
    """Runs `function`. Before instruction number `at` of that code, another thread runs `other`, as far as it
    gets.

    Returns the result, and whether the code has an instruction of that number.
    """
    count, threads = 0, []

    def trace(frame, event, _arg):
        nonlocal count
        if frame.f_code not in code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == at:
                threads.append(threading.Thread(target=other))
                threads[0].start()
                threads[0].join(0.02)  # the other thread may wait for this one
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function()
    finally:
        sys.settrace(before)
    for thread in threads:
        thread.join()
    return result, count >= at


LOOKS = {
    "count": (lambda descs: descs.descCount(), DescriptorList.descCount.__code__, 5),
    "words": (lambda descs: descs[4], DescriptorList._words.fget.__code__, (4096 + 4 * 256, 64, 3)),
    "source": (lambda descs: len(descs._source()) > 0, DescriptorList._source.__code__, True),
}


@pytest.mark.parametrize("look", LOOKS)
def test_threads_that_read_one_list_at_once_see_the_same_list(look):
    see, code, expected = LOOKS[look]
    at, there = 0, True
    while there:
        at += 1
        descs = nixlXferDList(nixl_mem_t.DRAM_SEG, regular(5))
        seen, there = interrupted(
            lambda descs=descs: see(descs), {code}, at, lambda descs=descs: descs.addDesc((1, 2, 3))
        )
        assert seen in (expected, expected + 1 if look == "count" else expected), f"at instruction {at}"
        if there:
            assert descs.descCount() == 6 and descs[5] == (1, 2, 3), f"at instruction {at}"
    assert at > 5
