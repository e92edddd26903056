#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed on Headrace.

    python tests/torch_suite.py --ranks 3                   # Headrace where torch would take gloo
    python tests/torch_suite.py --ranks 3 --binding python  # the group in Python, not the compiled one
    python tests/torch_suite.py --ranks 3 --own-name        # as "headrace": torch skips tests of gloo's name
    python tests/torch_suite.py --ranks 2 --gloo            # torch's gloo, to compare with
    python tests/torch_suite.py --gpu                       # Headrace where torch would take NCCL
    python tests/torch_suite.py --nccl --part 1/4           # torch's NCCL, to compare with; a quarter of them
    python tests/torch_suite.py test_all_reduce_sum         # some of them
    python tests/torch_suite.py --shared pytorch/test/distributed  # suites that backends share, torch 2.15

The tests are those of torch.testing._internal.distributed.distributed_test. Their ranks are forked from this
process, which is faster than to start them; with GPUs from one that has torch alone, because this one has
used CUDA. What tests say of profiler ranges is left out for the group in Python, which gives them no shapes.
The program fails if a test fails, or if fewer pass than gloo passes.

The shared suites are test_c10d_collectives, _p2p and _process_group of a checkout of PyTorch, with a row for
Headrace in their table of backends that claims what a backend without GPUs can claim.
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

# What gloo passes on a machine without GPUs, of torch 2.13 and 2.15.
GLOO_PASSES = 90
# torch skips more tests where the backend is not gloo, nccl or mpi.
OWN_NAME_PASSES = 66
# The log of DistributedDataParallel calls every backend that torch does not know "custom", and this test
# wants its name.
NOT_BY_OWN_NAME = {"compiled": {"test_ddp_logging_data_cpu"}, "python": set()}

BACKEND_OF_RANKS = "HEADRACE_TORCH_SUITE_ON_GPUS"  # "headrace" or "nccl", for the ranks of this program

SHARED = ("test_c10d_collectives", "test_c10d_p2p", "test_c10d_process_group")
SHARED_PASSES = 31
# It wants an error of an operation that Headrace does: tensors with gaps are copied.
NOT_SHARED = {"test_noncontiguous_all_to_all_error"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--binding", choices=["compiled", "python"], help="default: the one that serves")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--own-name", action="store_true")
    kind.add_argument("--gloo", action="store_true")
    kind.add_argument("--gpu", action="store_true", help="the group in Python in the place of NCCL")
    kind.add_argument("--nccl", action="store_true")
    kind.add_argument("--shared", metavar="DIR", help="the folder test/distributed of a checkout of PyTorch")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="each N-th test, from the I-th on")
    parser.add_argument("names", nargs="*", help="of tests; none: all")
    options = parser.parse_args()
    if options.gpu or options.nccl:
        options.binding = "python"
    options.binding = options.binding or binding_that_serves()
    return options


def binding_that_serves() -> str:
    from headrace._torch import compiled

    return "compiled" if compiled.is_for_this_torch() else "python"


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
        def __init__(self, *arguments, enable_reconfigure=False, **keywords) -> None:
            super().__init__(*arguments, **keywords)
            # The log of DistributedDataParallel asks a backend of this name for its threads. This one is
            # alone and serves another device, so no operation of a test comes to it.
            alone = gloo(torch.distributed.HashStore(), 0, 1)
            self._register_backend(torch.device("meta"), c10d.ProcessGroup.BackendType.GLOO, alone)

        def getBackendName(self) -> str:
            return "gloo"

    return StandIn


def stand_for_nccl() -> None:
    """Makes torch build our group where it would build NCCL's."""
    import torch.distributed.distributed_c10d as c10d

    from headrace._torch.group import HeadraceProcessGroup

    class StandIn(HeadraceProcessGroup):
        Options = c10d.ProcessGroupNCCL.Options

        def __init__(self, store, rank, size, options=None, **keywords) -> None:
            super().__init__(store, rank, size, options._timeout if options else None, **keywords)

        def getBackendName(self) -> str:
            return "nccl"

    c10d.ProcessGroupNCCL = StandIn  # type: ignore[misc,assignment]


def take_own_name(binding: str) -> None:
    """Lets torch's tests run with a backend that they do not know."""
    from torch.testing._internal.common_distributed import DistTestCases

    import headrace.distributed

    headrace.distributed.register(binding)
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add("headrace")


