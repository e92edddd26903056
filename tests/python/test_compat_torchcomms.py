# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.torchcomms: torchcomms' Python package on headrace.Comm, on two and three ranks."""

import copy
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import headrace
import ranks

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace.compat.torchcomms as torchcomms
from headrace.compat.torchcomms import (
    OpName,
    RedOpType,
    ReduceOp,
    TorchComm,
    TorchCommWinAccessType,
    _environment,
    objcol,
)
from headrace.compat.torchcomms.hooks import FlightRecorderHook, NanCheckHook, clog

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SUM = ReduceOp.SUM


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def size(request):
    return request.param


def on_ranks(size, body):
    """Calls body(comm) on a thread for each rank. Returns the answers, in order of rank."""

    def run(comm):
        return body(TorchComm(comm, "gloo", comm.get_name(), torchcomms.CommOptions()))

    return ranks.on_ranks(size, run)


@pytest.fixture
def fake():
    comm = torchcomms.new_comm("fake", CPU, "fake")
    yield comm
    if not comm.is_aborted():
        comm.finalize()


@pytest.fixture
def launched(monkeypatch):
    """Takes away what a launcher has set."""
    for name in ("TORCHCOMM_RANK", "TORCHCOMM_SIZE", "RANK", "WORLD_SIZE", _environment._METHOD):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def of(rank, count=4):
    return torch.arange(count, dtype=torch.float32) + rank


def total(size, count=4):
    return sum(of(rank, count) for rank in range(size))


# --- operations


def test_reductions(size):
    def body(comm):
        rank, last = comm.get_rank(), size - 1
        mine = of(rank)
        work = comm.all_reduce(mine, SUM, False)
        assert work.is_completed() and torch.equal(mine, total(size))
        mine = of(rank).reshape(2, 2)
        comm.reduce(mine, last, ReduceOp.MAX, async_op=False)
        assert torch.equal(mine.flatten(), of(last) if rank == last else of(rank))
        for scatter in (comm.reduce_scatter, comm.reduce_scatter_v):
            mine = torch.zeros(4)
            scatter(mine, [of(rank)] * size, SUM, False)
            assert torch.equal(mine, total(size))
        mine = torch.zeros(4)
        comm.reduce_scatter_single(mine, of(rank).repeat(size), ReduceOp.PREMUL_SUM(torch.tensor(2.0)), False)
        assert torch.equal(mine, 2 * total(size))

    on_ranks(size, body)


def test_gathers(size):
    everything = torch.cat([of(rank) for rank in range(size)])

    def body(comm):
        rank, is_root = comm.get_rank(), comm.get_rank() == 0
        for gather in (comm.all_gather, comm.all_gather_v):
            parts = [torch.zeros(4) for _ in range(size)]
            gather(parts, of(rank), False)
            assert torch.equal(torch.cat(parts), everything)
        whole = torch.zeros(4 * size)
        comm.all_gather_single(whole, of(rank), False)
        assert torch.equal(whole, everything)
        parts = [torch.zeros(4) for _ in range(size)]  # also on ranks that are not the root
        comm.gather(parts, of(rank), 0, False)
        assert torch.equal(torch.cat(parts), everything if is_root else torch.zeros(4 * size))
        whole = torch.zeros(4 * size)
        comm.gather_single(whole, of(rank), 0, False)
        assert torch.equal(whole, everything if is_root else torch.zeros(4 * size))
        handle = comm.all_gather_p_init(whole)
        comm.all_gather_p_exec(handle, of(rank), True).wait()
        assert torch.equal(whole, everything)
        comm.all_gather_p_free(handle)

    on_ranks(size, body)


def test_broadcast_scatter_and_barrier(size):
    def body(comm):
        rank = comm.get_rank()
        mine = of(rank)
        comm.broadcast(mine, size - 1, False)
        assert torch.equal(mine, of(size - 1))
        mine = torch.zeros(4)
        comm.scatter(mine, [of(other) for other in range(size)], 0, False)  # also where it is not the root
        assert torch.equal(mine, of(rank))
        comm.barrier(False, timeout=timedelta(seconds=30))

    on_ranks(size, body)


