# SPDX-License-Identifier: Apache-2.0
"""The common part of the comparisons: the rows of bench/results, and the processes of the two sides of a
benchmark."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import platform
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
# Begins the case of each figure that is measured through Python; a case of a C++ program has no prefix.
PYTHON = "python/"


def machine() -> str:
    """Returns the facts of this machine that figures depend on, without its name: "AMD EPYC, 2 cores, 23 GiB,
    Linux 6.1.0"."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(": ", 1)[1]
            break
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB, Linux "
        f"{platform.release().split('-')[0]}"
    )


def commit() -> str:
    """Returns the commit of the tree; a + means local changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    return (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


class Measured(list[float]):
    """Samples of one case, and the number of them whose data was compared afterwards and was right."""

    right = 0

    def take(self, samples: list[float], right: bool) -> None:
        self += samples
        self.right += len(samples) if right else 0

    @property
    def checked(self) -> bool:
        return 0 < len(self) == self.right


class Rows:
    """The rows of one run, each a line of JSON in the form that docs and TARGETS expect."""

    def __init__(
        self, table: str, label: str, machine_text: str | None = None, commit_text: str | None = None
    ):
        """The two texts replace this machine's description, and the commit if there is no git."""
        self.table = table
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.common = {
            "date": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit_text or commit(),
            "machine": machine_text or machine(),
        }
        self.command = shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
        self.label = label
        self.lines: list[dict[str, Any]] = []

    def add(
        self,
        case: str,
        metric: str,
        unit: str,
        value: float,
        *,
        peer: str | None = None,
        peer_value: float | None = None,
        lower_is_better: bool = False,
        table: str | None = None,
        checked: bool,
    ) -> None:
        """`ratio`: how many times better than the peer. `checked`: the data that moved was compared, and is
        right."""
        ratio = None
        if peer_value is not None:
            ratio = (
                (peer_value / value if lower_is_better else value / peer_value)
                if value and peer_value
                else None
            )
        self.lines.append(
            {
                **self.common,
                "command": self.command,
                "table": table or self.table,
                "case": case,
                "metric": metric,
                "unit": unit,
                "value": rounded(value),
                "peer": peer,
                "peer_value": rounded(peer_value),
                "ratio": rounded(ratio),
                "checked": checked,
            }
        )

    def write(self, folder: Path = RESULTS) -> Path:
        """Appends the rows to <date>-<label>-<table>.jsonl."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.started:%Y-%m-%d}-{self.label}-{self.table}.jsonl"
        with path.open("a") as file:
            for line in self.lines:
                file.write(json.dumps(line) + "\n")
        return path


def rounded(value: float | None) -> float | None:
    """Returns the value with five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def default_label() -> str:
    return f"cpu{len(os.sched_getaffinity(0))}"


def find_command(given: str | None) -> str:
    """Returns the program `headrace`: the named one, or of the release build, or of the PATH."""
    built = ROOT / "build" / "release" / "bin" / "headrace"
    command = given or (str(built) if built.exists() else shutil.which("headrace"))
    if command is None:
        sys.exit("there is no headrace command: run `make build` first, or name it with --command")
    return command


def ended(what: str, code: int) -> str:
    """Says how a process ended, from subprocess's return code: by a signal, or with an exit code."""
    if code < 0:
        return f"{what} was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"{what} ended with exit code {code}"


class Stuck(RuntimeError):
    """A process of a comparison does not answer."""


class Worker:
    """A process that executes commands: bench/page_worker.py, or another script of this folder."""

    def __init__(
        self,
        python: str,
        environment: dict[str, str],
        patience: float = 120,
        script: str = "page_worker.py",
        log: IO[str] | None = None,
    ):
        """patience: the longest time in seconds for an answer. log: where its standard error goes."""
        self.patience = patience
        self.process = subprocess.Popen(
            [python, str(Path(__file__).resolve().parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, what: str, **arguments: Any) -> Any:
        self.begin(what, **arguments)
        return self.end()

    def begin(self, what: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": what, **pack(arguments)}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(ended("a benchmark process", self.process.wait())) from None

    def end(self) -> Any:
        """Returns the answer. Raises Stuck if there is none in time, and ends the process."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            self.process.kill()
            raise Stuck(f"no answer in {self.patience:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(ended("a benchmark process", self.process.wait()))
        answer = unpack(json.loads(line))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer.get("value")

    def stop(self) -> None:
        """Ends the process and ignores its exit code: the data has been compared, and some peers crash when
        they exit."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(make_side: Callable[[], object]) -> None:
    """Executes the commands of a Worker, one JSON message a line from stdin, as methods of a `side`."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = make_side()
    for line in sys.stdin:
        message = unpack(json.loads(line))
        try:
            answer = {"value": getattr(side, message.pop("do"))(**message)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(pack(answer)) + "\n")
        answers.flush()


def pack(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(item) for item in value]
    return value


def unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            base64.b64decode(value["base64"])
            if set(value) == {"base64"}
            else {key: unpack(item) for key, item in value.items()}
        )
    if isinstance(value, list):
        return [unpack(item) for item in value]
    return value


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def percentile(samples: list[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns columns as wide as their widest cell, with numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
