# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the ranks that have not come: every rank tells rank 0, which answers all."""

from __future__ import annotations

import time

import headrace

# Tags of these messages, one for each barrier, so that a late rank meets no later barrier.
FIRST_TAG, TAGS = 0xF000_0000, 1 << 16

PASSED, FAILED = b"\1", b"\0"


def monitored_barrier(comm: headrace.Comm, number: int, timeout: float, wait_all_ranks: bool) -> None:
    """
    number: of the barrier, the same on all ranks.
    timeout: seconds.
    wait_all_ranks: rank 0 names all ranks that are late, not the first one alone.
    Errors: RuntimeError (which ranks are late, on rank 0; that rank 0 has not answered, on others).
    """
    tag = FIRST_TAG + number % TAGS
    if comm.get_rank() == 0:
        _meet(comm, tag, timeout, wait_all_ranks)
    else:
        _report(comm, tag, timeout)


def _meet(comm: headrace.Comm, tag: int, timeout: float, wait_all_ranks: bool) -> None:
    deadline = time.monotonic() + timeout
    come: list[int] = []
    late: list[int] = []
    for rank in range(1, comm.get_size()):
        left = deadline - time.monotonic()
        if left <= 0 and not wait_all_ranks:
            raise RuntimeError(
                f"Rank 0 timed out in monitoredBarrier after {timeout * 1000:.0f} ms, before it asked rank "
                f"{rank}: give it more time"
            )
        (come if _has_come(comm, rank, tag, left) else late).append(rank)
        if late and not wait_all_ranks:
            break
    for rank in come:
        comm.send(FAILED if late else PASSED, rank, timeout=max(timeout, 1.0), tag=tag)
    if late:
        ranks = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
        raise RuntimeError(f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {timeout * 1000:.0f} ms")


def _has_come(comm: headrace.Comm, rank: int, tag: int, seconds: float) -> bool:
    try:
        comm.recv(bytearray(1), rank, timeout=max(seconds, 0.001), tag=tag)
    except headrace.Error:
        return False
    return True


def _report(comm: headrace.Comm, tag: int, timeout: float) -> None:
    answer = bytearray(1)
    try:
        comm.send(PASSED, 0, timeout=timeout, tag=tag)
        comm.recv(answer, 0, timeout=timeout, tag=tag)
    except headrace.Error as error:
        raise RuntimeError(f"{_reached(comm)}: {error}") from None
    if answer != PASSED:
        raise RuntimeError(f"{_reached(comm)}: it misses other ranks, and its error names them")


def _reached(comm: headrace.Comm) -> str:
    """torch's words, which its users look for."""
    return (
        f"Rank {comm.get_rank()} successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0"
    )
