#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bare TCP over loopback and `headrace bench pages --backend tcp` in turn, at 1, 2 and 4 streams or as many
as --streams says.

Bare TCP is bench/raw_tcp: two processes, one thread a stream a side, the same congestion control, no framing.
It walks through as much memory as a side of the benchmark has, so that both pay for the memory and neither
lives in the caches alone; its figure from the caches stands beside, as `raw_tcp_cached`, and what it gets
with pages at random places, gathered by sendmsg and scattered by recvmsg, as `raw_tcp_pages`: the ceiling of
that pattern, which has no frames, no checks and one peer.

Two comparisons, since bare TCP is measured in its stride, for a second and a half without a pause:
- ours in its stride: two requests in flight, each posted again as soon as it has ended, a GiB in all (cases
  `4096/stride/...`), against bare TCP;
- one request that finds all threads asleep, from its post to its end (`4096/...`; `4096x65536/...` are all
  pages of 4 KiB, where else 16384 are moved), against bare TCP too, and beside what a bare program gets that
  moves as many bytes once, from the asking to the last byte (`raw_tcp_burst`).
Rows go to bench/results.

    cmake --preset release && cmake --build --preset release
    python3 bench/compare_tcp.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from comparison import RESULTS, ROOT, Measured, Rows, default_label, ended, find_command, median, table

STREAMS = [1, 2, 4]
PAGES = [4096, 16384, 65536, 1 << 20]
TOTAL = 256 << 20
IN_STRIDE = 1 << 30  # bytes of a transfer whose requests are posted again and again
MOST_PAGES = 16384  # of one request: the benchmark's default


