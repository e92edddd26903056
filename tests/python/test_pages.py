# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""The forms of pages that `prepare` accepts, and how it refuses all others."""

import pickle
import weakref

import numpy as np
import pytest

import headrace
from test_memory import DlpackOnly


@pytest.fixture
def memory(agent):
    return agent.allocate(4096)


def test_every_form_of_local_pages_gives_the_same_list(agent, memory):
    base, region = memory.region.address, memory.region.id
    array = memory.numpy()
    addresses = np.array([(base, 100), (base + 500, 30)], np.uint64)
    ranges = np.array([(region, 0, 100), (region, 500, 30)], np.uint64)
    forms = [
        [(base, 100), (base + 500, 30)],
        ((base, 100), [base + 500, np.int64(30)]),
        addresses,
        addresses.astype(np.int64),
        DlpackOnly(addresses),
        [(region, 0, 100), (region, 500, 30)],
        [(memory.region, 0, 100), [memory, 500, np.int64(30)]],
        ranges,
        ranges.astype(np.int64),
        DlpackOnly(ranges.astype(np.int64)),
        [array[:100], array[500:530]],
        [memoryview(memory)[:100], DlpackOnly(array[500:530])],
    ]
    for pages in forms:
        prepared = agent.prepare(pages)
        assert (prepared.count, len(prepared), prepared.bytes, prepared.peer) == (2, 2, 130, "")


def test_one_array_region_or_allocation_is_one_page(agent, memory):
    for pages in (
        memory,
        memory.numpy(),
        memory.numpy("float32", (16, 64)),
        memory.region,
        [memory.region],
        DlpackOnly(memory.numpy()),
    ):
        assert (agent.prepare(pages).count, agent.prepare(pages).bytes) == (1, 4096)


def test_a_table_of_numbers_inside_a_list_is_memory(agent):
    table = np.zeros((10, 3), np.uint64)
    agent.register(table)
    assert agent.prepare([table]).bytes == 240


def test_an_array_of_numbers_that_is_no_table_is_memory(agent):
    for grid in (np.zeros((10, 4), np.float64), np.zeros((10, 5), np.uint8), np.zeros((2, 3, 4), np.int64)):
        agent.register(grid)
        assert agent.prepare(grid).bytes == grid.nbytes


def test_uniform_pages_need_no_array(agent, memory):
    assert agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64)).bytes == 4096
    assert agent.prepare(headrace.UniformPages(memory.region, 32, 1024, 64, 4)).bytes == 256
    far = agent.prepare(headrace.UniformPages(memory.region.id, 0, 128, 64, 32), peer=agent.name)
    assert (far.bytes, far.peer) == (2048, agent.name)


def region_pages_of(memory):
    """The same three pages in every form of RegionPages."""
    region, base = memory.region, memory.region.address
    table = np.array([(9, 0, 64), (9, 1000, 64), (9, 500, 64)], np.uint64)
    offsets, lengths = table[:, 1], table[:, 2]
    return [
        headrace.RegionPages(region, offsets, lengths),
        headrace.RegionPages(memory, offsets.copy(), 64),
        headrace.RegionPages(memory, offsets, np.int64(64)),
        headrace.RegionPages(region.id, offsets.astype(np.int64), lengths.astype(np.int64)),
        headrace.RegionPages(region, offsets + np.uint64(base), 64, base),
        headrace.RegionPages(
            region, offsets=offsets[::-1].copy()[::-1], lengths=lengths[::-1], origin_bytes=0
        ),
        headrace.RegionPages(
            region, DlpackOnly(offsets.astype(np.int64)), DlpackOnly(lengths.astype(np.int64))
        ),
        headrace.RegionPages(region, memoryview(offsets.tobytes()).cast("Q"), 64),
    ]