def test_all_to_all(size):
    def body(comm):
        rank = comm.get_rank()
        outputs = [torch.zeros(4) for _ in range(size)]
        comm.all_to_all(outputs, [of(10 * rank + other) for other in range(size)], False)
        assert torch.equal(torch.cat(outputs), torch.cat([of(10 * other + rank) for other in range(size)]))
        output = torch.zeros(size)
        comm.all_to_all_single(output, torch.arange(size) + 10.0 * rank, False)
        assert output.tolist() == [10.0 * other + rank for other in range(size)]
        rows = [other + 1 for other in range(size)]
        output = torch.zeros(sum(rows), 2)
        given = torch.full((size * (rank + 1), 2), float(rank))
        comm.all_to_all_v_single(output, given, rows, [rank + 1] * size, False)
        assert output[:, 1].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]

    on_ranks(size, body)


def test_messages_and_batches(size):
    def body(comm):
        rank = comm.get_rank()
        after, before = (rank + 1) % size, (rank - 1) % size
        work = comm.send(of(rank), after, True)
        mine = torch.zeros(4)
        comm.recv(mine, before, False)
        work.wait()
        assert torch.equal(mine, of(before))
        batch = comm.batch_op_create()
        mine = torch.zeros(4)
        batch.recv(mine, before)
        batch.send(of(rank), after)
        assert [op.type for op in batch.ops] == [torchcomms.P2POpType.RECV, torchcomms.P2POpType.SEND]
        for async_op in (True, False):  # a batch may be issued again
            mine.zero_()
            batch.issue(async_op, torchcomms.BatchP2POptions()).wait()
            assert torch.equal(mine, of(before))

    on_ranks(size, body)


def test_async_works_wait_and_raise():
    def body(comm):
        mine = of(comm.get_rank())
        work = comm.all_reduce(mine, SUM, async_op=True)
        work.wait()
        assert work.is_completed() and torch.equal(mine, total(2))
        late = comm.recv(mine, 1 - comm.get_rank(), True, timeout=timedelta(milliseconds=50))
        with pytest.raises(RuntimeError, match="50 ms") as error:
            late.wait()
        assert isinstance(error.value, headrace.TimedOut)
        comm.barrier(False)

    on_ranks(2, body)


def test_errors_are_runtime_errors_and_headraces(fake):
    for kind in (RuntimeError, headrace.InvalidArgument):
        with pytest.raises(kind, match="root"):
            fake.broadcast(of(0), 7, False)
        with pytest.raises(kind, match="contiguous"):
            fake.all_reduce(torch.zeros(4, 4).t()[::2], SUM, False)


def test_hints_of_other_backends_are_dropped(fake):
    fake.all_reduce(of(0), SUM, False, hints={"hint_key": "hint_value"})
    on_ranks(2, lambda comm: comm.all_reduce(of(0), SUM, False, hints={"algorithm": "two_shot", "x": "y"}))
    with pytest.raises(RuntimeError, match="three_shot"):
        on_ranks(2, lambda comm: comm.all_reduce(of(0), SUM, False, hints={"algorithm": "three_shot"}))


def test_split(size):
    def body(comm):
        rank = comm.get_rank()
        part = comm.split([size - 1, 0], "part") if rank in (0, size - 1) else comm.split([], "part")
        if part is None:
            return None
        mine = of(rank)
        part.all_reduce(mine, SUM, False)
        assert torch.equal(mine, of(0) + of(size - 1))
        assert (part.get_name(), part.get_backend(), part.get_size()) == ("part", "gloo", 2)
        with pytest.raises(RuntimeError, match="not in"):
            part.split([1 - part.get_rank()], "other")
        return part.get_rank()

    assert on_ranks(size, body) == ([1, 0] if size == 2 else [1, None, 0])


def test_what_a_communicator_is(fake):
    assert (fake.get_rank(), fake.get_size(), fake.get_ranks(), fake.get_name()) == (0, 1, [0], "fake")
    assert fake.get_device() == CPU and fake.get_backend() == "fake" and fake.get_backend_version()
    assert isinstance(fake.get_backend_impl(), headrace.Comm)
    with pytest.warns(DeprecationWarning):
        assert fake.unsafe_get_backend() is fake.get_backend_impl()
    fake.set_timeout(timedelta(seconds=7))
    assert fake.get_options().timeout == timedelta(seconds=7)
    assert fake.get_backend_impl().get_options().timeout == 7
    assert copy.copy(fake) is fake and copy.deepcopy(fake) is fake


