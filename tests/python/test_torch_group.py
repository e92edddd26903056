# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""torch.distributed.init_process_group("headrace"): every operation, works, groups, training, errors, on two
and three ranks. The cases are in torch_cases.py; processes that stay run them."""

import ast
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torch_ranks import Ended, Ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

ENDS_A_RANK = "the_last_rank_is_killed"
SOURCE = ast.parse(Path(__file__).with_name("torch_cases.py").read_text())
CASES = [
    node.name
    for node in SOURCE.body
    if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] == ["rank", "size"]
]


def folder_for(factory):
    folder = factory.mktemp("run")
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def ranks(request, tmp_path_factory):
    ranks = Ranks(request.param, folder_for(tmp_path_factory))
    yield ranks
    ranks.end()


@pytest.mark.parametrize("case", [case for case in CASES if case != ENDS_A_RANK])
def test_of_all_ranks(ranks, case):
    answers = ranks.run(case)
    assert not [answer for answer in answers if isinstance(answer, Ended)], answers


def test_the_others_hear_of_a_killed_rank_and_go_on_without_it(tmp_path_factory):
    ranks = Ranks(3, folder_for(tmp_path_factory))
    first, second, last = ranks.run(ENDS_A_RANK)
    assert "rank 2 is gone" in first and "rank 2 is gone" in second
    assert last == -signal.SIGKILL
    ranks.end()


def python(*lines, **environment):
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


REGISTERED = "print(torch.distributed.is_backend_available('headrace'))"


def test_torch_knows_the_backend_and_loads_none_of_it():
    lines = "import sys, torch", REGISTERED, "print('headrace' in sys.modules)"
    assert python(*lines) == ["True", "False"]


def test_without_autoload_an_import_makes_it_known():
    lines = "import torch", REGISTERED, "import headrace.distributed", REGISTERED
    assert python(*lines, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == ["False", "True"]


def test_it_may_be_registered_again():
    lines = "import torch, headrace.distributed as hd", "hd.register(); hd.register()", REGISTERED
    assert python(*lines) == ["True"]


def test_import_headrace_imports_no_torch():
    assert python("import headrace, headrace_torch, sys", "print('torch' in sys.modules)") == ["False"]


def test_both_groups_of_entry_points_name_it():
    points = importlib.metadata.distribution("headrace").entry_points
    found = {point.group: point.value for point in points if point.name == "headrace"}
    assert found["torch.backends"] == found["torch.distributed.backends"] == "headrace_torch:register"


def test_a_device_may_be_named():
    lines = (
        "import torch.distributed as dist, torch",
        "dist.init_process_group('cpu:headrace', store=dist.HashStore(), rank=0, world_size=1)",
        "tensor = torch.ones(2); dist.all_reduce(tensor); print(dist.get_backend(), tensor.sum().item())",
        "dist.destroy_process_group()",
    )
    assert python(*lines) == ["cpu:headrace", "2.0"]
