# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The backend gloo: torch's ProcessGroupGloo behind a communicator. Ranks are threads, or processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch

import headrace
import ranks
from conftest import unique
from headrace import ReduceOp, errors
from rank_process import RankProcess

SIZES = [2, 3]
COUNTS = [0, 1, 7, 1000]


def open_rank(rank, size, name, **options):
    given = {"meeting": f"memory:{name}", "timeout": 60, "name": name, **options}
    return headrace.new_comm("gloo", rank=rank, size=size, **given)


def on_ranks(size, body, **options):
    return ranks.on_ranks(size, body, open_rank, **options)


def mine(rank, count, dtype=np.float32):
    """Elements that say where they come from."""
    return (np.arange(count) + 1000 * rank).astype(dtype)


def parts(rank, size, count):
    """What a rank gives to each rank."""
    return [mine(10 * rank + to, count) for to in range(size)]


def blank(count, dtype=np.float32):
    return np.full(count, 77, dtype=dtype)


# --- as it is found


def test_it_is_listed_and_opens_by_its_name():
    assert "gloo" in headrace.list_comm_backends()
    with headrace.new_comm("gloo", rank=0, size=1) as comm:
        assert comm.get_backend() == "gloo"
        assert comm.get_backend_version() == torch.__version__
        data = np.arange(3.0)
        comm.all_reduce(data, ReduceOp.SUM)
        comm.barrier()
        assert data.tolist() == [0, 1, 2]


def test_neither_the_list_nor_an_unknown_name_imports_torch():
    text = """
import sys
import headrace
assert "gloo" in headrace.list_comm_backends()
try:
    headrace.new_comm("glo", rank=0, size=1)
except headrace.NotFound as error:
    assert "did you mean gloo?" in str(error), error
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", text], check=True)


def test_a_class_of_the_program_may_have_its_name():
    text = """
import headrace
class Mine:
    def init(self, device, name, options):
        print("mine")
headrace.register_backend("gloo", Mine)
assert "gloo" in headrace.list_comm_backends()
headrace.new_comm("gloo", rank=0, size=1)
"""
    run = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert run.stdout == "mine\n"


def test_a_program_may_end_while_its_communicator_is_open():
    text = """
import threading
import headrace
opened = []
def run(rank):
    opened.append(headrace.new_comm("gloo", rank=rank, size=2, meeting="memory:left-open"))
