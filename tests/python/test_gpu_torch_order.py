# SPDX-License-Identifier: Apache-2.0
"""The order of a torch group's operations on GPUs, beside streams that are held up, memory that is used again
and other programs: gpu_torch_order_rank.py, each rank a process. HEADRACE_TEST_SEED runs the rounds of a
failure again."""

import os
import random

import pytest

from gpus import count_gpus, torch_on_gpus
from test_gpu_comm import TORCH_PLACES, needs, run_ranks

GPUS = count_gpus()
pytestmark = torch_on_gpus(GPUS)
PROGRAM = os.path.join(os.path.dirname(__file__), "gpu_torch_order_rank.py")

OF_MEMORY = ["check_inputs_freed", "check_outputs_dropped", "check_futures", "check_to_itself"]
OF_STREAMS = ["check_crosswise", "check_two_groups", "check_small_gathers", "check_first_calls"]
OF_TRAINING = ["check_ddp"]


def commands(gpus, file, rounds, checks, current=None):
    """current: torch's current GPU in all ranks; none: that of their tensors."""
    seed = os.environ.get("HEADRACE_TEST_SEED") or random.randrange(1 << 30)
    for rank, gpu in enumerate(gpus):
        words = [f"cuda:{gpu}", gpu if current is None else current, rank, len(gpus), file, rounds, seed]
        yield [PROGRAM, *map(str, words), *checks]


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param(OF_MEMORY, id="memory"),
        pytest.param(OF_STREAMS, id="streams"),
        pytest.param(OF_TRAINING, id="training"),
    ],
)
@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_nothing_is_read_or_written_too_early_or_too_late(gpus, checks, tmp_path):
    run_ranks(commands(gpus, tmp_path / "store", 40, checks), seconds=120)


@pytest.mark.parametrize("gpus", [pytest.param((0, 1), marks=needs(2))])
def test_the_current_gpu_may_be_another_one(gpus, tmp_path):
    checks = [*OF_TRAINING, *OF_STREAMS]
    run_ranks(commands(gpus, tmp_path / "store", 24, checks, current=0), seconds=120)


@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_batches_may_begin_with_receives(gpus, tmp_path):
    run_ranks(commands(gpus, tmp_path / "store", 40, ["check_batches"]))


@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_futures_are_captured(gpus, tmp_path):
    run_ranks(commands(gpus, tmp_path / "store", 5, ["check_captured_futures"]))


@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_late_calls_raise_where_waits_are_on_the_host(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    run_ranks(commands(gpus, tmp_path / "store", 1, ["check_late_calls_raise"]))


@pytest.mark.parametrize("gpus", [pytest.param((0, 1), marks=needs(2))])
def test_programs_that_share_gpus_do_not_disturb_each_other(gpus, tmp_path):
    """Eight programs at once: each kernel waits for its turn on the GPU between those of seven others."""
    programs = 8
    checks = [*OF_TRAINING, "check_small_gathers", "check_first_calls"]
    every = [
        commands(gpus, tmp_path / f"store{number}", 12, checks, current=0 if number % 2 else None)
        for number in range(programs)
    ]
    run_ranks((command for each in every for command in each), seconds=240)
