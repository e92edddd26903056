#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout and the types of every source, and the rules that a program can check, all at once.

Usage: lint.py [--root ROOT] [CHECK...]      (all checks without CHECK)

Prints each finding as `path:line: sentence`, then a line for each check: its name, its seconds, its findings.
Exits with 1 if there is a finding. A tool that is missing, or fails without a finding, is a finding.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
JOBS = os.cpu_count() or 1

MARKDOWN = True
MARKDOWN_COLUMNS = 120
TITLE_CHARACTERS = 72

CXX_SUFFIXES = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"}
SHELL_NAMES = {".ci/run"}  # shell scripts whose names have no suffix

LINE_OF_TOOL = re.compile(r"(?P<path>[^:\s][^:]*):(?P<line>\d+)(?::\d+)?: (?P<sentence>.*)")


def repository_files(root: Path) -> list[str]:
    """Returns the tracked files, and the new files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listing.split("\0") if name and (root / name).is_file()})


def run_tool(root: Path, command: list[str]) -> tuple[int, str]:
    """Returns the exit code and all output; 127 if the program is not installed."""
    if not shutil.which(command[0]):
        return 127, f"{command[0]} is not installed: run `make setup`"
    done = subprocess.run(
        command,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def or_failure(findings: list[str], tool: str, code: int, output: str) -> list[str]:
    """Returns the findings. If the tool failed without a finding, its last lines are one."""
    if code == 0 or findings:
        return findings
    return [f"{tool}: exit code {code}: {' / '.join(output.strip().splitlines()[-5:])}"]


def findings_in(output: str, drop: str = "") -> list[str]:
    """Returns the lines of the form path:line: sentence, without a column; `drop` is removed from the
    sentences."""
    found = [match for line in output.splitlines() if (match := LINE_OF_TOOL.fullmatch(line))]
    return [f"{m['path']}:{m['line']}: {re.sub(drop, '', m['sentence'])}" for m in found]


def clang_format(root: Path) -> list[str]:
    files = [name for name in repository_files(root) if Path(name).suffix in CXX_SUFFIXES]
    batches = [batch for i in range(JOBS) if (batch := files[i::JOBS])]

    def check(batch: list[str]) -> list[str]:
        code, output = run_tool(root, ["clang-format-16", "--dry-run", "-Werror", *batch])
        first: dict[str, str] = {}  # one finding a file: the whole file is laid out at once
        for finding in findings_in(output):
            path, line, _ = finding.split(":", 2)
            first.setdefault(path, f"{path}:{line}: clang-format-16 lays this out differently: `make format`")
        return or_failure(list(first.values()), "clang-format-16", code, output)

    with ThreadPoolExecutor(JOBS) as pool:
        return sorted(finding for batch in pool.map(check, batches) for finding in batch)


def ruff_format(root: Path) -> list[str]:
    command = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--output-format", "concise"]
    code, output = run_tool(root, command)
    findings = [
        re.sub("unformatted: .*", "ruff lays this out differently: `make format`", finding)
        for finding in findings_in(output)
    ]
    return or_failure(findings, "ruff format", code, output)


def ruff_check(root: Path) -> list[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet", "--output-format", "concise"]
    code, output = run_tool(root, command)
    return or_failure(findings_in(output, drop=r"\[\*\] "), "ruff check", code, output)


def mypy(root: Path) -> list[str]:
    """Runs mypy. pyproject.toml has its folders and options."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", "--no-color-output"]
    code, output = run_tool(root, command)
    errors = [line for line in output.splitlines() if ": error: " in line]
    return or_failure(findings_in("\n".join(errors), drop="^error: "), "mypy", code, output)


def shellcheck(root: Path) -> list[str]:
    files = [name for name in repository_files(root) if name.endswith(".sh") or name in SHELL_NAMES]
    if not files:
        return []
    code, output = run_tool(root, ["shellcheck", "--format", "gcc", *files])
    return or_failure(findings_in(output), "shellcheck", code, output)


