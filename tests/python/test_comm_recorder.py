# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Flight recorders: what torch's analyzer, fr_trace, says about the dumps of real ranks."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import headrace
from conftest import until
from headrace import FlightRecorder, ReduceOp
from ranks import on_ranks

SIZE = 3


def add(comm, count=4, **options):
    return comm.all_reduce(np.ones(count, np.float32), ReduceOp.SUM, **options)


def leave_out_one(comm):
    """Rank 1 does not come to the last operation."""
    add(comm)
    comm.barrier()
    if comm.get_rank() != 1:
        with pytest.raises((headrace.TimedOut, headrace.Canceled)):
            add(comm, 77, timeout=1)
    until(comm.is_aborted)


def send_one_too_many(comm):
    """Rank 2 does not receive the second message of rank 0."""
    rank, room = comm.get_rank(), np.zeros(5)
    if rank == 0:
        comm.send(room, 2)
        comm.send(room, 2)
    elif rank == 2:
        comm.recv(room, 0)
    comm.barrier()


def mix_up_counts(comm):
    """Rank 2 gives fewer elements."""
    add(comm)
    with pytest.raises(headrace.Error):
        add(comm, 3 if comm.get_rank() == 2 else 30_000)
    until(comm.is_aborted)


def use_everything(comm):
    rank, size = comm.get_rank(), comm.get_size()
    one, many = np.zeros(2), np.zeros(2 * size)
    each = [np.zeros(2) for _ in range(size)]
    of_rank = [np.zeros(r + 1) for r in range(size)]
    mine = np.zeros(rank + 1)
    splits = [rank + r for r in range(size)]
    row = np.zeros(sum(splits))
    add(comm)
    comm.barrier()
    comm.broadcast(one, 1)
    comm.reduce(one, 1, ReduceOp.SUM)
    comm.all_gather(each, one)
    comm.all_gather_v(of_rank, mine)
    comm.all_gather_single(many, one)
    comm.reduce_scatter(one, each, ReduceOp.SUM)
    comm.reduce_scatter_v(mine, of_rank, ReduceOp.SUM)
    comm.reduce_scatter_single(one, many, ReduceOp.SUM)
    comm.all_to_all(each, [np.zeros(2) for _ in range(size)])
    comm.all_to_all_single(many, np.zeros(2 * size))
    comm.all_to_all_v_single(row, row.copy(), splits, splits)
    comm.device_all_to_all_v_single(row, row.copy(), np.array(splits), np.array(splits))
    comm.gather(each if rank == 2 else None, one, 2)
    comm.gather_single(many if rank == 2 else None, one, 2)
    comm.scatter(one, each if rank == 2 else None, 2)
    part = comm.split([2, 0] if rank != 1 else [], "part")
    if part:
        part.barrier()
        room = np.zeros(3, np.int64)
        part.send(room, 1) if part.get_rank() == 0 else part.recv(room, 0)
        part.finalize()
    if rank == 0:
        works = [comm.recv(np.zeros(3), headrace.any_source, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        comm.send(one, 1, tag=7)
    else:
        comm.send(np.zeros(3), 0)
        if rank == 1:
            comm.recv(one, 0, tag=7)
    comm.barrier()


def run_rank(rank, program, folder):
    os.environ["HEADRACE_COMM_TRACE"] = "100"
    comm = headrace.new_comm(rank=rank, size=SIZE, meeting=f"file://{folder}/meeting", timeout=60)
    program(comm)
    FlightRecorder.of_environment(rank).write(f"{folder}/traces/trace_")


def run_rank_of_the_environment(rank, program, folder):
    """Nothing but the variable: the file comes by itself."""
    os.environ["HEADRACE_COMM_TRACE_FILE"] = f"{folder}/traces/trace_"
    program(headrace.new_comm(rank=rank, size=SIZE, meeting=f"file://{folder}/meeting", timeout=60))


# For each folder that it reads, a child runs fr_trace, and its exit code is printed.
ANALYZER = """
import os, sys
from torch.distributed.flight_recorder import fr_trace
for line in sys.stdin:
    folder = line.rstrip()
    child = os.fork()
    if child == 0:
        said = os.open(f"{folder}.said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.exit(fr_trace.main([folder]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def analyzer():
    """A process that has imported torch's analyzer: each import takes seconds."""
    pytest.importorskip("torch")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ANALYZER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def analysis(analyzer, tmp_path):
    """Call it with a program of ranks, to get what fr_trace says to their dumps."""

    def of(program, run=run_rank):
        run_ranks(program, tmp_path, run)
        analyzer.stdin.write(f"{tmp_path}/traces\n")
        analyzer.stdin.flush()
        code = analyzer.stdout.readline()
        said = (tmp_path / "traces.said").read_text()
        assert code == "0\n", said
        return said

    return of


def run_ranks(program, folder, run):
    """Runs the program on ranks that are processes."""
    for name in ("meeting", "traces"):
        (folder / name).mkdir()
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=(rank, program, folder)) for rank in range(SIZE)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
        assert process.exitcode == 0


@pytest.mark.parametrize("run", [run_rank, run_rank_of_the_environment])
def test_fr_trace_names_the_operation_and_the_rank_that_has_not_come(analysis, run):
    said = analysis(leave_out_one, run)
    assert "Not all ranks joining collective, sequence number: 4" in said
    assert "collective: gloo:all_reduce" in said
    assert "missing ranks: {1}" in said
    assert "input sizes: [[77]]" in said
    assert "collective state: started" in said


def test_fr_trace_names_the_message_that_nobody_has_received(analysis):
    said = analysis(send_one_too_many)
    assert "Not all ranks joining collective, sequence number: 2" in said
    assert "group info: world 0->2" in said
    assert "collective: gloo:send 0->1" in said
    assert "missing ranks: {2}" in said


def test_fr_trace_names_the_counts_that_differ(analysis):
    said = analysis(mix_up_counts)
    assert "Collective sequence number: 3 has errors" in said
    assert "SIZE_OR_SYNTAX_MISMATCH" in said
    assert "[[3]]" in said
    assert "[[30000]]" in said


def test_fr_trace_finds_no_error_in_a_run_of_all_operations(analysis):
    said = analysis(use_everything)
    assert "Not all ranks" not in said
    assert "error" not in said.lower()


def test_the_pickle_has_what_the_json_has():
    def run(comm):
        recorder = FlightRecorder(entries=2)
        hook = recorder.attach(comm)
        for count in (1, 2, 3):
            add(comm, count)
        hook.remove()
        add(comm)
        return json.loads(recorder.dump()), pickle.loads(recorder.dump_pickle())

    for rank, (dump, unpickled) in enumerate(on_ranks(2, run)):
        assert dump == unpickled
        assert dump["version"] == "2.10"
        assert dump["rank"] == rank
        assert [entry["input_sizes"] for entry in dump["entries"]] == [[[2]], [[3]]]
        assert dump["entries"][0]["time_discovered_completed_ns"] > 1.7e18
        assert dump["pg_status"]["0"]["last_completed_collective"] == 4


def test_a_recorder_without_entries_or_without_communicator_says_what_to_do(tmp_path):
    with pytest.raises(headrace.InvalidArgument, match="entries is 0: give at least 1"):
        FlightRecorder(entries=0)
    with pytest.raises(headrace.InvalidArgument, match="attach it to one first"):
        FlightRecorder().write(f"{tmp_path}/trace_")
    assert FlightRecorder.of_environment(0) is None
