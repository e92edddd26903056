# SPDX-License-Identifier: Apache-2.0
"""Steps that are a file of Python tests, or some of its tests."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gpu_steps.reports import fresh_report, some_test_ran
from gpu_steps.sitting import Sitting
from gpu_steps.tree import ANY_LABEL


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]


def pytest(
    sitting: Sitting, selection: str, *arguments: str, file: str = "test_gpu.py", report: str = "",
    environment: dict[str, str] | None = None,
) -> bool:  # fmt: skip
    """Returns True if some test ran and none failed. report: the name of the report's file; default: the name
    of the tests' file."""
    path = fresh_report(sitting, report or Path(file).stem)
    command = pytest_command(
        "-v",
        "--durations=12",
        "-m",
        selection,
        f"--junitxml={path}",
        *arguments,
        f"tests/python/{file}",
    )
    ok = sitting.run(command, tail=60, environment=environment)
    return some_test_ran(path) and ok


def exchange(sitting: Sitting) -> bool:
    """Every GPU to and from every other at once, and several processes on one."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_all_to_all.py")


def comm(sitting: Sitting) -> bool:
    """Communicators in Python, each rank a process with torch."""
    return pytest(sitting, f"({ANY_LABEL}) and not slow", *sitting.options.pytest, file="test_gpu_comm.py")


def device_windows(sitting: Sitting) -> bool:
    """Windows in kernels of CUDA and of Triton, a part of the step `comm`."""
    more = ["-k", "kernels_use_windows and not fused", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_device_windows")


def fused(sitting: Sitting) -> bool:
    """headrace.fused, a part of the step `comm`."""
    more = ["-k", "kernels_use_windows and fused", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_fused")


def torch_operators(sitting: Sitting) -> bool:
    """torch.ops.headrace on tensors of GPUs, a part of the step `comm`."""
    more = ["-k", "operators_of_torch", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_torch_operators")


def fabric(sitting: Sitting) -> bool:
    """Fabrics with kernels of one GPU, in 1 to 8 processes; pplx-garden's cumem on a GPU."""
    right = pytest(sitting, ANY_LABEL, "-s", *sitting.options.pytest, file="test_gpu_fabric.py")
    return pytest(sitting, "gpu1", file="test_compat_pplx_cumem.py") and right


def torch_further(sitting: Sitting) -> bool:
    """torch's symmetric tensors, and messages of a rank to itself: a part of the step `comm`."""
    more = ["-k", "further_checks", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_torch_further")


def torch_order(sitting: Sitting) -> bool:
    """Groups of torch beside streams that are held up, memory that is used again, and other programs."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_torch_order.py")


def courier(sitting: Sitting) -> bool:
    """Small pages, moved by the courier."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_courier.py")


def moe_ranks(sitting: Sitting) -> bool:
    """headrace.MoE and its operators of torch on GPUs, ranks as threads and as processes."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_moe.py")


def soak(sitting: Sitting) -> bool:
    """100,000 random requests, every byte compared. Too little time for all of them is a failure."""
    seconds = min(sitting.options.soak_seconds, max(5.0, sitting.limit - time.monotonic() - 20))
    return pytest(sitting, "slow", "-s", f"--soak-seconds={seconds:.0f}", report="test_gpu_soak")
