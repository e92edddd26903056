#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of headrace.Comm and of torch's gloo, in turn, between processes of this host, both from
Python.

For each operation and size: the median time of the slowest rank, and the ratio of the medians over all
rounds. Data is compared. `--link 200mbit` puts rank 0 and rank 1 into network namespaces of their own, with a
pair of veth devices of that rate between them (root, and iproute2): then both sides go over TCP. Rows go to
bench/results, table `coll`.

    .venv/bin/python bench/compare_coll.py --ranks 2,3,4
    .venv/bin/python bench/compare_coll.py --ops all_reduce --bytes 16MiB --link 200mbit
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison import PYTHON, RESULTS, Rows, default_label, median, table

OPS = "barrier,all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all,gather,scatter,send_recv"
BYTES = "8,1KiB,8KiB,64KiB,512KiB,4MiB,64MiB"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
Case = tuple[str, int]


def bytes_of(text: str) -> int:
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def text_of(size_bytes: int) -> str:
    for unit, factor in reversed(UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Link:
    """Two network namespaces and a slow pair of devices between them."""

    ADDRESSES = ("10.231.7.1", "10.231.7.2")

    def __init__(self, rate: str):
        self.names = ("headrace-coll0", "headrace-coll1")
        self.rate = rate

    def __enter__(self) -> Link:
        for name in self.names:
            self.ip("netns", "add", name)
        left, right = self.names
        self.ip(*f"link add veth0 netns {left} type veth peer veth1 netns {right}".split())
        for name, device, address in zip(self.names, ("veth0", "veth1"), self.ADDRESSES, strict=True):
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "link", "set", device, "up")
            shaper = ["dev", device, "root", "tbf", "rate", self.rate, "burst", "64kb", "latency", "50ms"]
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", *shaper], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ip("netns", "del", name)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def prefix(self, rank: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[rank]]

    def environment(self, rank: int) -> dict[str, str]:
        # gloo asks for the interface, an agent for the address at which others reach it.
        return {"GLOO_SOCKET_IFNAME": f"veth{rank}", "HEADRACE_LISTEN": f"{self.ADDRESSES[rank]}:0"}


def run_side(side: str, size: int, options: argparse.Namespace, link: Link | None) -> list[dict[str, Any]]:
    """Starts the ranks of one side, and returns what rank 0 prints."""
    host = link.ADDRESSES[0] if link else "127.0.0.1"
    plan = {
        "side": side,
        "size": size,
        "address": f"tcp://{host}:{free_port()}",
        "ops": options.ops,
        "bytes": options.bytes,
        "seconds": options.seconds,
        # Network namespaces of one host share its memory.
        "backends": "tcp" if link else "shm,tcp",
    }
    ranks = []
    for rank in range(size):
        script = str(Path(__file__).parent / "coll_worker.py")
        command = [sys.executable, script, json.dumps({**plan, "rank": rank})]
        words = [*(link.prefix(rank) if link else []), "env"]
        words += [f"{name}={value}" for name, value in (link.environment(rank) if link else {}).items()]
        ranks.append(
            subprocess.Popen([*words, *command], stdout=subprocess.PIPE if rank == 0 else None, text=True)
        )
    printed, _ = ranks[0].communicate(timeout=options.patience)
    codes = [rank.wait(options.patience) for rank in ranks]
    if any(codes):
        sys.exit(f"a rank of {side} has failed: exit codes {codes}")
    return [json.loads(line) for line in printed.splitlines()]


Medians = tuple[Case, float, float, bool]  # of headrace, of gloo; whether the data was right


def measured(size: int, options: argparse.Namespace, link: Link | None) -> Iterator[Medians]:
    times: dict[Case, dict[str, list[float]]] = {}
    right: dict[Case, bool] = {}
    for round_number in range(options.rounds):
        order = ["headrace", "gloo"] if round_number % 2 == 0 else ["gloo", "headrace"]
        for side in order:
            for row in run_side(side, size, options, link):
                case = (row["op"], row["bytes"])
                times.setdefault(case, {"headrace": [], "gloo": []})[side].append(row["us"])
                right[case] = right.get(case, True) and row["right"]
    for case, sides in times.items():
        yield case, median(sides["headrace"]), median(sides["gloo"]), right[case]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2", help="numbers of ranks, separated by commas (default: 2)")
    parser.add_argument("--ops", default=OPS, help="operations, separated by commas (default: all)")
    parser.add_argument("--bytes", default=BYTES, help=f"of a rank's input (default: {BYTES})")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, in turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each case and side (default: 0.2)")
    parser.add_argument("--patience", type=float, default=600, help="longest time for a side, in seconds")
    parser.add_argument(
        "--link", metavar="RATE", help="two network namespaces and a link of this rate: 200mbit"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    parser.add_argument("--machine-label", default=default_label())
    options = parser.parse_args()
    options.ops = options.ops.split(",")
    options.bytes = [bytes_of(each) for each in options.bytes.split(",")]
    unknown = set(options.ops) - set(OPS.split(","))
    if unknown:
        parser.error(f"no operation {', '.join(sorted(unknown))}: the operations are {OPS}")
    if options.link and options.ranks != "2":
        parser.error("--link connects two ranks")
    return options


def main() -> None:
    options = parse()
    rows = Rows("coll", options.machine_label)
    with Link(options.link) if options.link else contextlib.nullcontext() as link:
        for size in map(int, options.ranks.split(",")):
            lines = []
            for (op, size_bytes), ours, theirs, checked in measured(size, options, link):
                suffix = f"/{options.link}" if options.link else ""
                rows.add(
                    f"{PYTHON}{op}/{text_of(size_bytes)}/{size}{suffix}",
                    "time",
                    "us",
                    ours,
                    peer="gloo",
                    peer_value=theirs,
                    lower_is_better=True,
                    checked=checked,
                )
                right = "" if checked else "WRONG"
                times = [f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}"]
                lines.append([op, text_of(size_bytes), *times, right])
            print(f"{size} ranks{', over ' + options.link if options.link else ''}")
            print(table(["operation", "bytes", "headrace us", "gloo us", "times faster", ""], lines))
    print(rows.write(options.results))


if __name__ == "__main__":
    main()
