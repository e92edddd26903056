# SPDX-License-Identifier: Apache-2.0
"""The ranks of a communicator as threads of this process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import headrace
from conftest import unique


def open_rank(rank, size, name, **options):
    given = {"meeting": f"memory:{name}", "timeout": 60, "hints": {"backends": "shm"}, **options}
    return headrace.new_comm(rank=rank, size=size, name=name, **given)


def on_ranks(size, body, open_one=open_rank, **options):
    """Calls body(comm) on a thread for each rank. Returns the answers, in order of rank."""
    name = unique("comm")

    def run(rank):
        with open_one(rank, size, name, **options) as comm:
            return body(comm)

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
        return [future.result(100) for future in futures]


def two_ranks(**options):
    """Opens both ranks of a communicator."""
    name = unique("comm")
    opened = [None, None]

    def run(rank):
        opened[rank] = open_rank(rank, 2, name, **options)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return opened
