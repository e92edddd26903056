# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Batches, coalesced calls, persistent operations; ranks that do not come; HEADRACE_CHECK."""

import gc
import threading
import weakref

import numpy as np
import pytest

import headrace
from headrace import ReduceOp
from ranks import on_ranks, two_ranks


def test_a_batch_moves_to_and_from_all_ranks():
    def body(comm):
        rank, size = comm.get_rank(), comm.get_size()
        mine = np.full(50_000, rank, np.float32)
        got = [np.empty_like(mine) for _ in range(size)]
        batch = comm.batch_op_create()
        for other in range(size):
            if other != rank:
                batch.send(mine, other)
                batch.recv(got[other], other)
        assert batch.issue().status == "completed"
        return all((got[other] == other).all() for other in range(size) if other != rank)

    assert on_ranks(3, body) == [True] * 3


def test_an_asynchronous_batch_keeps_its_tensors_and_is_issued_once():
    def body(comm):
        other = 1 - comm.get_rank()
        sent, got = np.full(100_000, comm.get_rank()), np.empty(100_000, int)
        batch = comm.batch_op_create()
        batch.send(sent, other, tag=3)
        batch.recv(got, other, tag=3)
        kept = weakref.ref(sent)
        del sent
        work = batch.issue(async_op=True, timeout=60)
        gc.collect()
        work.wait()
        with pytest.raises(headrace.errors.InvalidArgument, match="has been issued"):
            batch.issue()
        assert (got == other).all()
        del batch
        gc.collect()
        assert kept() is None

    on_ranks(2, body)


def test_a_batch_refuses_wrong_arguments_and_an_empty_one_is_done():
    def body(comm):
        batch = comm.batch_op_create()
        with pytest.raises(headrace.errors.InvalidArgument, match="rank 5"):
            batch.send(np.zeros(3), 5)
        with pytest.raises(headrace.errors.InvalidArgument, match="no hints"):
            batch.issue(hints={"a": 1})
        assert batch.issue(True).is_completed()

    on_ranks(2, body)


def test_coalesced_calls_end_as_one():
    def body(comm, async_op):
        a, b = np.ones(10), np.full(4, comm.get_rank())
        with comm.coalescing(async_op) as c:
            first = comm.all_reduce(a, ReduceOp.SUM)
            comm.broadcast(b, 2, async_op=True)
            assert first.status == "not_started"
            assert c.work is None
            with pytest.raises(headrace.errors.InvalidArgument, match="end_coalescing first"):
                first.wait()
        c.work.wait()
        assert first.status == c.work.status == "completed"
        return (a == 3).all() and (b == 2).all()

    for async_op in (False, True):
        assert on_ranks(3, lambda comm: body(comm, async_op)) == [True] * 3  # noqa: B023


def test_coalesced_calls_keep_their_tensors():
    def body(comm):
        freed = []
        with comm.coalescing() as c:
            tensor = np.ones(10)
            freed.append(weakref.ref(tensor))
            comm.all_reduce(tensor, ReduceOp.SUM)
            del tensor
            gc.collect()
            assert freed[0]() is not None
        del c
        gc.collect()
        assert freed[0]() is None

    on_ranks(2, body)


def test_an_exception_in_the_block_issues_nothing():
    def body(comm):
        tensor = np.ones(3)
        with pytest.raises(KeyError), comm.coalescing():
            work = comm.all_reduce(tensor, ReduceOp.SUM)
            raise KeyError("a reason")
        with pytest.raises(headrace.errors.Canceled, match="a reason"):
            work.wait()
        comm.barrier()
        assert (tensor == 1).all()

    on_ranks(2, body)


def test_blocks_are_not_nested_and_other_threads_go_on():
    def body(comm):
        with comm.coalescing():
            with pytest.raises(headrace.errors.InvalidArgument, match="end_coalescing first"):
                comm.coalescing().__enter__()
            done = []
            thread = threading.Thread(target=lambda: done.append(comm.barrier().status))
            thread.start()
            thread.join()
            assert done == ["completed"]

    on_ranks(2, body)


def test_a_persistent_all_gather_writes_its_output_each_time():
    def body(comm):
        output = np.zeros(6, np.int32)
        handle = comm.all_gather_p_init(output)
        for turn in range(3):
            comm.all_gather_p_exec(handle, np.full(2, comm.get_rank() + turn, np.int32), turn == 1).wait()
            assert output.tolist() == [turn, turn, turn + 1, turn + 1, turn + 2, turn + 2]
        with pytest.raises(headrace.errors.InvalidArgument, match="3 int32"):
            comm.all_gather_p_exec(handle, np.zeros(3, np.int32))
        comm.all_gather_p_free(handle)
        with pytest.raises(headrace.errors.InvalidArgument, match="has been freed"):
            comm.all_gather_p_exec(handle, np.zeros(2, np.int32))

    on_ranks(3, body)


def test_reduce_scatter_quantized_is_near_the_sum():
    def body(comm):
        rank = comm.get_rank()
        tensors = [np.random.default_rng(r).uniform(-1, 1, 2000).astype(np.float32) for r in range(2)]
        output = np.empty(1000, np.float32)
        comm.reduce_scatter_quantized(output, tensors[rank], ReduceOp.SUM, seed=5)
        exact = sum(t[rank * 1000 : (rank + 1) * 1000] for t in tensors)
        assert np.abs(output - exact).max() < 2**-8 + 1e-6
        with pytest.raises(headrace.errors.InvalidArgument, match="sum and avg"):
            comm.reduce_scatter_quantized(output, tensors[rank], ReduceOp.MAX, seed=5)

    on_ranks(2, body)


def test_monitored_barrier_names_the_ranks_that_do_not_come():
    told = threading.Event()

    def body(comm):
        comm.monitored_barrier()
        comm.monitored_barrier(timeout=60, wait_all_ranks=True)
        if comm.get_rank() != 0:
            assert told.wait(60)
            return
        with pytest.raises(headrace.errors.TimedOut, match="ranks 1 and 2 have not come within 50 ms"):
            comm.monitored_barrier(0.05)
        told.set()

    name_of_end = (headrace.errors.TimedOut, headrace.errors.Canceled)
    with pytest.raises(name_of_end):  # the communicator has ended, so leaving says why
        on_ranks(3, body)


def test_check_says_which_ranks_call_what(monkeypatch):
    monkeypatch.setenv("HEADRACE_CHECK", "1")
    comms = two_ranks()
    monkeypatch.delenv("HEADRACE_CHECK")
    errors = [None, None]

    def run(rank):
        with comms[rank] as comm:
            with pytest.raises(headrace.errors.InvalidArgument) as raised:
                tensor = np.zeros(10, np.float32)
                comm.all_reduce(tensor, ReduceOp.SUM) if rank == 0 else comm.barrier()
            errors[rank] = str(raised.value)
            comm.barrier()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in errors:
        assert "rank 0 calls all_reduce of 10 float32 with sum, rank 1 calls barrier" in text