def own(script: str, *options: str) -> Callable[[Path], list[str]]:
    """Returns a check that runs a program of tools/: its last line has the numbers, the other lines are
    findings."""

    def check(root: Path) -> list[str]:
        code, output = run_tool(root, [sys.executable, str(TOOLS / script), *options, str(root)])
        return or_failure(output.splitlines()[:-1] if code == 1 else [], script, code, output)

    return check


LINK = re.compile(
    r"!?\[(?:[^\[\]]|!?\[[^\[\]]*\](?:\([^()]*\))?)*\](?:\([^()]*\)|\[[^\[\]]*\])|<?https?://\S+"
)
DEFINITION = re.compile(r"\s*\[[^\]]+\]: \S+")
COMMENT = re.compile(r"\s*<!--.*-->\s*")
FENCE = re.compile(r"\s*(?:[-*] |\d+\. )?(```+|~~~+)")


def prose(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    """Yields the lines, with their numbers, that are not code, a table row, a comment, or a line of links
    alone."""
    fence = ""
    for number, line in enumerate(lines, start=1):
        if match := FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence):
                fence = ""
            continue
        if fence or line.lstrip().startswith("|") or COMMENT.fullmatch(line) or DEFINITION.match(line):
            continue
        if re.search(r"[^\W_]", re.sub(r"^\s*\d+\. ", "", LINK.sub("", line))):
            yield number, line


def markdown(root: Path) -> list[str]:
    return [
        f"{name}:{number}: the line has {len(line)} characters, at most {MARKDOWN_COLUMNS} fit"
        for name in repository_files(root)
        if name.endswith(".md")
        for number, line in prose((root / name).read_text(errors="replace").splitlines())
        if len(line) > MARKDOWN_COLUMNS
    ]


def titles(root: Path) -> list[str]:
    """Checks the titles of the commits since the branch left origin; without such a commit those since this
    file came, or the last one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    added = git("log", "--diff-filter=A", "--format=%H", "--", "tools/lint.py").split()
    head = git("rev-parse", "HEAD")
    left = git("merge-base", "HEAD", "origin/HEAD") or git("merge-base", "HEAD", "origin/main")
    base = left if left != head else ""
    if not base and added:
        base = added[-1]
    commits = [f"{base}..HEAD"] if base else ["-1"]
    lines = git("log", "--format=%h %s", *commits).splitlines()
    return [
        f"commit {commit}: the title has {len(title)} characters, at most {TITLE_CHARACTERS} fit: {title}"
        for commit, _, title in (line.partition(" ") for line in lines)
        if len(title) > TITLE_CHARACTERS
    ]


# The longest first, so that it begins first.
CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "mypy": mypy,
    "clang-format": clang_format,
    "sources": own("check_sources.py"),
    "layers": own("check_layers.py"),
    "ruff check": ruff_check,
    "ruff format": ruff_format,
    "shellcheck": shellcheck,
    "titles": titles,
}
if MARKDOWN:
    CHECKS["markdown"] = markdown
if (TOOLS / "abi.py").exists():
    CHECKS["abi"] = own("abi.py", "--root")
if (TOOLS / "check_numbers.py").exists():
    CHECKS["numbers"] = own("check_numbers.py", "--root")
if (TOOLS / "support_table.py").exists():
    CHECKS["support"] = own("support_table.py", "--root")


def timed(check: Callable[[Path], list[str]], root: Path) -> tuple[float, list[str]]:
    start = time.monotonic()
    findings = check(root)
    return time.monotonic() - start, findings


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=TOOLS.parent, help="the repository to check")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.checks if name not in CHECKS]:
        parser.error(f"there is no check {', '.join(unknown)}: the checks are {', '.join(CHECKS)}")
    root = options.root.resolve()
    total = 0
    summary = []
    names = options.checks or list(CHECKS)
    with ThreadPoolExecutor(len(names)) as pool:
        running = {pool.submit(timed, CHECKS[name], root): name for name in names}
        for done in as_completed(running):
            seconds, findings = done.result()
            for finding in findings:
                print(finding)
            total += len(findings)
            summary.append(f"lint: {running[done]:<12} {seconds:5.1f} s  {len(findings)} findings")
    print("\n".join(summary))
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
