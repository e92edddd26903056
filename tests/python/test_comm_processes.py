# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""Ranks as processes: they meet at a port and in a folder, and one of them is killed."""

import os
import signal

import numpy as np
import pytest

import headrace
from conftest import free_ports
from headrace import ReduceOp
from rank_process import RankProcess

SIZE = 2


def run_rank(rank, meeting, backends, parent):
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
        parent.send("all right")


def die_in_a_barrier(rank, meeting, parent):
    comm = headrace.new_comm(rank=rank, size=3, meeting=meeting, timeout=60)
    comm.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.barrier()
    except headrace.PeerLost as error:
        parent.send(str(error))


def meeting_of(scheme, folder):
    return f"file://{folder}" if scheme == "file" else f"tcp://127.0.0.1:{free_ports(1)[0]}"


@pytest.mark.parametrize(("scheme", "backends"), [("tcp", "shm,tcp"), ("file", "tcp")])
def test_two_processes_meet_and_exchange_elements(scheme, backends, tmp_path):
    meeting = meeting_of(scheme, tmp_path)
    ranks = [RankProcess(run_rank, rank, meeting, backends) for rank in range(SIZE)]
    assert [rank.hear() for rank in ranks] == ["all right"] * SIZE
    assert [rank.end() for rank in ranks] == [0] * SIZE


def test_the_rank_of_a_killed_process_is_named(tmp_path):
    ranks = [RankProcess(die_in_a_barrier, rank, meeting_of("file", tmp_path)) for rank in range(3)]
    for rank in ranks[:2]:
        assert "rank 2 is gone: its process has ended, or it has left" in rank.hear()
    assert [rank.end() for rank in ranks] == [0, 0, -signal.SIGKILL]