def test_reduce_ops():
    assert SUM.type is RedOpType.SUM and ReduceOp(RedOpType.MAX) == ReduceOp.MAX != SUM
    assert ReduceOp.PREMUL_SUM(2.0).type is RedOpType.PREMUL_SUM
    memo = {}
    assert copy.deepcopy(SUM, memo) == SUM and id(SUM) in memo
    with pytest.raises(ValueError, match="factor"):
        ReduceOp(RedOpType.PREMUL_SUM)


# --- hooks


def test_hooks_see_every_operation_with_its_tensors():
    comm = headrace.new_comm("fake", rank=0, size=2)
    fake = TorchComm(comm, "fake", "fake", torchcomms.CommOptions())
    seen, ended = [], []
    pre = fake.register_pre_hook(lambda name, number, args: seen.append((name, number, args)))
    post = fake.register_post_hook(lambda number, args: ended.append((number, type(args).__name__)))
    mine = of(0)
    fake.all_reduce(mine, SUM, False)
    fake.broadcast(mine, root=0, async_op=True).wait()
    fake.send(mine, 1, False)
    fake.all_to_all_v_single(mine, of(0), [3, 1], [3, 1], False)
    fake.barrier(False)
    assert [(name, number) for name, number, _ in seen] == [
        (OpName.all_reduce, 0),
        (OpName.broadcast, 1),
        (OpName.send, 2),
        (OpName.all_to_all_v_single, 3),
        (OpName.barrier, 4),
    ]
    assert ended == [(number, "CollectivePostHookArgs") for number in range(5)]
    assert isinstance(seen[0][2], torchcomms.AllReducePreHookArgs) and seen[0][2].tensor is mine
    assert (seen[1][2].root, seen[1][2].async_op) == (0, True)
    assert seen[2][2].peer == 1 and seen[3][2].input_split_sizes == [3, 1]
    pre.remove()
    post.remove()
    fake.barrier(False)
    assert len(seen) == len(ended) == 5


def test_hooks_see_the_operations_of_a_torch_group():
    comm = headrace.new_comm("fake", rank=0, size=2)
    fake = TorchComm(comm, "fake", "fake", torchcomms.CommOptions())
    group = torchcomms._BackendWrapper(fake)
    seen, ended = [], []
    hook = fake.register_pre_hook(lambda name, number, args: seen.append((name, args)))
    fake.register_post_hook(lambda number, args: ended.append(number))
    mine, both = of(0), [torch.zeros(4), torch.zeros(4)]
    group.allreduce([mine]).wait()
    group.broadcast([mine]).wait()
    group.send([mine], 1, 5).wait()
    group.allgather([both], [mine]).wait()
    group.barrier().wait()
    names = [OpName.all_reduce, OpName.broadcast, OpName.send, OpName.all_gather, OpName.barrier]
    assert [name for name, _ in seen] == names and ended == list(range(5))
    assert seen[0][1].tensor is mine and seen[1][1].root == 0 and seen[2][1].peer == 1
    assert seen[3][1].input is mine and len(seen[3][1].output) == 2 and seen[4][1].async_op
    hook.remove()
    group.barrier().wait()
    assert len(seen) == 5 and group.get_comm() is fake and group.comm is comm
    assert (group.name(), group.rank(), group.size()) == ("fake", 0, 2)


def test_a_pre_hook_refuses_an_operation():
    def body(comm):
        def refuse(name, number, args):
            raise KeyError(name.name)

        hook = comm.register_pre_hook(refuse)
        with pytest.raises(KeyError, match="all_reduce"):
            comm.all_reduce(of(0), SUM, False)
        hook.remove()
        comm.barrier(False)

    on_ranks(2, body)


