#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed on Headrace.

    python tests/torch_suite.py --ranks 3                   # Headrace where torch would take gloo
    python tests/torch_suite.py --ranks 3 --own-name        # as "headrace": torch skips tests of gloo's name
    python tests/torch_suite.py --ranks 2 --gloo            # torch's gloo, to compare with
    python tests/torch_suite.py test_all_reduce_sum         # some of them

The tests are those of torch.testing._internal.distributed.distributed_test. Their ranks are forked from this
process, which is faster than to start them. What tests say of profiler ranges is left out, since a group in
Python gives them no shapes. The program fails if a test fails, or if fewer pass than gloo passes.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import unittest

# What gloo of torch 2.13 passes on a machine without GPUs.
GLOO_PASSES = 90
# torch skips more tests where the backend is not gloo, nccl or mpi.
OWN_NAME_PASSES = 66


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--own-name", action="store_true")
    kind.add_argument("--gloo", action="store_true")
    parser.add_argument("names", nargs="*", help="of tests; none: all")
    return parser.parse_args()


def stand_for_gloo() -> None:
    """Makes torch build our group where it would build gloo's."""
    import torch
    import torch.distributed.distributed_c10d as c10d

    from headrace._torch.group import HeadraceProcessGroup

    gloo = c10d.ProcessGroupGloo

    class StandIn(HeadraceProcessGroup):
        def __init__(self, *arguments, **keywords) -> None:
            super().__init__(*arguments, **keywords)
            # The log of DistributedDataParallel asks a backend of this name for its threads. This one is
            # alone and serves another device, so no operation of a test comes to it.
            alone = gloo(torch.distributed.HashStore(), 0, 1)
            self._register_backend(torch.device("meta"), c10d.ProcessGroup.BackendType.GLOO, alone)

        def getBackendName(self) -> str:
            return "gloo"

    c10d.ProcessGroupGloo = StandIn


def take_own_name() -> None:
    """Lets torch's tests run with a backend that they do not know."""
    from torch.testing._internal.common_distributed import DistTestCases

    import headrace.distributed  # noqa: F401

    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add("headrace")


def tests_of(names: list[str], *, compiled: bool) -> unittest.TestSuite:
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    # torch's lists of backends whose profiler ranges have shapes: a group in Python cannot give them any.
    for backends in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends[:] = [backend for backend in backends if backend != "gloo" or compiled]

    class DistributedTests(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    loader = unittest.defaultTestLoader
    chosen = names or loader.getTestCaseNames(DistributedTests)
    return unittest.TestSuite(DistributedTests(name) for name in chosen)


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test._testMethodName)


def main() -> int:
    options = parse()
    folder = tempfile.mkdtemp(prefix="headrace-torch-suite-")
    os.environ["BACKEND"] = "headrace" if options.own_name else "gloo"
    os.environ["WORLD_SIZE"], os.environ["TEMP_DIR"] = str(options.ranks), folder
    if options.own_name:
        take_own_name()
    elif not options.gloo:
        stand_for_gloo()
    begin = time.monotonic()
    try:
        runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
        result = runner.run(tests_of(options.names, compiled=options.gloo))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = sorted({test._testMethodName for test, _ in (*result.failures, *result.errors)})
    print(
        f"{options.ranks} ranks: {len(result.passed)} passed, {len(failed)} failed, {len(result.skipped)} "
        f"skipped in {time.monotonic() - begin:.0f} s"
    )
    for name in failed:
        print(f"failed: {name}")
    least = 0 if options.names else OWN_NAME_PASSES if options.own_name else GLOO_PASSES
    if len(result.passed) < least:
        print(
            f"{len(result.passed)} tests passed, and {least} were expected: look at the reasons of the skips"
        )
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
