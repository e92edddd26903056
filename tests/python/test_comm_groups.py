# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""Communicators that are made of other ones: of ranks that are left, or that were brought together."""

import threading

import numpy as np
import pytest

import headrace
from conftest import unique
from headrace import ReduceOp
from ranks import on_ranks, open_rank


def check(comm):
    data = np.array([comm.get_rank(), 1])
    comm.all_reduce(data, ReduceOp.SUM)
    size = comm.get_size()
    assert data.tolist() == [size * (size - 1) // 2, size]


def run_all(count, body):
    """Calls body(number) on threads, and raises what one raised."""
    errors = []

    def run(number):
        try:
            body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def test_ranks_that_are_left_go_on_without_one_that_has_gone():
    name = unique("comm")
    begun = threading.Barrier(3)

    def body(rank):
        comm = open_rank(rank, 3, name)
        check(comm)
        begun.wait(30)
        if rank == 0:
            comm.abort("it goes")
            del comm
            return
        with comm:  # its end raises nothing once it was left
            with pytest.raises(headrace.Canceled):
                comm.barrier()
            with comm.shrink([0], timeout=30) as left:
                assert left.get_ranks() == [1, 2]
                assert left.get_options().timeout == 30
                check(left)

    run_all(3, body)


def test_wrong_ranks_are_refused():
    def body(comm):
        with pytest.raises(headrace.InvalidArgument, match=r"rank 5 cannot be left out"):
            comm.shrink([5])
        check(comm)

    on_ranks(2, body)


@pytest.mark.parametrize("backends", ["shm", "tcp"])
def test_ranks_that_were_alone_become_a_communicator(backends):
    handles = [None] * 3
    ready = threading.Barrier(3)

    def body(number):
        alone = headrace.new_comm(rank=0, size=1, hints={"backends": backends}, enable_reconfigure=True)
        handles[number] = alone.get_init_handle()
        assert isinstance(handles[number], bytes)
        ready.wait(30)
        with alone.reconfigure("epoch 1", handles, meeting_timeout=30) as comm:
            assert comm.get_rank() == number
            check(comm)

    run_all(3, body)


def test_a_rank_that_does_not_come_is_named():
    alone = headrace.new_comm(rank=0, size=1, hints={"backends": "shm"})
    silent = headrace.new_comm(rank=0, size=1, hints={"backends": "shm"})
    handles = [alone.get_init_handle(), silent.get_init_handle()]
    with pytest.raises(headrace.TimedOut, match="rank 1"):
        alone.reconfigure("x", handles, meeting_timeout=0.2)
    with pytest.raises(headrace.InvalidArgument, match="handle 1 is none"):
        alone.reconfigure("x", [handles[0], b"nonsense"])
    check(alone)
