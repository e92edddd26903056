# SPDX-License-Identifier: Apache-2.0
"""Programs under compute-sanitizer."""

from __future__ import annotations

import os
import shutil

from gpu_steps.endings import NothingRun
from gpu_steps.sitting import Sitting


def sanitizer_command(tool: str) -> list[str]:
    """Returns the beginning of a command that a tool of compute-sanitizer examines."""
    program = shutil.which(
        "compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"])
    )
    if program is None:
        raise NothingRun("compute-sanitizer is not installed")
    return [program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9"]


def sanitized(sitting: Sitting, command: list[str], environment: dict[str, str]) -> bool:
    """Runs a command under compute-sanitizer. Without the sanitizer's summary the command has failed: nothing
    was examined."""
    ok = sitting.run(command, tail=8, environment=environment)
    if ok and " SUMMARY: " not in sitting.file("stdout").read_text(errors="replace"):
        return sitting.trouble("compute-sanitizer gave no summary: it examined nothing")
    return ok


def sanitizer(sitting: Sitting, tool: str) -> bool:
    command = [
        *sanitizer_command(tool),
        str(sitting.carried / "bin" / "headrace"), "bench", "pages", "--kinds", "vram-vram", "--page", "4K",
        "--total", "1M", "--op", "both",
    ]  # fmt: skip
    moved = sanitized(sitting, [*command, "--count", "100", "--iterations", "2"], {})
    return (
        sanitized(sitting, [*command, "--single", "--iterations", "256"], {"HEADRACE_CUDA_IPC_COURIER": "on"})
        and moved
    )


def memcheck(sitting: Sitting) -> bool:
    """compute-sanitizer checks each access of the kernels."""
    return sanitizer(sitting, "memcheck")


def initcheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds reads of GPU memory that was never written."""
    if sitting.gpus < 2:
        raise NothingRun(
            "it needs two GPUs: on one GPU the sanitizer takes writes of another process for no writes"
        )
    return sanitizer(sitting, "initcheck")


def racecheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds races in shared memory."""
    return sanitizer(sitting, "racecheck")
