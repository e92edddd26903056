# SPDX-License-Identifier: Apache-2.0
"""Kernels of Triton that use windows of headrace.triton: tests/python/test_triton.py compiles them, and
tests/python/test_gpu_comm.py runs them."""

import triton
import triton.language as tl

import headrace.triton as windows


@triton.jit
def ring(window, source, sums, found, count, rounds, SCOPE: tl.constexpr, BLOCK: tl.constexpr):
    """Puts to the next rank, round by round, and adds up what the rank before has put."""
    rank, size = windows.rank(window), windows.size(window)
    following, before = (rank + 1) % size, (rank + size - 1) % size
    mine = windows.peer_address(window, rank, tl.float32) + 1
    for round in range(rounds):
        if not windows.put(window, following, 4, source + round * count, 4 * count, SCOPE):
            tl.store(found, 1)
        windows.signal(window, following, 3, 1)
        if not windows.wait_signal(window, before, 3, "ge", round + 1):
            tl.store(found, 2)
        for first in range(0, count, BLOCK):
            at = first + tl.arange(0, BLOCK)
            here = at < count
            sum = tl.load(sums + at, mask=here) + tl.load(mine + at, mask=here)
            tl.store(sums + at, sum, mask=here)
        if not windows.barrier(window, 5):
            tl.store(found, 3)
    if windows.put(window, following, 8, source, 4 * count):  # it does not fit
        tl.store(found, 4)
    if windows.peer_bytes(window, following) != 4 * (count + 1):
        tl.store(found, 5)
    if windows.read_signal(window, before, 3) != rounds:
        tl.store(found, 6)
    windows.reset_signal(window, before, 3)
    if windows.read_signal(window, before, 3) != 0:
        tl.store(found, 7)


@triton.jit
def store_to_peer(window, value, found, BLOCK: tl.constexpr):
    """Stores a tile of its own in the memory of the next rank, and sets a signal there."""
    rank, size = windows.rank(window), windows.size(window)
    following, before = (rank + 1) % size, (rank + size - 1) % size
    at = tl.arange(0, BLOCK)
    theirs, mine = (
        windows.peer_address(window, following, tl.int32),
        windows.peer_address(window, rank, tl.int32),
    )
    tl.store(theirs + at, at + value + rank)
    windows.signal(window, following, 1, 40 + rank, "set")
    if not windows.wait_signal(window, before, 1, "eq", 40 + before):
        tl.store(found, 1)
    wrong = tl.sum((tl.load(mine + at) != at + value + before).to(tl.int32))
    if wrong != 0:
        tl.store(found, 2)


@triton.jit
def count_programs(window, found, COUNTER: tl.constexpr):
    """All programs of a launch: each adds to a counter, and the first one waits for all."""
    programs = tl.num_programs(0)
    tl.store(found + 1 + tl.program_id(0), tl.program_id(0).to(tl.int32))
    windows.add_counter(window, COUNTER, 1)
    if tl.program_id(0) == 0:
        if not windows.wait_counter(window, COUNTER, "ge", programs):
            tl.store(found, 1)
        if windows.read_counter(window, COUNTER) != programs:
            tl.store(found, 2)
        windows.reset_counter(window, COUNTER)
        if windows.read_counter(window, COUNTER) != 0:
            tl.store(found, 3)
        windows.fence(window)
        windows.flush(window)
