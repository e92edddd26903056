# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.pplx: the ranks and groups of pplx-garden on the CPU, its utilities, and its name."""

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessRaisedException

import headrace.compat.pplx.install  # noqa: F401  (pplx_rank imports pplx_garden)
import pplx_rank
from headrace.compat.pplx.distributed import ParallelLaunch, ProcessGroup
from headrace.compat.pplx.distributed.torch_group import TorchParallelGroup

WHEEL = Path(__file__).resolve().parents[2] / "packaging" / "headrace_pplx"
CPU = torch.device("cpu")


# --- ranks and groups


def test_every_call_of_a_group_on_two_ranks_that_a_launch_starts():
    said = ParallelLaunch(2, dp_size=1).run(pplx_rank.every_call, "hello", number=7)
    assert [rank for rank, _ in said] == [0, 1]
    assert all(torch.equal(kept, pplx_rank.of(rank)) for rank, kept in said)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_launches_of_all_nodes(tmp_path):
    def run(node):
        launch = ParallelLaunch(2, f"file://{tmp_path}/store", devices=["cpu"], node_rank=node)
        with pytest.raises(ProcessRaisedException) as raised:
            launch.run(pplx_rank.the_second_fails)
        return str(raised.value)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(run, range(2))
    assert "RuntimeError: rank 1 has had enough" in second
    assert "group.barrier()" in first


def test_one_rank_alone_runs_in_this_process():
    def worker(device, part, group, *args, **kwargs):
        return device, part, group, args, kwargs, os.getpid()

    (said,) = ParallelLaunch(1, devices=["cpu"]).run(worker, 1, named=2)
    assert said == (CPU, None, None, (1,), {"named": 2}, os.getpid())


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"dp_size": 1, "dp_lens": [2]}, "give one of them"),
        ({"devices": ["cpu"] * 3}, "2 ranks cannot be divided among nodes with 3 devices each"),
        ({"devices": []}, "with 0 devices"),
        ({"devices": ["cpu"], "node_rank": 2}, "there is no node 2: 2 ranks .* need 2"),
        ({"dp_size": 3}, "cannot be divided into groups of 3"),
        ({"dp_lens": [1, 2]}, "have 3 ranks, and there are 2"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_before_a_process_starts(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        ParallelLaunch(2, **config).run(pplx_rank.every_call)


def new_process_group(init_method, **more):
    given = {"node_rank": 0, "local_rank": 0, "global_rank": 0, "world_size": 1, "device": CPU, **more}
    return ProcessGroup(init_method=init_method, **given)


def test_a_program_keeps_its_own_default_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="torch's default group has 1 ranks, and not 2"):
            new_process_group("env://", world_size=2)
        everyone = new_process_group("env://")
        group = everyone.create_group()
        assert torch.equal(group.all_reduce(torch.ones(3)), torch.ones(3))
        group.destroy()
        everyone.destroy()
        assert dist.is_initialized() and dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


def test_a_process_group_makes_and_ends_the_default_group(tmp_path):
    everyone = new_process_group(f"file://{tmp_path}/store")
    assert dist.get_backend() == "headrace"
    with pytest.raises(ValueError, match=r"rank 0 is not among the ranks of its own group: \[1\]"):
        TorchParallelGroup(CPU, 0, 0, 0, [1])
    with pytest.raises(ValueError, match="no backend serves meta"):
        TorchParallelGroup(torch.device("meta"), 0, 0, 0, [0])
    everyone.destroy()
    assert not dist.is_initialized()
    everyone.destroy()
    with pytest.raises(ValueError, match="no rank 1 among 1"):
        new_process_group("env://", global_rank=1)


# --- the name


def said_by(text, *path):
    """The output of a program without torch that has more folders to import from."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None\n{text}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


WITHOUT_TORCH = """
import pplx_garden, pplx_garden.utils.math
from pplx_garden.utils import logging_utils
print(pplx_garden.__name__, pplx_garden.utils.math.__name__, logging_utils.__name__)
try:
    import pplx_garden.distributed
except ModuleNotFoundError as error:
    print(error.name)
"""
OURS = [f"headrace.compat.pplx{module}" for module in ("", ".utils.math", ".utils.logging_utils")]


def test_after_install_pplx_garden_is_headrace_also_without_torch():
    assert said_by("import headrace.compat.pplx.install" + WITHOUT_TORCH) == [*OURS, "torch"]


def test_the_wheel_provides_the_name_without_another_import():
    assert said_by(WITHOUT_TORCH, WHEEL / "src") == [*OURS, "torch"]


@pytest.mark.slow
def test_the_wheel_that_pip_builds_holds_the_package(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run(["cp", "-r", str(WHEEL), str(tmp_path / "source")], check=True)
    subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True, timeout=300
    )
    (made,) = tmp_path.glob("headrace_pplx-*-py3-none-any.whl")
    assert said_by(WITHOUT_TORCH, made) == [*OURS, "torch"]


def test_torchs_modules_are_under_the_name_with_torch():
    import pplx_garden.distributed.torch_group
    import pplx_garden.utils.torch

    assert pplx_garden.distributed.ParallelLaunch is ParallelLaunch
    assert pplx_garden.distributed.torch_group.TorchParallelGroup is TorchParallelGroup
