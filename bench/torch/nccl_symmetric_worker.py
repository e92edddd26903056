# SPDX-License-Identifier: Apache-2.0
"""One rank of NCCL's symmetric kernels in bench/compare_coll_gpu.py: memory of ncclMemAlloc that all ranks
register as a window, through torch. Runs the plan that it gets as JSON; rank 0 prints a line of JSON for each
case, with the median of the slowest rank's microseconds in replays of a graph."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from symmetric_worker import is_right, measured


def ways(size: int, tensor: torch.Tensor, whole: torch.Tensor) -> dict[str, Callable[..., torch.Tensor]]:
    """Each operation with `tensor`, the larger of input and output."""
    rank, part = dist.get_rank(), tensor.numel() // size

    def all_reduce(given: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(given)
        return given

    def all_gather(given: torch.Tensor) -> torch.Tensor:
        dist.all_gather_into_tensor(whole, given[rank * part : (rank + 1) * part])
        return whole

    def reduce_scatter(given: torch.Tensor) -> torch.Tensor:
        dist.reduce_scatter_tensor(whole[:part], given)
        return whole[:part]

    found = {"all_reduce": all_reduce}
    if tensor.numel() % size == 0:
        found |= {"all_gather_single": all_gather, "reduce_scatter_single": reduce_scatter}
    return found


def gathered_right(run: Callable[..., torch.Tensor], tensor: torch.Tensor, size: int) -> bool:
    """Of all_gather: each rank's part has its number."""
    tensor.fill_(dist.get_rank() + 1)
    out = run(tensor).float().reshape(size, -1)
    right = all(bool((out[rank] == rank + 1).all()) for rank in range(size))
    told = torch.tensor([float(right)], device="cuda")
    dist.all_reduce(told, dist.ReduceOp.MIN)
    return bool(told == 1)


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    rank, size = plan["rank"], plan["size"]
    device = torch.device("cuda", rank)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{plan['port']}", rank=rank, world_size=size, device_id=device
    )
    backend: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    pool = torch.cuda.MemPool(backend.mem_allocator)
    most = max(plan["bytes"])
    with torch.cuda.use_mem_pool(pool):
        memory, others = (torch.zeros(most, dtype=torch.uint8, device=device) for _ in range(2))
    backend.register_mem_pool(pool, symm=True)
    for type_name in plan["types"]:
        dtype = getattr(torch, type_name)
        for size_bytes in plan["bytes"]:
            count = max(1, size_bytes // dtype.itemsize)
            tensor, whole = (each.view(dtype)[:count] for each in (memory, others))
            for op, run in ways(size, tensor, whole).items():
                if op not in plan["ops"]:
                    continue
                check = gathered_right if op == "all_gather_single" else is_right
                right = check(run, tensor, size)
                us = measured(run, tensor, plan["seconds"])
                if rank == 0:
                    line = {"op": op, "type": type_name, "bytes": size_bytes, "us": us, "right": right}
                    print(json.dumps(line), flush=True)
    backend.deregister_mem_pool(pool)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
