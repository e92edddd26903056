# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Registered tensors of communicators: who keeps them, and what is refused."""

import gc
import weakref
from array import array

import numpy as np
import pytest

import headrace
from headrace import ReduceOp, errors
from ranks import on_ranks


@pytest.fixture(params=["host", "fake"])
def comm(request):
    comm = headrace.new_comm(request.param, rank=0, size=1)
    yield comm
    if not comm.is_aborted():
        comm.finalize()


def test_calls_use_registered_tensors_of_ranks_that_differ_in_size():
    def body(comm):
        data = np.ones(4 + comm.get_rank())
        comm.tensor_register(data)
        comm.all_reduce(data[:4], ReduceOp.SUM)
        comm.tensor_deregister(data)
        return data[0]

    assert on_ranks(3, body) == [3, 3, 3]


def test_a_tensor_is_kept_until_it_is_deregistered(comm):
    data = np.zeros(4)
    seen = weakref.ref(data)
    comm.tensor_register(data)
    del data
    gc.collect()
    assert seen() is not None
    comm.tensor_deregister(seen())
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("end", ["finalize", "delete"])
def test_a_tensor_is_kept_until_the_end_of_the_communicator(end):
    data = np.zeros(4)
    seen = weakref.ref(data)
    comm = headrace.new_comm(rank=0, size=1)
    comm.tensor_register(data)
    del data
    gc.collect()
    assert seen() is not None
    if end == "finalize":
        comm.finalize()
    else:
        del comm
    gc.collect()
    assert seen() is None


def test_torch_tensors_bytes_and_arrays_are_registered(comm):
    torch = pytest.importorskip("torch")
    for data in (torch.zeros(2, 3), torch.zeros(4, dtype=torch.bfloat16), b"only read", array("i", [1, 2])):
        comm.tensor_register(data)
        comm.tensor_deregister(data)


def test_wrong_tensors_are_refused_and_end_nothing(comm):
    data = np.zeros(4, np.float32)
    with pytest.raises(errors.InvalidArgument, match="is registered; 0 tensors are"):
        comm.tensor_deregister(data)
    comm.tensor_register(data)
    with pytest.raises(errors.InvalidArgument, match="registered already: call tensor_deregister first"):
        comm.tensor_register(data)
    with pytest.raises(errors.InvalidArgument, match="registered as 4 float32, and 2 float32 is given"):
        comm.tensor_deregister(data[:2])
    with pytest.raises(errors.InvalidArgument, match="not contiguous"):
        comm.tensor_register(data[::2])
    assert not comm.is_aborted()
    comm.tensor_deregister(data)


def test_nothing_is_registered_after_the_end(comm):
    data = np.zeros(4)
    comm.tensor_register(data)
    comm.abort("enough")
    with pytest.raises(errors.Canceled, match="enough"):
        comm.tensor_deregister(data)
    with pytest.raises(errors.Canceled, match="enough"):
        comm.tensor_register(np.zeros(4))
