#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each measured figure in a document equals its row in bench/results, or writes it there.

Usage: check_numbers.py [--write | --list] [--root ROOT] [FILE...]      (all documents without FILE)

Between `<!-- figures NAME -->` and `<!-- /figures -->` stands a table, between `<!-- figure NAME -->` and
`<!-- /figure -->` a figure inside a sentence. bench/figures.toml says which rows make NAME. --write fills
all of them; --list prints what each name makes. Without --write it prints, by file and line, each text that
differs from its rows, each name or row that is not there, and each measured figure outside of such
marks; it exits with 1 if there is one.

Measured is a number with GB/s and its like, with us, ns or a percent sign, a ratio ("1.3 times", "3 times as
fast"), or a time in ms or s that has a decimal point; and a row of a Markdown table that names GB/s. Whole ms
and s, and bytes, are constants. A text that looks measured and is a constant of the code stands in
[constants] of bench/figures.toml. Code, in fences or in backticks, is not read.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "bench/notes/*.md",
    "backends/*/README.md",
    "kernels/**/README.md",
)
FIGURES = "bench/figures.toml"
MARK = re.compile(r"<!-- (figures?) (\S+) -->(.*?)<!-- /\1 -->", re.DOTALL)
OPEN_OR_CLOSE = re.compile(r"<!-- /?figures?\b.*?-->")
REFERENCE = re.compile(r"\{(\w+)(?::(\S+))? (?:(first) )?([^}@]+)(?:@([^}]+))?\}")
SELECTORS = ("table", "files", "metric", "peer", "commit", "command")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NUMBER = r"\d[\d.,]*"
MEASURED = re.compile(
    rf"{NUMBER}\s?(?:[GMK]i?B/s|us\b|µs|ns\b|percent\b|%)"
    rf"|\d+\.\d+(?: (?:to|and|or|/) {NUMBER})?\s?(?:ms|s|seconds|minutes)\b"
    rf"|\d+\.\d+(?:\stimes|x)\b|{NUMBER} times\s(?:NIXL|as|better|faster|slower|quicker|more|less|that of)\b"
    r"|^\|[^\n]*GB/s[^\n]*",
    re.MULTILINE,
)
LINE_WIDTH = 118
HIDDEN = "\0!--"


class Missing(Exception):
    """A name, a row or a field does not exist; the text names it."""