def run(command: list[str]) -> list[dict]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{ended(' '.join(command), done.returncode)}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def bare(
    program: str, streams: int, seconds: float, memory: int, congestion: str, page: int = 0, burst: int = 0
) -> float:
    """Returns the GB/s of bare TCP. Its memory is that of all streams together, as large as the benchmark's
    buffer. page 0: in order; burst: that many bytes once."""
    arguments = ["--streams", str(streams), "--seconds", str(seconds), "--congestion", congestion]
    if memory:
        arguments += ["--memory", str(memory // streams)]
    if page:
        arguments += ["--page", str(page)]
    if burst:
        arguments += ["--burst", str(burst)]
    return run([program, *arguments])[0]["GB/s"]


def ours(
    command: str,
    streams: int,
    op: str,
    iterations: int,
    congestion: str,
    page: int,
    count: int,
    more: list[str],
) -> tuple[list[float], bool]:
    """Returns GB/s, and whether the command compared every transfer's data and found it right."""
    rows = run(
        [
            *(command, "bench", "pages", "--backend", "tcp", "--streams", str(streams), "--page", str(page)),
            *("--op", op, "--total", str(TOTAL), "--count", str(count), "--iterations", str(iterations)),
            *("--warm-up", "1", "--option", f"tcp.congestion={congestion}", "--json"),
            *more,
        ]
    )
    row = next(row for row in rows if row["metric"] == "GB/s")
    return [row["value"]], row["checked"]


def most_pages(page: int) -> int:
    return min(TOTAL // page, MOST_PAGES)


def transfers_of(pages: list[int]) -> list[tuple[int, int]]:
    """Returns page size and number of pages of the requests that find all threads asleep; pages of 4 KiB also
    with the whole buffer."""
    return [
        (page, count)
        for page in pages
        for count in dict.fromkeys([most_pages(page), *([TOTAL // page] if page == 4096 else [])])
    ]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def again_and_again(page: int) -> list[str]:
    return ["--in-flight", "2", "--posts", str(IN_STRIDE // (page * most_pages(page)))]


def case_of(page: int, count: int) -> str:
    """Returns the case: the page size alone if the number of pages is the benchmark's default."""
    return str(page) if count == most_pages(page) else f"{page}x{count}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", help="the headrace command to measure (default: of the release build)")
    parser.add_argument(
        "--raw", default=str(ROOT / "build" / "release" / "bench" / "bench_raw_tcp"), help="bench_raw_tcp"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--iterations", type=int, default=5, help="transfers per turn")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a turn of bare TCP in seconds")
    parser.add_argument("--congestion", default="cubic", help="congestion control of both")
    parser.add_argument("--ops", default="read,write", help="operations to measure")
    parser.add_argument(
        "--streams", type=numbers, default=STREAMS, help="numbers of sockets, one turn for each"
    )
    parser.add_argument("--pages", type=numbers, default=PAGES, help="page sizes in bytes")
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--commit", help="commit in the rows (default: from git)")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="folder for the rows (default: bench/results)",
    )
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    if not Path(options.raw).exists():
        sys.exit(f"{options.raw} is not there: build the release preset, or name it with --raw")
    command = find_command(options.command)
    ops = options.ops.split(",")
    pages, transfers = options.pages, transfers_of(options.pages)

    rows = Rows("tcp-cpu", options.machine_label, options.machine, options.commit)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}", flush=True)
    raw: dict[int, list[float]] = defaultdict(list)
    cached: dict[int, list[float]] = defaultdict(list)
    scattered: dict[tuple[int, int], list[float]] = defaultdict(list)
    bursts: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    once: dict[tuple[str, int, int, int], Measured] = defaultdict(Measured)
    stride: dict[tuple[str, int, int], Measured] = defaultdict(Measured)
    for turn in range(options.rounds):
        for streams in options.streams:
            print(f"round {turn + 1} of {options.rounds}: {streams} streams", flush=True)
            for op in ops:
                # Bare, ours, bare: what drifts meets both alike.
                raw[streams].append(bare(options.raw, streams, options.seconds, TOTAL, options.congestion))
                turns = (command, streams, op, options.iterations, options.congestion)
                for page in pages:
                    stride[op, page, streams].take(
                        *ours(*turns, page, most_pages(page), again_and_again(page))
                    )
                raw[streams].append(bare(options.raw, streams, options.seconds, TOTAL, options.congestion))
                for page, count in transfers:
                    once[op, page, count, streams].take(*ours(*turns, page, count, []))
                raw[streams].append(bare(options.raw, streams, options.seconds, TOTAL, options.congestion))
            for page in pages:
                # Of all the memory: the benchmark fills all of it before each transfer, so that its pages are
                # in no cache.
                scattered[page, streams].append(
                    bare(options.raw, streams, options.seconds, TOTAL, options.congestion, page)
                )
            for page, count in transfers:
                bursts[page, count, streams].append(
                    bare(options.raw, streams, options.seconds, TOTAL, options.congestion, page, page * count)
                )
            cached[streams].append(bare(options.raw, streams, options.seconds, 0, options.congestion))

    strides, single = [], []
    for streams in options.streams:
        ceiling = median(raw[streams])
        # bench_raw_tcp compares nothing: its rows are not checked.
        rows.add(f"raw_tcp/{streams}", "GB/s", "GB/s", ceiling, checked=False)
        rows.add(f"raw_tcp_cached/{streams}", "GB/s", "GB/s", median(cached[streams]), checked=False)
        for page in pages:
            rows.add(
                f"raw_tcp_pages/{page}/{streams}",
                "GB/s",
                "GB/s",
                median(scattered[page, streams]),
                checked=False,
            )
        for page, count in transfers:
            rows.add(
                f"raw_tcp_burst/{case_of(page, count)}/{streams}",
                "GB/s",
                "GB/s",
                median(bursts[page, count, streams]),
                checked=False,
            )
        for op in ops:
            write = "" if op == "read" else "write/"

            def show(case: str, samples: Measured, ceiling: float = ceiling) -> list[str]:
                rate = median(samples)
                rows.add(
                    case, "GB/s", "GB/s", rate, peer="bare TCP", peer_value=ceiling, checked=samples.checked
                )
                return [
                    case,
                    f"{rate:.2f}",
                    f"{min(samples):.2f}",
                    f"{max(samples):.2f}",
                    f"{ceiling:.2f}",
                    f"{rate / ceiling:.2f}",
                ]

            for page in pages:
                pattern = median(scattered[page, streams])
                strides.append(
                    [
                        *show(f"{write}{page}/stride/{streams}", stride[op, page, streams]),
                        f"{pattern:.2f}",
                        f"{pattern / ceiling:.2f}",
                    ]
                )
            for page, count in transfers:
                burst = median(bursts[page, count, streams])
                single.append(
                    [
                        *show(f"{write}{case_of(page, count)}/{streams}", once[op, page, count, streams]),
                        f"{burst:.2f}",
                        f"{burst / ceiling:.2f}",
                    ]
                )
    columns = ["GB/s", "least", "most", "bare TCP", "ratio"]
    print("\n" + table(["in its stride", *columns, "bare, such pages", "its ratio"], strides))
    print("\n" + table(["one request", *columns, "such a burst", "its ratio"], single))
    if not options.no_rows:
        print(f"\nrows: {os.path.relpath(rows.write(options.results), ROOT)}")


if __name__ == "__main__":
    main()
