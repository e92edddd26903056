#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three processes add their elements.

python examples/all_reduce.py             starts the processes itself
torchrun --nproc-per-node 3 my_script.py  with torch: new_comm() takes rank, size and meeting place from it
"""

import multiprocessing
import tempfile
from array import array

import headrace

SIZE = 3


def run_rank(rank, folder):
    # Between hosts: meeting="tcp://host:port" of rank 0. NumPy arrays and torch tensors do as well.
    with headrace.new_comm(rank=rank, size=SIZE, meeting=f"file://{folder}", timeout=60) as comm:
        values = array("f", [rank + 1] * 5)
        comm.all_reduce(values, headrace.ReduceOp.SUM)
        print(f"rank {rank}: the sum is {values[0]:g}", flush=True)

        parts = array("i", bytes(4 * SIZE))
        work = comm.all_gather_single(parts, array("i", [rank * rank]), async_op=True)
        # Here the program does other things.
        work.wait()
        assert parts.tolist() == [0, 1, 4]


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, folder)) for rank in range(SIZE)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    raise SystemExit(max(rank.exitcode for rank in ranks))
