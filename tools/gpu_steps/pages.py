# SPDX-License-Identifier: Apache-2.0
"""Pages by the command `headrace bench pages`."""

from __future__ import annotations

import sys

from gpu_steps.sitting import Sitting

PAGES = "4K,16K,64K,256K,1M,16M"


def bench(
    sitting: Sitting,
    *arguments: str,
    kinds: str = "vram-vram",
    environment: dict[str, str] | None = None,
    suffix: str = "",
) -> bool:
    command = [
        str(sitting.carried / "bin" / "headrace"),
        "bench",
        "pages",
        "--kinds",
        kinds,
        "--op",
        "both",
        "--json",
        *arguments,
    ]
    return sitting.run(command, rows=True, environment=environment, case_suffix=suffix)


def pages(sitting: Sitting) -> bool:
    """Pages of every size between two GPUs, both directions; small ones also by 16 multiprocessors alone."""
    whole = bench(sitting, "--page", PAGES)
    return (
        bench(
            sitting, "--page", "4K", environment={"HEADRACE_CUDA_IPC_MULTIPROCESSORS": "16"}, suffix="/sm16"
        )
        and whole
    )


def host(sitting: Sitting) -> bool:
    """Pages between a GPU and the host memory of another process; either side is the initiator."""
    far = bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="vram-dram")
    near = bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="dram-vram")
    registered = [bench(sitting, "--page", "4K,64K,16M", kinds=kinds) for kinds in ("vram-dram", "dram-vram")]
    # Memory that may not be pinned: nothing tells the two sides of it apart but the process that copies.
    unpinned = {"HEADRACE_CUDA_IPC_PIN_REGISTERED": "off"}
    staged = [
        bench(sitting, "--page", "4K,64K,16M", kinds=kinds, environment=unpinned, suffix="/unpinned")
        for kinds in ("vram-dram", "dram-vram")
    ]
    return all(registered) and all(staged) and near and far


def single(sitting: Sitting) -> bool:
    """One page at a time: by the default choice, and by the courier."""
    chosen = bench(sitting, "--single", "--page", "4K")
    return (
        bench(
            sitting,
            "--single",
            "--page",
            "4K",
            environment={"HEADRACE_CUDA_IPC_COURIER": "on"},
            suffix="/courier",
        )
        and chosen
    )


def views(sitting: Sitting) -> bool:
    """Blocks of a KV cache that change their layout while they move between two GPUs."""
    return sitting.run([sys.executable, "bench/gpu/views.py"], rows=True)


def tcp(sitting: Sitting) -> bool:
    """Pages of GPU memory over tcp at 8 streams, both directions; one page at a time; and between a GPU and
    host memory."""
    whole = bench(sitting, "--backend", "tcp", "--streams", "8", "--page", "4K,64K,16M")
    # As much as the larger pages are: of 64 MiB, a third of the time is the sockets' waking and waiting for
    # the last one.
    whole = (
        bench(
            sitting,
            "--backend",
            "tcp",
            "--streams",
            "8",
            "--page",
            "4K",
            "--count",
            "65536",
            suffix="/65536pages",
        )
        and whole
    )
    alone = bench(sitting, "--backend", "tcp", "--single", "--page", "4K")
    mixed = bench(sitting, "--backend", "tcp", "--streams", "8", "--page", "64K", kinds="vram-dram")
    return whole and alone and mixed
