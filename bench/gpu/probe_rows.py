#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the output of bench_gpu_probe into rows of bench/results.

Usage: probe_rows.py PROBE.jsonl --commit HASH --date 2026-11-22T00:24:00Z --host "2x H200 NVLink, ..." >>
bench/results/....jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path


def measurements(line: dict) -> Iterator[tuple[str, str, str, float]]:
    """(case, metric, unit, value) of one line of the probe; nothing for lines that are no measurement."""
    what = line["what"]
    if "gb_per_s" in line:
        budget = line["multiprocessors"]
        share = f"/sm{budget}" if budget else ""
        case = f"{what}/{line['method']}/{line['direction']}/{line['page']}x{line['count']}{share}"
        yield case, "GB/s", "GB/s", line["gb_per_s"]
    elif what == "single":
        case = f"single/{line['method']}/{line['direction']}/{line['page']}"
        yield case, "p50_us", "us", line["p50_us"]
        yield case, "p99_us", "us", line["p99_us"]
    elif what == "prepared":
        case = f"prepared/{line['direction']}/{line['page']}x{line['count']}"
        yield case, "make_us", "us", line["make_us"]
        yield case, "p50_us", "us", line["p50_us"]
        yield case, "p99_us", "us", line["p99_us"]
    elif what == "import" and "ms" in line:
        yield f"import/{line['by']}", "ms", "ms", line["ms"]
    elif what == "pin":
        yield f"pin/{line['bytes']}", "ms", "ms", line["ms"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("probe", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--command", default="sh tools/gpu_probe.sh")
    arguments = parser.parse_args()
    lines = [json.loads(text) for text in arguments.probe.read_text().splitlines() if text.startswith("{")]
    ends = [line for line in lines if line.get("what") == "end"]
    if not ends:
        print("the probe did not finish: no row is written", file=sys.stderr)
        return 1
    for line in lines:
        # The probe says of each line whether it compared the bytes: single pages, for one, it does not.
        compared = line.get("compared", False)
        for case, metric, unit, value in measurements(line) if "what" in line else ():
            row = {
                "date": arguments.date,
                "commit": arguments.commit,
                "machine": arguments.host,
                "command": arguments.command,
                "table": "gpu-probe",
                "case": case,
                "metric": metric,
                "unit": unit,
                "value": value,
                "peer": None,
                "peer_value": None,
                "ratio": None,
                "checked": compared,
            }
            print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
