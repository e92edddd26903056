#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs torchcomms' own Python tests on Headrace: headrace.compat.torchcomms, or the backend that it loads.

    python tests/torchcomms_suite.py --tests CHECKOUT                       # all files, 2 ranks
    python tests/torchcomms_suite.py --tests CHECKOUT --ranks 4
    python tests/torchcomms_suite.py --tests CHECKOUT AllReduceTest         # files with this in their path
    python tests/torchcomms_suite.py --tests CHECKOUT --installed           # torchcomms itself, our backend
    python tests/torchcomms_suite.py --tests CHECKOUT --installed --backend gloo  # its own, to compare with

CHECKOUT is a clone of torchcomms' repository: only its tests are taken. With --installed they run on the
torchcomms that is installed, else torchcomms is not needed. Each file has ranks of its own, which are forked
from this process. A test has passed if it passed on every rank.
The program fails if a test fails that is not known to, or if fewer pass than are recorded here. Some marks of
skipped tests let the tests pass: they are counted as passed, as for torchcomms' own backends.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections import Counter
from pathlib import Path

# By the number of ranks: what has passed. 226 of them are those of tests/integration/py, as of gloo there.
RECORDED = {2: 412}
# The same with --installed, by the backend.
RECORDED_INSTALLED = {2: {"headrace": 217, "gloo": 225}}
# Folders of tests, and the ranks of each; None: those of --ranks.
FOLDERS = {
    "tests/integration/py": None,
    "distwrap/tests/integration": None,
    "tests/unit/py": 1,
    "hooks/fr/tests/py": 1,
    "hooks/clog/tests/py": 1,
    "hooks/nan_check/tests/py": 1,
    "distwrap/tests/unit": 1,
}
KINDS = ("passed", "skipped", "known", "failed")
# Tests that cannot pass, by parts of their names, and why.
KNOWN = {
    "test_passes": "passes of torchcomms' own compiler support are not there",
    "test_param_parsing": "its parser of parameters is not there",
    "test_wait_proxy_propagation": "a graph returns the tensor that a result was copied to",
    "TestBackendWrapper.test_hook": "a group in Python is no c10d::Backend, which _register_backend takes",
    "TestBackendWrapper.test_removed_hooks": "the same",
    "TestClog.": "HEADRACE_COMM_LOG writes the log, in another layout",
    "test_fr_tensor_sizes_and_dtypes": "the recorder's sizes have one dimension",
    "NewGroupTest": "they want new_group to be refused, and it works",
    "ReduceScatterQuantizedTest": "they ask ncclx for it by private names",
}
# Those with --installed: they test what backends do.
FOLDERS_INSTALLED = {"tests/integration/py": None}
# What cannot pass there.
UNNAMED = "it wants a backend that it does not name to refuse what headrace does"
KNOWN_INSTALLED = {
    "GetInitHandleTest.test_get_init_handle": UNNAMED,
    "ReconfigureTest.test_enable_reconfigure_unsupported_backend": UNNAMED,
    "ReconfigureTest.test_reconfigure_unsupported_backend": UNNAMED,
    "WaitBlockingTest.test_wait_blocking_unsupported_backend": UNNAMED,
}
COMPILE = "TORCHCOMMS_PATCH_FOR_COMPILE"
# A rank that takes longer for a file is stopped, and so are the others.
LIMIT_SECONDS = 600


Options = argparse.Namespace


def parse() -> Options:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=Path, required=True, help="a clone of torchcomms' repository")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--installed", action="store_true", help="run on the torchcomms that is installed")
    parser.add_argument(
        "--backend", help="the backend that the tests open; headrace if --installed, else gloo"
    )
    parser.add_argument(
        "--serve", action="store_true", help="with --installed: it is Headrace under that name"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a file")
    parser.add_argument("--verbose", action="store_true", help="print what the ranks of failed files print")
    parser.add_argument("names", nargs="*", help="parts of the paths of files; none: all")
    options = parser.parse_args()
    options.backend = options.backend or ("headrace" if options.installed else "gloo")
    return options


def test_files(root: Path, options: Options) -> list[tuple[Path, int | None]]:
    names = options.names
    files = [
        (file, ranks)
        for folder, ranks in (FOLDERS_INSTALLED if options.installed else FOLDERS).items()
        for file in sorted((root / folder).glob("*.py"))
        if "def test" in file.read_text() and re.search(r"^test_|Test\.py$", file.name)
    ]
    return [(file, ranks) for file, ranks in files if not names or any(name in str(file) for name in names)]


def provide_packages(options: Options) -> None:
    """Makes torchcomms our package, or the installed one, and the packages of its tests the checkout's."""
    root = options.root
    if not options.installed:
        import headrace.compat.torchcomms.install  # noqa: F401
    elif options.serve:
        from headrace import torchcomms_backend

        torchcomms_backend.serve(options.backend)
    for name in ("tests", "distwrap.tests"):
        package = types.ModuleType(f"torchcomms.{name}")
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[package.__name__] = package


class Result(unittest.TextTestResult):
    """Keeps the outcome of each test by its name."""

    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self.outcomes: dict[str, list[str]] = {}

    def keep(self, test, outcome: str, text: str = "") -> None:
        name = test.id().partition(".")[2]
        if self.outcomes.get(name, ["passed"])[0] != "failed":
            self.outcomes[name] = [outcome, text]

    def addSuccess(self, test) -> None:
        super().addSuccess(test)
        self.keep(test, "passed")

    def addSkip(self, test, reason) -> None:
        super().addSkip(test, reason)
        self.keep(test, "skipped", reason)

    def addFailure(self, test, error) -> None:
        super().addFailure(test, error)
        self.keep(test, "failed", self._exc_info_to_string(error, test))

    def addError(self, test, error) -> None:
        super().addError(test, error)
        self.keep(test, "failed", self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error) -> None:
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.keep(test, "failed", f"{subtest}\n{self._exc_info_to_string(error, test)}")


def run_file(file: Path, options: Options, answer: Path) -> None:
    """On a rank: runs the tests of a file and writes their outcomes."""
    if COMPILE in file.read_text():
        os.environ[COMPILE] = "1"  # the package reads it when it is imported, and the file sets it later
    try:
        provide_packages(options)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        outcomes = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite).outcomes
    except unittest.SkipTest as reason:
        outcomes = {file.stem: ["skipped", str(reason)]}
    except BaseException:
        outcomes = {file.stem: ["failed", traceback.format_exc()]}
    answer.write_text(json.dumps(outcomes))


