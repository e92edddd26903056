# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""Windows between threads: memory, operations against NumPy, and what is refused."""

import gc
import weakref

import numpy as np
import pytest

import headrace
from headrace import errors
from ranks import on_ranks

BACKENDS = ("shm", "tcp")


@pytest.fixture(params=BACKENDS)
def hints(request):
    return {"backends": request.param}


def test_put_get_signal_and_add_move_what_numpy_says(hints):
    def body(comm):
        rank, other = comm.get_rank(), 1 - comm.get_rank()
        window = comm.new_window()
        mine = np.asarray(window.allocate(1000, "int64"))
        assert mine.shape == (1000,) and not mine.any()
        comm.barrier()
        data = np.arange(100) + rank
        window.put(data, other, 7)
        window.signal(other)
        assert window.wait_signal(other) == 1
        assert (mine[7:107] == np.arange(100) + other).all()
        got = np.empty(100, np.int64)
        window.get(got, other, 7)
        assert (got == data).all()
        comm.barrier()
        assert window.atomic_add(0, 5, 3) in (0, 3)
        comm.barrier()
        assert rank != 0 or mine[5] == 6
        window.tensor_deregister()

    on_ranks(2, body, hints=hints)


def test_asynchronous_operations_keep_their_tensors_and_run_in_order(hints):
    def body(comm):
        other = 1 - comm.get_rank()
        window = comm.new_window()
        mine = np.asarray(window.allocate(500_000, "float32"))
        data = np.full(500_000, 1, np.float32)
        seen = weakref.ref(data)
        first = window.put(data, other, 0, True)
        del data
        second = window.put(np.full(400_000, 2, np.float32), other, 1, async_op=True)
        window.signal(other, True)
        window.wait_signal(other)
        assert mine[0] == 1 and (mine[1:400_001] == 2).all() and (mine[400_001:] == 1).all()
        window.flush()
        first.wait()
        assert second.is_completed()
        gc.collect()
        assert seen() is None
        window.tensor_deregister()

    on_ranks(2, body, hints=hints)


def test_a_registered_tensor_is_kept_until_it_is_deregistered(hints):
    def body(comm):
        data = np.zeros(10, np.float64)
        seen = weakref.ref(data)
        window = comm.new_window(data)
        assert window.get_attr(1 - comm.get_rank()).access_type == "separate"
        del data
        gc.collect()
        window.put(np.ones(3), 1 - comm.get_rank(), 4)
        comm.barrier()
        assert np.asarray(window.get_tensor()).tolist() == [0] * 4 + [1] * 3 + [0] * 3
        window.tensor_deregister()
        gc.collect()
        assert seen() is None

    on_ranks(2, body, hints=hints)


def test_a_mapped_tensor_is_the_memory_of_its_rank():
    def body(comm):
        window = comm.new_window()
        mine = np.asarray(window.allocate(8, "uint16"))
        assert window.get_attr(0).access_type == "unified"
        theirs = np.asarray(window.map_remote_tensor(1 - comm.get_rank()))
        theirs[3] = comm.get_rank() + 10
        comm.barrier()
        assert mine[3] == 11 - comm.get_rank()
        window.tensor_deregister()
        assert theirs[3] == comm.get_rank() + 10

    on_ranks(2, body)


def test_signals_have_values_and_waits_have_conditions():
    def body(comm):
        other = 1 - comm.get_rank()
        window = comm.new_window()
        window.allocate(1, "int8")
        window.signal(other, value=40, op="set")
        window.signal(other, value=2)
        assert window.wait_signal(other, condition="eq", value=42) == 42
        with pytest.raises(errors.TimedOut, match=f"the signal of rank {other} is 42, and > 42 was awaited"):
            window.wait_signal(other, condition="gt", value=42, timeout=0.01)
        window.tensor_deregister()

    on_ranks(2, body)


def test_wrong_arguments_are_refused_and_end_nothing():
    def body(comm):
        window = comm.new_window()
        with pytest.raises(errors.InvalidArgument, match="no memory is registered"):
            window.put(np.zeros(1), 0)
        window.allocate(4, np.dtype("float64"))
        with pytest.raises(errors.InvalidArgument, match="2 elements from element 3 on: rank 1 has 4"):
            window.put(np.zeros(2), 1, 3)
        with pytest.raises(errors.InvalidArgument, match="float32, those of the window are float64"):
            window.put(np.zeros(2, np.float32), 1, 0)
        with pytest.raises(errors.InvalidArgument, match='op is "or": give one of "add", "set"'):
            window.signal(1, op="or")
        with pytest.raises(errors.InvalidArgument, match='condition is ">=": give one of "eq"'):
            window.wait_signal(1, condition=">=")
        with pytest.raises(errors.NotSupported, match="wait_signal waits in the call"):
            window.wait_signal(1, True)
        with pytest.raises(errors.InvalidArgument, match="atomic_add takes int32"):
            window.atomic_add(1, 0, 1)
        with pytest.raises(TypeError, match="cannot be pickled"):
            window.__reduce__()
        comm.barrier()
        window.tensor_deregister()

    on_ranks(2, body)


def test_a_window_that_is_dropped_leaves_its_communicator_usable():
    def body(comm):
        window = comm.new_window()
        window.allocate(4, "int32")
        comm.barrier()
        del window
        gc.collect()
        data = np.ones(2)
        comm.all_reduce(data, headrace.ReduceOp.SUM)
        assert data[0] == 2

    on_ranks(2, body)
