# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.Fabric with kernels of one GPU, in several processes: flags, watched words, queues of commands.

HEADRACE_FABRIC_ROUNDS: rounds of two processes; default: 20000.
"""

import importlib.util
import os
import subprocess
import sys
import time

import pytest

from gpus import count_gpus

GPUS = count_gpus()
HAS_CUPY = importlib.util.find_spec("cupy") is not None
pytestmark = [
    pytest.mark.gpu1,
    pytest.mark.skipif(GPUS == 0, reason="this machine has no GPU"),
    pytest.mark.skipif(not HAS_CUPY, reason="cupy is not installed"),
]
PROGRAM = os.path.join(os.path.dirname(__file__), "gpu_fabric_rank.py")
ROUNDS = int(os.environ.get("HEADRACE_FABRIC_ROUNDS", "20000"))
SECONDS = 60
WAYS = [("cuda_ipc", "pinned"), ("cuda_ipc", "gpu"), ("tcp", "pinned")]


def start(check, size, folder, rounds, *more):
    return [
        subprocess.Popen(
            [sys.executable, PROGRAM, check, str(rank), str(size), str(folder), str(rounds), *more]
        )
        for rank in range(size)
    ]


def end(processes, killed=()):
    """Each must end with code 0, but for those that were killed. Ends all when one has failed."""
    deadline = time.monotonic() + SECONDS
    try:
        while any(process.poll() is None for process in processes):
            failed = [p.args for i, p in enumerate(processes) if p.poll() and i not in killed]
            assert not failed, f"see what they have printed: {failed}"
            assert time.monotonic() < deadline, f"not over in {SECONDS} s"
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert rank in killed or process.returncode == 0, f"process {rank}: see what it has printed"


def kill_process_1(processes, folder):
    """When it has written its rounds."""
    deadline = time.monotonic() + SECONDS
    while not (folder / "kill").exists() and processes[0].poll() is None:
        assert time.monotonic() < deadline, "the peer has not written its rounds"
        time.sleep(0.01)
    processes[1].kill()


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_a_kernel_leaves_when_its_peer_is_killed(transport, tmp_path):
    processes = start("check_killed", 2, tmp_path, 0, transport)
    kill_process_1(processes, tmp_path)
    end(processes, killed={1})


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_a_peer_that_is_killed_while_a_kernel_waits_holds_up_no_other(transport, tmp_path):
    processes = start("check_others", 3, tmp_path, 0, transport)
    kill_process_1(processes, tmp_path)
    end(processes, killed={1})


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_watched_words_and_commands_in_replays_of_a_graph(transport, tmp_path):
    end(start("check_replays", 2, tmp_path, 10_000, transport))


@pytest.mark.parametrize("place", ["pinned", "gpu"])
def test_streams_wait_for_flags_and_change_watched_words(place, tmp_path):
    end(start("check_streams", 1, tmp_path, ROUNDS, "cuda_ipc", place))


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_messages_leave_memory_of_the_gpu_and_come_into_it(transport, tmp_path):
    end(start("check_messages", 2, tmp_path, 0, transport))


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_messages_out_of_memory_of_the_gpu_end_when_their_peer_is_killed(transport, tmp_path):
    processes = start("check_killed_sender", 2, tmp_path, 0, transport)
    kill_process_1(processes, tmp_path)
    end(processes, killed={1})


def test_memory_of_the_gpu_comes_back(tmp_path):
    end(start("check_memory", 1, tmp_path, 0))


def test_single_and_paged_writes_beside_a_copy_kernel(tmp_path):
    end(start("check_speed", 2, tmp_path, 0))


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("transport", "place"), WAYS)
def test_a_kernel_that_waits_for_a_flag_reads_right_bytes(transport, place, size, tmp_path):
    end(start("check_rounds", size, tmp_path, 2 * ROUNDS // size, transport, place))
