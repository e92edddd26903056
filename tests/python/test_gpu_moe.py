# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of experts on GPUs: ranks as threads of one process, each with a stream, and as
processes; each compares what it gets with plain loops on the CPU (moe_plain.py)."""

import os

import pytest

from gpus import count_gpus, torch_on_gpus
from test_gpu_comm import needs, run_ranks

GPUS = count_gpus()
pytestmark = torch_on_gpus(GPUS)
PROGRAM = os.path.join(os.path.dirname(__file__), "gpu_moe_rank.py")
SECONDS = 150

ALL_OF_ONE = "steps,columns,graph,refusals,operators"
ALL_OF_TWO = "steps,columns,graph,masks,abort,refusals,operators"
# Operators of torch allocate, and the driver may let that wait for a launch of another thread's rank.
SHARED_BY_THREADS = "steps,columns,graph,masks,abort,refusals"


def one_gpu(*values):
    return pytest.param(*values, 1, marks=needs(1), id=f"{values[0]}_on_one_gpu")


def more_gpus(ranks, checks, gpus):
    return pytest.param(ranks, checks, gpus, marks=needs(gpus), id=f"{ranks}_on_{gpus}_gpus")


@pytest.mark.parametrize(
    ("ranks", "checks", "gpus"),
    [
        one_gpu(1, ALL_OF_ONE),
        one_gpu(2, SHARED_BY_THREADS),
        one_gpu(3, "steps,columns,masks"),
        one_gpu(4, "steps,graph,masks"),
        one_gpu(8, "steps"),
        more_gpus(2, ALL_OF_TWO, 2),
        more_gpus(4, "steps,graph,masks", 2),
        more_gpus(4, ALL_OF_TWO, 4),
    ],
)
def test_ranks_as_threads_get_what_plain_loops_give(ranks, checks, gpus):
    run_ranks([[PROGRAM, "threads", checks, str(gpus), str(ranks)]], SECONDS)


@pytest.mark.parametrize(
    ("ranks", "checks", "gpus"),
    [
        one_gpu(2, "steps,graph,masks,refusals,operators"),
        one_gpu(3, "steps,masks"),
        one_gpu(4, "steps,abort"),
        one_gpu(8, "steps"),
        more_gpus(2, "steps,graph,masks,operators", 2),
        more_gpus(4, "steps,graph,masks,operators", 4),
    ],
)
def test_ranks_as_processes_get_what_plain_loops_give(ranks, checks, gpus, tmp_path):
    run_processes(ranks, checks, gpus, tmp_path)


@pytest.mark.parametrize(
    ("ranks", "gpus"), [one_gpu(3), pytest.param(2, 2, marks=needs(2), id="2_on_2_gpus")]
)
def test_the_others_name_a_rank_that_is_killed_and_go_on(ranks, gpus, tmp_path):
    run_processes(ranks, "killed", gpus, tmp_path, killed=[1])


@pytest.mark.alone
@pytest.mark.parametrize(("ranks", "gpus"), [one_gpu(2)])
def test_memory_of_the_gpu_is_back_after_each_moe(ranks, gpus, tmp_path):
    run_processes(ranks, "memory", gpus, tmp_path)


def run_processes(ranks, checks, gpus, folder, killed=()):
    run_ranks(
        (
            [PROGRAM, "rank", checks, str(rank % gpus), str(rank), str(ranks), str(folder)]
            for rank in range(ranks)
        ),
        SECONDS,
        killed,
    )
