# SPDX-License-Identifier: Apache-2.0
"""Stages of a test run: what each counted, and the commands that it ran."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
REPORTS = BUILD / "reports"
JOBS = os.cpu_count() or 1
TAIL_LINES = 120

# The build folders, of other checkouts too, take equal objects from one compiler cache. Precompiled headers
# and joined translation units need the sloppiness. The paths in precompiled headers make objects of checkouts
# in different folders differ.
SHARED_CACHE = {
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_BASEDIR": str(ROOT),
    "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime",
}

# Terminals, logins, containers and `make` set these. No command gets them, so that they are no inputs of its
# result, and a run goes on after a new login.
OF_TERMINALS = {
    "_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM",
    "TMUX", "TMUX_PANE", "WINDOWID", "MAKEFLAGS", "MAKELEVEL", "MAKE_TERMERR", "MAKE_TERMOUT", "MFLAGS",
    "CONTAINER_ID", "CONTAINER_NAME", "DBUS_SESSION_BUS_ADDRESS", "GPG_TTY", "HOSTNAME", "INVOCATION_ID",
    "JOURNAL_STREAM", "SSH_AGENT_PID", "SSH_AUTH_SOCK", "XDG_SESSION_CLASS", "XDG_SESSION_ID",
    "XDG_SESSION_TYPE",
}  # fmt: skip


def inherited() -> dict[str, str]:
    """Returns the variables of this process that its commands get."""
    return {name: value for name, value in os.environ.items() if name not in OF_TERMINALS}


class OutOfTime(Exception):
    """The whole run's budget is spent."""


@dataclass
class Case:
    """One test that failed or was skipped."""

    name: str
    text: str


@dataclass
class Stage:
    """The results of a stage, filled in while it runs. Checks may come from several threads."""

    name: str
    sentence: str
    minutes: float = 0.0
    cpu_seconds: float = 0.0  # of this stage's processes, and of work ahead of later stages meanwhile
    passed: int = 0
    stored: int = 0  # of those passed: not run again
    failures: list[Case] = field(default_factory=list)
    skips: list[Case] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)  # seconds: build, run and so on
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, ok: bool, name: str, text: str = "") -> bool:
        """Counts one check."""
        with self.lock:
            if ok:
                self.passed += 1
            else:
                self.failures.append(Case(name, text))
        return ok

    def skip(self, name: str, reason: str, allowed: list[re.Pattern[str]]) -> None:
        """Counts a test that could not run. A reason that is not allowed makes it a failure."""
        with self.lock:
            if any(pattern.search(reason) for pattern in allowed):
                self.skips.append(Case(name, reason))
            else:
                text = f"skipped for a reason that tests/allowed_skips.txt does not have: {reason}"
                self.failures.append(Case(name, text))

    def add(self, other: Stage) -> None:
        """Adds the counts of a part of this stage."""
        with self.lock:
            self.passed += other.passed
            self.stored += other.stored
            self.failures += other.failures
            self.skips += other.skips

    def took(self, step: str, since: float) -> None:
        """Adds the time since `since` (time.monotonic) to a step."""
        self.steps[step] = self.steps.get(step, 0.0) + time.monotonic() - since


def read_allowed_skips() -> list[re.Pattern[str]]:
    lines = (ROOT / "tests" / "allowed_skips.txt").read_text().splitlines()
    return [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]


