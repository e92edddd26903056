#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed on Headrace.

    python tests/torch_suite.py --ranks 3                   # Headrace where torch would take gloo
    python tests/torch_suite.py --ranks 3 --binding python  # the group in Python, not the compiled one
    python tests/torch_suite.py --ranks 3 --own-name        # as "headrace": torch skips tests of gloo's name
    python tests/torch_suite.py --ranks 2 --gloo            # torch's gloo, to compare with
    python tests/torch_suite.py test_all_reduce_sum         # some of them

The tests are those of torch.testing._internal.distributed.distributed_test. Their ranks are forked from this
process, which is faster than to start them. What tests say of profiler ranges is left out for the group in
Python, which gives them no shapes. The program fails if a test fails, or if fewer pass than gloo passes.
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
# The log of DistributedDataParallel calls every backend that torch does not know "custom", and this test
# wants its name.
NOT_BY_OWN_NAME = {"compiled": {"test_ddp_logging_data_cpu"}, "python": set()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--binding", choices=["compiled", "python"], default="compiled")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--own-name", action="store_true")
    kind.add_argument("--gloo", action="store_true")
    parser.add_argument("names", nargs="*", help="of tests; none: all")
    return parser.parse_args()


def stand_for_gloo(binding: str) -> None:
    """Makes torch build our group where it would build gloo's."""
    import torch.distributed.distributed_c10d as c10d

    c10d.ProcessGroupGloo = compiled_stand_in() if binding == "compiled" else python_stand_in()


def compiled_stand_in() -> type:
    from headrace._torch import compiled, opening

    module = compiled.load()

    class StandIn(module.Backend):
        def __init__(self, store, rank, size, timeout) -> None:
            options = module.Options("gloo", timeout)
            options._threads = 2  # the log of DistributedDataParallel has gloo's
            super().__init__(opening.open_comm(store, rank, size, timeout, "", None), options)

    return StandIn


def python_stand_in() -> type:
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

    return StandIn


def take_own_name(binding: str) -> None:
    """Lets torch's tests run with a backend that they do not know."""
    from torch.testing._internal.common_distributed import DistTestCases

    import headrace.distributed

    headrace.distributed.register(binding)
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add("headrace")


def tests_of(names: list[str], left_out: set[str], *, compiled: bool) -> unittest.TestSuite:
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
    return unittest.TestSuite(DistributedTests(name) for name in chosen if name not in left_out)


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
        take_own_name(options.binding)
    elif not options.gloo:
        stand_for_gloo(options.binding)
    begin = time.monotonic()
    try:
        runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
        left_out = NOT_BY_OWN_NAME[options.binding] if options.own_name else set()
        compiled = options.gloo or options.binding == "compiled"
        result = runner.run(tests_of(options.names, left_out, compiled=compiled))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = sorted({test._testMethodName for test, _ in (*result.failures, *result.errors)})
    print(
        f"{options.ranks} ranks: {len(result.passed)} passed, {len(failed)} failed, {len(result.skipped)} "
        f"skipped in {time.monotonic() - begin:.0f} s"
    )
    for name in failed:
        print(f"failed: {name}")
    own = OWN_NAME_PASSES - len(NOT_BY_OWN_NAME[options.binding])
    least = 0 if options.names else own if options.own_name else GLOO_PASSES
    if len(result.passed) < least:
        print(
            f"{len(result.passed)} tests passed, and {least} were expected: look at the reasons of the skips"
        )
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
