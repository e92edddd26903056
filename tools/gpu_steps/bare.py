# SPDX-License-Identifier: Apache-2.0
"""Comparisons with bare programs, in turn."""

from __future__ import annotations

import os
import sys

from gpu_steps import tree
from gpu_steps.pages import bench
from gpu_steps.sitting import Sitting


def compare(sitting: Sitting, script: str, *arguments: str, tail: int = 60) -> bool:
    """Runs a comparison of bench/ and keeps its rows. A comparison that writes no row has failed."""
    about = [
        "--results",
        os.path.relpath(sitting.out, tree.ROOT),
        "--machine",
        sitting.machine,
        "--commit",
        sitting.commit,
        "--machine-label",
        sitting.label,
    ]
    before = sitting.row_lines()
    ok = sitting.run([sys.executable, script, *arguments, *about], tail=tail)
    if ok and not sitting.rows_since(before):
        return sitting.trouble(f"{script} wrote no row")
    return ok


def carried_program(sitting: Sitting, name: str) -> str:
    """Returns the path relative to the tree, in which programs run: rows name it."""
    return os.path.relpath(sitting.carried / name, tree.ROOT)


def many_threads() -> int:
    """Returns half the cores; the peer gets the other half."""
    return max(2, len(os.sched_getaffinity(0)) // 2)


def attach(sitting: Sitting) -> bool:
    """Host memory of another process, on one thread and on half the cores, in turn with bare loops."""
    raw = carried_program(sitting, "bench/bench_shm_raw")
    return compare(
        sitting, "bench/compare_attach.py", "--program", raw, "--threads", f"1,{many_threads()}", tail=50
    )


def dram(sitting: Sitting) -> bool:
    """Host memory of another process through agents with default options, before and after bare loops on half
    the cores."""
    raw = carried_program(sitting, "bench/bench_shm_raw")

    def agents() -> bool:
        registered = bench(sitting, "--page", "4K,64K,16M", kinds="dram-dram")
        return bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="dram-dram") and registered

    before = agents()
    bare = compare(
        sitting,
        "bench/compare_attach.py",
        "--program",
        raw,
        "--threads",
        str(many_threads()),
        "--rounds",
        "7",
        tail=25,
    )
    return agents() and bare and before


def ceilings(sitting: Sitting) -> bool:
    """One page between GPUs, one over tcp, pages of host memory: in turn with bare programs that do only the
    copies."""
    bare, command = (
        carried_program(sitting, "bench/bench_gpu_ceilings"),
        carried_program(sitting, "bin/headrace"),
    )
    return compare(sitting, "bench/compare_ceilings.py", "--bare", bare, "--command", command, tail=110)


def tcp_host(sitting: Sitting) -> bool:
    """Host memory over tcp in turn with bare TCP: many requests, and one request next to many. A turn is
    short."""
    programs = (
        "--raw",
        carried_program(sitting, "bench/bench_raw_tcp"),
        "--command",
        carried_program(sitting, "bin/headrace"),
    )
    shape = (
        "--streams",
        "1,4,8,16",
        "--pages",
        "4096,16384,65536,16777216",
        "--rounds",
        "2",
        "--iterations",
        "3",
        "--seconds",
        "0.6",
    )
    return compare(sitting, "bench/compare_tcp.py", *programs, *shape, tail=100)