def test_pages_of_one_region_are_given_as_columns_of_any_table(agent, memory):
    view = memory.numpy()
    view[:] = np.random.default_rng(1).integers(0, 256, 4096)
    there = agent.prepare([(memory.region.id, at, 64) for at in (2048, 2112, 2176)], peer=agent.name)
    for pages in region_pages_of(memory):
        assert (pages.region, pages.count, len(pages)) == (memory.region.id, 3, 3)
        prepared = agent.prepare(pages)
        assert (prepared.count, prepared.bytes, prepared.peer) == (3, 192, "")
        assert agent.prepare(pages, peer=agent.name).peer == agent.name
        view[2048:2240] = 0
        agent.write(agent.name, prepared, there, timeout=10)
        assert view[2048:2240].tobytes() == b"".join(view[at : at + 64].tobytes() for at in (0, 1000, 500))


def test_columns_are_read_by_prepare_and_then_released(agent, memory):
    offsets = np.zeros(4, np.uint64)
    pages = headrace.RegionPages(memory, offsets, 64)
    held = weakref.ref(offsets)
    offsets[3] = 4090
    with pytest.raises(headrace.InvalidArgument, match="runs over the end") as caught:
        agent.prepare(pages)
    assert caught.value.page == 3
    offsets[3] = 64
    prepared = agent.prepare(pages)
    del offsets
    assert held() is not None
    del pages
    assert held() is None
    assert prepared.bytes == 256


@pytest.mark.parametrize(
    ("offsets", "lengths", "origin", "error", "text", "page"),
    [
        (np.zeros(0, np.uint64), 1, 0, headrace.InvalidArgument, "no pages", None),
        (
            np.array([0, 8], np.uint64),
            np.array([8, 0], np.uint64),
            0,
            headrace.InvalidArgument,
            "length 0",
            1,
        ),
        (np.array([0, 8], np.uint64), 0, 0, headrace.InvalidArgument, "length 0", 0),
        (np.array([8, 7], np.uint64), 8, 8, headrace.InvalidArgument, "page 1 .* runs over the end", 1),
        (
            np.array([0, 4090], np.uint64),
            7,
            0,
            headrace.InvalidArgument,
            "page 1 .offset 4090, 7 bytes. runs over the end",
            1,
        ),
        (np.array([0, -8]), 8, 0, headrace.InvalidArgument, "runs over the end", 1),
        ([0, 8], 8, 0, headrace.InvalidArgument, r"offsets are \[0, 8\]: give a one-dimensional array", None),
        (None, 8, 0, headrace.InvalidArgument, "offsets are None", None),
        (
            np.zeros(2, np.uint32),
            8,
            0,
            headrace.InvalidArgument,
            "offsets are a uint32 array .* give uint64 or int64",
            None,
        ),
        (np.zeros(2), 8, 0, headrace.InvalidArgument, "offsets are a float64 array", None),
        (np.zeros((2, 2), np.uint64), 8, 0, headrace.InvalidArgument, "of a table give one column", None),
        (
            np.zeros(2, np.uint64),
            np.zeros(3, np.uint64),
            0,
            headrace.InvalidArgument,
            "2 offsets and 3 lengths",
            None,
        ),
        (np.zeros(2, np.uint64), None, 0, headrace.InvalidArgument, "lengths are None", None),
        (np.zeros(2, np.uint64), -1, 0, headrace.InvalidArgument, "the length of all pages is -1", None),
        (np.zeros(2, np.uint64), 2**64, 0, headrace.InvalidArgument, "the length of all pages is", None),
        (
            np.zeros(2, np.uint64),
            np.full(2, 8, np.int32),
            0,
            headrace.InvalidArgument,
            "lengths are a int32 array",
            None,
        ),
    ],
)
def test_wrong_columns_are_refused(agent, memory, offsets, lengths, origin, error, text, page):
    with pytest.raises(error, match=text) as caught:
        agent.prepare(headrace.RegionPages(memory, offsets, lengths, origin))
    assert caught.value.page == page


