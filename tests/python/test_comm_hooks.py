# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Python functions that a communicator calls beside its operations."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import headrace
from headrace import ReduceOp
from ranks import on_ranks, open_rank, two_ranks


def add(comm, **options):
    return comm.all_reduce(np.ones(5, np.float32), ReduceOp.SUM, **options)


@pytest.fixture
def alone():
    comm = open_rank(0, 1, "alone")
    yield comm
    comm.abort("the test has ended")


def test_hooks_hear_of_each_step_until_they_are_removed():
    def run(comm):
        told = []
        hook = comm.add_hooks(
            before=lambda call: told.append(("before", call.operation, call.number)),
            scheduled=lambda call: told.append(("scheduled", call.operation, call.number)),
            started=lambda call: told.append(("started", call.operation, call.number)),
            completed=lambda call, error: told.append(("completed", call.number, error)),
            after=lambda call, error: told.append(("after", call.number, error)),
        )
        add(comm)
        hook.remove()
        hook.remove()
        add(comm)
        return told

    for told in on_ranks(2, run):
        assert told == [
            ("before", "all_reduce", 0),
            ("scheduled", "all_reduce", 2),
            ("started", "all_reduce", 2),
            ("completed", 2, None),
            ("after", 2, None),
        ]


def test_a_call_says_what_it_reads_and_writes_and_may_be_kept(alone):
    calls = []
    alone.add_hooks(before=calls.append, scheduled=calls.append)
    array = np.ones((2, 3), np.float64)
    alone.all_to_all_v_single(array, array, [6], [6], timeout=3)
    asked, scheduled = calls
    assert (asked.number, scheduled.number) == (0, 1)
    assert asked.inputs[0].address == array.ctypes.data
    assert (asked.outputs[0].count, asked.outputs[0].dtype) == (6, "float64")
    assert (asked.input_splits, asked.output_splits) == ([6], [6])
    assert (asked.peer, asked.tag, asked.async_op, asked.timeout) == (-1, 0, False, 3)
    alone.barrier()
    assert (calls[2].timeout, calls[3].timeout) == (None, 60)
    assert repr(calls[3]) == "CommCall('barrier', 2, inputs=[], outputs=[])"
    alone.reduce(array, 0, ReduceOp.MAX)
    assert calls[4].op == ReduceOp.MAX


def test_an_exception_of_before_refuses_the_call_and_is_raised():
    class Refused(Exception):
        pass

    def refuse(call):
        if call.operation == "broadcast":
            raise Refused(call.operation)

    def run(comm):
        comm.add_hooks(before=refuse)
        for async_op in (False, True):
            with pytest.raises(Refused, match="broadcast"):
                comm.broadcast(np.ones(3), 0, async_op=async_op)
        add(comm)
        return True

    assert on_ranks(2, run) == [True, True]


def test_exceptions_of_the_other_hooks_go_to_the_unraisable_hook(alone, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: seen.append(str(given.exc_value)))

    def fail(*_):
        raise ValueError(f"number {len(seen)}")

    alone.add_hooks(scheduled=fail, started=fail, completed=fail, after=fail, aborted=fail)
    add(alone)
    alone.abort("enough")
    assert seen == [f"number {i}" for i in range(5)]


def test_hooks_run_on_the_threads_of_the_communicator_while_others_call_it():
    """Whatever a hook waits for with the lock of Python, no call holds both."""
    first, second = two_ranks()
    counts = [0, 0]

    def count(rank):
        def tell(*_):
            counts[rank] += 1

        return tell

    def ask(comm, stop):
        while not stop.is_set():
            comm.set_timeout(comm.get_options().timeout)
            comm.is_aborted()
            comm.add_hooks(before=lambda call: None).remove()

    def work(comm):
        for _ in range(50):
            works = [add(comm, async_op=True) for _ in range(5)]
            for one in works:
                one.wait()

    stop = threading.Event()
    askers = [threading.Thread(target=ask, args=(comm, stop)) for comm in (first, second)]
    for rank, comm in enumerate((first, second)):
        comm.add_hooks(scheduled=count(rank), started=count(rank), completed=count(rank), after=count(rank))
    for thread in askers:
        thread.start()
    workers = [threading.Thread(target=work, args=(comm,)) for comm in (first, second)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    for thread in askers:
        thread.join()
    for comm in (first, second):
        comm.abort("the test has ended")
    assert counts == [4 * 250] * 2


def test_aborted_and_completed_have_the_error(alone):
    errors = []
    alone.add_hooks(completed=lambda call, error: errors.append(error), aborted=errors.append)
    alone.abort("enough")
    with pytest.raises(headrace.Canceled):
        alone.barrier()
    assert [type(error) for error in errors] == [headrace.Canceled] * 2
    assert all("enough" in str(error) for error in errors)


def test_a_hook_may_call_its_communicator_and_a_cycle_with_it_is_collected():
    def run():
        comm = open_rank(0, 1, "cycle")
        timeouts = []
        comm.add_hooks(before=lambda call: timeouts.append(comm.get_options().timeout))
        add(comm)
        assert timeouts == [60]
        return weakref.ref(comm)

    gone = run()
    gc.collect()
    assert gone() is None


def test_the_nan_check_refuses_a_call_and_names_the_element(alone):
    hook = alone.add_nan_check()
    array = np.ones(9, np.float32)
    array[4] = np.nan
    with pytest.raises(headrace.InvalidArgument, match=r"all_reduce .*element 4 of 9 in input 0 \(float32\)"):
        alone.all_reduce(array, ReduceOp.SUM)
    hook.remove()
    alone.all_reduce(array, ReduceOp.SUM)


def test_what_is_no_function_is_refused(alone):
    with pytest.raises(TypeError):
        alone.add_hooks(before=3)