threads = [threading.Thread(target=run, args=[rank]) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
works = [comm.recv(bytearray(4), headrace.any_source, async_op=True) for comm in opened]
works.append(opened[0].barrier(async_op=True))
"""
    run = subprocess.run(
        [sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_without_torch_it_says_what_to_install():
    text = """
import sys
sys.modules["torch"] = None  # an import fails
import headrace
try:
    headrace.new_comm("gloo", rank=0, size=1)
except headrace.NotSupported as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert "backend gloo: it is torch's ProcessGroupGloo, and torch cannot be imported" in run.stdout
    assert "pip install torch" in run.stdout


def test_memory_of_a_gpu_is_refused():
    with pytest.raises(
        errors.NotSupported, match=r"gloo does not move memory of cuda:0: use another backend"
    ):
        headrace.new_comm("gloo", "cuda:0", rank=0, size=1)


@pytest.mark.parametrize(
    ("hints", "text"),
    [
        ({"lanes": 3}, 'hints lanes: a communicator of gloo takes none but "interface"'),
        ({"interface": "lo,lo"}, 'network interface "lo,lo" .*: give one interface'),
        ({"interface": "none0"}, r'network interface "none0" \(hint interface, or GLOO_SOCKET_IFNAME\)'),
    ],
)
def test_hints_that_are_wrong_are_named(hints, text):
    with pytest.raises(errors.InvalidArgument, match=text):
        headrace.new_comm("gloo", rank=0, size=1, hints=hints)


def test_ranks_connect_by_the_interface_that_is_named():
    def body(comm):
        data = mine(comm.get_rank(), 3)
        comm.all_reduce(data, ReduceOp.SUM)
        return data.tolist()

    assert on_ranks(2, body, hints={"interface": "lo"}) == [[1000, 1002, 1004]] * 2


# --- every operation


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", SIZES)
class TestOperations:
    def test_all_reduce(self, size, count):
        def body(comm):
            data, output = mine(comm.get_rank(), count), blank(count)
            given = data.copy()
            comm.all_reduce(data, ReduceOp.SUM, output=output)
            assert (data == given).all()
            comm.all_reduce(data, ReduceOp.SUM)
            assert (data == output).all()
            return data.tolist()

        assert on_ranks(size, body) == [sum(mine(rank, count) for rank in range(size)).tolist()] * size

    def test_reduce_leaves_the_elements_of_other_ranks(self, size, count):
        def body(comm):
            data = mine(comm.get_rank(), count)
            comm.reduce(data, 1, ReduceOp.MAX)
            return data.tolist()

        expected = [mine(rank, count).tolist() for rank in range(size)]
        expected[1] = mine(size - 1, count).tolist()
        assert on_ranks(size, body) == expected

    def test_broadcast(self, size, count):
        def body(comm):
            data = mine(comm.get_rank(), count)
            comm.broadcast(data, size - 1)
            return data.tolist()

        assert on_ranks(size, body) == [mine(size - 1, count).tolist()] * size

    def test_all_gather(self, size, count):
        def body(comm):
            data, row = mine(comm.get_rank(), count), blank(size * count)
            outputs = [blank(count) for _ in range(size)]
            comm.all_gather(outputs, data)
            comm.all_gather_single(row, data)
            assert row.tolist() == np.concatenate(outputs).tolist()
            return [output.tolist() for output in outputs]

        assert on_ranks(size, body) == [[mine(rank, count).tolist() for rank in range(size)]] * size

    def test_reduce_scatter(self, size, count):
        def body(comm):
            rank = comm.get_rank()
            given, output, single = parts(rank, size, count), blank(count), blank(count)
            comm.reduce_scatter(output, given, ReduceOp.SUM)
            comm.reduce_scatter_single(single, np.concatenate(given), ReduceOp.SUM)
            assert single.tolist() == output.tolist()
            assert [part.tolist() for part in given] == [part.tolist() for part in parts(rank, size, count)]
            return output.tolist()

        expected = [sum(parts(rank, size, count)[to] for rank in range(size)).tolist() for to in range(size)]
        assert on_ranks(size, body) == expected

    def test_all_to_all(self, size, count):
        def body(comm):
            given = parts(comm.get_rank(), size, count)
            outputs, row = [blank(count) for _ in range(size)], blank(size * count)
            comm.all_to_all(outputs, given)
            comm.all_to_all_single(row, np.concatenate(given))
            assert row.tolist() == np.concatenate(outputs).tolist()
            place = np.concatenate(given)
            comm.all_to_all_single(place, place)
            assert place.tolist() == row.tolist()
            return [output.tolist() for output in outputs]

        expected = [[parts(rank, size, count)[to].tolist() for rank in range(size)] for to in range(size)]
        assert on_ranks(size, body) == expected

    def test_gather_and_scatter(self, size, count):
        def body(comm):
            rank, data = comm.get_rank(), mine(comm.get_rank(), count)
            outputs, row = [blank(count) for _ in range(size)], blank(size * count)
            comm.gather(outputs if rank == 1 else None, data, 1)
            comm.gather_single(row, data, 1)
            back, one = blank(count), blank(count)
            comm.scatter(back, outputs if rank == 1 else None, 1)
            comm.scatter(one, [data] * size if rank == 0 else None, 0)
            assert back.tolist() == data.tolist()
            assert one.tolist() == mine(0, count).tolist()
            return [output.tolist() for output in outputs], row.tolist()

        gathered = [mine(rank, count).tolist() for rank in range(size)]
        nothing = [blank(count).tolist() for _ in range(size)]
        answers = on_ranks(size, body)
        assert [answer[0] for answer in answers] == [gathered if r == 1 else nothing for r in range(size)]
        assert answers[1][1] == [element for part in gathered for element in part]

    def test_messages(self, size, count):
        def body(comm):
            rank = comm.get_rank()
            after, before = (rank + 1) % size, (rank - 1) % size
            sends = [comm.send(mine(rank, count) + tag, after, tag=tag, async_op=True) for tag in (5, 6)]
            second, first = blank(count), blank(count)
            comm.recv(second, before, tag=6)
            received = comm.recv(first, headrace.any_source, tag=5)
            received.wait()
            assert received.source() == before
            for work in sends:
                work.wait()
            return first.tolist(), second.tolist()

        expected = [
            ((mine((r - 1) % size, count) + 5).tolist(), (mine((r - 1) % size, count) + 6).tolist())
            for r in range(size)
        ]
        assert on_ranks(size, body) == expected


@pytest.mark.parametrize("size", SIZES)
def test_counts_that_differ(size):
    def count(rank, to):
        return 2 * rank + to

    def body(comm):
        rank = comm.get_rank()
        given = [mine(10 * rank + to, count(rank, to)) for to in range(size)]
        outputs = [blank(count(other, rank)) for other in range(size)]
        comm.all_to_all(outputs, given)
        row = blank(sum(map(len, outputs)))
        comm.all_to_all_v_single(row, np.concatenate(given), [*map(len, outputs)], [*map(len, given)])
        assert row.tolist() == np.concatenate(outputs).tolist()
        expected = [mine(10 * other + rank, count(other, rank)).tolist() for other in range(size)]
        assert [output.tolist() for output in outputs] == expected
        pieces, piece = [mine(rank, to) for to in range(size)], blank(rank)
        comm.reduce_scatter_v(piece, pieces, ReduceOp.SUM)
        assert piece.tolist() == sum(mine(other, rank) for other in range(size)).tolist()

    on_ranks(size, body)


def test_operations_on_the_same_memory_run_in_the_order_of_their_calls():
    def body(comm):
        rank, works = comm.get_rank(), []
        data, part, parts = blank(1000), blank(500), [blank(500), blank(500)]
        data[:] = rank + 1
        for _ in range(10):
            works += [
                comm.all_reduce(data, ReduceOp.SUM, async_op=True),
                comm.reduce_scatter_single(part, data, ReduceOp.MAX, async_op=True),
                comm.all_to_all(parts, [part, part], async_op=True),
                comm.broadcast(parts[1 - rank], 0, async_op=True),
                comm.gather_single(data, parts[1 - rank], 0, async_op=True),
                comm.broadcast(data, 0, async_op=True),
            ]
        works[0].wait()
        works[-1].get_future().result(60)
        assert all(work.is_completed() for work in works)
        return set(data.tolist())

    assert on_ranks(2, body) == [{3.0 * 2**9}] * 2


def test_batches_and_tensors_of_torch():
    def body(comm):
        peer = 1 - comm.get_rank()
        sent, received = torch.full((3,), float(peer)), torch.zeros(3)
        batch = comm.batch_op_create()
        batch.send(sent, peer)
        batch.recv(received, peer)
        batch.issue(async_op=False)
        return received.tolist()

    assert on_ranks(2, body) == [[0.0] * 3, [1.0] * 3]


def test_split_makes_communicators_that_outlive_their_parent():
    def body(comm):
        rank = comm.get_rank()
        part = comm.split([2, 0] if rank != 1 else [1], f"part-{rank % 2}", timeout=30)
        assert part.get_backend() == "gloo"
        comm.finalize()
        data = mine(rank, 2)
        part.all_reduce(data, ReduceOp.SUM)
        answer = part.get_rank(), part.get_size(), data.tolist()
        part.finalize()
        return answer

    name = unique("gloo")
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(lambda rank: body(open_rank(rank, 3, name)), rank) for rank in range(3)]
        answers = [future.result(60) for future in futures]
    assert answers == [(1, 2, [2000, 2002]), (0, 1, [1000, 1001]), (0, 2, [2000, 2002])]


