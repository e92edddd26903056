#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headrace and bare programs that move the same pages the same way, in turn, on a machine with GPUs.

bench_gpu_ceilings (bench/gpu/ceilings.cpp) moves pages between two processes without an agent: one page of 4
KiB between two GPUs, by a launched kernel, by copy engine, by a courier; many pages between two GPUs, by
kernel and by copy engine; one page from GPU to GPU over a loopback socket, each leg by the same ways; many
pages between a GPU and another process's pinned host memory. `headrace bench pages` does the same with an
agent. Both compare all data. In each round every program has a turn; the median of the rounds counts, and the
least and the most are printed next to it. Rows of the table ceilings-gpu go to bench/results: ours with the
best bare way of its kind as the peer (`single/4096/courier` beside `bare_resident`), and the bare ways by
themselves.

    cmake --preset release && cmake --build --preset release
    python3 bench/compare_ceilings.py --parts single,pages,tcp,host
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from comparison import RESULTS, ROOT, Measured, Rows, default_label, ended, find_command, median, table

LAUNCHED = ["bare_kernel_256", "bare_kernel_32"]
COPIED = ["bare_copy_engine", "bare_copy_engine_event"]
RESIDENT = ["bare_resident"]
PAGES = [
    "bare_kernel_sm16",
    "bare_kernel_sm64",
    "bare_kernel_sm132",
    "bare_copy_engine",
    "bare_copy_engine_one_call",
]
HOST = [
    "bare_kernel_sm8",
    "bare_kernel_sm16",
    "bare_kernel_sm64",
    "bare_copy_engine",
    "bare_copy_engine_one_call",
]


@dataclasses.dataclass
class Ours:
    """A run of `headrace bench pages`, and the bare programs that it is compared with."""

    way: str
    arguments: list[str]
    against: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


ONE_PAGE = ["--op", "both", "--single", "--page", "4K"]
OVER_TCP = ["--backend", "tcp", *ONE_PAGE]
FROM_HOST = ["--op", "both", "--allocated", "--page", "4K,64K,16M", "--iterations", "5", "--warm-up", "1"]
PARTS = {
    "single": [
        Ours("copy_engine", ONE_PAGE, COPIED),
        Ours("kernel", ONE_PAGE, LAUNCHED, {"HEADRACE_CUDA_IPC_COPY_ENGINE_BYTES": "1MiB"}),
        Ours("courier", ONE_PAGE, RESIDENT, {"HEADRACE_CUDA_IPC_COURIER": "on"}),
    ],
    "pages": [Ours("default", ["--op", "both", "--page", "4K,16K,64K,256K,1M,16M"], PAGES)],
    "tcp": [Ours("default", OVER_TCP, [*COPIED, *LAUNCHED])],
    "host": [
        Ours("default", ["--kinds", "vram-dram", *FROM_HOST], HOST),
        Ours("default", ["--kinds", "dram-vram", *FROM_HOST], HOST),
    ],
}  # fmt: skip
METRICS = ("GB/s", "p50_us", "p99_us")

Key = tuple[str, str]  # case and metric
Samples = dict[Key, dict[str, Measured]]  # -> way -> a value a round


