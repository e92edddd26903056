# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""Communicators in processes that torchrun and mpirun start, in Python and of the command."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

import headrace
from conftest import free_ports

pytestmark = pytest.mark.slow

SIZE = 3
PROGRAM = """
import sys
import numpy as np
import headrace

meeting = {"meeting": sys.argv[1]} if len(sys.argv) > 1 else {}
with headrace.new_comm(timeout=60, **meeting) as comm:
    values = np.full(4, comm.get_rank() + 1.0)
    comm.all_reduce(values, headrace.ReduceOp.SUM)
    sys.stdout.write(f"rank {comm.get_rank()} of {comm.get_size()}: {values[0]:g}\\n")
"""
COMMAND = os.path.join(os.path.dirname(headrace.__file__), "bin", "headrace")


def torchrun(*words):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    port = str(free_ports(1)[0])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(SIZE)]
    return run([*launcher, "--master-port", port, "--no-python", *words])


def mpirun(*words):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    return run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(SIZE), *words])


def run(words):
    # A rank of its own would be taken for that of the launcher; the pipes keep the ranks' lines whole.
    names = ("HEADRACE_RANK", "HEADRACE_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return sys.executable, str(path)


def lines_of_ranks():
    return [f"rank {rank} of {SIZE}: 6" for rank in range(SIZE)]


def test_ranks_of_torchrun_meet_in_its_store(program):
    assert sorted(torchrun(*program).splitlines()) == lines_of_ranks()


def test_ranks_of_mpirun_meet_where_the_program_says(program, tmp_path):
    said = mpirun(*program, f"file://{tmp_path}/meeting")
    assert sorted(said.splitlines()) == lines_of_ranks()


@pytest.mark.parametrize("launch", [torchrun, mpirun])
def test_rank_zero_of_a_launched_benchmark_prints(launch, tmp_path):
    said = launch(
        COMMAND, "bench", "coll", "--bytes", "1K", "--iterations", "5", "--meeting", f"file://{tmp_path}/m"
    )
    assert said.count("# all_reduce") == 1
    assert f"{SIZE} ranks as processes" in " ".join(said.split())