def test_a_rank_without_a_group_takes_part_in_split():
    def body(comm):
        part = comm.split([0] if comm.get_rank() == 0 else [], "alone" if comm.get_rank() == 0 else "")
        if part is not None:
            part.finalize()
        return part is None

    assert on_ranks(2, body) == [False, True]


def test_split_needs_no_place_and_comes_after_the_calls_before():
    store = torch.distributed.HashStore()
    name = unique("gloo")

    def run(rank):
        with headrace.new_comm("gloo", rank=rank, size=3, store=store, name=name, timeout=60) as comm:
            data = mine(rank, 100_000)
            before = comm.all_reduce(data, ReduceOp.SUM, async_op=True)
            part = comm.split([0, 2], "pair") if rank != 1 else comm.split([1], "one")
            part.all_reduce(data, ReduceOp.SUM)
            before.wait()
            part.finalize()
            return data[0]

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(run, range(3), timeout=60)] == [6000, 3000, 6000]


def test_ranks_that_give_other_groups_or_fail_end_no_communicator():
    def body(comm):
        rank = comm.get_rank()
        other = "gave other ranks or another name: give the same"
        with pytest.raises(errors.InvalidArgument, match=f"rank {1 - rank} {other}"):
            comm.split([0, 1], f"part-{rank}")
        if rank == 0:
            with pytest.raises(errors.InvalidArgument, match="hints way"):
                comm.split([0, 1], "part", hints={"way": "short"})
        else:
            with pytest.raises(errors.BackendFailed, match="rank 0 opens no part"):
                comm.split([0, 1], "part")
        comm.barrier()

    on_ranks(2, body)


