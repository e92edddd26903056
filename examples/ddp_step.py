#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of DistributedDataParallel over a device mesh, on backend "headrace".

python examples/ddp_step.py                              starts two processes itself
torchrun --nproc-per-node 2 examples/ddp_step.py         torchrun starts them
"""

import os
import socket
import sys

import torch
import torch.multiprocessing
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

SIZE = 2


def step():
    init_process_group("headrace")
    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("data",))
    rank = mesh.get_local_rank("data")
    torch.manual_seed(0)  # the same model on all ranks
    model = DistributedDataParallel(torch.nn.Linear(8, 1), device_mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    torch.manual_seed(rank + 1)  # other data on each
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()  # the mean of all ranks' gradients
    optimizer.step()

    weights = model.module.weight.detach()
    everyones = [torch.empty_like(weights) for _ in range(SIZE)]
    torch.distributed.all_gather(everyones, weights, group=mesh.get_group("data"))
    print(f"rank {rank}: the weights are equal: {torch.equal(everyones[0], everyones[1])}", flush=True)
    destroy_process_group()
    return torch.equal(everyones[0], everyones[1])


def run_rank(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if not step():
        sys.exit(1)


if __name__ == "__main__":
    if "RANK" in os.environ:
        sys.exit(not step())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, (port,), SIZE)