def run(command: list[str], environment: dict[str, str], seconds: float) -> list[dict]:
    """Returns the rows that the command printed. If it failed, prints the reason and returns none."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        print(f"  out of time: {' '.join(command)}", flush=True)
        return []
    if done.returncode != 0:
        print(f"  {ended(' '.join(command), done.returncode)}: {done.stderr.strip()[-500:]}", flush=True)
    return (
        [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0
        else []
    )


def take(samples: Samples, rows: list[dict], way: str | None = None) -> bool:
    """Rows of ours have the way that they were asked for, those of the bare program name theirs."""
    for row in rows:
        if row["metric"] in METRICS:
            samples[row["case"], row["metric"]][way or row["way"]].take([row["value"]], row["checked"])
    return bool(rows)


def one_round(part: str, options: argparse.Namespace, samples: Samples) -> bool:
    good = True
    for ours in PARTS[part]:
        kinds = [] if "--kinds" in ours.arguments else ["--kinds", "vram-vram"]
        command = [options.command, "bench", "pages", *kinds, *ours.arguments, "--json"]
        good = take(samples, run(command, ours.environment, options.patience), ours.way) and good
    return take(samples, run([options.bare, part], {}, options.patience)) and good


def report(part: str, samples: Samples, rows: Rows) -> None:
    lines = []
    for (case, metric), ways in samples.items():
        lower = metric != "GB/s"
        unit = "us" if lower else metric
        best = min if lower else max
        bare = {way: median(values) for way, values in ways.items() if way.startswith("bare_")}
        for ours in {ours.way: ours for ours in PARTS[part] if ours.way in ways}.values():
            value, values = median(ways[ours.way]), ways[ours.way]
            peers = {way: bare[way] for way in ours.against if way in bare}
            peer = best(peers, key=lambda way: peers[way]) if peers else None
            peer_value = peers[peer] if peer else None
            rows.add(
                f"{case}/{ours.way}",
                metric,
                unit,
                value,
                peer=peer,
                peer_value=peer_value,
                lower_is_better=lower,
                checked=values.checked and (peer is None or ways[peer].checked),
            )
            apart = ["", "", "", "", ""]
            if peer and peer_value:
                ratio = peer_value / value if lower else value / peer_value
                apart = [
                    f"{peer_value:.2f}",
                    f"{min(ways[peer]):.2f}",
                    f"{max(ways[peer]):.2f}",
                    f"{ratio:.3f}",
                    peer,
                ]
            lines.append(
                [
                    f"{case}/{ours.way}",
                    metric,
                    f"{value:.2f}",
                    f"{min(values):.2f}",
                    f"{max(values):.2f}",
                    *apart,
                ]
            )
        for way, value in bare.items():
            rows.add(
                f"{case}/{way}",
                metric,
                unit,
                value,
                checked=ways[way].checked,
            )
    print(
        "\n"
        + table(
            ["case", "metric", "headrace", "least", "most", "bare", "least", "most", "ratio", "which was"],
            lines,
        )
    )
    others = [
        [
            case,
            metric,
            *(
                f"{way.removeprefix('bare_')} {median(values):.2f}"
                for way, values in ways.items()
                if way.startswith("bare_")
            ),
        ]
        for (case, metric), ways in samples.items()
        if metric != "p99_us"
    ]
    width = max((len(line) for line in others), default=0)
    print(
        "\n"
        + table(
            ["bare", "metric", *[""] * (width - 2)], [line + [""] * (width - len(line)) for line in others]
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--command", help="the headrace command to measure (default: of the release build)")
    parser.add_argument(
        "--bare",
        default=str(ROOT / "build" / "release" / "bench" / "bench_gpu_ceilings"),
        help="bench_gpu_ceilings",
    )
    parser.add_argument("--patience", type=float, default=60, help="limit of one program in seconds")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--commit", help="commit in the rows (default: from git)")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="folder for the rows (default: bench/results)",
    )
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: {', '.join(PARTS)}")
    if not Path(options.bare).exists():
        sys.exit(
            f"{options.bare} is not there: build the release preset where nvcc is, or name it with --bare"
        )
    options.command = find_command(options.command)
    rows = Rows("ceilings-gpu", options.machine_label, options.machine, options.commit)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}", flush=True)
    good = True
    for part in parts:
        samples: Samples = defaultdict(lambda: defaultdict(Measured))
        for turn in range(options.rounds):
            print(f"{part}: round {turn + 1} of {options.rounds}", flush=True)
            good = one_round(part, options, samples) and good
        report(part, samples, rows)
        path = rows.write(options.results)  # there may be no time for the next
        rows.lines.clear()
    print(f"\nrows: {os.path.relpath(path, ROOT)}")
    if not good:
        sys.exit("some turns failed: their commands are printed above")


if __name__ == "__main__":
    main()
