#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Access to another process's memory by bare loops without an agent and by the backend shm, in turn, by
number of threads.

bench_shm_raw moves the same random pages by process_vm_readv or writev (512 pages a call), by memcpy from and
to memory that both have mapped, and by shm, on as many threads each; the data is compared. Rows of shm with
the bare loop as the peer go to bench/results: `attach/read/4096/2` is registered memory, pages of 4 KiB, two
threads; `mapped/...` memory from `allocate`.

    cmake --preset release && cmake --build --preset release
    python3 bench/compare_attach.py --threads 1,2
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from comparison import RESULTS, ROOT, Rows, default_label, ended, table

LINE = re.compile(
    r"(attach|mapped) (read|write)\s+(\d+): bare .* best +([\d.]+) median GB/s, "
    r"shm .* best +([\d.]+) median, .* median ([\d.]+), (\d+) of (\d+) transfers compared"
)
BARE = {"attach": "bare attach", "mapped": "bare memcpy"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads, one run for each")
    parser.add_argument("--rounds", type=int, default=9, help="timed transfers per case")
    parser.add_argument(
        "--program", default=str(ROOT / "build" / "release" / "bench" / "bench_shm_raw"), help="bench_shm_raw"
    )
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
    if not Path(options.program).exists():
        sys.exit(f"{options.program} is not there: build the release preset, or name it with --program")
    rows = Rows("attach-cpu", options.machine_label, options.machine, options.commit)
    shown = []
    for threads in options.threads.split(","):
        done = subprocess.run(
            [options.program, "--threads", threads, "--rounds", str(options.rounds)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = LINE.findall(done.stdout)
        if done.returncode != 0 or not found:
            sys.exit(f"{ended(options.program, done.returncode)}\n{done.stdout}{done.stderr}")
        for how, op, page, bare, ours, in_turn, compared, transfers in found:
            case = f"{how}/{op}/{page}/{threads}"
            rows.add(
                case, "GB/s", "GB/s", float(ours), peer=BARE[how], peer_value=float(bare),
                checked=0 < int(compared) == int(transfers),
            )  # fmt: skip
            shown.append([case, ours, bare, in_turn])
    print(table(["way/op/page/threads", "shm GB/s", "bare", "ratio, by turns"], shown))
    print(f"\nrows: {os.path.relpath(rows.write(options.results), ROOT)}")


if __name__ == "__main__":
    main()
