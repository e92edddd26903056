# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Backends of communicators that are Python classes."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import itertools
import re
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import headrace
import headrace._comm_backend
from headrace import ReduceOp, errors

names = itertools.count()


def unique_name() -> str:
    return f"python_{next(names)}"


class Recorded:
    """Writes down what it is called with; every operation is done when its method returns."""

    version = "3.1"

    def __init__(self):
        self.calls = []
        self.finalized = False
        type(self).last = self

    def init(self, device, name, options):
        self.device, self.name, self.options = device, name, options

    def finalize(self):
        self.finalized = True

    def __getattr__(self, operation):
        if operation in ("abort", "set_hints", "set_timeout") or operation.startswith("_"):
            raise AttributeError(operation)

        def method(*arguments):
            self.calls.append((operation, arguments))

        return method


def opened(cls, rank=0, size=1, **options):
    name = unique_name()
    headrace.register_backend(name, cls)
    return headrace.new_comm(name, rank=rank, size=size, **options)


def test_a_class_opens_with_what_the_caller_gave():
    class Mine(Recorded):
        pass

    comm = opened(Mine, 1, 3, name="ours", timeout=5, hints={"speed": "high"})
    assert comm.get_backend().startswith("python_")
    assert comm.get_backend() in headrace.list_comm_backends()
    assert comm.get_backend_version() == "3.1"
    backend = Mine.last
    assert (backend.device, backend.name) == ("cpu", "ours")
    options = backend.options
    assert (options.rank, options.size, options.ranks) == (1, 3, [0, 1, 2])
    assert options.timeout == datetime.timedelta(seconds=5)
    assert options.meeting_timeout == datetime.timedelta(seconds=120)
    assert options.hints == {"speed": "high"}
    comm.finalize()
    assert backend.finalized


def test_every_operation_calls_the_method_of_its_name():
    class Mine(Recorded):
        pass

    comm = opened(Mine, 0, 2)
    a, b, wide = np.arange(4), np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.int64)
    pair, outs = [np.arange(4), np.arange(4)], [np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)]
    comm.all_reduce(a, ReduceOp.MAX, hints={"way": "short"}, timeout=3)
    comm.all_reduce(a, ReduceOp.SUM, output=b)
    comm.broadcast(a, 1)
    comm.reduce(a, 1, ReduceOp.PREMUL_SUM(0.5))
    comm.all_gather(outs, a)
    comm.all_gather_v(outs, a)
    comm.all_gather_single(wide, a)
    comm.reduce_scatter(b, pair, ReduceOp.SUM)
    comm.reduce_scatter_v(b, pair, ReduceOp.SUM)
    comm.reduce_scatter_single(a, wide, ReduceOp.SUM)
    comm.all_to_all(outs, pair)
    comm.all_to_all_single(b, a)
    comm.all_to_all_v_single(b, a, [1, 3], [1, 3])
    comm.device_all_to_all_v_single(b, a, np.array([1, 3]), np.array([1, 3]))
    comm.barrier()
    comm.gather(outs, a, 0)
    comm.gather(None, a, 1)
    comm.gather_single(wide, a, 0)
    comm.scatter(b, pair, 0)
    comm.send(a, 1, tag=4)
    comm.recv(b, 1)

    def shown(argument):
        if isinstance(argument, headrace.Tensor):
            return "T"
        if isinstance(argument, list):
            return [shown(entry) for entry in argument]
        return argument

    calls = [(name, *map(shown, arguments[:-2])) for name, arguments in Mine.last.calls]
    assert calls == [
        ("all_reduce", "T", ReduceOp.MAX),
        ("all_reduce", "T", ReduceOp.SUM),
        ("broadcast", "T", 1),
        ("reduce", "T", 1, ReduceOp.PREMUL_SUM(0.5)),
        ("all_gather", ["T", "T"], "T"),
        ("all_gather_v", ["T", "T"], "T"),
        ("all_gather_single", "T", "T"),
        ("reduce_scatter", "T", ["T", "T"], ReduceOp.SUM),
        ("reduce_scatter_v", "T", ["T", "T"], ReduceOp.SUM),
        ("reduce_scatter_single", "T", "T", ReduceOp.SUM),
        ("all_to_all", ["T", "T"], ["T", "T"]),
        ("all_to_all_single", "T", "T"),
        ("all_to_all_v_single", "T", "T", [1, 3], [1, 3]),
        ("device_all_to_all_v_single", "T", "T", "T", "T"),
        ("barrier",),
        ("gather", ["T", "T"], "T", 0),
        ("gather", [], "T", 1),
        ("gather_single", "T", "T", 0),
        ("scatter", "T", ["T", "T"], 0),
        ("send", "T", 1),
        ("recv", "T", 1),
    ]
    async_op, options = Mine.last.calls[0][1][-2:]
    assert async_op is False
    assert options.hints == {"way": "short"}
    assert options.timeout == datetime.timedelta(seconds=3)
    assert options.number == 1
    assert Mine.last.calls[-2][1][-1].tag == 4
    assert b.tolist() == [0, 1, 2, 3]  # out of place: the class reduces the output in place


