#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A fabric, by `headrace bench fabric`, against what each figure is meant to reach. Rows go to bench/results,
table `fabric`; the load of the machine is printed.

- rails: two network namespaces with two virtual cables, which `tc` limits to 200 and 200 Mbit/s, then to 100
  and 300: writes against the sum of both. Needs root, `ip` and `tc`, and says so where they are missing.
- pages: pages over the same path as `headrace bench pages`, both in turn: over TCP on loopback, and
  over shared memory.
- round-trips: an immediate there and one back, asleep on one core and on two, and spinning, against an
  eventfd between two processes, which `headrace bench pages --notifications` measures in turn.
- idle: the share of a core that each side takes while nothing is posted, with links over both.

    cmake --preset release && cmake --build --preset release
    sudo python3 bench/compare_fabric.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison import RESULTS, Measured, Rows, default_label, ended, find_command, median, table

PARTS = ["rails", "pages", "round-trips", "idle"]
RAILS = [(200, 200), (100, 300)]  # Mbit/s
PAGES = [4096, 65536, 1 << 20]
PAGE_TOTAL = 256 << 20
MOST_PAGES = 16384
THIS_HOST = "this host"  # the card that carries between processes of one host
NICS = {"tcp": "127.0.0.1", "shm": THIS_HOST}  # by the backend of agents on the same path

Row = dict[str, Any]


