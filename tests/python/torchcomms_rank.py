# SPDX-License-Identifier: Apache-2.0
"""A rank of a program of torchcomms, on the backend headrace: runs the case that its argument names."""

import sys
import time
from datetime import timedelta

import pytest
import torch
import torchcomms
from torchcomms import ReduceOp

CPU = torch.device("cpu")


def opened(name, **options):
    return torchcomms.new_comm("headrace", CPU, name=name, **options)


def full(value, count=4):
    return torch.full((count,), float(value))


def operations(comm, rank):
    tensor = torch.arange(6.0).reshape(2, 3).t() + rank  # with gaps
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    assert torch.equal(tensor, 2 * torch.arange(6.0).reshape(2, 3).t() + 1)
    scaled = full(rank + 1)
    comm.all_reduce(scaled, ReduceOp.PREMUL_SUM(2.0), False)
    assert torch.equal(scaled, full(6))
    parts = [torch.empty(4), torch.empty(4)]
    comm.all_gather(parts, full(rank), False)
    assert torch.equal(torch.stack(parts), torch.stack([full(0), full(1)]))
    grown = [torch.empty(1), torch.empty(2)]
    comm.all_gather_v(grown, full(rank, rank + 1), False)
    assert torch.equal(torch.cat(grown), torch.tensor([0.0, 1.0, 1.0]))
    output = torch.empty(2)
    comm.reduce_scatter_single(output, torch.arange(4.0), ReduceOp.MAX, False)
    assert torch.equal(output, torch.arange(4.0)[2 * rank :][:2])
    rows, split = torch.empty(3, 2), ([1, 2] if rank == 0 else [2, 1])
    comm.all_to_all_v_single(rows, torch.full((3, 2), float(rank)), split, split, False)
    assert rows[:, 0].tolist() == ([0.0, 1.0, 1.0] if rank == 0 else [0.0, 0.0, 1.0])
    comm.broadcast(tensor, 1, False)
    gathered = torch.zeros(2 * 4)
    comm.gather_single(gathered, full(rank + 1), 0, False)
    assert gathered.sum().item() == (12 if rank == 0 else 0)
    comm.scatter(output, [full(5, 2), full(6, 2)] if rank == 1 else [], 1, False)
    assert torch.equal(output, full(5 + rank, 2))
    comm.barrier(False)


def works_and_messages(comm, rank):
    tensor = full(rank)
    work = comm.all_reduce(tensor, ReduceOp.SUM, True)
    end = time.monotonic() + 60
    while not work.is_completed():  # nobody waits: a thread of the library ends it
        assert time.monotonic() < end
    work.wait()
    assert torch.equal(tensor, full(1))
    batch = comm.batch_op_create()
    received = torch.empty(4)
    batch.send(full(rank + 7), 1 - rank)
    batch.recv(received, 1 - rank)
    batch.issue(True).wait()
    assert torch.equal(received, full(8 - rank))


def windows(comm, rank):
    mine = torch.zeros(4)
    window = comm.new_window()
    window.tensor_register(mine)
    window.put(full(rank + 1, 2), 1 - rank, 2, False)
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)
    assert mine.tolist() == [0, 0, 2 - rank, 2 - rank]
    window.tensor_deregister()


def splits(comm, rank):
    child = comm.split([1, 0], name="turned")
    assert (child.get_rank(), child.get_size()) == (1 - rank, 2)
    child.finalize()
    with pytest.raises(RuntimeError):
        comm.split([1 - rank], name="without_this_one")


def errors(comm, rank):
    ended = []
    comm.register_abort_hook(lambda: ended.append(rank))
    with pytest.raises(RuntimeError, match="the tensor has the type"):
        comm.send(torch.zeros(1, dtype=torch.complex32), 1 - rank, False)
    if rank == 0:
        with pytest.raises(RuntimeError, match="all_reduce"):
            comm.all_reduce(full(1), ReduceOp.SUM, False, timeout=timedelta(milliseconds=50))
        assert comm.is_aborted() and ended == [0]
    else:
        with pytest.raises(RuntimeError):
            comm.recv(full(1), 0, False)


def reconfigures(comm, rank):
    store = torch.distributed.FileStore(sys.argv[2], 2)
    member = opened("member", enable_reconfigure=True, abort_process_on_timeout_or_error=False)
    with pytest.raises(RuntimeError, match="call reconfigure first"):
        member.barrier(False)
    store.set(f"handle{rank}", member.get_init_handle())
    handles = [store.get(f"handle{other}").decode() for other in (1, 0)]
    member.reconfigure(1, handles)
    assert (member.get_rank(), member.get_size()) == (1 - rank, 2)
    member.barrier(False)
    with pytest.raises(RuntimeError, match="is no init handle"):
        member.reconfigure(2, ["gloo:0"])


def main():
    comm = opened("world", abort_process_on_timeout_or_error=False)
    globals()[sys.argv[1]](comm, comm.get_rank())
    comm.finalize()


if __name__ == "__main__":
    main()
