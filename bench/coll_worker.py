# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/compare_coll.py: runs the plan that it gets as JSON. Rank 0 prints a line of JSON
for each case, with the median of the slowest rank's microseconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[], object]


class Gloo:
    """torch.distributed with its backend gloo."""

    def __init__(self, rank: int, size: int, address: str):
        import torch.distributed as dist

        self.dist, self.rank, self.size = dist, rank, size
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)

    def operation(self, op: str, t: Tensors) -> Run:
        d = self.dist
        other = t.peer
        runs: dict[str, Run] = {
            "barrier": d.barrier,
            "all_reduce": lambda: d.all_reduce(t.whole),
            "broadcast": lambda: d.broadcast(t.whole, 0),
            "reduce": lambda: d.reduce(t.whole, 0),
            "all_gather": lambda: d.all_gather(t.parts, t.part),
            "reduce_scatter": lambda: d.reduce_scatter(t.part, t.parts),
            "all_to_all": lambda: d.all_to_all_single(t.output, t.whole),
            "gather": lambda: d.gather(t.part, t.parts if self.rank == 0 else None, 0),
            "scatter": lambda: d.scatter(t.part, t.parts if self.rank == 0 else None, 0),
            "send_recv": lambda: (
                (d.send(t.whole, other), d.recv(t.whole, other))
                if self.rank < other
                else (d.recv(t.whole, other), d.send(t.whole, other))
            ),
        }
        return runs[op]

    def slowest(self, samples: torch.Tensor) -> None:
        self.dist.all_reduce(samples, self.dist.ReduceOp.MAX)

    def meet(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.destroy_process_group()


class Headrace:
    """headrace.Comm with its backend host."""

    def __init__(self, rank: int, size: int, address: str, backends: str):
        import headrace

        self.rank, self.size, self.ops = rank, size, headrace.ReduceOp
        hints = {"backends": backends}
        self.comm = headrace.new_comm("host", rank=rank, size=size, meeting=address, hints=hints)

    def operation(self, op: str, t: Tensors) -> Run:
        c, total = self.comm, self.ops.SUM
        other = t.peer
        runs: dict[str, Run] = {
            "barrier": lambda: c.barrier(False),
            "all_reduce": lambda: c.all_reduce(t.whole, total, False),
            "broadcast": lambda: c.broadcast(t.whole, 0, False),
            "reduce": lambda: c.reduce(t.whole, 0, total, False),
            "all_gather": lambda: c.all_gather(t.parts, t.part, False),
            "reduce_scatter": lambda: c.reduce_scatter(t.part, t.parts, total, False),
            "all_to_all": lambda: c.all_to_all_single(t.output, t.whole, False),
            "gather": lambda: c.gather(t.parts if self.rank == 0 else [], t.part, 0, False),
            "scatter": lambda: c.scatter(t.part, t.parts if self.rank == 0 else [], 0, False),
            "send_recv": lambda: (
                (c.send(t.whole, other, False), c.recv(t.whole, other, False))
                if self.rank < other
                else (c.recv(t.whole, other, False), c.send(t.whole, other, False))
            ),
        }
        return runs[op]

    def slowest(self, samples: torch.Tensor) -> None:
        self.comm.all_reduce(samples, self.ops.MAX, False)

    def meet(self) -> None:
        self.comm.barrier(False)

    def close(self) -> None:
        self.comm.finalize()


class Tensors:
    """The memory of one case. `size_bytes` is that of a rank's whole input: all_gather sends it to all, the
    operations with parts cut it into one for each rank."""

    def __init__(self, rank: int, size: int, op: str, size_bytes: int):
        whole = max(1, size_bytes // 4)
        part = max(1, whole // size)
        if op == "all_gather":
            part = whole
        elif op == "all_to_all":
            whole = part * size
        self.peer = rank ^ 1
        self.whole = torch.full((whole,), float(rank + 1))
        self.output = torch.zeros(whole)
        self.part = torch.full((part,), float(rank + 1))
        self.parts = [torch.full((part,), float(rank + 1)) for _ in range(size)]

    def refill(self, rank: int) -> None:
        for tensor in (self.whole, self.part, *self.parts):
            tensor.fill_(float(rank + 1))

    def right(self, op: str, rank: int, size: int) -> bool:
        """Whether one run on fresh memory has left what it must."""
        total = size * (size + 1) / 2
        everyone = [float(r + 1) for r in range(size)]
        if op == "all_reduce" or (op == "reduce" and rank == 0):
            return bool((self.whole == total).all())
        if op == "broadcast":
            return bool((self.whole == 1).all())
        if op == "all_gather" or (op == "gather" and rank == 0):
            return all(bool((p == v).all()) for p, v in zip(self.parts, everyone, strict=True))
        if op == "reduce_scatter":
            return bool((self.part == total).all())
        if op == "all_to_all":
            return bool((self.output.view(size, -1) == torch.tensor(everyone)[:, None]).all())
        if op == "scatter":
            return bool((self.part == 1).all())
        if op == "send_recv":  # what the lower of the two sent came back
            return self.peer >= size or bool((self.whole == min(rank, self.peer) + 1).all())
        return True


def measure(side: Gloo | Headrace, op: str, size_bytes: int, seconds: float) -> dict[str, Any]:
    tensors = Tensors(side.rank, side.size, op, size_bytes)
    alone = op == "send_recv" and tensors.peer >= side.size
    run: Run = (lambda: None) if alone else side.operation(op, tensors)
    tensors.refill(side.rank)
    run()
    wrong = torch.tensor([0.0 if tensors.right(op, side.rank, side.size) else 1.0])
    side.slowest(wrong)
    # All ranks repeat it as often as the slowest one finds right.
    begin = time.perf_counter()
    for _ in range(3):
        run()
    once = torch.tensor([(time.perf_counter() - begin) / 3], dtype=torch.float64)
    side.slowest(once)
    repeats = int(min(2000, max(5, seconds / max(float(once), 1e-7))))
    samples = torch.zeros(repeats, dtype=torch.float64)
    side.meet()
    for i in range(repeats):
        begin = time.perf_counter()
        run()
        samples[i] = time.perf_counter() - begin
    side.slowest(samples)
    halves = 2 if op == "send_recv" else 1  # one way
    times = (samples * 1e6 / halves).tolist()
    return {"op": op, "bytes": size_bytes, "us": sorted(times)[len(times) // 2], "right": float(wrong) == 0}


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    place = plan["rank"], plan["size"], plan["address"]
    side = Gloo(*place) if plan["side"] == "gloo" else Headrace(*place, plan["backends"])
    for op in plan["ops"]:
        for size_bytes in [0] if op == "barrier" else plan["bytes"]:
            row = measure(side, op, size_bytes, plan["seconds"])
            if plan["rank"] == 0:
                print(json.dumps(row), flush=True)
    side.close()


if __name__ == "__main__":
    main()