def class_of_tests(*, compiled: bool) -> type:
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    # torch's lists of backends whose profiler ranges have shapes: a group in Python cannot give them any.
    has_none = not compiled and os.environ.get(BACKEND_OF_RANKS) != "nccl"
    for backends in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends[:] = [name for name in backends if not has_none or name != os.environ["BACKEND"]]

    class DistributedTests(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore
        start_rank = multiprocessing.get_context("fork").Process

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(self.start_rank)

    return DistributedTests


def tests_of(
    names: list[str], left_out: set[str], part: tuple[int, int], *, compiled: bool
) -> unittest.TestSuite:
    tests = class_of_tests(compiled=compiled)
    if BACKEND_OF_RANKS in os.environ:
        tests.start_rank = staticmethod(start_rank_on_gpu)  # type: ignore[attr-defined]
    chosen = names or unittest.defaultTestLoader.getTestCaseNames(tests)[part[0] - 1 :: part[1]]
    return unittest.TestSuite(tests(name) for name in chosen if name not in left_out)


def start_rank_on_gpu(target, name, args, kwargs):
    """target: the method of the tests' class, which the new process makes anew."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "headrace"])
    arguments = dict(os.environ), *args  # each test has folders of its own
    return context.Process(target=run_rank_on_gpu, name=name, args=arguments, kwargs=kwargs)


def run_rank_on_gpu(environment, *arguments, **keywords) -> None:
    os.environ.update(environment)
    if os.environ[BACKEND_OF_RANKS] == "headrace":
        stand_for_nccl()
    class_of_tests(compiled=False)._run(*arguments, **keywords)  # type: ignore[attr-defined]


def shared_tests_of(folder: str, names: list[str]) -> unittest.TestSuite:
    """The shared suites, with one row in their table."""
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    sys.path.insert(0, folder)
    common = importlib.import_module("c10d_backend_common")
    common.C10D_BACKENDS = (row_of(common),)
    # They ask a GPU whether it has float8, also where a row is of the CPU.
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    fork = multiprocessing.get_context("fork").Process
    MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(fork)

    left_out = set(NOT_SHARED)
    if not hasattr(torch.distributed.gather_into_tensor, "__deprecated__"):
        left_out.add("test_gather_into_tensor_deprecated")  # of a torch that warns
    suite = unittest.TestSuite()
    for module in map(importlib.import_module, SHARED):
        for kind in unittest.defaultTestLoader.loadTestsFromModule(module):
            for test in kind:
                # of a checkout whose suites ask for more than its table says
                for claim in ("supports_sequence_numbers", "supports_work_result"):
                    setattr(type(test), claim, True)
                name = test._testMethodName
                if name not in left_out and (not names or name in names):
                    suite.addTest(test)
    return suite


def row_of(common):
    """Timing of collectives and graphs of GPUs are not claimed."""
    claims = {
        "supports_coalescing": True,
        "supports_bitwise_reductions": True,
        "supports_dropped_p2p_work": True,
        "supports_work_sequence_number": True,
        "supports_gather_single": True,
        "float8_dtypes": common.FLOAT8_DTYPES,
        "complex_dtypes": common.COMPLEX_DTYPES,
    }
    return common.BackendConfig("headrace", "cpu", **claims)


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test._testMethodName)


def chosen_tests(options: argparse.Namespace) -> unittest.TestSuite:
    if options.shared:
        return shared_tests_of(options.shared, options.names)
    left_out = NOT_BY_OWN_NAME[options.binding] if options.own_name else set()
    compiled = options.gloo or options.binding == "compiled"
    first, of = map(int, options.part.split("/"))
    return tests_of(options.names, left_out, (first, of), compiled=compiled)


def least_passes(options: argparse.Namespace) -> int:
    if options.names or options.part != "1/1" or options.gpu or options.nccl:
        return 0
    if options.shared:
        return SHARED_PASSES
    return OWN_NAME_PASSES - len(NOT_BY_OWN_NAME[options.binding]) if options.own_name else GLOO_PASSES


def main() -> int:
    options = parse()
    folder = tempfile.mkdtemp(prefix="headrace-torch-suite-")
    gpu = options.gpu or options.nccl
    own = options.own_name or options.shared
    os.environ["BACKEND"] = "headrace" if own else "nccl" if gpu else "gloo"
    os.environ["WORLD_SIZE"], os.environ["TEMP_DIR"] = str(options.ranks), folder
    if own:
        take_own_name(options.binding)
    elif options.gpu:
        os.environ[BACKEND_OF_RANKS] = "headrace"
    elif options.nccl:
        os.environ[BACKEND_OF_RANKS] = "nccl"
    elif not options.gloo:
        stand_for_gloo(options.binding)
    begin = time.monotonic()
    try:
        runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
        result = runner.run(chosen_tests(options))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = sorted({test._testMethodName for test, _ in (*result.failures, *result.errors)})
    print(
        f"{options.ranks} ranks: {len(result.passed)} passed, {len(failed)} failed, {len(result.skipped)} "
        f"skipped in {time.monotonic() - begin:.0f} s"
    )
    for name in failed:
        print(f"failed: {name}")
    least = least_passes(options)
    if len(result.passed) < least:
        print(
            f"{len(result.passed)} tests passed, and {least} were expected: look at the reasons of the skips"
        )
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
