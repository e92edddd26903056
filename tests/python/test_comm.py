# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Collectives and messages between threads: each operation against NumPy, every dtype, empty memory."""

import datetime
import gc
import math
import weakref
from array import array

import numpy as np
import pytest

import headrace
from headrace import ReduceOp
from ranks import on_ranks, two_ranks

SIZES = (1, 2, 3)
COUNTS = (1, 7, 1001, 40_001)  # the last one takes two phases


def data_of(rank, count, dtype=np.float64):
    return np.random.default_rng(rank * 1000 + count).integers(-50, 50, count).astype(dtype)


def all_data(size, count):
    return [data_of(rank, count) for rank in range(size)]


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


@pytest.fixture(params=COUNTS)
def count(request):
    return request.param


def test_all_reduce_adds_in_place_and_out_of_place(size, count):
    def body(comm):
        mine = data_of(comm.get_rank(), count)
        kept, output = mine.copy(), np.empty_like(mine)
        comm.all_reduce(mine, ReduceOp.SUM, output=output)
        assert (mine == kept).all()
        comm.all_reduce(mine, ReduceOp.SUM, False)
        return mine, output

    expected = sum(all_data(size, count))
    for in_place, out_of_place in on_ranks(size, body):
        assert (in_place == expected).all()
        assert (out_of_place == expected).all()


