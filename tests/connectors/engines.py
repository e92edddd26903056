# SPDX-License-Identifier: Apache-2.0
"""Engines as processes: a program makes one object and calls `serve`; a test starts the program as an
`Engine` and calls the object's methods."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

HERE = Path(__file__).resolve().parent
SECONDS = 60


def until(condition, seconds=SECONDS):
    """Waits for what another thread or process does. Returns what the condition gave."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"this did not come true in {seconds} s"
        time.sleep(0.005)
    return result


def serve(served):
    """Answers each line of stdin, [method, arguments...], by a line on the descriptor that the parent gave:
    libraries write to stdout."""
    with os.fdopen(int(os.environ["HEADRACE_TEST_ANSWERS"]), "w") as answers:
        print(json.dumps({"result": "ready"}), file=answers, flush=True)
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            try:
                answer = {"result": getattr(served, method)(*arguments)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # without the joins of threads that wait for peers


class Engine:
    """A process of one of the programs beside this file. Its output goes to a log."""

    all: ClassVar[list["Engine"]] = []

    def __init__(self, program, arguments, environment, log):
        reads, writes = os.pipe()
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / program), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[writes],
                env={**os.environ, **environment, "HEADRACE_TEST_ANSWERS": str(writes)},
                text=True,
            )
        os.close(writes)
        self.all.append(self)
        self.answers = os.fdopen(reads)

    def answer(self):
        line = self.answers.readline()
        assert line, f"the engine has ended, code {self.process.wait()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ask(self, method, *arguments):
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def stopped(self):
        """Every thread of the process is stopped inside the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: all(state == "T" for state in self.thread_states()))
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def thread_states(self):
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]

    def wait_for_text(self, text):
        until(lambda: text in self.text())

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.process.stdin.close()
        self.answers.close()