def title(file: Path) -> str:
    """A file's name and what comes before its folder of tests."""
    part = str(file).partition("comms/torchcomms/")[2].partition("tests/")[0]
    return f"{part}{file.stem}"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def fork_rank(file: Path, rank: int, size: int, port: int, folder: Path, options: Options) -> int:
    """Starts a rank as torchrun does. Returns its process."""
    sys.stdout.flush()
    process = os.fork()
    if process != 0:
        return process
    os.setsid()
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    os.environ |= {"TEST_BACKEND": options.backend, "TEST_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    os.environ["USE_TORCHCOMMS"] = "1"
    os.chdir(folder)  # some tests write what torch.compile has made
    try:
        run_file(file, options, folder / f"answer{rank}")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def wait_for(processes: list[int], seconds: float) -> None:
    """Waits until all have ended, and ends those that take longer."""
    end = time.monotonic() + seconds
    left = set(processes)
    while left:
        left -= {process for process in left if os.waitpid(process, os.WNOHANG)[0]}
        if left and time.monotonic() > end:
            for process in left:
                os.killpg(process, signal.SIGKILL)
            end += seconds
        time.sleep(0.02)


def outcomes_of(file: Path, size: int, options: Options, folder: Path) -> dict[str, list[str]]:
    """Runs a file. The outcome of a test is the worst of all ranks."""
    port = free_port()
    processes = [fork_rank(file, rank, size, port, folder, options) for rank in range(size)]
    wait_for(processes, options.limit)
    together: dict[str, list[str]] = {}
    order = ["passed", "skipped", "failed"]
    for rank in range(size):
        answer = folder / f"answer{rank}"
        lost = {file.stem: ["failed", f"rank {rank} has not ended by itself\n{tail(folder, rank)}"]}
        found = json.loads(answer.read_text()) if answer.exists() else lost
        for name, (outcome, text) in found.items():
            known = together.get(name, ["passed", ""])
            if order.index(outcome) >= order.index(known[0]):
                together[name] = [outcome, f"rank {rank}: {text}" if text else ""]
    return together


def name_known(file: Path, options: Options, outcomes: dict[str, list[str]]) -> None:
    """Gives failures that are known an outcome of their own, with the reason."""
    known = KNOWN_INSTALLED if options.installed else KNOWN
    for name, (outcome, _) in outcomes.items():
        reason = next((known[part] for part in known if part in f"{file.stem}.{name}"), None)
        if outcome == "failed" and reason:
            outcomes[name] = ["known", reason]


def tail(folder: Path, rank: int) -> str:
    return "\n".join((folder / f"log{rank}").read_text(errors="replace").splitlines()[-30:])


def run_all(files: list[tuple[Path, int | None]], options: Options) -> Counter:
    counts: Counter = Counter()
    for file, ranks in files:
        size = ranks or options.ranks
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="headrace-torchcomms-suite-") as folder:
            outcomes = outcomes_of(file, size, options, Path(folder))
            name_known(file, options, outcomes)
            found = Counter(outcome for outcome, _ in outcomes.values())
            summary = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind])
            print(f"{title(file)}: {summary} in {time.monotonic() - begin:.0f} s", flush=True)
            for name, (outcome, text) in outcomes.items():
                if outcome != "passed":
                    print(f"  {outcome}: {name}: {text}", flush=True)
            if options.verbose and found["failed"]:
                print(*(tail(Path(folder), rank) for rank in range(size)), sep="\n", flush=True)
        counts += found
    return counts


def recorded(options: Options) -> int:
    """How many tests have to pass."""
    if not options.installed:
        return RECORDED.get(options.ranks, 0)
    return RECORDED_INSTALLED.get(options.ranks, {}).get(options.backend, 0)


def main() -> int:
    options = parse()
    root = options.tests / "comms" / "torchcomms"
    files = test_files(root.resolve(), options)
    if not files:
        print(f"{root} has no tests{' of these names' if options.names else ': give a clone of torchcomms'}")
        return 2
    options.root = root.resolve()
    if not options.installed:  # torch imports an installed torchcomms, which reads COMPILE then
        import torch.distributed  # noqa: F401  # once, for all ranks

    counts = run_all(files, options)
    print(f"{options.ranks} ranks: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}")
    least = 0 if options.names else recorded(options)
    if counts["passed"] < least:
        print(f"{counts['passed']} tests passed, and {least} were expected: look at the skips above")
        return 1
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
