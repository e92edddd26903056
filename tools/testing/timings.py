# SPDX-License-Identifier: Apache-2.0
"""The times of a test run's steps: `tools/test.py --timings`."""

from __future__ import annotations

import json
from pathlib import Path

from testing.stage import BUILD, REPORTS

MOST = 12


def build_edges(log: Path) -> dict[str, float]:
    """Returns the seconds of each output in Ninja's log; the last build of an output counts."""
    edges: dict[str, float] = {}
    for line in log.read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        edges[output] = (int(end) - int(start)) / 1000
    return edges


def kind_of(output: str) -> str:
    if output.endswith(".o"):
        return "compile"
    if output.endswith((".cubin", ".stamp", ".json")) or output.startswith("/"):
        return "other"
    return "link"


def stage_table() -> list[str]:
    lines = [f"{'stage':<14}{'configure':>10}{'build':>8}{'run':>8}{'all':>8}{'CPU':>8}  seconds"]
    for file in sorted(REPORTS.glob("*.times.json"), key=lambda path: path.stat().st_mtime):
        steps = json.loads(file.read_text())
        cells = "".join(f"{steps.get(step, 0):>{width}.0f}" for step, width in COLUMNS)
        lines.append(f"{file.name.removesuffix('.times.json'):<14}{cells}")
    return lines


COLUMNS = (("configure", 10), ("build", 8), ("run", 8), ("all", 8), ("cpu", 8))


def build_tables() -> list[str]:
    lines = []
    for log in sorted(BUILD.glob("*/.ninja_log")):
        edges = build_edges(log)
        sums = {
            kind: sum(s for o, s in edges.items() if kind_of(o) == kind)
            for kind in ("compile", "link", "other")
        }
        lines.append("")
        lines.append(
            f"build/{log.parent.name}: " + ", ".join(f"{kind} {s:.0f} s" for kind, s in sums.items())
        )
        lines += [f"  {s:>6.1f} s  {o}" for o, s in sorted(edges.items(), key=lambda e: -e[1])[:MOST]]
    return lines


def case_tables() -> list[str]:
    lines = []
    for file in sorted((BUILD / "passed").glob("*.seconds.json")):
        suites: dict[str, dict[str, float]] = json.loads(file.read_text())
        cases = {f"{suite}.{case}": s for suite, found in suites.items() for case, s in found.items()}
        lines.append("")
        lines.append(
            f"{file.name.removesuffix('.seconds.json')}: {len(cases)} cases, {sum(cases.values()):.0f} s"
        )
        for suite, found in sorted(suites.items(), key=lambda e: -sum(e[1].values())):
            lines.append(f"  {sum(found.values()):>6.1f} s  {suite} ({len(found)} cases)")
        lines.append("  the slowest:")
        lines += [f"  {s:>6.1f} s  {case}" for case, s in sorted(cases.items(), key=lambda e: -e[1])[:MOST]]
    return lines


def print_timings() -> int:
    lines = [*stage_table(), *build_tables(), *case_tables()]
    print("\n".join(lines))
    return 0
