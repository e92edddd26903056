# SPDX-License-Identifier: Apache-2.0
"""One rank of tests/python/test_gpu_comm.py: a program of torchcomms whose tensors are on a GPU. Compares
what operations give with what torch computes on the CPU, and ends with code 1 at the first difference.

    gpu_torchcomms_rank.py BACKEND GPU RANK SIZE FILE
"""

import os
import sys

import torch

import headrace.compat.torchcomms as torchcomms
from headrace.compat.torchcomms import ReduceOp


def main(backend, gpu, rank, size, file):
    device, rank, size = torch.device("cuda", int(gpu)), int(rank), int(size)
    torch.cuda.set_device(device)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    store = torch.distributed.FileStore(file, size)
    comm = torchcomms.new_comm(backend, device, "world", store=store)

    def of(number, count=40_003):
        return (torch.arange(count) % 13 + number).float()

    def same(got, expected, what):
        if not torch.equal(got.cpu(), expected):
            sys.exit(f"rank {rank}: {what}: {got} is not {expected}")

    total = sum(of(number) for number in range(size))
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for async_op in (False, True):
            tensor = torch.zeros(40_003, device=device)
            tensor += of(rank).to(device)
            work = comm.all_reduce(tensor, ReduceOp.SUM, async_op)
            work.wait()
            tensor *= 2
            same(tensor, 2 * total, f"all_reduce, async_op={async_op}")
        whole = torch.empty(size * 40_003, device=device)
        comm.all_gather_single(whole, of(rank).to(device), False)
        same(whole, torch.cat([of(number) for number in range(size)]), "all_gather_single")
        tensor = of(rank).to(device)
        work = comm.broadcast(tensor, size - 1, True)
        work.wait_blocking()
        assert work.is_completed()
        same(tensor, of(size - 1), "broadcast")
        comm.barrier(False)
        batch = comm.batch_op_create()
        received = torch.empty(40_003, device=device)
        batch.send(of(rank).to(device), (rank + 1) % size)
        batch.recv(received, (rank - 1) % size)
        batch.issue(False)
        same(received, of((rank - 1) % size), "a batch")
    part = comm.split([rank // 2 * 2, rank // 2 * 2 + 1], "pair")
    tensor = of(rank).to(device)
    part.all_reduce(tensor, ReduceOp.SUM, False)
    same(tensor, of(rank // 2 * 2) + of(rank // 2 * 2 + 1), "all_reduce of a pair")
    part.finalize()

    if backend != "nccl":
        window = comm.new_window()
        window.tensor_register(torch.zeros(8, device=device))
        assert window.get_device_window(4, 4, 2) != 0
        buffer = torch.ones(8, device=device)
        assert window.register_local_buffer(buffer) == buffer.data_ptr()
        window.deregister_local_buffer(buffer.data_ptr())
        window.tensor_deregister()

    pool = torch.cuda.MemPool(comm.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(1 << 20, device=device)
    comm.tensor_register(tensor)
    tensor.copy_(of(rank, 1 << 20))
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    same(tensor, sum(of(number, 1 << 20) for number in range(size)), "all_reduce of a pool's tensor")
    comm.tensor_deregister(tensor)
    torch.cuda.synchronize()
    comm.finalize()


main(*sys.argv[1:])
