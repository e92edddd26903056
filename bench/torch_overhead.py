#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of torch.distributed costs on Headrace: its compiled group and the one in Python, in turn with
a group of torch's.

`calls`: backend "fake" of communicators, which moves nothing, and torch's group "fake": one process.
`small`: all_reduce of small tensors between two processes of this host, and torch's gloo.
Rows go to bench/results, table `torch`; those of `calls` are not checked, since they move nothing.

    .venv/bin/python bench/torch_overhead.py
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import headrace
from comparison import PYTHON, ROOT, Rows, default_label, median, table

SIDES = ["torch", "compiled", "python"]
SIZES = [4, 1024, 8192, 65536]  # bytes
SAMPLES = 50
Times = dict[str, dict[str, list[float]]]  # microseconds by case and side


def group_on_fake(binding: str) -> Callable[..., Any]:
    """What makes a group on the backend "fake" of communicators."""

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        from headrace._torch.compiled import new_backend
        from headrace._torch.group import HeadraceProcessGroup

        comm = headrace.new_comm("fake", rank=rank, size=size)
        group = new_backend if binding == "compiled" else HeadraceProcessGroup
        return group(store, rank, size, timeout, comm=comm)

    return make


def join_alone(side: str) -> None:
    """Rank 0 of two, the other of which never comes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    name = "fake"
    if side != "torch":
        name = f"headrace_fake_{side}"
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, group_on_fake(side), devices=["cpu"])
    dist.init_process_group(name, rank=0, world_size=2, store=FakeStore())


def calls(tensor: torch.Tensor) -> dict[str, Callable[[], Any]]:
    group = dist.group.WORLD
    parts = [torch.zeros_like(tensor) for _ in range(2)]
    return {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_reduce, async": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "all_reduce of the group": lambda: group.allreduce([tensor]).wait(),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "all_gather": lambda: dist.all_gather(parts, tensor),
        "barrier": dist.barrier,
    }


def us_of(call: Callable[[], Any], repeats: int) -> float:
    """The median of samples, each the mean of a few calls: other work on the machine disturbs few of them."""
    for _ in range(repeats // 10 + 1):
        call()
    samples = []
    for _ in range(SAMPLES):
        begin = time.perf_counter()
        for _ in range(repeats // SAMPLES):
            call()
        samples.append((time.perf_counter() - begin) / (repeats // SAMPLES) * 1e6)
    return median(samples)


def in_turn(rounds: int) -> list[str]:
    """The sides, each first as often as the others."""
    return [side for i in range(rounds) for side in SIDES[i % 3 :] + SIDES[: i % 3]]


def measure_calls(rounds: int, repeats: int) -> Times:
    times: Times = {}
    for side in in_turn(rounds):
        join_alone(side)
        for case, call in calls(torch.zeros(4)).items():
            times.setdefault(case, {}).setdefault(side, []).append(us_of(call, repeats))
        dist.destroy_process_group()
    return times


def rank_of_small(rank: int, side: str, repeats: int, folder: str, answer: Any) -> None:
    import headrace.distributed

    torch.set_num_threads(1)
    if side != "torch":
        headrace.distributed.register(side)
    name = "gloo" if side == "torch" else "headrace"
    dist.init_process_group(name, init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        us = us_of(functools.partial(dist.all_reduce, tensor), repeats)
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        if rank == 0:
            answer.put((size, us, bool((tensor == 3).all())))
    dist.destroy_process_group()


def measure_small(rounds: int, repeats: int) -> Times:
    context = multiprocessing.get_context("spawn")
    times: Times = {}
    for side in in_turn(rounds):
        with tempfile.TemporaryDirectory() as folder:
            answer = context.Queue()
            ranks = [
                context.Process(target=rank_of_small, args=(rank, side, repeats, folder, answer))
                for rank in range(2)
            ]
            for process in ranks:
                process.start()
            for _ in SIZES:
                size, us, right = answer.get(timeout=120)
                if not right:
                    raise SystemExit(f"{side}, {size} bytes: the sum is wrong")
                times.setdefault(f"all_reduce/{size}", {}).setdefault(side, []).append(us)
            for process in ranks:
                process.join(60)
    return times


def show(rows: Rows, kind: str, times: Times, peer: str, checked: bool) -> None:
    shown = []
    for case, sides in times.items():
        of_peer = median(sides["torch"])
        line = [case, f"{of_peer:.3g}"]
        for side in SIDES[1:]:
            us = median(sides[side])
            rows.add(
                f"{PYTHON}{kind}/{side}/{case}",
                "us",
                "us",
                us,
                peer=peer,
                peer_value=of_peer,
                lower_is_better=True,
                checked=checked,
            )
            line += [f"{us:.3g}", f"{of_peer / us:.3g}"]
        shown.append([*line, f"{median(sides['python']) / median(sides['compiled']):.3g}"])
    header = [f"{kind}, us", peer, "compiled", "times better", "python", "times better", "python / compiled"]
    print("\n" + table(header, shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help="calls, small; none: both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=20000, help="of a call; a tenth of it for `small`")
    parser.add_argument("--machine-label", default=default_label(), help="in the name of the file of rows")
    parser.add_argument("--no-rows", action="store_true", help="write nothing into bench/results")
    options = parser.parse_args()
    rows = Rows("torch", options.machine_label)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}, torch {torch.__version__}", flush=True)
    kinds = options.kinds or ["calls", "small"]
    if "calls" in kinds:
        times = measure_calls(options.rounds, options.repeats)
        show(rows, "calls", times, "torch's fake", checked=False)
    if "small" in kinds:
        times = measure_small(options.rounds, options.repeats // 10)
        show(rows, "small", times, "gloo", checked=True)
    if not options.no_rows:
        print(f"\nrows: {rows.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
