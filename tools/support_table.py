#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tables of operations, backends and types in docs/collectives.md, or writes them.

Usage: support_table.py [--write] [--root ROOT]

They stand between `<!-- support -->` and `<!-- /support -->`, and are made of
tests/fixtures/comm_support.tsv, which the test `unit_collectives --gtest_filter='CommSupport*'` compares with
what the backends take. Without --write it prints a line if the tables differ, and exits with 1.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable
from pathlib import Path

DOCUMENT = "docs/collectives.md"
SUPPORT = "tests/fixtures/comm_support.tsv"
MARK = re.compile(r"<!-- support -->.*?<!-- /support -->", re.DOTALL)
# What shares the answers of a backend.
COLUMNS = {"host": "`host`, `lazy`", "nccl": "`nccl`, `ncclx`", "oneccl": "`oneccl`", "p2p": "`p2p`"}
TYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 int16 int32 int64 "
    "uint8 uint16 uint32 uint64 bool complex64 complex128"
).split()

# backend, operation: {type: reductions}
Support = dict[tuple[str, str], dict[str, str]]


def read(path: Path) -> Support:
    support: Support = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            types = TYPES if row["types"] == "all" else row["types"].split(",")
            taken = support.setdefault((row["backend"], row["operation"]), {})
            taken.update(dict.fromkeys(types, row["reductions"]))
    return support


def merged(rows: Iterable[tuple[str, list[str]]]) -> list[list[str]]:
    """Joins the names of rows that have the same cells, in the order of the first of them."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return [[", ".join(together), *cells] for cells, together in names.items()]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def types_text(taken: dict[str, str]) -> str:
    if not taken:
        return "no"
    if list(taken) == ["-"]:
        return "yes"
    return "every type" if len(taken) == len(TYPES) else ", ".join(taken)


def cell(support: Support, backend: str, operation: str) -> str:
    """The types of an operation, with the reductions where they are not those of all_reduce."""
    taken = support.get((backend, operation), {})
    if not taken or set(taken.values()) == {"-"}:
        return types_text(taken)
    if taken == support[backend, "all_reduce"]:
        return "as below"
    reductions = sorted(set(taken.values()))
    return f"{', '.join(taken)}: {'; '.join(reductions).replace(',', ', ')}"


def tables(support: Support) -> str:
    operations = dict.fromkeys(operation for _, operation in support)
    of_operations = merged(
        (f"`{operation}`", [cell(support, backend, operation) for backend in COLUMNS])
        for operation in operations
    )
    of_types = merged(
        (name, [support[backend, "all_reduce"].get(name, "none").replace(",", ", ") for backend in COLUMNS])
        for name in TYPES
    )
    columns = list(COLUMNS.values())
    first = markdown(["operation", *columns], of_operations)
    second = markdown(["reductions of", *columns], of_types)
    return f"\n{first}\n\n{second}\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the tables")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    path = options.root / DOCUMENT
    before = path.read_text()
    made = f"<!-- support -->{tables(read(options.root / SUPPORT))}<!-- /support -->"
    after, marks = MARK.subn(lambda _: made, before)
    problems = []
    if marks != 1:
        problems.append(f"{DOCUMENT}:1: {marks} marks <!-- support -->, one is expected")
    elif options.write:
        path.write_text(after)
    elif before != after:
        line = before[: before.index("<!-- support -->")].count("\n") + 1
        problems.append(f"{DOCUMENT}:{line}: differs from {SUPPORT}: run support_table.py --write")
    for problem in problems:
        print(problem)
    print(f"support: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
