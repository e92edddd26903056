# SPDX-License-Identifier: Apache-2.0
"""Communicators on GPUs, each rank a process with torch: p2p, nccl and auto."""

import os
import subprocess
import sys

import pytest

import headrace
from gpus import count_gpus, torch_on_gpus

GPUS = count_gpus()
pytestmark = torch_on_gpus(GPUS)
PROGRAM = os.path.join(os.path.dirname(__file__), "gpu_comm_rank.py")
SECONDS = 200


def needs(gpus):
    marks = [pytest.mark.gpu1] if gpus == 1 else [pytest.mark.gpu2] if gpus == 2 else [pytest.mark.gpu4]
    return [*marks, pytest.mark.skipif(gpus > GPUS, reason=f"this machine has fewer than {gpus} GPUs")]


# The GPU of each rank. NCCL takes one rank a GPU.
PLACES = [
    pytest.param("p2p", (0, 0), marks=needs(1), id="p2p-two_on_one_gpu"),
    pytest.param("auto", (0, 0), marks=needs(1), id="auto-two_on_one_gpu"),
    pytest.param("nccl", (0,), marks=needs(1), id="nccl-one"),
    *(
        pytest.param(backend, tuple(range(count)), marks=needs(count), id=f"{backend}-{count}_gpus")
        for backend in ("p2p", "nccl", "auto")
        for count in (2, 4)
    ),
]


@pytest.mark.parametrize(("backend", "gpus"), PLACES)
def test_ranks_on_gpus_get_what_torch_computes_on_the_cpu(backend, gpus, tmp_path):
    assert backend in headrace.list_comm_backends()
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, backend, str(gpu), str(rank), str(len(gpus)), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, gpu in enumerate(gpus)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for rank, (process, text) in enumerate(zip(ranks, said, strict=True)):
        assert process.returncode == 0, f"rank {rank} of {len(gpus)} over {backend}:\n{text}"