def test_the_limit_of_the_meeting_is_none_of_operations():
    limit, slept = 0.3, threading.Event()

    def body(comm):
        rank, data, message = comm.get_rank(), mine(comm.get_rank(), 3), blank(3)
        if rank == 0:
            slept.wait(3 * limit)  # idle, and the other rank waits
            comm.send(data, 1)
        else:
            work = comm.all_reduce(data, ReduceOp.SUM, async_op=True)
            comm.recv(message, 0)
            assert message.tolist() == [0, 1, 2]
            work.wait()
        if rank == 0:
            comm.all_reduce(data, ReduceOp.SUM)
        comm.barrier()
        return data.tolist()

    assert on_ranks(2, body, meeting_timeout=limit) == [[1000, 1002, 1004]] * 2


def test_a_rank_that_does_not_come_to_split_ends_the_communicator():
    def body(comm, together):
        if comm.get_rank() == 0:
            with pytest.raises(errors.TimedOut, match=r"not all ranks have come to split within 0:00:00\.5"):
                comm.split([0, 1], "part")
        together.wait(60)
        # Rank 1 may see that rank 0 has closed its connections before it hears why.
        ends = (errors.TimedOut, errors.Canceled, errors.PeerLost)
        assert isinstance(error_of(comm.barrier), ends)

    run_and_gather(2, body, meeting_timeout=0.5)


# --- types and reductions

ALL_TYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "complex64", "complex128"),
]
FLOATS, INTEGERS = "sum product min max avg", "sum product min max band bor bxor"
TAKEN = {
    **dict.fromkeys(("float64", "float32", "float16", "bfloat16"), FLOATS),
    **dict.fromkeys(("int8", "int32", "int64", "uint8"), INTEGERS),
    "bool": "product min max band bor bxor",
    "complex64": "sum avg",
    "complex128": "sum avg",
}
OPERATORS = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "min": min,
    "max": max,
    "avg": lambda a, b: (a + b) / 2,
    "band": lambda a, b: a & b,
    "bor": lambda a, b: a | b,
    "bxor": lambda a, b: a ^ b,
}


