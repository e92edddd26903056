#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes send each other numbers, first waiting in every call, then asynchronously, then by a window.

python examples/messages.py
"""

import multiprocessing
import tempfile

import numpy as np

import headrace

SIZE = 2


def run_rank(rank, folder):
    other = 1 - rank
    with headrace.new_comm(rank=rank, size=SIZE, meeting=f"file://{folder}", timeout=60) as comm:
        # A send that waits is done when its elements may be changed: the receiver may come later.
        got = np.zeros(1, np.int32)
        comm.send(np.full(1, 10 + rank, np.int32), other)
        comm.recv(got, other)

        # Asynchronous calls return at once. A work is waited for, awaited, or becomes a future.
        squares = np.zeros(1, np.int32)
        receiving = comm.recv(squares, other, async_op=True, tag=1)
        comm.send(got**2, other, async_op=True, tag=1)
        # Here the program does other things.
        receiving.wait()
        print(f"rank {rank}: {got[0]}, {squares[0]}", flush=True)
        assert squares[0] == (10 + rank) ** 2

        # A window is memory into which the other rank writes by itself.
        window = comm.new_window()
        mine = np.asarray(window.allocate(4, "int32"))
        window.put(np.full(4, rank, np.int32), other)
        window.signal(other)
        window.wait_signal(other)
        assert (mine == other).all()
        window.tensor_deregister()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, folder)) for rank in range(SIZE)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    raise SystemExit(max(rank.exitcode for rank in ranks))
