# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""Ranks as processes: they meet at a port and in a folder, and one of them is killed."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

import headrace
from conftest import free_ports
from headrace import ReduceOp

SIZE = 2


def run_rank(rank, meeting, backends, to_parent):
    options = {"meeting": meeting, "timeout": 60, "hints": {"backends": backends}}
    with headrace.new_comm(rank=rank, size=SIZE, **options) as comm:
        mine = np.arange(100_001, dtype=np.float32) + rank
        comm.all_reduce(mine, ReduceOp.SUM)
        assert (mine == 2 * np.arange(100_001, dtype=np.float32) + 1).all()
        room = np.empty(5)
        receive = comm.recv(room, 1 - rank, async_op=True)
        comm.send(np.full(5, float(rank)), 1 - rank)
        receive.wait(60)
        assert (room == 1 - rank).all()
        to_parent.put(rank)


def die_in_a_barrier(rank, meeting, to_parent):
    comm = headrace.new_comm(rank=rank, size=3, meeting=meeting, timeout=60)
    comm.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.barrier()
    except headrace.PeerLost as error:
        to_parent.put((rank, str(error)))


def meeting_of(scheme, folder):
    return f"file://{folder}" if scheme == "file" else f"tcp://127.0.0.1:{free_ports(1)[0]}"


def start(target, count, *arguments):
    context = multiprocessing.get_context("spawn")
    to_parent = context.Queue()
    processes = [context.Process(target=target, args=(rank, *arguments, to_parent)) for rank in range(count)]
    for process in processes:
        process.start()
    return processes, to_parent


@pytest.mark.parametrize(("scheme", "backends"), [("tcp", "shm,tcp"), ("file", "tcp")])
def test_two_processes_meet_and_exchange_elements(scheme, backends, tmp_path):
    processes, to_parent = start(run_rank, SIZE, meeting_of(scheme, tmp_path), backends)
    assert {to_parent.get(timeout=60) for _ in processes} == {0, 1}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_the_rank_of_a_killed_process_is_named(tmp_path):
    processes, to_parent = start(die_in_a_barrier, 3, meeting_of("file", tmp_path))
    told = dict(to_parent.get(timeout=60) for _ in range(2))
    assert set(told) == {0, 1}
    for text in told.values():
        assert "rank 2 is gone: its process has ended, or it has left" in text
    for process in processes:
        process.join(60)