class OverHost:
    """Hands every operation to a communicator of the backend host."""

    def init(self, device, name, options):
        store = options.store
        if options.rank == 0:
            store.set("place", f"memory:over-{name}-{id(self)}")
        self.comm = headrace.new_comm(
            rank=options.rank,
            size=options.size,
            name=name,
            meeting=store.get("place").decode(),
            hints={"backends": "shm"},
        )

    def __getattr__(self, operation):
        if operation not in ("all_reduce", "broadcast", "barrier", "send", "recv"):
            raise AttributeError(operation)

        def method(*arguments):
            *given, async_op, options = arguments
            return getattr(self.comm, operation)(*given, async_op=async_op, timeout=options.timeout)

        return method

    def abort(self, reason):
        self.comm.abort(reason)

    def finalize(self):
        self.comm.finalize() if not self.comm.is_aborted() else None

    def split(self, ranks, name, options):
        part = self.comm.split(ranks, name)
        if part is None:
            return None
        made = type(self)()
        made.comm = part
        return made


def on_ranks(cls, size, body):
    name = unique_name()
    headrace.register_backend(name, cls)
    failures = []

    def run(rank):
        try:
            meeting = f"memory:{name}"
            with headrace.new_comm(name, rank=rank, size=size, name=name, meeting=meeting) as comm:
                body(comm)
        except BaseException as error:  # shown by the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_ranks_meet_in_the_store_and_run_operations():
    def body(comm):
        rank = comm.get_rank()
        data = np.array([rank, 1.5])
        comm.all_reduce(data, ReduceOp.SUM)
        assert data.tolist() == [1, 3]
        work = comm.broadcast(data, 1, async_op=True)
        work.wait()
        if rank == 0:
            comm.send(data, 1)
        else:
            received = comm.recv(data, headrace.any_source)
            received.wait()
            assert received.source() == 0
        comm.barrier()

    on_ranks(OverHost, 2, body)


def test_a_wait_for_a_key_ends_in_time_though_each_look_takes_long():
    looks = []

    class SlowLink:
        def get(self, key):
            looks.append(key)
            time.sleep(0.05)

    store = headrace._comm_backend.Store(SlowLink(), datetime.timedelta(seconds=0.2))
    with pytest.raises(errors.TimedOut, match="no value for one of .'absent'. within 0:00:00.2"):
        store.wait(["absent"])
    assert len(looks) < 10
    looks.clear()
    with pytest.raises(errors.TimedOut, match="within 0:00:00"):
        store.wait(["absent"], datetime.timedelta(0))
    assert len(looks) == 1


def test_split_makes_an_object_of_the_class_for_each_group():
    def body(comm):
        part = comm.split([comm.get_rank()], f"part-{comm.get_rank()}")
        assert part.get_size() == 1
        assert part.get_backend() == comm.get_backend()
        part.barrier()
        part.finalize()
        assert comm.split([], "") is None

    on_ranks(OverHost, 2, body)


def test_an_abort_reaches_the_class_and_ends_the_works_of_all_ranks():
    def body(comm):
        data = np.zeros(1)
        if comm.get_rank() == 0:
            with pytest.raises(errors.TimedOut):
                comm.barrier(timeout=0.1)
        else:
            with pytest.raises(errors.Error, match="rank 0, barrier"):
                comm.recv(data, 0)
        assert comm.is_aborted()

    with pytest.raises(errors.Error, match="rank 0, barrier number"):  # the with statement finalizes
        on_ranks(OverHost, 2, body)


class Slow(Recorded):
    """Its works end when the test says so."""

    def __init__(self):
        super().__init__()
        self.future = Future()
        self.waited = threading.Event()

    def barrier(self, async_op, options):
        return self.future

    def all_reduce(self, tensor, op, async_op, options):
        self.tensor = tensor
        return SimpleNamespace(wait=self.waited.wait)


def test_a_future_or_an_object_with_wait_ends_the_work():
    comm = opened(Slow)
    work = comm.barrier(async_op=True)
    assert not work.is_completed()
    Slow.last.future.set_result(None)
    work.wait(10)
    data = np.zeros(1)
    work = comm.all_reduce(data, ReduceOp.SUM, async_op=True)
    assert not work.is_completed()
    Slow.last.waited.set()
    work.wait(10)


