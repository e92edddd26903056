# SPDX-License-Identifier: Apache-2.0
"""One run on a machine with GPUs: its folders, its remaining time, its log, the programs that it starts."""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_steps import tree
from gpu_steps.gpus import describe_gpus
from gpu_steps.tree import bare_loader, commit_of_tree

TAIL_LINES = 30


class Sitting:
    """One run: its folders, its remaining time, and its log."""

    def __init__(self, options: argparse.Namespace, started: float | None = None):
        self.started = time.monotonic() if started is None else started
        self.options = options
        self.step = "step"
        self.troubles: list[str] = []  # what failed in this step, for its line at the end
        self.lock = threading.Lock()  # of the log, the rows and what is shown
        self.carried: Path = options.carried.resolve()
        self.out: Path = options.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        tree.WORK.mkdir(parents=True, exist_ok=True)
        self.log = self.out / "test_gpu.log"
        self.limit = 0.0
        self.carries_commit = (self.carried / "commit.txt").exists()
        self.commit = (
            (self.carried / "commit.txt").read_text().strip() if self.carries_commit else commit_of_tree()
        )
        self.machine, self.label, self.gpus, self.gpu_gib = describe_gpus()
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tree.SITE), os.environ.get("PYTHONPATH", "")])),
            "PATH": os.pathsep.join([str(self.carried / "bin"), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def of_step(self, name: str, limit: float) -> Sitting:
        """Returns a copy for a step, with files and a limit of its own. Other steps may run at the same time.

        The copy shares the log and its lock.
        """
        own = copy.copy(self)
        own.step, own.limit, own.troubles = name, limit, []
        return own

    def seconds_left(self) -> float:
        budget: float = self.options.budget
        return budget - (time.monotonic() - self.started)

    def step_seconds_left(self) -> float:
        """At least one second, so that a command that begins last can still print its end."""
        return max(1.0, self.limit - time.monotonic())

    def file(self, name: str) -> Path:
        """Returns the file for the output of a command of this step."""
        return tree.WORK / f"{self.step}_{name}.txt"

    def trouble(self, text: str) -> bool:
        """Notes a failure. Returns False, the result of a step that failed."""
        self.troubles.append(text)
        self.note(f"    # {text}")
        return False

    def run(
        self,
        command: list[str],
        *,
        tail: int = TAIL_LINES,
        environment: dict[str, str] | None = None,
        rows: bool = False,
        case_suffix: str = "",
    ) -> bool:
        """Runs the command into the log for at most the step's time, and shows its last lines. Returns True
        if the command succeeded.

        rows: the command must print at least one row, and its rows are kept. case_suffix: added to the case
        of each row, so that other settings give other cases.
        """
        shown = " ".join(part if len(part) < 60 else "..." for part in command)
        if self.limit < time.monotonic():
            return self.trouble(f"not begun, out of time: {shown}")
        errors, output = self.file("stderr"), self.file("stdout")
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=tree.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err if rows else out,
                start_new_session=True,
                env={**self.environment, **(environment or {})},
            )
            try:
                ending = bare_loader.ending(process.wait(self.step_seconds_left()))
            except subprocess.TimeoutExpired:
                ending = "out of time"
            end_with_children(process)
        text = output.read_text(errors="replace")
        kept = self.keep_rows(text, case_suffix) if rows else 1
        text += errors.read_text(errors="replace") if rows else ""
        self.note(f"$ {shown}\n{text}\n# {ending}", show=False)
        if ending == "exit code 0" and kept == 0:
            ending = "no row"
        ok: bool = ending == "exit code 0"
        if not ok:
            self.troubles.append(f"{brief(command)}: {ending}")
        self.show_end(text, tail if ok else max(tail, TAIL_LINES), [] if ok else [f"# {ending}: {shown}"])
        return ok

    def show_end(self, text: str, tail: int, last: list[str]) -> None:
        """Shows the last lines of a command's output and the lines `last`, without lines of another step in
        between."""
        lines = text.splitlines()[-tail:] if tail else []
        with self.lock:
            print("".join(f"    {line[:300]}\n" for line in lines + last), end="", flush=True)

    def note(self, text: str, show: bool = True) -> None:
        with self.lock:
            with self.log.open("a") as log:
                log.write(text + "\n")
            if show:
                print(text, flush=True)

    def keep_rows(self, text: str, case_suffix: str = "") -> int:
        """Appends the rows in a program's output to the files of their tables, with the GPUs as the machine
        and the tree's commit. Returns the number of rows."""
        kept = 0
        for line in text.splitlines():
            if not line.startswith("{"):
                continue
            row = json.loads(line)
            if "table" not in row:
                continue
            if "NVIDIA" not in row["machine"]:
                row["machine"] = self.machine
            if self.carries_commit or not re.fullmatch(r"[0-9a-f]{7,}\+?", row["commit"]):
                row["commit"] = self.commit  # what was carried need not be of the tree that lies here
            row["case"] = row.get("case", "") + case_suffix
            row["command"] = row["command"].replace(str(self.carried / "bin") + "/", "")
            with (
                self.lock,
                (self.out / f"{datetime.date.today()}-{self.label}-{row['table']}.jsonl").open("a") as file,
            ):
                file.write(json.dumps(row) + "\n")
            kept += 1
        return kept

    def row_lines(self) -> Counter[str]:
        """Returns the lines of all rows in the folder, also those of earlier runs."""
        files = self.out.glob("*.jsonl")
        return Counter(line for file in files for line in file.read_text().splitlines())

    def rows_since(self, before: Counter[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.row_lines() - before).elements()]


def run_together(
    sitting: Sitting, commands: dict[str, list[str]], environment: dict[str, str] | None = None
) -> bool:
    """Runs all commands at once, each into a file of its own. Then it writes their output to the log one
    after another, and shows the last lines of those that failed."""
    started = {}
    for name, command in commands.items():
        with sitting.file(name).open("wb") as out:
            started[name] = subprocess.Popen(
                command, cwd=tree.ROOT, env={**sitting.environment, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
    failed = []
    for name, process in started.items():
        try:
            ending = bare_loader.ending(process.wait(sitting.step_seconds_left()))
        except subprocess.TimeoutExpired:
            ending = "out of time"
        end_with_children(process)
        text = sitting.file(name).read_text(errors="replace")
        sitting.note(f"$ {' '.join(commands[name])}\n{text}\n# {ending}", show=False)
        if ending != "exit code 0":
            failed.append(name)
            sitting.troubles.append(f"{name}: {ending}")
        sitting.show_end(text, 0 if ending == "exit code 0" else TAIL_LINES, [f"{name}: {ending}"])
    return not failed


def brief(command: list[str]) -> str:
    """Returns the first words of a command, without the folders."""
    parts = [Path(part).name if part.startswith(("/", "../")) else part for part in command[:5]]
    return " ".join(part if len(part) < 40 else "..." for part in parts)


def end_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and its children, which would keep memory of the GPUs. The process leads a session of
    its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
