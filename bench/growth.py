#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How costs grow with the number of pages, regions, peers, posts, notifications, awaits, and agents in etcd.

Each figure has its unit; one that has a bound is printed as met or missed. Data is compared and messages are
counted: a figure whose data was wrong is not `checked` in its row. Rows go to bench/results, table `growth`.

    .venv/bin/python bench/growth.py --quick --no-rows               small sizes, in minutes
    .venv/bin/python bench/growth.py --sets regions,peers
    .venv/bin/python bench/growth.py --before OLD/bin/python --before-commit 1234567

--before measures another Headrace too: that of the interpreter. Each set runs with it and then with this one,
and rows have both figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from comparison import RESULTS, ROOT, Rows, default_label, rounded, table
from growth_sets import BOUNDS, SETS, Figure, Run, Skipped, bound_of, sentence_of


def describe() -> str:
    """Returns the sets and the bounds, for --help."""
    lines = ["sets:"] + [f"  {name:14}{sentence_of(name)}" for name in SETS]
    lines += ["", "bounds (* is any size):"]
    lines += [f"  {bound.case:24}{bound.metric:18}at most {bound.most:g} {bound.unit}" for bound in BOUNDS]
    return "\n".join(lines)


def measure(name: str, python: str, quick: bool) -> list[Figure]:
    run = Run(python, quick)
    SETS[name](run)
    return run.figures


def verdict(figure: Figure) -> str:
    bound = bound_of(figure)
    if bound is None:
        return ""
    return f"{'met' if bound.holds(figure) else 'missed'} (at most {bound.most:g})"


def shown(figure: Figure, before: Figure | None, two: bool) -> list[str]:
    """Returns the cells of a figure; `two`: there is a column for the figure from before."""
    values = [f"{rounded(each.value):g}" if each else "" for each in ((before, figure) if two else (figure,))]
    mark = "" if figure.checked else "NOT RIGHT "
    return [f"{figure.case} {figure.metric}", *values, figure.unit, mark + verdict(figure)]


def add_row(rows: Rows, figure: Figure, before: Figure | None, before_commit: str) -> None:
    rows.add(
        figure.case, figure.metric, figure.unit, figure.value,
        peer=f"headrace {before_commit}" if before else None,
        peer_value=before.value if before else None,
        lower_is_better=figure.lower_is_better,
        checked=figure.checked and (before is None or before.checked),
    )  # fmt: skip


def measure_both(name: str, options: argparse.Namespace, rows: Rows) -> list[Figure]:
    """Measures a set, adds its rows and prints them."""
    before = measure(name, options.before, options.quick) if options.before else []
    figures = measure(name, options.python, options.quick)
    old = {(figure.case, figure.metric): figure for figure in before}
    lines = []
    for figure in figures:
        its = old.get((figure.case, figure.metric))
        add_row(rows, figure, its, options.before_commit)
        lines.append(shown(figure, its, bool(old)))
    if options.json:
        print("\n".join(json.dumps(row) for row in rows.lines[-len(figures) :]), flush=True)
    else:
        header = ["figure", *(["before"] if old else []), "value", "unit", "bound"]
        print(f"\n{name}\n{table(header, lines)}", flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=describe(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(SETS), help="sets, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter whose Headrace is measured (default: this one)"
    )
    parser.add_argument("--before", help="interpreter with an older Headrace: measured in turn")
    parser.add_argument("--before-commit", default="before", help="its commit, for the rows")
    parser.add_argument("--commit", help="commit of what is measured (default: from git)")
    parser.add_argument("--json", action="store_true", help="print rows instead of a table")
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    names = options.sets.split(",")
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"there is no set {', '.join(unknown)}: the sets are {', '.join(SETS)}")
    rows = Rows("growth", options.machine_label, options.machine, options.commit)
    figures = []
    for name in names:
        try:
            figures += measure_both(name, options, rows)
        except Skipped as why:
            print(f"{name}: skipped: {why}", file=sys.stderr, flush=True)
    wrong = sum(not figure.checked for figure in figures)
    missed = sum(verdict(figure).startswith("missed") for figure in figures)
    print(f"{wrong} figures are of wrong data, {missed} bounds are missed", file=sys.stderr)
    if not options.no_rows:
        print(f"rows: {os.path.relpath(rows.write(options.results), ROOT)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
