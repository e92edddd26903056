# SPDX-License-Identifier: Apache-2.0
"""Communicators on GPUs, each rank a process with torch: p2p, nccl and auto, and torch's groups on them."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import headrace
from gpus import count_gpus, torch_on_gpus

GPUS = count_gpus()
pytestmark = torch_on_gpus(GPUS)
HERE = os.path.dirname(__file__)
PROGRAM, TORCH_PROGRAM = os.path.join(HERE, "gpu_comm_rank.py"), os.path.join(HERE, "gpu_torch_rank.py")
TORCHCOMMS_PROGRAM = os.path.join(HERE, "gpu_torchcomms_rank.py")
SECONDS = 90


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


# Of a torch group.
TORCH_PLACES = [
    pytest.param((0, 0), marks=needs(1), id="two_on_one_gpu"),
    *(pytest.param(tuple(range(count)), marks=needs(count), id=f"{count}_gpus") for count in (2, 4)),
]


def run_ranks(commands, seconds=SECONDS, killed=()):
    """Each must end with code 0, those that kill themselves by that. What all of them said is shown if one
    does not, or is late."""
    with contextlib.ExitStack() as files:
        commands = list(commands)
        said = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        ranks = [
            subprocess.Popen([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT)
            for command, file in zip(commands, said, strict=True)
        ]
        codes = codes_by(time.monotonic() + seconds, ranks)
        texts = []
        for rank, (code, file) in enumerate(zip(codes, said, strict=True)):
            file.seek(0)
            texts.append(f"rank {rank} of {len(ranks)}, code {code}:\n{file.read()}")
    wanted = [-signal.SIGKILL if rank in killed else 0 for rank in range(len(ranks))]
    assert codes == wanted, "\n".join(texts)


def codes_by(deadline, processes):
    """Of those that have ended until then; None: it was killed."""
    try:
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return codes


@pytest.mark.parametrize(("backend", "gpus"), PLACES)
def test_ranks_on_gpus_get_what_torch_computes_on_the_cpu(backend, gpus, tmp_path):
    assert backend in headrace.list_comm_backends()
    run_ranks(
        [PROGRAM, backend, str(gpu), str(rank), str(len(gpus)), str(tmp_path)]
        for rank, gpu in enumerate(gpus)
    )


def without(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("check_device_window", marks=without("cupy"), id="cuda"),
        pytest.param("check_triton", marks=without("triton"), id="triton"),
        pytest.param("check_fused", marks=without("triton"), id="fused"),
    ],
)
@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param((0, 0), marks=needs(1), id="two_on_one_gpu"),
        *(pytest.param(tuple(range(count)), marks=needs(count), id=f"{count}_gpus") for count in (2, 4)),
    ],
)
def test_kernels_use_windows(gpus, check, tmp_path):
    run_ranks(
        [PROGRAM, "p2p", str(gpu), str(rank), str(len(gpus)), str(tmp_path), check]
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "gpus"), PLACES)
def test_billions_of_elements(backend, gpus, tmp_path):
    run_ranks(
        (
            [PROGRAM, backend, str(gpu), str(rank), str(len(gpus)), str(tmp_path), "check_billions"]
            for rank, gpu in enumerate(gpus)
        ),
        seconds=200,
    )


@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_a_torch_group_takes_tensors_of_gpus(gpus, tmp_path):
    run_ranks(
        [TORCH_PROGRAM, str(gpu), str(rank), str(len(gpus)), str(tmp_path / "store")]
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.parametrize("check", ["check_to_itself", "check_symmetric"])
@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_a_torch_group_passes_further_checks(gpus, check, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")  # for ranks of one GPU
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # no multicast over NVLink
    run_ranks(
        [TORCH_PROGRAM, str(gpu), str(rank), str(len(gpus)), str(tmp_path / "store"), check]
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.parametrize("gpus", TORCH_PLACES)
def test_operators_of_torch_take_tensors_of_gpus(gpus, tmp_path):
    run_ranks(
        [
            TORCH_PROGRAM,
            str(gpu),
            str(rank),
            str(len(gpus)),
            str(tmp_path / "store"),
            "operators",
        ]
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.parametrize(
    ("backend", "gpus"),
    [
        pytest.param("p2p", (0, 0), marks=needs(1), id="p2p-two_on_one_gpu"),
        *(pytest.param(backend, (0, 1), marks=needs(2), id=backend) for backend in ("p2p", "nccl", "auto")),
    ],
)
def test_a_program_of_torchcomms_takes_tensors_of_gpus(backend, gpus, tmp_path):
    run_ranks(
        [TORCHCOMMS_PROGRAM, backend, str(gpu), str(rank), "2", str(tmp_path / "store")]
        for rank, gpu in enumerate(gpus)
    )


@pytest.mark.parametrize("gpus", [pytest.param((0, 1), marks=needs(2))])
def test_torchs_expandable_segments_are_registered(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    run_ranks(
        [PROGRAM, "p2p", str(gpu), str(rank), "2", str(tmp_path), "check_registered"]
        for rank, gpu in enumerate(gpus)
    )