def signal_sentence(code: int) -> str:
    """Says how a process ended, from subprocess's return code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"ended by signal {-code}"


class Runner:
    """Runs commands and stages within the budget."""

    def __init__(self, budget_minutes: float | None, use_store: bool = False, resume: str = ""):
        self.budget_minutes = budget_minutes
        self.begin_budget()
        self.background = False  # its commands run at the lowest priority, and show nothing
        self.process: subprocess.Popen[bytes] | None = None  # of the command that runs
        self.ahead: dict[str, threading.Event] = {}  # set when the work ahead of a stage has ended
        self.worker: tuple[threading.Thread, Runner] | None = None  # what does this work
        self.stages: list[Stage] = []
        self.allowed_skips = read_allowed_skips()
        self.venv_ready = False
        self.use_store = use_store
        self.resume = resume  # the key of parts of stages that count again after an interruption

    def begin_budget(self) -> None:
        minutes = self.budget_minutes
        self.deadline = time.monotonic() + minutes * 60 if minutes else None

    def seconds_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def begin_ahead(self, works: Mapping[str, Callable[[Runner, Stage], object]]) -> None:
        """Begins the work of later stages, one after the other: at the lowest priority, where the tests of
        the present stage leave a core idle. A stage waits for its own and does it again, which finds nothing
        left to do, or shows the error."""
        background = copy.copy(self)
        background.background = True
        self.ahead = {name: threading.Event() for name in works}
        for name in works:
            (REPORTS / f"{name}.ahead.log").unlink(missing_ok=True)

        def run() -> None:
            try:
                for name, work in works.items():
                    work(background, Stage(f"{name}.ahead", ""))
                    self.ahead[name].set()
            except OutOfTime:
                pass  # the runner finds this out by itself
            finally:
                for event in self.ahead.values():
                    event.set()

        thread = threading.Thread(target=run, daemon=True)
        self.worker = (thread, background)
        thread.start()

    def hurry(self) -> None:
        """Gives the work ahead the priority of a stage, since a stage waits for it: where the system allows
        that. The processes of others may use both cores."""
        process = self.worker[1].process if self.worker else None
        if process is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, process.pid, 0)
                Path(f"/proc/{process.pid}/autogroup").write_text("0")

    def end_ahead(self) -> None:
        """Ends what still runs for later stages that do not come."""
        if self.worker is None:
            return
        thread, background = self.worker
        background.deadline = time.monotonic()  # ends the commands that are about to begin
        while thread.is_alive():
            process = background.process
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            thread.join(0.1)

    def command(
        self,
        stage: Stage,
        command: list[str],
        *,
        environment: dict[str, str] | None = None,
        quiet: bool = False,
        log_name: str = "",
    ) -> bool:
        """Runs one command into the stage's log. Returns True if it succeeded."""
        return self.exit_code(stage, command, environment=environment, quiet=quiet, log_name=log_name) == 0

    def exit_code(
        self,
        stage: Stage,
        command: list[str],
        *,
        environment: dict[str, str] | None = None,
        quiet: bool = False,
        log_name: str = "",
    ) -> int:
        """Runs one command into the stage's log. If it fails its last lines are shown."""
        if self.background:
            command, quiet = ["nice", "-n", "19", *command], True
        shown = " ".join(part if len(part) < 80 else part[:60] + "..." for part in command)
        if not quiet:
            print(f"  {shown}", flush=True)
        log = REPORTS / f"{log_name or stage.name}.log"
        with log.open("ab") as out:
            out.write(f"$ {shown}\n".encode())
            out.flush()
            start = out.tell()
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**inherited(), **SHARED_CACHE, **(environment or {})},
            )
            if self.background:
                # Linux shares the cores between sessions first, and looks at `nice` within a session.
                with contextlib.suppress(OSError):
                    Path(f"/proc/{self.process.pid}/autogroup").write_text("19")
            code = self._wait(self.process)
        if code != 0 and not quiet:
            with log.open("rb") as text:
                text.seek(start)
                for line in text.read().decode(errors="replace").splitlines()[-TAIL_LINES:]:
                    print(f"    {line}")
            print(f"  {signal_sentence(code)}: {shown}\n  all output: {log.relative_to(ROOT)}", flush=True)
        return code

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=self.seconds_left())
        except BaseException as error:
            # Compilers and tests are children of the command: end the whole session that it leads.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise OutOfTime from None
            raise

    def run(self, name: str, sentence: str, body: Callable[[Runner, Stage], None]) -> Stage:
        stage = Stage(name, sentence)
        self.stages.append(stage)
        (REPORTS / f"{name}.log").unlink(missing_ok=True)
        print(f"== {name}: {sentence}", flush=True)
        start, cpu_start = time.monotonic(), cpu_seconds_of_children()
        try:
            if name in self.ahead:
                while not self.ahead[name].wait(0.2):
                    self.hurry()
                stage.took("build", start)
            body(self, stage)
        finally:
            stage.minutes = (time.monotonic() - start) / 60
            stage.cpu_seconds = cpu_seconds_of_children() - cpu_start
            write_times(stage)
            print_stage(stage)
        return stage


def cpu_seconds_of_children() -> float:
    """Returns the CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_stage(stage: Stage) -> None:
    for case in stage.failures:
        print(f"  FAILED {case.name}")
        for line in case.text.splitlines()[-60:]:
            print(f"    {line}")
    for case in stage.skips:
        print(f"  skipped {case.name}: {case.text}")
    stored = f" ({stage.stored} of them stored)" if stage.stored else ""
    print(
        f"== {stage.name}: {stage.minutes:.1f} min, {stage.passed} passed{stored}, "
        f"{len(stage.failures)} failed, {len(stage.skips)} skipped",
        flush=True,
    )


def write_times(stage: Stage) -> None:
    """Keeps the stage's steps for `tools/test.py --timings`."""
    steps = {**stage.steps, "all": stage.minutes * 60, "cpu": stage.cpu_seconds}
    (REPORTS / f"{stage.name}.times.json").write_text(json.dumps(steps) + "\n")
