#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Minutes of the daily commands, and their CPU time, as rows of table `workshop`.

    python bench/workshop.py demo/cold -- make demo
    python bench/workshop.py test/cold -- make test
    python bench/workshop.py test/one-file --touch backends/tcp/link.cpp -- make test
    python bench/workshop.py test/unchanged -- make test

A cold run begins with an empty compiler cache and without build/. Downloads count apart, so `make setup` runs
before. The caller prepares both. No row is written if the command fails.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from comparison import RESULTS, ROOT, Rows, default_label, ended


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns what stands before `--`, and the command behind it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def with_one_more_line(text: str) -> str:
    """Returns the source with one more line in its first function. The program differs from that of every
    other run, so that no stored result holds."""
    line = f'  asm volatile("" : : "r"({int(time.time())}));\n'
    changed, count = re.subn(r"^(\w.*\) \{\n)", rf"\1{line}", text, count=1, flags=re.MULTILINE)
    if not count:
        sys.exit("no function begins in this source")
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", help="demo/cold, test/cold, test/one-file or test/unchanged")
    parser.add_argument(
        "--touch", type=Path, help="a source whose first function gets one more line before the run"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    own, command = split_at_dashes(sys.argv[1:])
    options = parser.parse_args(own)
    if not command:
        parser.error("name the command after --")
    rows = Rows("workshop", default_label())
    before = options.touch.read_text() if options.touch else ""
    if options.touch:
        options.touch.write_text(with_one_more_line(before))
    begin = time.monotonic()
    try:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        if options.touch:
            options.touch.write_text(before)
    minutes = (time.monotonic() - begin) / 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_minutes = (used.ru_utime + used.ru_stime) / 60
    if code != 0:
        sys.exit(f"no row: {ended(command[0], code)}")
    rows.add(options.case, "minutes", "minutes", minutes, lower_is_better=True, checked=False)
    rows.add(options.case, "cpu_minutes", "minutes", cpu_minutes, lower_is_better=True, checked=False)
    print(f"{options.case}: {minutes:.2f} minutes, {cpu_minutes:.2f} of CPU time")
    print(f"row: {os.path.relpath(rows.write(options.results), ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