def test_a_future_that_fails_ends_the_communicator():
    comm = opened(Slow)
    work = comm.barrier(async_op=True)
    Slow.last.future.set_exception(errors.PeerLost("rank 7 is gone"))
    with pytest.raises(errors.PeerLost, match="barrier number 1 of .*rank 7 is gone"):
        work.wait(10)
    assert comm.is_aborted()


def test_a_work_that_is_aborted_keeps_its_tensor_until_the_class_has_ended_it():
    comm = opened(Slow)
    data = np.zeros(1000)
    with pytest.raises(errors.TimedOut, match="has not ended it within 50 ms"):
        comm.all_reduce(data, ReduceOp.SUM, timeout=0.05)
    del data
    gc.collect()
    np.asarray(Slow.last.tensor)[:] = 1  # the memory is there
    Slow.last.waited.set()


def test_what_a_method_raises_is_the_error_of_the_call():
    class Raises(Recorded):
        def barrier(self, async_op, options):
            raise errors.InvalidArgument("no barrier today")

        def broadcast(self, tensor, root, async_op, options):
            raise KeyError("lost")

        def all_reduce(self, tensor, op, async_op, options):
            return 3

    comm = opened(Raises)
    with pytest.raises(errors.InvalidArgument, match="no barrier today"):
        comm.barrier()
    assert not comm.is_aborted()
    with pytest.raises(errors.BackendFailed, match=r"broadcast number 1 of .* it raised KeyError\('lost'\)"):
        comm.broadcast(np.zeros(1), 0)
    assert comm.is_aborted()  # it may have moved something
    comm = opened(Raises)
    with pytest.raises(errors.BackendFailed, match="an operation returned 3: return None, a Future"):
        comm.all_reduce(np.zeros(1), ReduceOp.SUM)


def test_a_class_may_hear_of_registered_tensors():
    class Registers(Recorded):
        def tensor_register(self, tensor):
            if np.asarray(tensor).size == 3:
                raise ValueError("three are none of mine")
            self.calls.append(("registered", np.asarray(tensor).tolist()))

        def tensor_deregister(self, tensor):
            self.calls.append(("deregistered", np.asarray(tensor).tolist()))

    comm = opened(Registers)
    one, other = np.array([1, 2]), np.array([3.0])
    comm.tensor_register(one)
    comm.tensor_register(other)
    with pytest.raises(
        errors.InvalidArgument, match=r"tensor_register number 3 of .* three are none of mine"
    ):
        comm.tensor_register(np.zeros(3))
    comm.tensor_deregister(one)
    assert Registers.last.calls == [("registered", [1, 2]), ("registered", [3.0]), ("deregistered", [1, 2])]
    assert not comm.is_aborted()


def test_a_class_need_not_hear_of_registered_tensors():
    class Few:
        def init(self, device, name, options):
            pass

    comm = opened(Few)
    tensor = np.zeros(3)
    comm.tensor_register(tensor)
    with pytest.raises(errors.InvalidArgument, match="registered already"):
        comm.tensor_register(tensor)
    comm.tensor_deregister(tensor)


def test_pythons_own_errors_refuse_a_call():
    class Refuses(Recorded):
        def barrier(self, async_op, options):
            raise NotImplementedError("no barrier yet")

        def broadcast(self, tensor, root, async_op, options):
            raise ValueError("root 0 is no root")

        def send(self, tensor, destination, async_op, options):
            raise NotImplementedError

        def set_hints(self, hints):
            raise ValueError("no such hint")

        def split(self, ranks, name, options):
            raise NotImplementedError("no parts")

    comm = opened(Refuses, 0, 2)
    with pytest.raises(errors.NotSupported, match=r"backend python_\d+: no barrier yet"):
        comm.barrier()
    with pytest.raises(errors.InvalidArgument, match="root 0 is no root"):
        comm.broadcast(np.zeros(1), 0)
    with pytest.raises(errors.NotSupported, match=r"it raised NotImplementedError\(\)"):
        comm.send(np.zeros(1), 1)
    with pytest.raises(errors.InvalidArgument, match="no such hint"):
        comm.set_hints({"a": 1})
    with pytest.raises(errors.NotSupported, match="no parts"):
        comm.split([0], "part")
    assert not comm.is_aborted()

    class DoesNotOpen:
        def init(self, device, name, options):
            raise ValueError("3 ranks: it is made for one")

    with pytest.raises(errors.InvalidArgument, match="3 ranks: it is made for one"):
        opened(DoesNotOpen, 0, 3)


