# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine, as rows and reports name them."""

from __future__ import annotations

import os
import re
import subprocess


def describe_gpus() -> tuple[str, str, int, float]:
    """Returns "2x NVIDIA H200 (NVLink), 32 cores, driver 580.0", "h200x2", 2, and the GiB of the GPU with the
    least memory."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        names = (
            subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
            .stdout.strip()
            .splitlines()
        )
        links = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "no GPU", "no-gpu", 0, 0.0
    name, driver, _ = (part.strip() for part in names[0].split(","))
    # "[N/A]" of a GPU that has the host's memory: then one process at a time.
    mebibytes = [line.rpartition(",")[2].strip() for line in names]
    least = min(float(number) / 1024 if number.isdigit() else 0.0 for number in mebibytes)
    wire = " (NVLink)" if re.search(r"\bNV[0-9]+\b", links) else ""
    model = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")
    return (
        f"{len(names)}x {name}{wire}, {len(os.sched_getaffinity(0))} cores, driver {driver}",
        f"{model}x{len(names)}",
        len(names),
        least,
    )
