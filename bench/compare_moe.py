#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of headrace.MoE, of other libraries, and by a plain all-to-all, in turn, between
processes of this host, all from Python. Rows are bfloat16; each expert doubles its rows.

For each number of tokens: the median time of the slowest rank, and the ratio of the medians over all rounds.
Rows and sums are compared with what must come, exactly. A library that is not there is named, with what to
install. `--copies` measures, by `headrace bench moe --copies`, ours beside plain copies of the same rows by
the threads of the ranks. Rows go to bench/results, table `moe`.

    .venv/bin/python bench/compare_moe.py --ranks 2,4
    .venv/bin/python bench/compare_moe.py --copies --tokens 128,4096
    .venv/bin/python bench/compare_moe.py --device cuda --ranks 4
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison import PYTHON, RESULTS, Rows, default_label, ended, find_command, median, table

OURS = "headrace"
# Their classes are in moe_worker.py.
PEERS = [
    "headrace-deep-ep",
    "headrace-all-to-all",
    "torch-all-to-all",
    "deep-ep",
    "deep-ep-low-latency",
    "flashinfer",
    "nccl-ep",
]
Case = tuple[int, str]  # tokens, operation


class NotRun(RuntimeError):
    """Why a side was not run."""


def run_side(side: str, ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Starts the ranks of one side, and returns what rank 0 prints. Raises NotRun."""
    with tempfile.TemporaryDirectory(prefix="headrace-moe-") as meeting:
        plan = {
            "side": side,
            "ranks": ranks,
            "meeting": meeting,
            "tokens": options.tokens,
            "hidden": options.hidden,
            "experts": options.experts,
            "top_k": options.top_k,
            "device": options.device,
            "seconds": options.seconds,
        }
        script = str(Path(__file__).parent / "moe_worker.py")
        running = [
            subprocess.Popen(
                [sys.executable, script, json.dumps({**plan, "rank": rank})],
                stdout=subprocess.PIPE if rank == 0 else None,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            printed, _ = running[0].communicate(timeout=options.patience)
            codes = [rank.wait(options.patience) for rank in running]
        except subprocess.TimeoutExpired:
            raise NotRun(f"it did not end in {options.patience:.0f} s") from None
        finally:
            for rank in running:
                rank.kill()
                rank.wait()
    rows = [json.loads(line) for line in printed.splitlines()]
    for row in rows:
        if "not run" in row:
            raise NotRun(row["not run"])
    failed = [ended(f"rank {rank}", code) for rank, code in enumerate(codes) if code != 0]
    if failed:
        raise NotRun(f"{', '.join(failed)}: what it said is above")
    return rows


class Times:
    """The medians of all rounds of one side."""

    def __init__(self) -> None:
        self.of: dict[Case, list[float]] = {}
        self.right = True

    def take(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.of.setdefault((row["tokens"], row["operation"]), []).append(row["us"])
            self.right = self.right and row["right"]


def measured(ranks: int, options: argparse.Namespace) -> dict[str, Times]:
    """The sides that could be run; prints why others could not."""
    times = {side: Times() for side in [OURS, *options.peers]}
    for number in range(options.rounds):
        order = list(times) if number % 2 == 0 else list(reversed(times))
        for side in order:
            try:
                times[side].take(run_side(side, ranks, options))
            except NotRun as why:
                if side == OURS:
                    sys.exit(f"{side} has failed: {why}")
                print(f"{side}: not run: {why}")
                del times[side]
    return times


def compare(ranks: int, options: argparse.Namespace, rows: Rows) -> Iterator[list[str]]:
    times = measured(ranks, options)
    ours = times.pop(OURS)
    for case, samples in ours.of.items():
        tokens, operation = case
        value = median(samples)
        name = f"{PYTHON}{operation}/{tokens}x{options.hidden}/{options.experts}/{options.top_k}/{ranks}"
        yield [f"{operation} {tokens}", OURS, f"{value:.1f}", "", "" if ours.right else "WRONG"]
        for side, theirs in times.items():
            peer = median(theirs.of[case])
            rows.add(
                name if options.device == "cpu" else f"{name}/{options.device}",
                "time",
                "us",
                value,
                peer=side,
                peer_value=peer,
                lower_is_better=True,
                checked=ours.right and theirs.right,
            )
            yield ["", side, f"{peer:.1f}", f"{peer / value:.2f}", "" if theirs.right else "WRONG"]


def copies(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of `headrace bench moe --copies`."""
    command = [find_command(options.command), "bench", "moe", "--json", "--copies", "--ranks", "2"]
    command += ["--tokens", ",".join(map(str, options.tokens)), "--hidden", str(options.hidden)]
    command += ["--experts", str(options.experts), "--top-k", str(options.top_k), "--type", "bfloat16"]
    command += ["--seconds", str(options.seconds * 10)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{ended(' '.join(command), done.returncode)}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2", help="numbers of ranks, separated by commas (default: 2)")
    parser.add_argument("--tokens", default="1,32,128,1024", help="of a rank (default: 1,32,128,1024)")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas (default: all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--copies", action="store_true", help="ours beside plain copies instead")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, in turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=1, help="for each number of tokens (default: 1)")
    parser.add_argument("--patience", type=float, default=600, help="longest time for a side, in seconds")
    parser.add_argument("--command", help="the headrace command, for --copies")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    parser.add_argument("--machine-label", default=default_label())
    options = parser.parse_args()
    options.ranks = [int(each) for each in options.ranks.split(",")]
    options.tokens = [int(each) for each in options.tokens.split(",")]
    options.peers = options.peers.split(",") if options.peers else []
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}: the peers are {', '.join(PEERS)}")
    uneven = [ranks for ranks in options.ranks if options.experts % ranks != 0]
    if uneven:
        parser.error(f"--experts {options.experts} cannot be shared evenly by {uneven[0]} ranks")
    return options


def main() -> None:
    options = parse()
    rows = Rows("moe", options.machine_label)
    if options.copies:
        rows.lines = copies(options)
        shown = [row for row in rows.lines if row["peer"] is not None]
        lines = [[row["case"], f"{row['value']:.1f}", f"{row['ratio']:.2f}"] for row in shown]
        print(table(["case", "us", "speed of the copies"], lines))
    for ranks in [] if options.copies else options.ranks:
        print(f"{ranks} ranks, {options.experts} experts, top {options.top_k}, rows of {options.hidden}")
        lines = list(compare(ranks, options, rows))
        print(table(["tokens", "side", "us", "times faster", ""], lines))
    print(rows.write(options.results))


if __name__ == "__main__":
    main()
