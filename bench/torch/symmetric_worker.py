# SPDX-License-Identifier: Apache-2.0
"""One rank of torch's symmetric memory in bench/compare_coll_gpu.py: runs the plan that it gets as JSON. Rank
0 prints a line of JSON for each case, with the median of the slowest rank's microseconds."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

CALLS = 20  # of a graph
ROUNDS = 5
MOST_ONE_SHOT = 4 << 20  # of bytes: above it every rank reads too much


def ways(group: str) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    ops = torch.ops.symm_mem
    return {
        "one_shot": lambda t: ops.one_shot_all_reduce(t, "sum", group),
        "two_shot": lambda t: ops.two_shot_all_reduce_(t, "sum", group),
    }


def slowest(value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


def is_right(run: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor, size: int) -> bool:
    tensor.fill_(dist.get_rank() + 1)
    torch.cuda.synchronize()
    dist.barrier()
    out = run(tensor)
    torch.cuda.synchronize()
    return slowest(0.0 if bool((out == size * (size + 1) / 2).all()) else 1.0) == 0


def measured(run: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor, seconds: float) -> float:
    tensor.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run(tensor)
    times: list[float] = []
    replays = 3
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        times.append(slowest((time.perf_counter() - begin) / replays / CALLS))
        if len(times) == 1:  # the first tells how many fit
            replays = int(min(250, max(1, seconds / ROUNDS / CALLS / times[0])))
    return statistics.median(times[1:]) * 1e6


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    rank, size = plan["rank"], plan["size"]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{plan['port']}", rank=rank, world_size=size)
    group = dist.group.WORLD.group_name
    for type_name in plan["types"]:
        dtype = getattr(torch, type_name)
        for size_bytes in plan["bytes"]:
            count = max(1, size_bytes // dtype.itemsize)
            tensor = symmetric.empty(count, dtype=dtype, device=f"cuda:{rank}")
            symmetric.rendezvous(tensor, group)
            for way, run in ways(group).items():
                if (way == "one_shot" and size_bytes > MOST_ONE_SHOT) or size_bytes < 16 * size:
                    continue  # two_shot cuts 16 bytes for each rank
                right = is_right(run, tensor, size)
                us = measured(run, tensor, plan["seconds"])
                if rank == 0:
                    line = {"way": way, "type": type_name, "bytes": size_bytes, "us": us, "right": right}
                    print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