def test_columns_of_a_peers_addresses_are_prepared(pair):
    left, right = pair
    region = right.register(bytearray(1000), name="r")
    left.import_metadata(right.export_metadata())
    there = left.peer_region(right.name, "r")
    addresses = np.array([there.address + 10, there.address, there.address + 990], np.uint64)
    prepared = left.prepare(headrace.RegionPages(there, addresses, 10, there.address), peer=right.name)
    assert (prepared.count, prepared.bytes, prepared.peer) == (3, 30, right.name)
    with pytest.raises(headrace.InvalidArgument, match="runs over the end") as caught:
        left.prepare(headrace.RegionPages(there, addresses, 11, there.address), peer=right.name)
    assert caught.value.page == 2
    with pytest.raises(headrace.NotFound, match="nobody"):
        left.prepare(headrace.RegionPages(region.id, addresses, 10), peer="nobody")
    with pytest.raises(headrace.NotFound, match="has no region 99"):
        left.prepare(headrace.RegionPages(99, addresses, 10), peer=right.name)


def test_columns_cannot_be_mixed_with_other_pages_or_pickled(agent, memory):
    pages = headrace.RegionPages(memory, np.zeros(2, np.uint64), 8)
    assert repr(pages) == f"RegionPages(region={memory.region.id}, count=2, origin_bytes=0)"
    with pytest.raises(headrace.InvalidArgument, match="prepare it alone"):
        agent.prepare([pages])
    with pytest.raises(TypeError, match="send the arrays"):
        pickle.dumps(pages)


def test_a_list_keeps_no_reference_to_its_array(agent, memory):
    table = np.array([(memory.region.id, 0, 64)], np.uint64)
    pages = agent.prepare(table)
    table[:] = 0
    agent.read(agent.name, pages, [(memory.region.id, 64, 64)], timeout=10)


def test_ten_million_pages_are_prepared(agent):
    memory = agent.allocate(1 << 24)
    table = np.empty((10_000_000, 3), np.uint64)
    table[:, 0], table[:, 1], table[:, 2] = memory.region.id, np.arange(len(table)), 1
    pages = agent.prepare(table)
    assert (pages.count, pages.bytes) == (10_000_000, 10_000_000)
    assert (
        agent.prepare(headrace.UniformPages(memory, 0, 1, 1, 10_000_000), peer=agent.name).count == 10_000_000
    )