def lines_of(command: list[str]) -> list[Row]:
    """Runs the command; returns the objects that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{ended(' '.join(command), done.returncode)}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def figure(rows: list[Row], case: str, metric: str) -> float:
    return next(float(row["value"]) for row in rows if row["case"] == case and row["metric"] == metric)


class Pair:
    """A server and its clients."""

    def __init__(self, command: str, prefixes: tuple[list[str], list[str]] = ([], [])):
        self.command = command
        self.prefixes = prefixes  # of the client, of the server

    @contextlib.contextmanager
    def serving(self, nics: tuple[str, str], *options: str) -> Iterator[Pair]:
        """nics: of the client, and of the server."""
        self.nics, self.options = nics[0], list(options)
        server = subprocess.Popen(
            [*self.prefixes[1], self.command, "bench", "fabric", "--json", "--nics", nics[1], *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                sys.exit(ended("the server of bench fabric", server.wait()))
            self.address = json.loads(line)["address"]
            yield self
        finally:
            server.terminate()
            server.wait()

    def measure(self, *arguments: str) -> list[Row]:
        client = [*self.prefixes[0], self.command, "bench", "fabric", "-", "0", self.address, "--json"]
        return lines_of([*client, "--nics", self.nics, *self.options, *arguments])


# --- two cables


class Cables:
    """Two network namespaces with two pairs of devices between them."""

    def __init__(self) -> None:
        self.names = [f"headrace-fabric{side}-{os.getpid()}" for side in range(2)]

    def __enter__(self) -> Cables:
        for name in self.names:
            self.ip(f"netns add {name}")
            self.ip(f"-n {name} link set lo up")
        for cable in range(2):
            device = f"cable{cable}"
            self.ip(f"link add {device} netns {self.names[0]} type veth peer {device} netns {self.names[1]}")
            for side, name in enumerate(self.names):
                self.ip(f"-n {name} address add {self.address(side, cable)}/24 dev {device}")
                self.ip(f"-n {name} link set {device} mtu 9000 up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ip(f"netns del {name}")

    def limit(self, speeds: tuple[int, int]) -> None:
        for name in self.names:
            for cable, mbit in enumerate(speeds):
                shaper = f"dev cable{cable} root tbf rate {mbit}mbit burst 128kb limit 16mb"
                run = [*self.inside(name), "tc", "qdisc", "replace", *shaper.split()]
                subprocess.run(run, check=True)

    @staticmethod
    def address(side: int, cable: int) -> str:
        return f"10.78.{cable}.{side + 1}"

    def nics(self, side: int) -> str:
        return ",".join(self.address(side, cable) for cable in range(2))

    @staticmethod
    def inside(name: str) -> list[str]:
        return ["ip", "netns", "exec", name]

    @staticmethod
    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)


def rails(command: str, options: argparse.Namespace, rows: Rows) -> list[list[str]]:
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc")):
        print("rails: not run: it needs root, and the programs ip and tc")
        return []
    lines = []
    size, page, count, posts = 2 << 20, 4096, 512, 128  # so many that the last ones take little of the time
    cases = [f"write/{size}/{posts}-posts", f"write-pages/{page}x{count}/{posts}-posts"]
    with Cables() as cables:
        inside = (cables.inside(cables.names[0]), cables.inside(cables.names[1]))
        for speeds in RAILS:
            cables.limit(speeds)
            with Pair(command, inside).serving((cables.nics(0), cables.nics(1))) as pair:
                chosen = ["--size", str(size), "--page", str(page), "--count", str(count)]
                measured = pair.measure(
                    *("--ops", "write,write-pages", *chosen, "--in-flight", str(posts)),
                    *("--iterations", str(max(options.rounds, 2))),
                )
            for case in cases:
                ours = figure(measured, case, "Gbit/s")
                name = "{}+{}".format(*speeds)
                rows.add(
                    *(f"two-rails/{name}/{case}", "Gbit/s", "Gbit/s", ours),
                    peer="sum of both cables",
                    peer_value=sum(speeds) / 1000,
                    checked=True,
                )
                lines.append(
                    [f"two rails {name} {case}", f"{ours:.3f} Gbit/s", f"{ours / sum(speeds) * 1000:.3f}"]
                )
    return lines


# --- beside bench pages


def pages(command: str, options: argparse.Namespace, rows: Rows) -> list[list[str]]:
    return [
        beside_pages(command, options.rounds, rows, backend, op, page)
        for backend in NICS
        for op in ("write", "read")
        for page in PAGES
    ]


def beside_pages(command: str, rounds: int, rows: Rows, backend: str, op: str, page: int) -> list[str]:
    count = min(PAGE_TOTAL // page, MOST_PAGES)
    ours, theirs = Measured(), Measured()
    with Pair(command).serving((NICS[backend], NICS[backend])) as pair:
        for _ in range(rounds):
            ours.take([fabric_pages(pair, op, page, count)], True)
            theirs.take([agent_pages(command, backend, op, page, count)], True)
    case = f"beside-pages/{backend}/{op}/{page}x{count}"
    peer = f"headrace bench pages --backend {backend}"
    mine, other = median(ours), median(theirs)
    rows.add(case, "GB/s", "GB/s", mine, peer=peer, peer_value=other, checked=ours.checked)
    return [case, f"{mine:.2f} GB/s", f"{mine / other:.3f}"]


def fabric_pages(pair: Pair, op: str, page: int, count: int) -> float:
    chosen = ["--ops", f"{op}-pages", "--page", str(page), "--count", str(count), "--iterations", "15"]
    seconds = figure(pair.measure(*chosen), f"{op}-pages/{page}x{count}", "p50_us") / 1e6
    return page * count / seconds / 1e9


def agent_pages(command: str, backend: str, op: str, page: int, count: int) -> float:
    chosen = ["--op", op, "--page", str(page), "--count", str(count), "--total", str(PAGE_TOTAL)]
    pages = [command, "bench", "pages", "--backend", backend, "--iterations", "15", "--json"]
    found = lines_of([*pages, *chosen])
    return next(float(row["value"]) for row in found if row["metric"] == "GB/s")


# --- immediates


def eventfds(command: str) -> dict[str, float]:
    """p50 in microseconds of a round trip, by where the two processes run."""
    found = lines_of([command, "bench", "pages", "--notifications", "--json"])
    prefix = "notification/asleep_"
    return {
        row["case"].removeprefix(prefix): float(row["peer_value"])
        for row in found
        if row["case"].startswith(prefix) and row["peer_value"] is not None
    }


def round_trips(command: str, options: argparse.Namespace, rows: Rows) -> list[list[str]]:
    cores = sorted(os.sched_getaffinity(0))
    ways = {"one_core": (cores[0], cores[0])}
    if len(cores) > 1:
        ways["two_cores"] = (cores[0], cores[1])
    bare: dict[str, list[float]] = {way: [] for way in ways}
    ours: dict[str, list[float]] = {way: [] for way in ways}
    spinning: list[float] = []
    for _ in range(options.rounds):
        for way, value in eventfds(command).items():
            bare.setdefault(way, []).append(value)
        for way, (here, there) in ways.items():
            ours[way].append(asleep(command, here, there))
        spinning.append(round_trip(Pair(command), "spinning", "--spin"))
    lines = []
    for way in ways:
        mine, other = median(ours[way]), median(bare[way])
        rows.add(
            *(f"immediate/asleep_{way}", "p50_us", "us", mine),
            peer="eventfd ping-pong",
            peer_value=other,
            lower_is_better=True,
            checked=True,
        )
        lines.append([f"immediate asleep {way}", f"{mine:.1f} us", f"{other / mine:.3f}"])
    rows.add("immediate/spinning", "p50_us", "us", median(spinning), checked=True)
    lines.append(["immediate spinning", f"{median(spinning):.1f} us", "-"])
    return lines


def asleep(command: str, here: int, there: int) -> float:
    on = (["taskset", "-c", str(here)], ["taskset", "-c", str(there)])
    return round_trip(Pair(command, on), "asleep")


def round_trip(pair: Pair, how: str, *options: str) -> float:
    with pair.serving((THIS_HOST, THIS_HOST), *options) as met:
        rows = met.measure("--ops", "round-trip", "--seconds", "2")
    return figure(rows, f"round-trip/{how}", "p50_us")


# --- idle


def idle(command: str, options: argparse.Namespace, rows: Rows) -> list[list[str]]:
    both = ",".join(NICS.values())
    with Pair(command).serving((both, both)) as pair:
        measured = pair.measure(
            *("--ops", "round-trip", "--iterations", "2", "--idle", str(options.idle_seconds))
        )
    lines = []
    for side in ("client", "server"):
        share = figure(measured, f"idle/{side}", "core_percent")
        rows.add(f"idle/{side}", "core_percent", "%", share, checked=False)
        lines.append([f"idle {side}", f"{share:.4f} % of a core", "-"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", help="the headrace command to measure (default: of the release build)")
    parser.add_argument("--parts", default=",".join(PARTS), help="which to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--commit", help="commit in the rows (default: from git)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="folder for the rows")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        sys.exit(f"--parts: there is no {unknown[0]}; there are {', '.join(PARTS)}")
    command = find_command(options.command)
    measure = {"rails": rails, "pages": pages, "round-trips": round_trips, "idle": idle}
    rows = Rows("fabric", options.machine_label, options.machine, options.commit)
    lines: list[list[str]] = []
    print(f"load before: {os.getloadavg()[0]:.1f}")
    for part in chosen:
        lines += measure[part](command, options, rows)
    print(f"load after: {os.getloadavg()[0]:.1f}")
    print(table(["case", "value", "ratio"], lines))
    if not options.no_rows:
        print(f"rows: {rows.write(options.results)}")


if __name__ == "__main__":
    main()
