#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python costs on top: import, first agent, preparing pages and making requests from each kind of
argument, posting pages by a fabric, an idle fabric, small calls, calls of communicators.

One process, an agent that transfers to itself; no peer beside (bench/compare_misc.py has that). No data is
compared: the rows are not `checked`. Rows go to bench/results.

    .venv/bin/python bench/python_overhead.py
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import headrace
from comparison import PYTHON, ROOT, Rows, default_label, median, table

PAGE, COUNT = 4096, 16384

START = """
import time, json
begin = time.perf_counter()
import headrace
imported = time.perf_counter()
agent = headrace.Agent("first")
print(json.dumps({"import": imported - begin, "first_agent": time.perf_counter() - imported}))
"""


def starts(rounds: int) -> dict[str, list[float]]:
    """Seconds in fresh processes."""
    answers = [
        json.loads(
            subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(rounds)
    ]
    return {name: [answer[name] for answer in answers] for name in answers[0]}


def timed(call: Callable[[], Any], rounds: int, calls: int = 1) -> list[float]:
    """Seconds a call, `rounds` times; what it returns is let go outside the clock."""
    samples = []
    for _ in range(rounds):
        kept = []
        begin = time.perf_counter()
        for _ in range(calls):
            kept.append(call())
        samples.append((time.perf_counter() - begin) / calls)
    return samples


def prepares(agent: headrace.Agent, memory: headrace.Memory) -> dict[str, Callable[[], Any]]:
    region, base = memory.region.id, memory.region.address
    at = np.random.default_rng(0).permutation(COUNT).astype(np.uint64) * np.uint64(PAGE)
    length = np.full(COUNT, PAGE, np.uint64)
    ranges = np.stack([np.full(COUNT, region, np.uint64), at, length], axis=1)
    addresses = np.stack([at + np.uint64(base), length], axis=1)
    tuples = [tuple(row) for row in addresses.tolist()]
    return {
        "uniform": lambda: agent.prepare(headrace.UniformPages(region, 0, PAGE, PAGE, COUNT)),
        "N x 3 uint64": lambda: agent.prepare(ranges),
        "N x 2 uint64": lambda: agent.prepare(addresses),
        "list of tuples": lambda: agent.prepare(tuples),
    }


def makes(agent: headrace.Agent, memory: headrace.Memory) -> dict[str, Callable[[], Any]]:
    pages = headrace.UniformPages(memory, 0, PAGE, PAGE, COUNT)
    local, remote = agent.prepare(pages), agent.prepare(pages, peer=agent.name)
    order = np.random.default_rng(1).permutation(COUNT)
    forms: dict[str, Any] = {dtype: order.astype(dtype) for dtype in ("uint32", "int64", "int32", "uint64")}
    forms["list of ints"] = order.tolist()
    return {
        name: lambda index=index: agent.make_request("read", local, remote, index, index)
        for name, index in forms.items()
    }


def small_calls(agent: headrace.Agent, memory: headrace.Memory) -> dict[str, Callable[[], Any]]:
    region = memory.region.id
    request = agent.make_request(
        "write", agent.prepare([(region, 0, 64)]), agent.prepare([(region, PAGE, 64)], peer=agent.name)
    )

    def carry_out() -> None:
        request.post()
        request.wait()

    carry_out()
    return {
        "poll of an ended request": request.poll,
        "post and wait, 64 bytes to oneself": carry_out,
        "state": lambda: request.state,
    }


def fabric_posts(rounds: int) -> dict[str, list[float]]:
    """Seconds inside write_pages, for pages in random order; the post ends outside the clock."""
    block = np.zeros(PAGE * COUNT, np.uint8)
    order = np.random.default_rng(2).permutation(COUNT)
    with headrace.Fabric(groups=[headrace.FabricGroupOptions(["127.0.0.1"])]) as fabric:
        memory = fabric.register(block, "writable")
        samples: dict[str, list[float]] = {}
        for dtype in ("uint32", "int32", "int64"):
            index = order.astype(dtype)
            for _ in range(rounds):
                begin = time.perf_counter()
                work = fabric.write_pages(
                    memory, memory.descriptor, PAGE, source_indices=index, target_indices=index
                )
                samples.setdefault(dtype, []).append(time.perf_counter() - begin)
                work.wait()
    return samples


def fabric_rests(seconds: float) -> dict[str, list[float]]:
    """Shares of a core that a fabric takes which has nothing to do, without watched words and with them.

    All threads of the process count: nothing else of it runs meanwhile.
    """
    shares: dict[str, list[float]] = {}
    for name, words in {"idle": 0, "idle, 4096 watched words": 4096}.items():
        with headrace.Fabric(groups=[headrace.FabricGroupOptions(["127.0.0.1", "this host"])]) as fabric:
            watchers = [fabric.watch(lambda before, now: True) for _ in range(words)]
            time.sleep(2)  # from then on a worker polls at its slowest
            for _ in range(3):
                used, begin = time.process_time(), time.perf_counter()
                time.sleep(seconds)
                share = (time.process_time() - used) / (time.perf_counter() - begin)
                shares.setdefault(name, []).append(share)
            del watchers
    return shares


def operations() -> dict[str, Callable[[], Any]]:
    """Calls of communicators on the backend "fake", which moves nothing: what a call costs."""
    comm = headrace.new_comm("fake", rank=0, size=1)
    array, total = np.ones(8, np.float32), headrace.ReduceOp.SUM
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce, NumPy": lambda: comm.all_reduce(array, total),
        "all_reduce and wait, NumPy": lambda: comm.all_reduce(array, total, True).wait(),
    }
    if find_spec("torch"):
        import torch

        import headrace.compat.torchcomms as torchcomms

        tensor, theirs = torch.ones(8), torchcomms.new_comm("fake", "cpu", "overhead")
        calls |= {
            "all_reduce, torch": lambda: comm.all_reduce(tensor, total),
            "all_reduce, torchcomms' names": lambda: theirs.all_reduce(
                tensor, torchcomms.ReduceOp.SUM, False
            ),
        }
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle-seconds", type=float, default=5, help="of each sample of an idle fabric")
    parser.add_argument(
        "--machine-label", default=default_label(), help="label in the name of the file in bench/results"
    )
    parser.add_argument("--no-rows", action="store_true", help="write nothing into bench/results")
    options = parser.parse_args()
    rows = Rows("misc", options.machine_label)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}", flush=True)
    shown = []

    def show(what: str, samples: list[float], case: str, metric: str, unit: str, factor: float) -> None:
        rows.add(case, metric, unit, median(samples) * factor, checked=False)
        shown.append([what, f"{median(samples) * factor:.4g} {unit}", f"{min(samples) * factor:.4g} {unit}"])

    for name, samples in starts(options.rounds).items():
        show(name.replace("_", " "), samples, f"{PYTHON}{name}", "ms", "ms", 1e3)
    with headrace.Agent("overhead", backends=["shm"]) as agent:
        memory = agent.allocate(PAGE * COUNT)
        gc.disable()
        for name, call in prepares(agent, memory).items():
            show(
                f"prepare {COUNT} pages, {name}",
                timed(call, options.rounds),
                f"{PYTHON}prepare/{name}",
                "ns_per_page",
                "ns",
                1e9 / COUNT,
            )
        for name, call in makes(agent, memory).items():
            show(
                f"make from {COUNT} indices, {name}",
                timed(call, options.rounds),
                f"{PYTHON}make/{COUNT}/{name}",
                "ms",
                "ms",
                1e3,
            )
        for name, samples in fabric_posts(options.rounds).items():
            show(
                f"fabric, post {COUNT} pages, {name}",
                samples,
                f"{PYTHON}fabric/post/{COUNT}/{name}",
                "ms",
                "ms",
                1e3,
            )
        for name, samples in fabric_rests(options.idle_seconds).items():
            show(f"fabric, {name}", samples, f"{PYTHON}fabric/{name}", "core_percent", "%", 100)
        for name, call in small_calls(agent, memory).items():
            show(name, timed(call, options.rounds, 2000), f"{PYTHON}{name}", "us", "us", 1e6)
        for name, call in operations().items():
            show(name, timed(call, options.rounds, 2000), f"{PYTHON}comm/fake/{name}", "us", "us", 1e6)
    print("\n" + table(["what", "median", "least"], shown))
    if not options.no_rows:
        print(f"\nrows: {rows.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