@pytest.mark.parametrize(
    ("pages", "error", "text", "page"),
    [
        (lambda m: [], headrace.InvalidArgument, "no pages", None),
        (lambda m: np.empty((0, 3), np.uint64), headrace.InvalidArgument, "no pages", None),
        (lambda m: headrace.UniformPages(m, 0, 0, 64, 0), headrace.InvalidArgument, "no pages", None),
        (lambda m: headrace.UniformPages(m, 0, 0, 0, 1), headrace.InvalidArgument, "length 0", 0),
        (
            lambda m: headrace.UniformPages(m, 0, 1024, 2000, 4),
            headrace.InvalidArgument,
            "runs over the end",
            3,
        ),
        (lambda m: [(m.region.id, 0, 1), (m.region.id, 0, 0)], headrace.InvalidArgument, "length 0", 1),
        (lambda m: [(m.region.address, 1), (m.region.address, 0)], headrace.InvalidArgument, "length 0", 1),
        (
            lambda m: [(m.region.id, 0, 1), (m.region.id, 4000, 97)],
            headrace.InvalidArgument,
            "runs over the end",
            1,
        ),
        (lambda m: [(m.region.id, 2**64 - 1, 2)], headrace.InvalidArgument, "runs over the end", 0),
        (lambda m: [(m.region.id, 0, 1), (99, 0, 1)], headrace.NotFound, "names region 99", 1),
        (lambda m: [(2**40, 0, 1)], headrace.NotFound, "names region", 0),
        (
            lambda m: [(m.region.address, 10), (m.region.address + 4090, 10)],
            headrace.NotFound,
            "lies in no registered region",
            1,
        ),
        (lambda m: [np.zeros(10)], headrace.NotFound, "register its memory first", 0),
        (lambda m: [(1, 2, 3, 4)], headrace.InvalidArgument, r"page 0 is \(1, 2, 3, 4\)", 0),
        (
            lambda m: np.zeros((5, 4), np.uint64),
            headrace.InvalidArgument,
            r"two columns \(address, length\) or three .* shape \(5, 4\)",
            None,
        ),
        (
            lambda m: np.zeros((5, 1), np.int64),
            headrace.InvalidArgument,
            r"leave out the other columns.*put it in a list",
            None,
        ),
        (lambda m: np.zeros((2, 3)), headrace.InvalidArgument, "this is a float64 array", None),
        (lambda m: np.zeros((2, 3), np.float32), headrace.InvalidArgument, "this is a float32 array", None),
        (lambda m: np.zeros((2, 3), np.float16), headrace.InvalidArgument, "this is a float16 array", None),
        (lambda m: np.zeros((2, 3), bool), headrace.InvalidArgument, "this is a bool array", None),
        (
            lambda m: np.zeros((2, 3), np.complex64),
            headrace.InvalidArgument,
            "this is a complex64 array",
            None,
        ),
        (
            lambda m: np.zeros((2, 3), ">i4"),
            headrace.InvalidArgument,
            "this is a byte-swapped int32 array",
            None,
        ),
        (
            lambda m: [(m.region, 64)],
            headrace.InvalidArgument,
            r"a page of a region is \(region, offset, length\)",
            0,
        ),
        (
            lambda m: [(m, 0, 64), (m.region, 64)],
            headrace.InvalidArgument,
            r"page 1 is .* a page of a region is",
            1,
        ),
        (
            lambda m: [("kv", 0, 64)],
            headrace.InvalidArgument,
            "the region of page 0 is 'kv': give a Region",
            0,
        ),
        (lambda m: [(m.region.id, 0, 1), "x"], headrace.InvalidArgument, "page 1 is 'x'", 1),
        (lambda m: [(m.region.id, 0, 1), (m.region.address, 1)], headrace.InvalidArgument, "another kind", 1),
        (lambda m: [(m.region.address, 1), m.region], headrace.InvalidArgument, "another kind", 1),
        (lambda m: [(m.region.id, -1, 1)], headrace.InvalidArgument, "the offset of page 0 is -1", 0),
        (lambda m: [(m.region.id, 0, 2**64)], headrace.InvalidArgument, "the length of page 0 is", 0),
        (lambda m: [(m.region.id, 0.5, 1)], headrace.InvalidArgument, "the offset of page 0 is 0.5", 0),
        (lambda m: [headrace.UniformPages(m, 0, 0, 64, 1)], headrace.InvalidArgument, "prepare it alone", 0),
        (lambda m: 7, headrace.InvalidArgument, "pages are 7", None),
        (lambda m: "pages", headrace.InvalidArgument, "pages are 'pages'", None),
        (
            lambda m: np.zeros((4, 3), np.int32),
            headrace.InvalidArgument,
            "int32 array of shape .4, 3.: convert it",
            None,
        ),
        (
            lambda m: np.zeros((4, 2), np.float64),
            headrace.InvalidArgument,
            r"put it in a list: \[array\]",
            None,
        ),
        (lambda m: np.zeros((4, 3), ">u8"), headrace.InvalidArgument, "convert it", None),
        (lambda m: np.zeros((4, 6), np.uint64)[:, ::2], headrace.InvalidArgument, "contiguous", None),
        (lambda m: np.zeros((3, 4), np.uint64).T, headrace.InvalidArgument, "contiguous", None),
        (lambda m: [m.numpy()[::2]], headrace.InvalidArgument, "has gaps", 0),
    ],
)
def test_wrong_pages_are_refused_with_their_index(agent, memory, pages, error, text, page):
    with pytest.raises(error, match=text) as caught:
        agent.prepare(pages(memory))
    assert caught.value.page == page


