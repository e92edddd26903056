# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.distributed: torch.distributed's functions over a communicator, on two and three ranks. The cases
are in distributed_cases.py; processes that stay run them."""

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_ranks import Ended, Ranks

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch.distributed

import headrace.distributed as dist

SOURCE = ast.parse(Path(__file__).with_name("distributed_cases.py").read_text())
CASES = [
    node.name
    for node in SOURCE.body
    if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] == ["rank", "size"]
]
ENDS_THE_GROUP = "shrinking_makes_a_new_default_group"
OWN = {"comm_of", "is_enabled", "register"}


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    ranks = Ranks(request.param, None, folder, "distributed_cases")
    yield ranks
    ranks.end()


# The last one is that which ends the group.
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case == ENDS_THE_GROUP))
def test_of_all_ranks(ranks, case):
    answers = ranks.run(case)
    assert not [answer for answer in answers if isinstance(answer, Ended)], answers


def parameters(function):
    return [
        (p.name, p.kind, p.default)
        for p in inspect.signature(function, follow_wrapped=False).parameters.values()
    ]


@pytest.mark.parametrize("name", sorted(set(dist.__all__) - OWN - {"P2POp", "_coalescing_manager"}))
def test_a_function_has_the_names_arguments_and_defaults_of_torchs(name):
    torchs = inspect.unwrap(getattr(torch.distributed.distributed_c10d, name))
    assert parameters(getattr(dist, name)) == parameters(torchs)


def test_p2pop_and_the_coalescing_manager_have_the_arguments_of_torchs():
    for ours, torchs in [
        (dist.P2POp.__init__, torch.distributed.P2POp.__init__),
        (
            dist._coalescing_manager.__wrapped__,
            torch.distributed.distributed_c10d._coalescing_manager.__wrapped__,
        ),
    ]:
        assert parameters(ours) == parameters(torchs)


def test_other_names_are_torchs():
    assert dist.get_rank is torch.distributed.get_rank and dist.ReduceOp is torch.distributed.ReduceOp
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = dist.no_such_name


def python(*lines, **environment):
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("backend, is_ours", [(None, True), ("gloo", False)])
def test_the_default_backend_is_headrace_and_others_go_to_torch(backend, is_ours):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mine = torch.ones(2)
    dist.all_reduce(mine)
    dist.barrier()
    assert dist.get_backend() == ("headrace" if is_ours else "gloo")
    assert dist.is_enabled() == is_ours and mine.sum() == 2
    dist.destroy_process_group()
    assert not dist.is_enabled()


def test_a_group_with_a_backend_for_another_device_goes_to_torch():
    both = "cpu:headrace,cuda:gloo"
    dist.init_process_group(both, store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group()
    assert dist.is_enabled() and dist.get_backend(group) == both
    dist.destroy_process_group()


def test_without_torch_it_says_so():
    lines = (
        "import importlib.util as util",
        "found = util.find_spec",
        "util.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)",
        "import headrace.distributed as dist, sys",
        "print(dist.is_available(), 'torch' in sys.modules)",
        "try: dist.all_reduce",
        "except ImportError as error: print(error)",
    )
    words = python(*lines)
    assert words[:2] == ["False", "False"]
    assert " ".join(words[2:]) == (
        "headrace.distributed.all_reduce needs torch, which is not installed: install it, or use "
        "headrace.new_comm"
    )