class Rows:
    """The rows of bench/results, and the rows of which a text was made."""

    def __init__(self, folder: Path):
        self.rows: list[tuple[str, dict[str, Any]]] = [
            (path.name, json.loads(line))
            for path in sorted(folder.glob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        self.of_case: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for file, row in self.rows:
            self.of_case.setdefault(str(row["case"] or ""), []).append((file, row))
        self.used: dict[tuple[str, str], str] = {}  # file and commit: machine

    def find(self, wanted: dict[str, str], first: bool) -> dict[str, Any]:
        """Returns the latest row, or the first. Of several rows of one run it takes the one with the least
        ratio, with the best settings of the peer."""
        rows = self.of_case.get(wanted["case"], []) if "case" in wanted else self.rows
        found = [(file, row) for file, row in rows if self._fits(file, row, wanted)]
        if not found:
            raise Missing("no row has " + ", ".join(f"{key} {value}" for key, value in wanted.items()))
        date = (min if first else max)(row["date"] for _, row in found)
        file, row = min(
            (pair for pair in found if pair[1]["date"] == date), key=lambda pair: pair[1]["ratio"] or 0
        )
        self.used[file, row["commit"][:7]] = row["machine"]
        return row

    @staticmethod
    def _fits(file: str, row: dict[str, Any], wanted: dict[str, str]) -> bool:
        for key, value in wanted.items():
            have = file if key == "files" else str(row[key] or "")
            exact = key in ("case", "table", "metric")
            if have != value if exact else not fnmatch.fnmatchcase(have, value):
                return False
        return True

    def sources(self) -> str:
        """Returns the files, commits and machines of all rows that were used since the last call."""
        files = ", ".join(f"{file} ({commit})" for file, commit in sorted(self.used))
        machines = "; ".join(dict.fromkeys(machine for _, machine in sorted(self.used.items())))
        self.used.clear()
        return textwrap.fill(
            f"Rows: {files}. Measured on: {machines}.",
            LINE_WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )


def number(value: float, form: str | None) -> str:
    """Returns three significant digits, or the given format."""
    if form:
        return f"{value:{form}}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def filled(template: str, values: dict[str, str], rows: Rows) -> str:
    """Fills a template. $KEY is a value of the line; {FIELD[:FORM] [first] CASE[@METRIC]} is a field of a
    row."""
    selectors = {key: values[key] for key in SELECTORS if key in values}

    def field(match: re.Match[str]) -> str:
        name, form, first, case, metric = match.groups()
        wanted = {"case": case, **selectors, **({"metric": metric} if metric else {})}
        row = rows.find(wanted, bool(first))
        if first and row == rows.find(wanted, False):
            return "not measured"  # there is one row, which is the latest
        if row.get(name) is None:
            raise Missing(f"the row of {case} has no {name}")
        return number(row[name], form) if isinstance(row[name], (int, float)) else str(row[name])

    try:
        return REFERENCE.sub(field, Template(template).substitute(values))
    except KeyError as error:
        raise Missing(f"{template!r} names ${error.args[0]}, which the line does not have") from None


class Figures:
    """bench/figures.toml."""

    def __init__(self, root: Path):
        table = tomllib.loads((root / FIGURES).read_text())
        self.constants: dict[str, list[str]] = table.get("constants", {})
        self.made_of: dict[str, dict[str, Any]] = table.get("figures", {})
        self.rows = Rows(root / "bench" / "results")

    def text(self, name: str, block: bool) -> str:
        """Returns the text between the marks. Raises Missing with the reason if there is none."""
        if name not in self.made_of:
            raise Missing(f"{FIGURES} does not define it")
        made_of = self.made_of[name]
        if block != ("lines" in made_of):
            raise Missing(
                f"it is a {'figure' if block else 'table'}: the mark is <!-- figure{'' if block else 's'} ..."
            )
        shared = {key: value for key, value in made_of.items() if isinstance(value, str)}
        self.rows.used.clear()
        if not block:
            return filled(made_of["text"], shared, self.rows)
        header, cells = made_of["header"], made_of["cells"]
        table = [header, ["---"] * len(header)]
        table += [
            [filled(cell, {**shared, **line}, self.rows) for cell in cells] for line in made_of["lines"]
        ]
        sources = f"\n\n{self.rows.sources()}\n" if made_of.get("sources", True) else "\n"
        return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in table) + sources


def blank(match: re.Match[str]) -> str:
    """Returns the same number of lines, all blank."""
    return re.sub(r"[^\n]", " ", match[0])


def same(a: str, b: str) -> bool:
    """Compares two texts without regard to line breaks."""
    return a.split() == b.split()


class Document:
    def __init__(self, path: str, text: str, figures: Figures):
        # A mark inside of code is an example: it is hidden until the text is written.
        self.path, self.figures = path, figures
        self.text = CODE.sub(lambda code: code[0].replace("<!--", HIDDEN), text)
        self.problems: list[str] = []

    def _problem(self, at: int, what: str) -> None:
        self.problems.append(f"{self.path}:{self.text.count(chr(10), 0, at) + 1}: {what}")

    def _each_mark(self, action: Callable[[re.Match[str], str], str]) -> str:
        def replaced(match: re.Match[str]) -> str:
            try:
                return action(match, self.figures.text(match[2], match[1] == "figures"))
            except Missing as error:
                self._problem(match.start(), f"{match[2]}: {error}")
                return match[0]

        return MARK.sub(replaced, self.text)

    def write(self) -> str:
        """Returns the text with each mark filled."""
        self.text = self._each_mark(lambda m, made: f"<!-- {m[1]} {m[2]} -->{made}<!-- /{m[1]} -->")
        self.problems.clear()
        return self.text.replace(HIDDEN, "<!--")

    def check(self) -> list[str]:
        def compare(match: re.Match[str], made: str) -> str:
            if not same(match[3], made):
                shown = (
                    ""
                    if match[1] == "figures"
                    else f"{' '.join(match[3].split())!r}, the rows say {made!r}: "
                )
                shown = shown or "differs from its rows: "
                self._problem(match.start(), f"{match[2]}: {shown}run check_numbers.py --write")
            return match[0]

        self._each_mark(compare)
        rest = MARK.sub(blank, self.text)
        for match in OPEN_OR_CLOSE.finditer(rest):
            self._problem(match.start(), f"{match[0]} has no counterpart")
        rest = COMMENT.sub(blank, CODE.sub(blank, rest))
        for constant in self.figures.constants.get(self.path, []):
            words = re.compile(r"\s+".join(map(re.escape, constant.split())))
            if not words.search(rest):
                self.problems.append(f"{self.path}: [constants] has {constant!r}, which is not in the text")
            rest = words.sub(blank, rest)
        for match in MEASURED.finditer(rest):
            self._problem(
                match.start(), f"{match[0].strip()!r} is a measured figure outside of <!-- figure NAME -->"
            )
        return self.problems


def documents(root: Path, given: list[str]) -> list[Path]:
    if given:
        return [Path(name).resolve() for name in given]
    return sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="fill all marks")
    parser.add_argument("--list", action="store_true", help="print the text of each name")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("file", nargs="*")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    figures = Figures(root)
    for name, made_of in figures.made_of.items() if options.list else ():
        try:
            print(f"{name}: {figures.text(name, 'lines' in made_of)}")
        except Missing as error:
            print(f"{name}: {error}")
    problems, paths = [], [] if options.list else documents(root, options.file)
    for path in paths:
        before = path.read_text()
        document = Document(path.relative_to(root).as_posix(), before, figures)
        if options.write and before != (text := document.write()):
            path.write_text(text)
        problems += document.check()
    for problem in problems:
        print(problem)
    if not options.list:
        print(f"numbers: {len(paths)} documents, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