def test_hooks_of_split_window_and_finalize():
    def body(comm):
        seen = []
        comm.register_pre_hook(lambda name, number, args: seen.append((name, args)))
        comm.split([0, 1], "part").finalize()
        comm.new_window()
        comm.finalize()
        assert [name for name, _ in seen] == [OpName.split, OpName.new_window, OpName.finalize]
        assert seen[0][1] == ([0, 1], "part")

    opened = ranks.two_ranks()
    threads = [
        threading.Thread(target=body, args=(TorchComm(c, "gloo", "t", torchcomms.CommOptions()),))
        for c in opened
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_abort_hook_is_called_once(fake):
    calls = []
    fake.register_abort_hook(lambda: calls.append("kept"))
    fake.register_abort_hook(lambda: calls.append("removed")).remove()
    assert fake.is_abort_supported() and not fake.is_aborted()
    fake.abort()
    assert fake.is_aborted() and calls == ["kept"]
    with pytest.raises(RuntimeError, match="abort"):
        fake.barrier(False)


def test_the_flight_recorder_hook_keeps_calls(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_TEMP_FILE", str(tmp_path / "deep" / "trace_"))
    recorder = FlightRecorderHook(max_entries=10, isolated=True)
    assert not recorder.is_enabled() and len(recorder) == 0
    recorder.register_with_comm(fake)
    fake.all_reduce(of(0), SUM, False)
    fake.barrier(False)
    dump = json.loads(recorder.dump_json())
    assert recorder.is_enabled() and recorder.size() == 2 and dump["version"] == "2.10"
    assert json.loads(recorder.dump_json(include_completed=False))["entries"] == []
    recorder.dump_file(3)
    assert len(pickle.loads((tmp_path / "deep" / "trace_3").read_bytes())["entries"]) == 2
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME", "1")
    recorder.dump_file(3)
    assert (tmp_path / "deep" / "trace_").exists()
    recorder.reset()
    assert recorder.size() == 0
    fake.barrier(False)
    assert recorder.size() == 1
    shared = FlightRecorderHook()
    shared.register_with_comm(fake)
    fake.barrier(False)
    assert FlightRecorderHook().size() == shared.size() > 0


def test_the_flight_recorder_hook_follows_splits():
    def body(comm):
        recorder = FlightRecorderHook(isolated=True)
        recorder.register_with_comm(comm)
        part = comm.split([0, 1], "part").split([0, 1], "inner")
        part.all_reduce(of(0), SUM, False)
        names = [entry["operation"] for entry in json.loads(recorder.dump_json())["entries"]]
        assert names == ["split", "split", "all_reduce"]

    on_ranks(2, body)


def test_the_nan_check_hook_refuses(fake):
    bad = torch.tensor([1.0, float("nan")])
    hook = NanCheckHook()
    hook.register_with_comm(fake)
    assert hook.is_enabled()
    with pytest.raises(RuntimeError, match="NaN detected in input tensor for 'all_reduce' on comm 'fake'"):
        fake.all_reduce(bad, SUM, False)
    with pytest.raises(RuntimeError, match="all_gather"):
        fake.all_gather([torch.zeros(2)], bad, False)
    fake.all_gather_single(bad, torch.zeros(2), False)  # an output
    fake.all_reduce(torch.ones(2, dtype=torch.int32), SUM, False)


def test_clog_says_what_to_use():
    with pytest.raises(RuntimeError, match="HEADRACE_COMM_LOG=/tmp/log"):
        clog("/tmp/log", ["ALL"])


# --- windows


def test_windows_put_and_signal(size):
    def body(comm):
        rank = comm.get_rank()
        after, before = (rank + 1) % size, (rank - 1) % size
        window = comm.new_window(torch.zeros(size, 4))
        assert window.get_size() == 16 * size and window.shape == [size, 4]
        assert (window.dtype, window.device) == (torch.float32, CPU)
        for async_op in (False, True):
            window.put(of(rank), after, 4 * after, async_op).wait()
            window.signal(after, async_op).wait()
            window.wait_signal(before, async_op).wait()
            assert torch.equal(window.map_remote_tensor(rank)[rank], of(before))
            comm.barrier(False)
        other = window.clone()
        assert torch.equal(other.get_tensor(), window.get_tensor())
        assert other.get_tensor() is not window.get_tensor()
        other.tensor_deregister()
        window.tensor_deregister()
        assert window.get_tensor() is None and window.get_size() == 0
        with pytest.raises(RuntimeError, match="tensor_register"):
            _ = window.dtype

    on_ranks(size, body)


def test_allocated_windows_are_mapped(size):
    def body(comm):
        rank = comm.get_rank()
        window = comm.new_window()
        mine = window.allocate((2, 3), torch.int32)
        mine.fill_(rank)
        comm.barrier(False)
        after = (rank + 1) % size
        assert window.get_attr(after).access_type is TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED
        assert torch.equal(window.map_remote_tensor(after), torch.full((2, 3), after, dtype=torch.int32))
        comm.barrier(False)
        window.tensor_deregister()
        window.tensor_register(torch.zeros(3))
        assert window.get_attr(after).access_type is TorchCommWinAccessType.WIN_ACCESS_TYPE_SEPARATE
        with pytest.raises(RuntimeError, match="cannot be mapped"):
            window.map_remote_tensor(after)
        window.tensor_deregister()

    on_ranks(size, body)


def test_what_is_for_kernels_says_so(fake):
    for call in (
        fake.get_mem_allocator,
        fake.get_device_transport,
        lambda: torchcomms.get_mem_allocator("nccl"),
    ):
        with pytest.raises(RuntimeError, match="allocator|transport"):
            call()
    with pytest.raises(RuntimeError, match="allocator"):
        _ = fake.mem_allocator

    def body(comm):
        window = comm.new_window()
        window.allocate((4,), torch.float32)
        for call in (window.get_device_window, lambda: window.register_local_buffer(of(0))):
            with pytest.raises(
                RuntimeError, match="the window has host memory: kernels use windows of backend p2p"
            ):
                call()
        with pytest.raises(RuntimeError, match="17 counters: a window has 16 of them for kernels"):
            window.get_device_window(counter_count=17)
        with pytest.raises(RuntimeError, match="no buffer at 0x7 is registered"):
            window.deregister_local_buffer(7)
        window.tensor_deregister()

    on_ranks(2, body)


def test_tensors_of_a_communicator_are_registered_once():
    def body(comm):
        tensor = of(comm.get_rank())
        comm.tensor_register(tensor)
        with pytest.raises(RuntimeError, match="registered already"):
            comm.tensor_register(tensor)
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, False)
        comm.tensor_deregister(tensor)
        with pytest.raises(RuntimeError, match="no memory at 0x[0-9a-f]+ is registered"):
            comm.tensor_deregister(tensor)
        return tensor

    for got in on_ranks(2, body):
        assert torch.equal(got, total(2))


# --- objects


@pytest.mark.parametrize("serialization", ["", "pickle"])
def test_objects(size, serialization, monkeypatch):
    monkeypatch.setenv("TORCHCOMMS_SERIALIZATION", serialization)

    def body(comm):
        rank = comm.get_rank()
        found = [None] * size
        objcol.all_gather_object(comm, found, {"rank": rank, "tensor": torch.ones(2)})
        assert [one["rank"] for one in found] == list(range(size)) and torch.equal(
            found[0]["tensor"], torch.ones(2)
        )
        found = [None] * size
        objcol.gather_object(comm, rank, root=0, object_gather_list=found)
        assert found == (list(range(size)) if rank == 0 else [None] * size)
        mine = [rank, "text"]
        objcol.broadcast_object_list(comm, mine, root=size - 1)
        assert mine == [size - 1, "text"]
        output = [None]
        objcol.scatter_object_list(comm, 0, output, list(range(size)), timeout=timedelta(seconds=30))
        assert output == [rank]
        if rank == 0:
            objcol.send_object_list(comm, ["a", 1], 1)
        elif rank == 1:
            output = [None, None]
            objcol.recv_object_list(comm, output, 0)
            assert output == ["a", 1]

    on_ranks(size, body)


class Foreign:
    """What torch.load with weights_only refuses."""


def test_objects_that_run_code_are_refused():
    def body(comm):
        with pytest.raises(pickle.UnpicklingError, match="Weights only"):
            objcol.all_gather_object(comm, [None, None], Foreign())
        found = [None, None]
        objcol.all_gather_object(comm, found, Foreign(), weights_only=False)
        assert isinstance(found[0], Foreign)

    on_ranks(2, body)


# --- other communicators


def reconfigured(size, body):
    """Calls body(comm, rank, exchange) on threads; exchange(comm) returns the init handles of all."""
    meet, handles, answers = threading.Barrier(size), [None] * size, [None] * size

    def run(rank):
        comm = torchcomms.new_comm(
            "gloo", CPU, f"rank {rank}", enable_reconfigure=True, timeout=timedelta(seconds=30)
        )

        def exchange(comm):
            meet.wait(60)
            handles[rank] = comm.get_init_handle()
            meet.wait(60)
            return list(handles)

        answers[rank] = body(comm, rank, exchange)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * size


def test_reconfigure_makes_and_shrinks(size):
    def body(comm, rank, exchange):
        with pytest.raises(RuntimeError, match="call reconfigure first"):
            comm.barrier(False)
        assert isinstance(comm.get_init_handle(), str) and comm.get_init_handle() == comm.get_init_handle()
        calls = []
        comm.register_abort_hook(lambda: calls.append(1))
        comm.reconfigure(1, exchange(comm), timeout=timedelta(seconds=30)).wait()
        assert (comm.get_rank(), comm.get_size()) == (rank, size)
        mine = of(rank)
        comm.all_reduce(mine, SUM, False)
        assert torch.equal(mine, total(size))
        handles = exchange(comm)
        if rank == size - 1:
            comm.finalize()
            return True
        comm.reconfigure(2, handles[:-1]).wait()
        mine = of(rank)
        comm.all_reduce(mine, SUM, False)
        assert torch.equal(mine, total(size - 1)) and calls == []
        comm.abort()
        assert calls == [1]
        return True

    reconfigured(size, body)


def test_reconfigure_after_an_abort_and_with_a_set():
    def body(comm, rank, exchange):
        comm.reconfigure(1, set(exchange(comm))).wait()
        comm.abort()
        comm.reconfigure(2, exchange(comm)).wait()
        assert comm.get_rank() == rank
        mine = of(rank)
        comm.all_reduce(mine, SUM, False)
        assert torch.equal(mine, total(2))
        with pytest.raises(RuntimeError, match="no init handle"):
            comm.reconfigure(3, ["what"])
        comm.finalize()
        return True

    reconfigured(2, body)


# --- backends, variables


class Own(torchcomms.TorchCommBackend):
    def init(self, device, name, options):
        self.place = device, name, options.timeout

    def get_rank(self):
        return 0

    def get_size(self):
        return 2

    def finalize(self):
        self.place = None

    def all_reduce(self, tensor, op, async_op):
        tensor.mul_(2 if op.type is RedOpType.SUM else 3)
        return self if async_op else None

    def wait(self):
        self.waited = True

    def set_timeout(self, timeout):
        self.timeout = timeout

    def split(self, ranks, name, options):
        return Own() if ranks else None


def test_a_python_class_is_a_backend():
    torchcomms.register_backend("own", Own)
    assert "own" in torchcomms.built_backends()
    comm = torchcomms.new_comm("own", CPU, "mine", timeout=timedelta(seconds=3))
    own = comm.get_backend_impl()
    assert own.place == (CPU, "mine", timedelta(seconds=3)) and comm.get_size() == 2
    mine = torch.ones(2, 2)
    comm.all_reduce(mine, SUM, False)
    comm.all_reduce(mine, ReduceOp.PREMUL_SUM(2), False)
    work = comm.all_reduce(mine, SUM, async_op=True)
    assert not work.is_completed()
    work.wait()
    assert work.is_completed() and own.waited and torch.equal(mine, torch.full((2, 2), 12.0))
    comm.set_timeout(timedelta(seconds=1))
    assert own.timeout == timedelta(seconds=1)
    assert comm.split([0], "part").get_backend() == "own" and comm.split([], "part") is None
    with pytest.raises(RuntimeError, match="broadcast not implemented: Own has no such method"):
        comm.broadcast(mine, 0, False)
    with pytest.raises(RuntimeError, match="not implemented for backends in Python"):
        comm.new_window()
    comm.finalize()


def test_an_unknown_backend_names_those_that_there_are(launched):
    launched.setenv("TORCHCOMM_RANK", "0")
    launched.setenv("TORCHCOMM_SIZE", "1")
    with pytest.raises(
        ModuleNotFoundError, match="failed to find backend mccl: Headrace has auto, fake, gloo, host"
    ):
        torchcomms.new_comm("mccl", torch.device("cuda"), "mine")
    assert torchcomms.is_backend_built("gloo") and not torchcomms.is_backend_built("mccl")
    assert torchcomms.is_backend_built("xccl") == ("oneccl" in headrace.list_comm_backends())


def test_rank_and_size_are_those_of_the_launcher(launched):
    launched.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(RuntimeError, match="Set TORCHCOMM_RANK and TORCHCOMM_SIZE"):
        _environment.rank_and_size()
    pairs = [
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("pals", "PALS_RANKID", "PALS_SIZE"),
        ("mpi", "PMI_RANK", "PMI_SIZE"),
        ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("auto", "TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
    ]
    for position, (_, rank, size) in enumerate(pairs):
        launched.setenv(rank, str(position))
        launched.setenv(size, "9")
        assert _environment.rank_and_size() == (position, 9)  # later ones count first
    for method in ("auto", "torchrun"):
        launched.setenv(_environment._METHOD, method)
        assert _environment.rank_and_size() == (4, 9)
    launched.delenv("TORCHCOMM_RANK")
    assert _environment.rank_and_size() == (0, 9)
    launched.setenv(_environment._METHOD, "slurm")
    with pytest.raises(RuntimeError, match="give auto, mpi, pals, torchrun"):
        _environment.rank_and_size()


def test_variables_set_timeout_and_abort(monkeypatch):
    monkeypatch.setenv("TORCHCOMM_TIMEOUT_SECONDS", "2.5")
    monkeypatch.setenv("TORCHCOMM_ABORT_ON_ERROR", "1")
    options = torchcomms.new_comm("fake", CPU, "a").get_options()
    assert options.timeout == timedelta(seconds=2.5) and options.abort_process_on_timeout_or_error
    options = torchcomms.new_comm("fake", CPU, "b", False, timedelta(seconds=1)).get_options()
    assert options.timeout == timedelta(seconds=1) and not options.abort_process_on_timeout_or_error
    monkeypatch.setenv("TORCHCOMM_TIMEOUT_SECONDS", "soon")
    with pytest.raises(RuntimeError, match="a number of seconds"):
        torchcomms.new_comm("fake", CPU, "c")


@pytest.mark.parametrize("variable", _environment.VARIABLES, ids=lambda variable: variable.name)
def test_every_variable_is_read_or_said_to_be_without_use(variable):
    folder = Path(_environment.__file__).parent
    code = "".join(file.read_text() for file in folder.rglob("*.py"))
    table = code[code.index("VARIABLES = [") : code.index("_METHOD =")]
    name = re.escape(variable.name)
    assert bool(re.search(f'"{name}"', code.replace(table, ""))) == variable.is_read
    docs = (ROOT / "docs" / "torchcomms.md").read_text()
    assert f"`{variable.name}`" in docs


# --- the package


METHODS = {
    "send": "tensor dst async_op hints timeout",
    "recv": "tensor src async_op hints timeout",
    "broadcast": "tensor root async_op hints timeout",
    "all_reduce": "tensor op async_op hints timeout",
    "reduce": "tensor root op async_op hints timeout",
    "all_gather": "tensor_list tensor async_op hints timeout",
    "all_gather_v": "tensor_list tensor async_op hints timeout",
    "all_gather_single": "output input async_op hints timeout",
    "reduce_scatter": "output input_list op async_op hints timeout",
    "reduce_scatter_v": "output input_list op async_op hints timeout",
    "reduce_scatter_single": "output input op async_op hints timeout",
    "all_to_all": "output_tensor_list input_tensor_list async_op hints timeout",
    "all_to_all_single": "output input async_op hints timeout",
    "all_to_all_v_single": "output input output_split_sizes input_split_sizes async_op hints timeout",
    "barrier": "async_op hints timeout",
    "scatter": "output_tensor input_tensor_list root async_op hints timeout",
    "gather": "output_tensor_list input_tensor root async_op hints timeout",
    "gather_single": "output input root async_op hints timeout",
    "all_gather_p_init": "output hints timeout",
    "all_gather_p_exec": "handle input async_op hints timeout",
    "all_gather_p_free": "handle",
    "split": "ranks name hints timeout",
    "batch_op_create": "",
    "new_window": "tensor",
    "reconfigure": "uuid init_handles timeout hints",
    "set_timeout": "timeout",
    "set_hints": "hints",
    "tensor_register": "tensor",
    "tensor_deregister": "tensor",
    "register_pre_hook": "callback",
    "register_post_hook": "callback",
    "register_abort_hook": "callback",
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_arguments_of_torchcomms(name):
    parameters = list(inspect.signature(getattr(TorchComm, name)).parameters)
    assert parameters == ["self", *METHODS[name].split()]


def test_new_comm_has_the_arguments_of_torchcomms():
    assert " ".join(inspect.signature(torchcomms.new_comm).parameters) == (
        "backend device name abort_process_on_timeout_or_error timeout is_high_priority_stream store "
        "enable_reconfigure hints"
    )


def python(*lines, **environment):
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process):
    text, _ = process.communicate(timeout=100)
    assert process.returncode == 0, text
    return text


def test_the_package_takes_the_name():
    importlib.import_module("headrace.compat.torchcomms.install")
    try:
        given = importlib.import_module("torchcomms")
        assert given is torchcomms
        one = given.new_comm("fake", CPU, "a")
        assert one.get_size() == 1
        assert isinstance(
            one.get_backend_impl(), importlib.import_module("torchcomms._comms_gloo").TorchCommGloo
        )
        for module, name in [
            ("_comms", "_BackendWrapper"),
            ("hooks.fr", "FlightRecorderHook"),
            ("device_mesh", "init_device_mesh"),
            ("distwrap", "all_reduce"),
        ]:
            assert hasattr(importlib.import_module(f"torchcomms.{module}"), name)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchcomms"]:
            del sys.modules[name]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_distwrap_is_headrace_distributed(launched, backend):
    dist = importlib.import_module("headrace.compat.torchcomms.distwrap")
    launched.setenv("TORCHCOMM_RANK", "0")
    launched.setenv("TORCHCOMM_SIZE", "1")
    dist.init_process_group(backend, store=dist.HashStore(), use_torchcomms=True)
    assert dist.is_enabled() and dist.get_world_size() == 1
    mine = torch.ones(2)
    dist.all_reduce(mine, dist._make_nccl_premul_sum(3.0))
    assert mine.tolist() == [3, 3]
    group = dist.split_group(backend=backend)
    assert dist.is_enabled() and dist.get_world_size(group) == 1
    output = torch.zeros(2)
    dist.reduce_scatter_quantized(output, mine, dist.ReduceOp.SUM, torch.tensor([7])).wait()
    assert output.tolist() == [3, 3]
    dist.register_mem_pool(group, CPU, None)
    with pytest.raises(RuntimeError, match="allocator"):
        dist.get_mem_allocator(group, CPU)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_enabled()
    with pytest.raises(AssertionError, match="use_torchcomms=True"):
        dist.new_window()
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="give gloo"):
        dist.init_process_group()


MESH = """
import torch, torch.distributed as dist
import headrace.compat.torchcomms as torchcomms
from headrace.compat.torchcomms.device_mesh import init_device_mesh
store = dist.FileStore({store!r}, 2)
comm = torchcomms.new_comm("gloo", torch.device("cpu"), "all", store=store)
rank = comm.get_rank()
rows, columns = comm.split([0, 1], "rows"), comm.split([rank], "columns")
mesh = init_device_mesh((rows, columns), ("rows", "columns"), _global_comm=comm)
mine = torch.ones(3)
dist.all_reduce(mine, group=mesh["rows"].get_group())
dist.all_reduce(mine, group=mesh.get_group("columns"))
group = mesh.get_group("rows")
print(mine[0].item(), mesh["rows"].get_local_rank(), group.group_name, dist.get_process_group_ranks(group))
for one in (rows, columns, comm):
    one.finalize()
"""


def test_processes_meet_in_a_store_and_make_a_device_mesh(tmp_path):
    code = MESH.format(store=str(tmp_path / "store"))
    environment = {"TORCHCOMM_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [python(code, TORCHCOMM_RANK=str(rank), **environment) for rank in range(2)]
    for rank, process in enumerate(processes):
        assert output_of(process) == f"2.0 {rank} rows [0, 1]\n"


# --- the document


def test_every_test_that_the_document_names_exists():
    text = (ROOT / "docs" / "torchcomms.md").read_text()
    files = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"`(test_\w+|\w+_cases::\w+)`", text))
    assert len(named) > 30
    missing = [name for name in named if f"def {name.split('::')[-1]}(" not in files]
    assert not missing, f"docs/torchcomms.md names tests that do not exist: {missing}"