def test_every_type_is_moved():
    def body(comm):
        for kind in ALL_TYPES:
            dtype = getattr(torch, kind)
            data = torch.tensor([0, 1, 1]) if comm.get_rank() == 0 else torch.zeros(3)
            data = data.to(dtype)
            comm.broadcast(data, 0)
            assert data.to(torch.complex128).real.tolist() == [0, 1, 1], kind

    on_ranks(2, body)


def test_every_reduction_that_gloo_has_is_taken_and_the_others_are_refused():
    values = [[0, 1, 3], [1, 1, 2]]

    def of_type(entries, kind):
        return [bool(entry) for entry in entries] if kind == "bool" else entries

    def check(comm, kind, name):
        data = torch.tensor(of_type(values[comm.get_rank()], kind)).to(getattr(torch, kind))
        reduction = getattr(ReduceOp, name.upper())
        if name not in TAKEN.get(kind, "").split():
            with pytest.raises(errors.NotSupported, match=f"{name} of {kind}: .*gloo (has|reduces no)"):
                comm.all_reduce(data, reduction)
            return
        output = torch.zeros(1, dtype=data.dtype)
        comm.reduce_scatter(output, [data[:1], data[1:2]], reduction)
        comm.all_reduce(data, reduction)
        expected = [OPERATORS[name](a, b) for a, b in zip(*(of_type(entries, kind) for entries in values))]
        assert data.tolist() == expected, (kind, name)
        assert output.tolist() == [expected[comm.get_rank()]], (kind, name)

    def body(comm):
        for kind in ALL_TYPES:
            for name in OPERATORS:
                check(comm, kind, name)
        assert not comm.is_aborted()

    on_ranks(2, body)


def test_a_factor_is_refused():
    with headrace.new_comm("gloo", rank=0, size=1) as comm:
        with pytest.raises(
            errors.NotSupported, match="premul_sum of float32: of float32 gloo has sum, product"
        ):
            comm.all_reduce(mine(0, 3), ReduceOp.PREMUL_SUM(2))
        comm.barrier()


def test_what_gloo_lacks_is_refused_and_the_communicator_goes_on():
    def body(comm):
        rank, data, splits = comm.get_rank(), mine(0, 2), np.array([1, 1])
        refused = [
            (lambda: comm.all_gather_v([blank(2), blank(2)], data), "gathers inputs of one size alone"),
            (lambda: comm.device_all_to_all_v_single(blank(2), data, splits, splits), "takes splits when"),
            (lambda: comm.send(data, 1 - rank, tag=2**31 - 2), "gloo takes tags up to 2147483645"),
            (lambda: comm.set_hints({"threads": 3}), "no method set_hints"),
            (lambda: comm.reduce_scatter_quantized(blank(1), data, ReduceOp.SUM, 3), "gloo"),
            (lambda: comm.new_window(), "gloo"),
            (lambda: comm.monitored_barrier(), "gloo"),
            (lambda: comm.shrink([1 - rank]), "gloo"),
        ]
        for call, text in refused:
            with pytest.raises(errors.NotSupported, match=text):
                call()
        with pytest.raises(errors.InvalidArgument, match="hints way: an operation of gloo takes none"):
            comm.barrier(hints={"way": "short"})
        comm.barrier()

    on_ranks(2, body)


# --- when something goes wrong


def run_and_gather(size, body, **options):
    """Calls body(comm, barrier) on threads that meet at a barrier of the test, and aborts at the end."""
    name, together = unique("gloo"), threading.Barrier(size)

    def run(rank):
        comm = open_rank(rank, size, name, **options)
        try:
            return body(comm, together)
        finally:
            together.wait(60)
            comm.abort("the test is over")

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
        return [future.result(100) for future in futures]


def error_of(call):
    with pytest.raises(errors.Error) as raised:
        call()
    return raised.value


