#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures that are not transfers: import time, first agent, notifications there and back, metadata and
registration, prepare and make.

Notifications are compared with a bare ping-pong over two eventfds between the same two processes (`headrace
bench pages --notifications`, messages compared). Nothing else here moves data, so its rows are not `checked`.
Cases that are measured through Python begin with `python/`. NIXL is measured too if bench/compare_nixl.py has
installed it. Rows go to bench/results.

    .venv/bin/python bench/compare_misc.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import compare_nixl
from comparison import PYTHON, ROOT, Rows, default_label, find_command, median, table

PAGES = 16384

START = """
import time
begin = time.perf_counter()
import headrace
imported = time.perf_counter()
agent = headrace.Agent("first")
opened = time.perf_counter()
import json, sys
second = time.perf_counter()
other = headrace.Agent("second")
done = time.perf_counter()
print(json.dumps({"import": imported - begin, "first agent": opened - imported, "second agent": done - second,
                  "torch": "torch" in sys.modules, "numpy": "numpy" in sys.modules}))
"""


def starts(rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of imports and first agents in fresh processes."""
    found: dict[str, list[float]] = {"import": [], "first agent": [], "second agent": []}
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout)
        if seconds["torch"] or seconds["numpy"]:
            sys.exit("import headrace has imported NumPy or torch")
        for name, samples in found.items():
            samples.append(seconds[name])
    return found


def notifications(command: str, rounds: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [command, "bench", "pages", "--notifications", "--iterations", str(rounds), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def prepare_and_make(library: str, rounds: int) -> dict[str, float]:
    """Returns the seconds per page from Python, with index arrays in NumPy."""
    pair = compare_nixl.Pair(library, {}, False)
    try:
        slots = compare_nixl.BUFFER // 4096
        prepares, makes = [], []
        for _ in range(rounds):
            prepares.append(pair.here.ask("prepare", page=4096, slots=slots) / (2 * slots))
            makes += [
                s / PAGES for s in pair.here.ask("make", slots=slots, count=PAGES, dtype="int64", rounds=10)
            ]
            pair.here.ask("drop")
        return {"prepare": median(prepares), "make": median(makes)}
    finally:
        pair.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", help="the headrace command to measure (default: of the release build)")
    parser.add_argument("--rounds", type=int, default=15, help="fresh processes for import and first agent")
    parser.add_argument("--round-trips", type=int, default=20000, help="notifications to send back and forth")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    rows = Rows("misc", options.machine_label)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}", flush=True)

    shown = []
    for name, samples in starts(options.rounds).items():
        rows.add(PYTHON + name.replace(" ", "_"), "ms", "ms", median(samples) * 1e3, checked=False)
        shown.append([name, f"{median(samples) * 1e3:.1f} ms", f"{min(samples) * 1e3:.1f} ms", ""])
    for row in notifications(find_command(options.command), options.round_trips):
        rows.add(
            row["case"],
            row["metric"],
            row["unit"],
            row["value"],
            peer=row["peer"],
            peer_value=row["peer_value"],
            lower_is_better=True,
            checked=row["checked"],
        )
        beside = f"{row['peer']} {row['peer_value']:.1f} us" if row["peer"] else ""
        shown.append([f"{row['case']} {row['metric']}", f"{row['value']:.2f} us", "", beside])

    nixl = (compare_nixl.VENV / "bin" / "python").exists()
    ours = prepare_and_make("headrace", 3)
    theirs = prepare_and_make("nixl", 3) if nixl else {}
    peer = f"nixl {compare_nixl.VERSION}" if nixl else None
    for name, seconds in ours.items():
        peer_value = theirs[name] * 1e6 if nixl else None
        rows.add(
            f"{PYTHON}{name}",
            "us_per_page",
            "us",
            seconds * 1e6,
            peer=peer,
            peer_value=peer_value,
            lower_is_better=True,
            checked=False,
        )
        shown.append(
            [
                f"{name} a page",
                f"{seconds * 1e6:.4f} us",
                "",
                f"nixl {peer_value:.4f} us" if nixl else "nixl is not installed",
            ]
        )
    print("\n" + table(["what", "median", "least", "beside"], shown))
    if nixl:
        compare_nixl.report_metadata(rows)
    else:
        made = compare_nixl.run_metadata("headrace")
        for metric, unit, key, factor in compare_nixl.METADATA_METRICS:
            rows.add(
                f"{PYTHON}metadata/{compare_nixl.REGIONS}", metric, unit, made[key] * factor, checked=False
            )
            print(f"metadata of {compare_nixl.REGIONS} regions: {metric} {made[key] * factor:.4g}")
    if not options.no_rows:
        print(f"\nrows: {rows.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
