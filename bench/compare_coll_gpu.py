#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of the backend p2p and of its peers on GPUs of one host, in turn, each rank a process on a GPU
of its own.

The peers are NCCL, through the backend nccl, and, where a torch with CUDA is installed and in graphs alone,
its symmetric memory for all_reduce (one-shot and two-shot) and NCCL's symmetric kernels for all but
all_to_all. Each size is measured eagerly and in replays of CUDA graphs, by `headrace bench coll`, which
compares all data. In each round every side has a turn; the median of the rounds counts, and the best peer is
the one that is named. Rows go to bench/results, by the number of ranks: table coll-gpu2, coll-gpu4 and so on.
With --backend auto the peer is NCCL alone, and cases end in /auto. With --registered the communicators
register all memory, and cases end in /registered.

    cmake --preset release && cmake --build --preset release
    python3 bench/compare_coll_gpu.py --ranks 2 --types float32,bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare_coll import bytes_of
from comparison import RESULTS, Measured, Rows, default_label, ended, find_command, median, table

OPS = "all_reduce,all_gather_single,reduce_scatter_single,all_to_all_single"
BYTES = "8,1KiB,8KiB,64KiB,256KiB,512KiB,1MiB,4MiB,16MiB,64MiB"
SYMMETRIC = {"one_shot": "torch_one_shot", "two_shot": "torch_two_shot"}

Case = tuple[str, str, int, bool]  # operation, type, bytes, in graphs
Samples = dict[Case, dict[str, Measured]]  # -> side -> a value a round


def printed(command: list[str], patience: float) -> list[dict[str, Any]]:
    """Returns the lines of JSON that the command printed. If it failed, prints the reason."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    except subprocess.TimeoutExpired:
        print(f"  out of time: {' '.join(command)}", flush=True)
        return []
    if done.returncode != 0:
        print(f"  {ended(' '.join(command), done.returncode)}: {done.stderr.strip()[-800:]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def of_command(backend: str, graph: bool, options: argparse.Namespace) -> Iterator[tuple[Case, float, bool]]:
    command = [options.command, "bench", "coll", "--json", "--processes", "--device", "cuda"]
    command += ["--backend", backend, "--ranks", str(options.ranks), "--ops", options.ops]
    command += ["--bytes", ",".join(str(bytes_of(each)) for each in options.bytes.split(","))]
    command += ["--type", options.types, "--seconds", str(options.seconds)]
    command += ["--graph"] * graph + ["--registered"] * options.registered
    for row in printed(command, options.patience):
        _, op, dtype, _, size_bytes, _, _, *rest = row["case"].split("/")
        if row["metric"] == "time" and "in-place" not in rest:
            yield (op, dtype, int(size_bytes), graph), row["value"], row["checked"]


def of_workers(script: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What rank 0 of a program in bench/torch prints, in graphs alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plan = {
        "size": options.ranks,
        "port": port,
        "ops": options.ops.split(","),
        "types": options.types.split(","),
        "bytes": [bytes_of(each) for each in options.bytes.split(",")],
        "seconds": options.seconds,
    }
    program = str(Path(__file__).parent / "torch" / script)
    commands = [
        [sys.executable, program, json.dumps({**plan, "rank": rank})] for rank in range(options.ranks)
    ]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands[1:]]
    rows = printed(commands[0], options.patience)
    for other in others:
        try:
            other.wait(10)
        except subprocess.TimeoutExpired:
            other.kill()
    return rows


def of_torch(options: argparse.Namespace) -> Iterator[tuple[str, Case, float, bool]]:
    """Torch's symmetric memory, and NCCL's symmetric kernels."""
    if "all_reduce" in options.ops.split(","):
        for row in of_workers("symmetric_worker.py", options):
            case = "all_reduce", row["type"], row["bytes"], True
            yield SYMMETRIC[row["way"]], case, row["us"], row["right"]
    for row in of_workers("nccl_symmetric_worker.py", options):
        yield "nccl_symmetric", (row["op"], row["type"], row["bytes"], True), row["us"], row["right"]


def one_round(options: argparse.Namespace, samples: Samples) -> None:
    for graph in (False, True):
        for backend in (options.backend, "nccl"):
            for case, value, right in of_command(backend, graph, options):
                samples[case][backend].take([value], right)
    if options.symmetric:
        for way, case, value, right in of_torch(options):
            samples[case][way].take([value], right)


def gpus() -> tuple[int, str]:
    """Returns how many GPUs there are, and the name of the first."""
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split("\n")[:-1] if listed.returncode == 0 else []
    return len(names), names[0] if names else ""


def has_torch() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="ranks, each with its own GPU (default: 2)")
    parser.add_argument(
        "--backend", choices=("p2p", "auto"), default="p2p", help="what is compared (default: p2p)"
    )
    parser.add_argument(
        "--registered", action="store_true", help="register all memory, as torch's symmetric memory is"
    )
    parser.add_argument("--ops", default=OPS, help=f"operations (default: {OPS})")
    parser.add_argument(
        "--bytes", default=BYTES, help=f"of the larger of input and output (default: {BYTES})"
    )
    parser.add_argument("--types", default="float32,bfloat16", help="element types, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each figure (default: 0.05)")
    parser.add_argument("--patience", type=float, default=300, help="longest time for a side, in seconds")
    parser.add_argument("--command", help="the program headrace (default: of the release build)")
    parser.add_argument("--commit", help="of the program, where there is no git")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    parser.add_argument("--machine-label", default=default_label())
    options = parser.parse_args()
    options.command = find_command(options.command)
    return options


def main() -> None:
    options = parse()
    count, name = gpus()
    if count < options.ranks:
        print(f"nothing run: {options.ranks} ranks need a GPU each, and this machine has {count}")
        return
    ours = options.backend
    options.symmetric = ours == "p2p" and has_torch()
    machine = f"{count}x {name}, {len(os.sched_getaffinity(0))} cores"
    rows = Rows(f"coll-gpu{options.ranks}", options.machine_label, machine, options.commit)
    samples: Samples = defaultdict(lambda: defaultdict(Measured))
    for _ in range(options.rounds):
        one_round(options, samples)
    lines = []
    for (op, dtype, size_bytes, graph), sides in sorted(samples.items()):
        peers = {side: median(values) for side, values in sides.items() if side != ours}
        if ours not in sides or not peers:
            continue
        best = min(peers, key=lambda side: peers[side])
        value = median(sides[ours])
        checked = sides[ours].checked and sides[best].checked
        case = f"{op}/{size_bytes}/{dtype}/{'graph' if graph else 'eager'}"
        if ours != "p2p":
            case += f"/{ours}"
        if options.registered:
            case += "/registered"
        rows.add(
            case,
            "us",
            "us",
            value,
            peer=best,
            peer_value=peers[best],
            lower_is_better=True,
            checked=checked,
        )
        others = ", ".join(f"{side} {value:.2f}" for side, value in sorted(peers.items()))
        lines.append([case, f"{value:.2f}", others, f"{peers[best] / value:.2f}", "" if checked else "WRONG"])
    print(table(["case", f"{ours} us", "peers us", "times faster", ""], lines))
    print(rows.write(options.results))


if __name__ == "__main__":
    main()