def test_a_late_rank_ends_the_communicator_on_all_ranks():
    def body(comm, together):
        if comm.get_rank() == 0:
            error = error_of(
                lambda: comm.all_reduce(mine(0, 4), ReduceOp.SUM, timeout=timedelta(seconds=0.1))
            )
            assert isinstance(error, errors.TimedOut)
            assert "all_reduce number 1" in str(error) and "has not ended it within 100 ms" in str(error)
        elif comm.get_rank() == 1:
            error = error_of(lambda: comm.recv(blank(3), 2))  # rank 2 sends nothing, and waits for nobody
            assert isinstance(error, (errors.Canceled, errors.PeerLost)), error
        together.wait(60)
        error = error_of(comm.barrier)
        assert comm.is_aborted()
        return str(error)

    answers = run_and_gather(3, body)
    assert "rank 0, all_reduce number 1" in answers[2]


@pytest.mark.parametrize("size", SIZES)
def test_an_abort_ends_what_all_ranks_wait_for(size):
    def body(comm, together):
        if comm.get_rank() == 1:
            works = [
                comm.all_reduce(mine(0, 4), ReduceOp.SUM, async_op=True),
                comm.recv(blank(3), 0, async_op=True),
                comm.recv(blank(3), headrace.any_source, tag=3, async_op=True),
            ]
            together.wait(60)
            errors_of_works = [error_of(lambda work=work: work.wait(60)) for work in works]
        else:
            together.wait(60)
            errors_of_works = []
        if comm.get_rank() == 0:
            comm.abort("enough")
            return
        while not comm.is_aborted():
            error_of(lambda: comm.recv(blank(1), headrace.any_source, timeout=60))
        for error in errors_of_works:
            assert isinstance(error, (errors.Canceled, errors.PeerLost)), error

    run_and_gather(size, body)


def test_a_call_that_is_wrong_is_refused_before_it_begins():
    def body(comm):
        with pytest.raises(errors.InvalidArgument):
            comm.all_gather_single(blank(3), mine(0, 2))
        with pytest.raises(errors.InvalidArgument):
            comm.broadcast(mine(0, 2), 7)
        assert not comm.is_aborted()
        comm.barrier()

    on_ranks(2, body)


def test_ranks_that_do_not_come_are_named():
    with pytest.raises(errors.TimedOut, match="waits for ranks that have not come: 1"):
        open_rank(0, 2, unique("gloo"), meeting_timeout=0.2)


def test_two_ranks_need_a_place_where_they_meet():
    with pytest.raises(errors.InvalidArgument, match="needs a place where the ranks meet"):
        headrace.new_comm("gloo", rank=0, size=2, meeting="")


class ForkedRank(RankProcess):
    """A server that has imported torch forks it: each import takes seconds."""

    context = multiprocessing.get_context("forkserver")


def die(rank, size, meeting, waits, parent):
    comm = headrace.new_comm("gloo", rank=rank, size=size, meeting=meeting, timeout=60)
    comm.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if waits:
            comm.all_reduce(mine(rank, 1000), ReduceOp.SUM)
        else:  # for nobody that has died
            comm.recv(blank(1), headrace.any_source)
    except headrace.Error as error:
        parent.send((type(error).__name__, str(error)))
    os._exit(0)


@pytest.mark.parametrize(
    ("size", "waits"), [(2, True), (3, True), (3, False)], ids=["two", "three", "three-any-source"]
)
def test_a_killed_rank_ends_the_communicator_of_the_others(size, waits, tmp_path):
    ForkedRank.context.set_forkserver_preload(["torch", "torch.distributed"])
    ranks = [ForkedRank(die, rank, size, f"file://{tmp_path}", waits) for rank in range(size)]
    told = [rank.hear() for rank in ranks[:-1]]
    assert [rank.end() for rank in ranks] == [0] * (size - 1) + [-signal.SIGKILL]
    assert {kind for kind, _ in told} <= {"PeerLost", "Canceled"}
    if not waits:
        assert all(f"rank {size - 1} is gone" in text for _, text in told)


def test_communicators_leave_no_threads_behind():
    def count():
        return sum(thread.name == "headrace-gloo" for thread in threading.enumerate())

    before = count()
    for _ in range(3):
        on_ranks(2, lambda comm: comm.barrier().wait())
    assert count() == before
