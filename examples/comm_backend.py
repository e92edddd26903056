#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A backend of communicators written in Python: ranks add their elements in a dictionary of the process.

python examples/comm_backend.py
"""

import threading
from concurrent.futures import Future
from typing import ClassVar

import numpy as np

import headrace

SIZE = 3


class Meeting:
    """What the ranks of one communicator share: the inputs of the operation that has begun."""

    def __init__(self):
        self.lock, self.inputs, self.outputs = threading.Lock(), [], []
        self.done = Future()


class InProcess:
    """Only all_reduce with sum; what has no method is not supported."""

    version = "1.0"
    meetings: ClassVar[dict[tuple[str, int], Meeting]] = {}  # of all ranks

    def init(self, device, name, options):
        self.name, self.size = name, options.size

    def all_reduce(self, tensor, op, async_op, options):
        if op != headrace.ReduceOp.SUM:
            raise headrace.NotSupported(f"{op}: only sums are added here")
        # Calls of a communicator are numbered alike on all ranks.
        meeting = self.meetings.setdefault((self.name, options.number), Meeting())
        with meeting.lock:
            meeting.inputs.append(np.array(tensor))
            meeting.outputs.append(np.asarray(tensor))
            if len(meeting.inputs) == self.size:
                for output in meeting.outputs:
                    output[:] = sum(meeting.inputs)
                del self.meetings[self.name, options.number]
                meeting.done.set_result(None)
        return meeting.done  # the operation has ended when the future has


def run_rank(rank):
    with headrace.new_comm("in_process", rank=rank, size=SIZE, meeting="memory:example") as comm:
        values = np.full(4, rank + 1.0)
        comm.all_reduce(values, headrace.ReduceOp.SUM)
        print(f"rank {rank}: the sum is {values[0]:g}", flush=True)
        assert (values == 6).all()
        try:
            comm.all_reduce(values, headrace.ReduceOp.MAX)
        except headrace.NotSupported as error:
            assert "only sums are added here" in str(error)


if __name__ == "__main__":
    headrace.register_backend("in_process", InProcess)
    ranks = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