REDUCTIONS = {
    "SUM": lambda parts: sum(parts),
    "PRODUCT": lambda parts: np.prod(parts, axis=0),
    "MIN": lambda parts: np.min(parts, axis=0),
    "MAX": lambda parts: np.max(parts, axis=0),
    "AVG": lambda parts: sum(parts) / len(parts),
    "BAND": lambda parts: np.bitwise_and.reduce(parts),
    "BOR": lambda parts: np.bitwise_or.reduce(parts),
    "BXOR": lambda parts: np.bitwise_xor.reduce(parts),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_each_reduction_is_that_of_numpy(name):
    dtype = np.int32 if name.startswith("B") else np.float64

    def body(comm):
        mine = data_of(comm.get_rank(), 33, dtype)
        comm.all_reduce(mine, getattr(ReduceOp, name))
        return mine

    expected = REDUCTIONS[name]([data_of(rank, 33, dtype) for rank in range(3)])
    for got in on_ranks(3, body):
        np.testing.assert_allclose(got, expected)


def test_premul_sum_multiplies_by_its_factor():
    def body(comm):
        mine = data_of(comm.get_rank(), 5)
        comm.all_reduce(mine, ReduceOp.PREMUL_SUM(0.5))
        return mine

    for got in on_ranks(2, body):
        np.testing.assert_allclose(got, 0.5 * sum(all_data(2, 5)))


def test_reduce_ops_have_names_and_are_compared_by_value():
    assert repr(ReduceOp.SUM) == "ReduceOp.SUM"
    assert repr(ReduceOp.PREMUL_SUM(2)) == "ReduceOp.PREMUL_SUM(2.0)"
    assert ReduceOp.AVG.name == "avg"
    assert ReduceOp.PREMUL_SUM(2) == ReduceOp.PREMUL_SUM(2.0) != ReduceOp.PREMUL_SUM(3)
    assert len({ReduceOp.MIN, ReduceOp.MIN, ReduceOp.MAX}) == 2


def test_broadcast_and_reduce(size, count):
    root = size - 1

    def body(comm):
        rank = comm.get_rank()
        shared, summed = data_of(rank, count), data_of(rank, count)
        comm.broadcast(shared, root)
        comm.reduce(summed, root, ReduceOp.SUM)
        return shared, summed

    for rank, (shared, summed) in enumerate(on_ranks(size, body)):
        assert (shared == data_of(root, count)).all()
        assert (summed == (sum(all_data(size, count)) if rank == root else data_of(rank, count))).all()


def test_all_gather_in_its_three_forms(size, count):
    def body(comm):
        rank = comm.get_rank()
        parts = [np.empty(count) for _ in range(size)]
        comm.all_gather(parts, data_of(rank, count))
        of_lengths = [np.empty(count + r) for r in range(size)]
        comm.all_gather_v(of_lengths, data_of(rank, count + rank))
        single = np.empty((size, count))
        comm.all_gather_single(single, data_of(rank, count))
        return parts, of_lengths, single

    for parts, of_lengths, single in on_ranks(size, body):
        for rank in range(size):
            assert (parts[rank] == data_of(rank, count)).all()
            assert (of_lengths[rank] == data_of(rank, count + rank)).all()
            assert (single[rank] == data_of(rank, count)).all()


def inputs_of(rank, size, count):
    """What a rank has for each rank."""
    return [data_of(10 * rank + to, count) for to in range(size)]


def test_reduce_scatter_in_its_three_forms(size, count):
    def body(comm):
        rank = comm.get_rank()
        one, single, of_length = np.empty(count), np.empty(count), np.empty(count + rank)
        comm.reduce_scatter(one, inputs_of(rank, size, count), ReduceOp.SUM)
        comm.reduce_scatter_single(single, np.concatenate(inputs_of(rank, size, count)), ReduceOp.SUM)
        comm.reduce_scatter_v(of_length, [data_of(rank, count + to) for to in range(size)], ReduceOp.SUM)
        return one, single, of_length

    for rank, (one, single, of_length) in enumerate(on_ranks(size, body)):
        expected = sum(inputs_of(other, size, count)[rank] for other in range(size))
        assert (one == expected).all()
        assert (single == expected).all()
        assert (of_length == sum(data_of(other, count + rank) for other in range(size))).all()


def test_all_to_all_in_its_forms(size, count):
    def body(comm):
        rank = comm.get_rank()
        outputs = [np.empty(count) for _ in range(size)]
        comm.all_to_all(outputs, inputs_of(rank, size, count))
        single = np.empty(size * count)
        comm.all_to_all_single(single, np.concatenate(inputs_of(rank, size, count)))
        # Rank r sends r + to elements to rank `to`.
        splits = [rank + other for other in range(size)]
        of_splits = np.empty(sum(splits))
        comm.all_to_all_v_single(of_splits, np.full(sum(splits), rank, float), splits, splits)
        # The same with splits that come by the operation before; the output has room behind.
        of_rank, given = np.full(sum(splits), rank, float), np.array(splits)
        room, got = np.full(sum(splits) + 1, -1.0), np.full(size, -1)
        told = comm.all_to_all_single(got, given, async_op=True)
        comm.device_all_to_all_v_single(room, of_rank, got, given, async_op=True).wait()
        assert told.is_completed()
        assert room.tolist() == [*of_splits.tolist(), -1]
        return outputs, single.reshape(size, count), of_splits

    for rank, (outputs, single, of_splits) in enumerate(on_ranks(size, body)):
        for other in range(size):
            assert (outputs[other] == inputs_of(other, size, count)[rank]).all()
            assert (single[other] == inputs_of(other, size, count)[rank]).all()
        assert of_splits.tolist() == [other for other in range(size) for _ in range(rank + other)]


def test_gather_and_scatter(size, count):
    def body(comm):
        rank, is_root = comm.get_rank(), comm.get_rank() == 0
        parts = [np.empty(count) for _ in range(size)] if is_root else None
        comm.gather(parts, data_of(rank, count), 0)
        single = np.empty((size, count)) if is_root else None
        comm.gather_single(single, data_of(rank, count), 0)
        one = np.empty(count)
        comm.scatter(one, inputs_of(0, size, count) if is_root else [], 0)
        return parts, single, one

    answers = on_ranks(size, body)
    for rank in range(size):
        assert (answers[0][0][rank] == data_of(rank, count)).all()
        assert (answers[0][1][rank] == data_of(rank, count)).all()
        assert (answers[rank][2] == inputs_of(0, size, count)[rank]).all()


def test_messages_have_tags_and_tell_their_source(count):
    def body(comm):
        if comm.get_rank() == 0:
            later, first = np.empty(count), np.empty(count)
            comm.recv(first, 1, tag=1)
            source = comm.recv(later, headrace.any_source, tag=2).source()
            return first, later, source
        if comm.get_rank() == 1:
            comm.send(data_of(2, count), 0, tag=2)
            comm.send(data_of(1, count), 0, tag=1)
        return None

    first, later, source = on_ranks(3, body)[0]
    assert (first == data_of(1, count)).all()
    assert (later == data_of(2, count)).all()
    assert source == 1


def test_barrier_waits_for_all_ranks():
    order = []

    def body(comm):
        order.append("before")
        comm.barrier()
        order.append("after")

    on_ranks(3, body)
    assert order == ["before"] * 3 + ["after"] * 3


NUMPY_DTYPES = (
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES.split())
def test_numpy_has_these_dtypes(dtype):
    def body(comm):
        mine = np.full((3, 5), comm.get_rank(), dtype)
        comm.all_reduce(mine, ReduceOp.SUM)
        return mine

    for got in on_ranks(2, body):
        assert (got == np.ones((3, 5), dtype)).all()


def test_torch_has_these_dtypes_and_more():
    torch = pytest.importorskip("torch")
    dtypes = [getattr(torch, name) for name in NUMPY_DTYPES.split()]
    dtypes += [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]

    def body(comm):
        for dtype in dtypes:
            mine = torch.full((3, 5), comm.get_rank() + 1).to(dtype)
            comm.all_reduce(mine, ReduceOp.MAX if dtype == torch.bool else ReduceOp.SUM)
            expected = torch.full((3, 5), 3).to(dtype)
            assert torch.equal(mine.view(torch.uint8), expected.view(torch.uint8)), dtype

    on_ranks(2, body)


def test_torch_parameters_and_channels_of_a_tensor_are_taken():
    torch = pytest.importorskip("torch")

    def body(comm):
        layer = torch.nn.Linear(3, 2)
        for parameter in layer.parameters():
            comm.broadcast(parameter, 0)
        rows = torch.zeros(4, 3)
        comm.all_gather_single(rows[2:], torch.full((3,), comm.get_rank() + 1.0))
        return [*layer.parameters(), rows]

    left, right = on_ranks(2, body)
    for a, b in zip(left, right):
        assert torch.equal(a, b)
    assert left[-1].tolist() == [[0] * 3, [0] * 3, [1] * 3, [2] * 3]


def test_other_buffers_are_taken():
    def body(comm):
        numbers, letters = array("i", [comm.get_rank() + 1] * 3), bytearray(b"ab")
        comm.all_reduce(numbers, ReduceOp.SUM)
        comm.broadcast(b"xy" if comm.get_rank() == 0 else letters, 0)
        comm.all_reduce(memoryview(numbers)[1:], ReduceOp.SUM)
        return numbers.tolist(), bytes(letters)

    assert on_ranks(2, body) == [([3, 6, 6], b"ab"), ([3, 6, 6], b"xy")]


def test_an_object_with_dlpack_alone_is_taken():
    class Exporter:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    def body(comm):
        mine = np.full(3, comm.get_rank() + 1.0)
        comm.all_reduce(Exporter(mine), ReduceOp.SUM)
        return mine.tolist()

    assert on_ranks(2, body) == [[3.0] * 3] * 2


def test_empty_memory_is_no_error():
    def body(comm):
        size = comm.get_size()
        nothing = np.empty(0, np.float32)
        comm.all_reduce(nothing, ReduceOp.SUM)
        comm.all_gather([nothing] * size, nothing)
        comm.broadcast(np.empty((3, 0)), 0)
        comm.all_to_all_v_single(nothing, nothing, [0] * size, [0] * size)
        if comm.get_rank() == 0:
            comm.send(nothing, 1)
        elif comm.get_rank() == 1:
            assert comm.recv(nothing, 0).source() == 0

    on_ranks(2, body)


def test_one_rank_needs_no_meeting_place():
    with headrace.new_comm(rank=0, size=1) as comm:
        mine = np.arange(5.0)
        comm.all_reduce(mine, ReduceOp.AVG)
        assert mine.tolist() == [0, 1, 2, 3, 4]
        assert repr(comm) == "Comm('world', rank=0, size=1)"


def test_a_communicator_tells_what_it_is():
    def body(comm):
        options = comm.get_options()
        assert (options.timeout, options.meeting_timeout) == (60, 120)
        assert options.meeting == f"memory:{comm.get_name()}"
        assert options.hints == {"backends": "shm"}
        assert options.abort_process_on_timeout_or_error is False
        assert repr(options).startswith(
            "CommOptions(backend='host', timeout=60.0, meeting_timeout=120.0, meeting='memory:"
        )
        assert options.backend == "host"
        comm.set_timeout(datetime.timedelta(minutes=1.5))
        assert comm.get_options().timeout == 90
        comm.set_timeout(math.inf)
        assert comm.get_options().timeout == math.inf
        comm.set_hints({"block_bytes": 1 << 20})
        assert comm.get_options().hints["block_bytes"] == "1048576"
        assert (comm.get_device(), comm.get_backend()) == ("cpu", "host")
        assert comm.get_backend_version() == headrace.__version__
        assert not comm.is_aborted()
        return comm.get_rank(), comm.get_size(), comm.get_ranks()

    assert on_ranks(2, body) == [(0, 2, [0, 1]), (1, 2, [0, 1])]


def test_hints_are_listed():
    hints = {hint.name: hint for hint in headrace.list_comm_hints()}
    assert hints["one_shot_bytes"].default_value == "32KiB"
    assert hints["one_shot_bytes"].unit == "bytes"
    assert "all_reduce" in hints["one_shot_bytes"].sentence
    assert repr(hints["backends"]) == "CommHint('backends', default_value='shm,tcp')"


def test_hints_choose_the_algorithm():
    def body(comm):
        for algorithm in ("one_shot", "two_shot"):
            mine = data_of(comm.get_rank(), 5000)
            comm.all_reduce(mine, ReduceOp.SUM, hints={"algorithm": algorithm}, timeout=30)
            assert (mine == sum(all_data(2, 5000))).all()

    on_ranks(2, body)


def test_split_makes_groups_with_options_of_their_own():
    def body(comm):
        rank = comm.get_rank()
        group = [2, 0] if rank != 1 else []
        child = comm.split(group, "child", hints={"lane_bytes": 65536}, timeout=7)
        if rank == 1:
            assert child is None
            return None
        with child:
            mine = np.array([float(rank)])
            child.all_reduce(mine, ReduceOp.SUM)
            options = child.get_options()
            assert (options.timeout, options.hints["lane_bytes"]) == (7, "65536")
            return child.get_rank(), child.get_ranks(), child.get_name(), mine[0]

    assert on_ranks(3, body) == [(1, [2, 0], "child", 2.0), None, (0, [2, 0], "child", 2.0)]


def test_a_communicator_and_its_works_are_freed():
    left, right = two_ranks()
    mine = np.ones(3)
    work = left.all_reduce(mine, ReduceOp.SUM, async_op=True)
    right.all_reduce(np.ones(3), ReduceOp.SUM)
    work.wait()
    gone = [weakref.ref(left), weakref.ref(work)]
    del left, work
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    with pytest.raises(headrace.PeerLost):
        right.barrier()


def test_ranks_of_the_backend_lazy_connect_when_they_speak():
    def body(comm):
        rank = comm.get_rank()
        data = np.full(3, rank)
        if rank == 0:
            comm.send(data, 2)
        elif rank == 2:
            assert comm.recv(data, headrace.any_source).source() == 0
            assert data.tolist() == [0, 0, 0]
        comm.all_reduce(data, ReduceOp.SUM)
        return comm.get_backend(), data.tolist()

    assert on_ranks(3, body, backend="lazy") == [("lazy", [1, 1, 1])] * 3


def test_the_backend_auto_is_host_in_host_memory():
    def body(comm):
        data = np.full(3, comm.get_rank())
        comm.all_reduce(data, ReduceOp.SUM)
        return comm.get_backend(), data.tolist()

    assert on_ranks(2, body, backend="auto") == [("auto", [1, 1, 1])] * 2
