# SPDX-License-Identifier: Apache-2.0
"""Ranks of a mixture of experts as threads of one process: MoEs that have joined, and a group that gathers
objects as the groups of other libraries do."""

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from threading import Barrier

import headrace
import moe_rank
from conftest import unique


class Ranks:
    """A MoE for each rank, which have joined."""

    def __init__(self, stack: ExitStack, ranks, **changes):
        self.names = names = [unique("moe") for _ in range(ranks)]
        agents = [stack.enter_context(headrace.Agent(name, backends=["shm"])) for name in names]
        self.moes = [
            stack.enter_context(headrace.MoE(agent, moe_rank.config_of(rank, ranks, **changes)))
            for rank, agent in enumerate(agents)
        ]
        for one in agents:
            for other in agents:
                if one is not other:
                    one.import_metadata(other.export_metadata())
        for moe in self.moes:
            moe.join(names, timeout=60)

    def run(self, body):
        """Calls body(moe) on a thread for each rank. Returns the answers in order of rank."""
        return run_threads(self.moes, body)


def run_threads(ranks, body):
    """The same for anything that ranks have. Raises the error that came first."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        running = [threads.submit(body, rank) for rank in ranks]
        for done in as_completed(running, 100):
            done.result()
    return [done.result() for done in running]


class ThreadGroup:
    """A rank's end of a group of threads, with the calls of mpi4py's communicators and pplx's groups."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self._shared = rank, size, shared

    @staticmethod
    def of(size):
        shared = ([None] * size, Barrier(size))
        return [ThreadGroup(rank, size, shared) for rank in range(size)]

    def all_gather_object(self, value):
        values, barrier = self._shared
        values[self.rank] = value
        barrier.wait(60)
        gathered = list(values)
        barrier.wait(60)
        return gathered

    def barrier(self):
        self._shared[1].wait(60)

    allgather = all_gather_object

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size
