#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the headrace command in turn, over all that `headrace bench pages` measures: whether a
change made anything slower.

Each case runs in the one build and then in the other, the next round the other way round. A row has the
median of the rounds of either, and their ratio. A figure that is worse by more than --bound is printed with a
mark. Rows go to bench/results, table `builds`.

    python3 bench/compare_builds.py OLD/bin/headrace build/release/bin/headrace --old-commit 1234567
    python3 bench/compare_builds.py OLD NEW --sets gpu,gpu-host       with GPUs; --list names the sets
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from comparison import RESULTS, ROOT, Rows, default_label, ended, median, rounded

PATIENCE = 120  # seconds for one run of the command
LATENCIES = ("us", "ns")
SHOWN = ("GB/s", "p50_us", "first_p50_us", "make_us")


def pages_over(*backend: str) -> list[str]:
    sizes = ["--page", "4K,16K,64K,1M,16M", "--op", "both"]
    return ["--backend", *backend, *sizes, "--iterations", "9", "--warm-up", "2"]


def single_over(*backend: str) -> list[str]:
    return ["--backend", *backend, "--single", "--page", "64,4K", "--op", "both"]


ONE_GPU = ["--kinds", "vram-vram", "--devices", "0,0"]
GPU_AND_HOST = ["--kinds", "vram-dram", "--allocated"]
SETS: dict[str, list[str]] = {
    "shm-notifications": ["--backend", "shm", "--notifications"],
    "tcp-notifications": ["--backend", "tcp", "--notifications"],
    "shm-single": single_over("shm"),
    "shm-mapped-single": [*single_over("shm"), "--allocated"],
    "tcp-single": single_over("tcp"),
    "shm-make": ["--backend", "shm", "--allocated", "--new-request", "--page", "4K"],
    "shm-attached": pages_over("shm"),
    "shm-mapped": [*pages_over("shm"), "--allocated"],
    "tcp-1": [*pages_over("tcp"), "--streams", "1"],
    "tcp-4": [*pages_over("tcp"), "--streams", "4"],
    "gpu-single": [*single_over("cuda_ipc"), *ONE_GPU],
    "gpu": [*pages_over("cuda_ipc"), *ONE_GPU],
    "gpu-host": [*pages_over("cuda_ipc"), *GPU_AND_HOST],
}

Figure = tuple[str, str, str]  # case, metric, unit
Values = dict[Figure, dict[str, list[float]]]  # the figures of either build, by "old" and "new"


def measure(command: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Returns the rows of one run; exits where it fails."""
    line = [command, "bench", "pages", "--json", *arguments]
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(line)}: not ended within {PATIENCE} s")
    if run.returncode != 0:
        sys.exit(f"{' '.join(line)}: {ended('it', run.returncode)}\n{run.stderr}")
    return [json.loads(text) for text in run.stdout.splitlines() if text.startswith("{")]


def alternate(
    commands: dict[str, str], arguments: list[str], rounds: int, until: float
) -> tuple[Values, bool]:
    """Returns the figures, and whether the data of every transfer was compared and right."""
    values: Values = defaultdict(lambda: defaultdict(list))
    checked = True
    for turn in range(rounds):
        if time.monotonic() > until:
            print(f"  only {turn} of {rounds} rounds: out of time")
            break
        for build in list(commands)[:: 1 if turn % 2 == 0 else -1]:
            for row in measure(commands[build], arguments):
                if row["metric"] in SHOWN:
                    values[row["case"], row["metric"], row["unit"]][build].append(row["value"])
                    # Nothing moves while a request is made.
                    checked = checked and (row["checked"] or row["metric"] == "make_us")
    return values, checked


def report(name: str, values: Values, checked: bool, old_commit: str, bound: float, rows: Rows) -> int:
    """Prints and adds the figures of a set; returns how many are worse than the bound."""
    worse = 0
    for (case, metric, unit), of in values.items():
        old, new = median(of["old"]), median(of["new"])
        ratio = old / new if unit in LATENCIES else new / old
        bad = ratio < 1 - bound
        worse += bad
        mark = "  worse" if bad else ""
        print(f"  {case:32} {metric:13} {rounded(old):>9} {rounded(new):>9} {unit:5} {ratio:.3f}{mark}")
        rows.add(
            f"{name}/{case}", metric, unit, new, peer=f"headrace {old_commit}", peer_value=old,
            lower_is_better=unit in LATENCIES, checked=checked,
        )  # fmt: skip
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", help="the headrace command of the build that came before")
    parser.add_argument("new", nargs="?", help="the headrace command of the build that came after")
    parser.add_argument("--old-commit", default="before", help="commit of the old build, for the rows")
    parser.add_argument("--commit", help="commit of the new build (default: from git)")
    parser.add_argument(
        "--sets",
        default=",".join(name for name in SETS if not name.startswith("gpu")),
        help="sets of cases, separated by commas (default: all without GPUs)",
    )
    parser.add_argument("--list", action="store_true", help="print the sets and exit")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each build (default: 5)")
    parser.add_argument("--bound", type=float, default=0.03, help="what counts as worse (default: 0.03)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after this time no round begins")
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    if options.list:
        for name, arguments in SETS.items():
            print(f"{name:18} headrace bench pages {' '.join(arguments)}")
        return
    if options.old is None or options.new is None:
        parser.error("name two commands: OLD/bin/headrace NEW/bin/headrace")
    names = options.sets.split(",")
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"there is no set {', '.join(unknown)}: --list names them")
    commands = {"old": options.old, "new": options.new}
    rows = Rows("builds", options.machine_label, options.machine, options.commit)
    until = time.monotonic() + options.seconds
    worse = 0
    for name in names:
        print(f"{name}: old, new, new beside old", flush=True)
        values, checked = alternate(commands, SETS[name], options.rounds, until)
        worse += report(name, values, checked, options.old_commit, options.bound, rows)
    print(f"{worse} figures are worse by more than {options.bound:.0%}")
    if not options.no_rows:
        print(f"rows: {os.path.relpath(rows.write(options.results), ROOT)}")


if __name__ == "__main__":
    main()
