# SPDX-License-Identifier: Apache-2.0
"""What the machine is: its report, its paths, what its driver does."""

from __future__ import annotations

import shutil
import sys

from gpu_steps.endings import NothingRun
from gpu_steps.sitting import Sitting


def machine(sitting: Sitting) -> bool:
    """The machine, and the report of the command `headrace plugins` on it."""
    print(f"    {sitting.machine}; commit {sitting.commit}; Python {sys.version.split()[0]}")
    if shutil.which("nvidia-smi"):
        sitting.run(["nvidia-smi", "topo", "-m"], tail=0)
        sitting.run(["nvidia-smi"], tail=0)
    # torch's first import reads gigabytes from the disk, which shall not count as somebody's silence later.
    torch = sitting.run(
        [
            sys.executable,
            "-c",
            "import torch; print('torch', torch.__version__, torch.cuda.device_count(), 'GPUs')",
        ]
    )
    return sitting.run([str(sitting.carried / "bin" / "headrace"), "plugins"]) and torch


def paths(sitting: Sitting) -> bool:
    """The path of pages for each pair of memories, and its speed on this machine."""
    return sitting.run([str(sitting.carried / "bin" / "headrace"), "doctor", "--paths"], tail=40)


def assumptions(sitting: Sitting) -> bool:
    """The behaviour of the driver in the points that the fake driver assumes."""
    output = sitting.out / "driver_assumptions.jsonl"
    output.unlink(missing_ok=True)
    ok = sitting.run([sys.executable, "bench/gpu/driver_assumptions.py", "--out", str(output)], tail=60)
    if not output.exists() or not output.read_text().strip():
        raise NothingRun("no question was put to the driver")
    return ok


def probe(sitting: Sitting) -> bool:
    """bench/gpu/gpu_probe.cpp: the speed of the links without an agent. Runs only if --steps names it."""
    return sitting.run([str(sitting.carried / "bench" / "bench_gpu_probe"), "--correct", "--quick"], tail=40)