def test_pages_of_a_peer_are_given_by_region(pair):
    left, right = pair
    region = right.register(bytearray(100), name="r")
    left.import_metadata(right.export_metadata())
    there = left.peer_region(right.name, "r")
    assert there.writable
    for pages in (
        [(region.id, 0, 100)],
        [(there, 0, 100)],
        [there],
        there,
        np.array([(region.id, 0, 100)], np.uint64),
        headrace.UniformPages(there, 0, 0, 100, 1),
    ):
        prepared = left.prepare(pages, peer=right.name)
        assert (prepared.bytes, prepared.peer) == (100, right.name)
    with pytest.raises(headrace.InvalidArgument, match="valid in the peer's process only"):
        left.prepare([(region.address, 100)], peer=right.name)
    with pytest.raises(headrace.NotFound, match="nobody"):
        left.prepare([(region.id, 0, 1)], peer="nobody")
    with pytest.raises(headrace.NotFound, match="names region 99") as caught:
        left.prepare([(region.id, 0, 1), (99, 0, 1)], peer=right.name)
    assert caught.value.page == 1
    with pytest.raises(headrace.InvalidArgument, match="runs over the end") as caught:
        left.prepare([(region.id, 0, 1), (region.id, 99, 2)], peer=right.name)
    assert caught.value.page == 1


def test_indices_may_be_any_integers(agent, memory):
    pages = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64))
    far = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64), peer=agent.name)
    picked = [3, 1, 60]
    forms = [picked, tuple(picked), DlpackOnly(np.array(picked)), (np.int64(3), 1, np.uint8(60))]
    forms += [np.array(picked, dtype) for dtype in ("i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1")]
    for local in forms:
        for remote in (forms[0], forms[4], forms[7], range(5, 8)):
            request = agent.make_request("write", pages, far, local, remote)
            assert (request.pages, request.bytes) == (3, 192)
    assert agent.make_request("read", pages, far, range(64), None).pages == 64
    assert agent.make_request("read", pages, far, None, list(range(64))).pages == 64


@pytest.mark.parametrize(
    ("local", "remote", "text"),
    [
        ([0, 1], [0], "2 local indices and 1"),
        ([], [], "no pages"),
        ([0, 64], [0, 1], "64"),
        ([0, 1], np.array([0, -1]), "-1"),
        (np.array([0, 2**63 + 5], np.uint64), [0, 1], "local"),
        (np.array([0, -3], np.int32), [0, 1], "-3"),
        ([0, 2**70], [0, 1], r"local_index\[1\]"),
        ([0, "x"], [0, 1], r"local_index\[1\] is 'x'"),
        (np.array([0.0, 1.0]), [0, 1], "indices are integers"),
        (np.zeros((2, 2), np.int64), [0, 1], "one dimension"),
        (np.arange(4)[::2], [0, 1], "with gaps"),
        (b"\x00\x01", [0, 1], "give an array or a list"),
        ("01", [0, 1], "give an array or a list"),
        (7, [0, 1], "give an array or a list"),
        ([0], None, "1 local indices and 64"),
    ],
)
def test_wrong_indices_are_refused(agent, memory, local, remote, text):
    pages = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64))
    far = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64), peer=agent.name)
    with pytest.raises(headrace.InvalidArgument, match=text):
        agent.make_request("read", pages, far, local, remote)


def test_different_counts_and_lengths_are_refused(agent, memory):
    whole = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 64))
    half = agent.prepare(headrace.UniformPages(memory, 0, 0, 64, 32), peer=agent.name)
    small = agent.prepare(headrace.UniformPages(memory, 0, 64, 32, 64), peer=agent.name)
    with pytest.raises(headrace.InvalidArgument, match="64 local pages and 32 remote"):
        agent.make_request("read", whole, half)
    with pytest.raises(headrace.InvalidArgument, match="page 0 has 64 bytes here and 32") as caught:
        agent.make_request("read", whole, small, [5, 6], [5, 6])
    assert caught.value.page == 0
    with pytest.raises(headrace.InvalidArgument, match='no operation "copy"'):
        agent.make_request("copy", whole, half)