def test_a_class_tells_that_another_rank_has_ended_the_communicator():
    class Told(Recorded):
        def abort(self, reason):
            self.aborted.set()

        def init(self, device, name, options):
            super().init(device, name, options)
            self.aborted = threading.Event()

    comm = opened(Told)
    Told.last.options.ended(errors.PeerLost("rank 7 is gone"))
    with pytest.raises(errors.PeerLost, match="rank 7 is gone"):
        comm.barrier()
    assert Told.last.aborted.wait(60)
    options = Told.last.options
    del comm
    gc.collect()
    assert Told.last.finalized
    options.ended(errors.Internal("too late"))  # is ignored


def test_an_object_with_source_tells_which_rank_has_sent():
    class Sends(Recorded):
        def recv(self, tensor, source, async_op, options):
            return SimpleNamespace(wait=lambda: None, source=lambda: 2)

    work = opened(Sends, 0, 3).recv(np.zeros(1), headrace.any_source)
    work.wait()
    assert work.source() == 2


def test_an_exception_whose_text_cannot_be_read_is_shown():
    class Mute(errors.PeerLost):
        def __str__(self):
            raise RuntimeError("no text")

    class Raises(Recorded):
        def barrier(self, async_op, options):
            raise errors.InvalidArgument("\ud800")

        def broadcast(self, tensor, root, async_op, options):
            raise Mute("gone")

    comm = opened(Raises)
    with pytest.raises(errors.BackendFailed, match=r"it raised InvalidArgument\('.ud800'\)"):
        comm.barrier()
    with pytest.raises(errors.BackendFailed, match=r"it raised Mute\('gone'\)"):
        comm.broadcast(np.zeros(1), 0)


def test_exceptions_of_abort_and_finalize_go_to_the_unraisable_hook(monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(str(args.exc_value)))

    class Raises(Recorded):
        def finalize(self):
            raise RuntimeError("no end")

        def set_timeout(self, timeout):
            raise RuntimeError("no time")

        def abort(self, reason):
            raise RuntimeError("no abort")

    comm = opened(Raises)
    comm.set_timeout(3)
    comm.abort("enough")
    with pytest.raises(errors.Canceled, match="enough"):
        comm.finalize()
    assert raised == ["no time", "no abort", "no end"]


def test_what_a_class_lacks_is_not_supported():
    class Few:
        def init(self, device, name, options):
            pass

    comm = opened(Few)
    for call in (comm.barrier, lambda: comm.set_hints({"a": 1}), lambda: comm.split([0], "part")):
        with pytest.raises(errors.NotSupported, match="Few has no method"):
            call()
    comm.set_timeout(3)
    comm.finalize()


def test_values_that_are_set_later_reach_the_class():
    class Set(Recorded):
        def set_hints(self, hints):
            self.hints = hints

        def set_timeout(self, timeout):
            self.timeout = timeout

    comm = opened(Set)
    comm.set_hints({"a": 1})
    comm.set_timeout(2.5)
    assert Set.last.hints == {"a": "1"}
    assert Set.last.timeout == datetime.timedelta(seconds=2.5)


def test_a_class_that_does_not_open_says_why():
    class Fails:
        def init(self, device, name, options):
            raise OSError("no card")

    with pytest.raises(errors.BackendFailed, match=r"it raised OSError\('no card'\)"):
        opened(Fails)


def test_a_name_is_registered_once_and_a_class_needs_init():
    name = unique_name()
    headrace.register_backend(name, Recorded)
    for taken in (name, "host", "fake"):
        with pytest.raises(errors.InvalidArgument, match="already: register this one under another name"):
            headrace.register_backend(taken, Recorded)
    with pytest.raises(errors.InvalidArgument, match="give a class with init"):
        headrace.register_backend(unique_name(), object)
    with pytest.raises(errors.NotSupported, match="no valid name"):
        headrace.register_backend("Not Valid", Recorded)


def test_an_installed_package_brings_a_backend_as_an_entry_point(monkeypatch):
    name = unique_name()
    point = SimpleNamespace(load=lambda: Recorded)

    def entry_points(**wanted):
        return [point] if wanted == {"group": "headrace.comm_backends", "name": name} else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    for _ in range(2):
        comm = headrace.new_comm(name, rank=0, size=1)
        assert comm.get_backend() == name
    with pytest.raises(errors.NotFound, match="there is no backend"):
        headrace.new_comm("nobody_has_it", rank=0, size=1)


def test_the_program_in_the_documentation_runs():
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text()
    (program,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Alone" in block
    )
    exec(program, {})


def test_fake_opens_any_rank_alone():
    comm = headrace.new_comm("fake", rank=5, size=8)
    start = time.monotonic()
    comm.barrier()
    assert time.monotonic() - start < 5
    assert comm.get_options().backend == "fake"
    assert comm.recv(np.zeros(1), 2).source() == 2
