# SPDX-License-Identifier: Apache-2.0
# backends: shm, tcp
"""torch.distributed.init_process_group("headrace"): every operation, works, groups, training, errors, on two
and three ranks, with the compiled group and with the one in Python. The cases are in torch_cases.py;
processes that stay run them."""

import ast
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace_torch
from headrace._torch import compiled
from torch_ranks import Ended, Ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

ENDS_A_RANK = "the_last_rank_is_killed"
SOURCE = ast.parse(Path(__file__).with_name("torch_cases.py").read_text())
CASES = [
    node.name
    for node in SOURCE.body
    if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] == ["rank", "size"]
]
WITH_TWO_RANKS = "compiled_operators"  # torch's compiler takes seconds to import
WITH_A_C_COMPILER = "compiled_operators_run_in_code_of_inductor"
OF_THE_COMPILED_PART = "symmetric_", "wrong_uses_of_symmetric_"


def torch_version():
    if importlib.util.find_spec("torch") is None:
        return 0, 0
    return tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])


COMPILED = torch_version() < (2, 14)  # later ones have the group in Python alone
PYTHON_BACKENDS = torch_version() >= (2, 15)  # torch takes them
ALL_BINDINGS = ["compiled", "python"]
BINDINGS = ALL_BINDINGS if COMPILED else ["python"]
for_compiled = pytest.mark.skipif(not COMPILED, reason="no group is compiled for this torch")


def cases_of(binding):
    """Cases of one binding begin with its name."""
    left_out = [f"{other}_" for other in ALL_BINDINGS if other != binding]
    if binding == "python" and not PYTHON_BACKENDS:
        left_out += ["backend_", "python_backend_"]
    if not COMPILED:
        left_out += OF_THE_COMPILED_PART
    return [case for case in CASES if case != ENDS_A_RANK and not case.startswith(tuple(left_out))]


def marks_of(size, binding, case):
    if case != WITH_A_C_COMPILER:
        # Two ranks run each case with both groups every day, and three with the one that is usual.
        return pytest.mark.slow if size == 3 and binding != BINDINGS[0] else ()
    absent = shutil.which("g++") is None
    return pytest.mark.slow, pytest.mark.skipif(
        absent, reason="there is no g++, which torch's inductor calls"
    )


def folder_for(factory):
    folder = factory.mktemp("run")
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    """Processes that stay for all cases of a size and a binding."""
    ranks = Ranks(*request.param, folder_for(tmp_path_factory))
    yield ranks
    ranks.end()


@pytest.mark.parametrize(
    "ranks, case",
    [
        pytest.param(
            (size, binding), case, marks=marks_of(size, binding, case), id=f"{size}-{binding}-{case}"
        )
        for size in (2, 3)
        for binding in BINDINGS
        for case in cases_of(binding)
        if size == 2 or not case.startswith(WITH_TWO_RANKS)
    ],
    indirect=["ranks"],
)
def test_of_all_ranks(ranks, case):
    answers = ranks.run(case)
    assert not [answer for answer in answers if isinstance(answer, Ended)], answers


@pytest.mark.parametrize("binding", BINDINGS)
def test_the_others_hear_of_a_killed_rank_and_go_on_without_it(tmp_path_factory, binding):
    ranks = Ranks(3, binding, folder_for(tmp_path_factory))
    first, second, last = ranks.run(ENDS_A_RANK)
    assert "rank 2 is gone" in first and "rank 2 is gone" in second
    assert last == -signal.SIGKILL
    ranks.end()


@for_compiled
def test_the_compiled_group_is_there_for_the_torch_that_is_installed():
    version = ".".join(importlib.metadata.version("torch").split(".")[:2])
    assert headrace.compiled_torch_binding() == version


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
    # from 2.14 on, torch reads the entry points of backends itself when it is asked for one
    before = "False" if COMPILED else "True"
    assert python(*lines, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == [before, "True"]


def test_it_may_be_registered_again():
    lines = "import torch, headrace.distributed as hd", "hd.register(); hd.register()", REGISTERED
    assert python(*lines) == ["True"]


def test_ddp_raises_the_error_of_a_future_that_it_takes_for_a_result():
    error = "error = as_torch_error(headrace.PeerLost('rank 1 is gone'))"
    lines = "import headrace, torch", "from headrace._torch.errors import as_torch_error", error
    looks = "try: torch._jit_internal._extract_tensors(error)"  # as DDP does
    assert python(*lines, looks, "except headrace.PeerLost as raised: print(raised is error)") == ["True"]


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


@for_compiled
def test_the_compiled_group_serves_unless_the_other_one_is_asked_for():
    made = "print(type(dist.group.WORLD._get_backend(torch.device('cpu'))).__name__)"
    join = "dist.init_process_group('headrace', store=dist.HashStore(), rank=0, world_size=1)"
    lines = ["import torch, torch.distributed as dist", "import headrace.distributed as hd"]
    for binding in (None, "python", "compiled"):
        lines += [f"hd.register({binding!r})", join, made, "dist.destroy_process_group()"]
    assert python(*lines) == ["Backend", "HeadraceProcessGroup", "Backend"]


@pytest.mark.skipif(not PYTHON_BACKENDS, reason="this torch takes no Backend in Python")
def test_a_group_in_python_has_a_backend_of_its_communicator():
    lines = (
        "import torch, torch.distributed as dist",
        "dist.init_process_group('headrace', store=dist.HashStore(), rank=0, world_size=1)",
        "world = dist.group.WORLD; backend = world._get_backend(torch.device('cpu'))",
        "print(type(world).__name__, type(backend).__name__)",
        "print(isinstance(backend, torch._C._distributed_c10d.Backend))",
        "print(backend.comm is world.comm, backend.supports_window, backend.supports_reconfigure)",
        "tensor = torch.ones(2); backend.allreduce([tensor]).wait(); print(tensor.sum().item())",
        "dist.destroy_process_group()",
    )
    expected = ["HeadraceProcessGroup", "HeadraceBackend", "True", "True", "False", "False", "2.0"]
    assert python(*lines) == expected


def test_an_unknown_binding_is_refused():
    with pytest.raises(ValueError, match="no binding 'rust': give one of compiled, python"):
        headrace_torch.register("rust")


def test_a_group_that_was_not_built_says_what_to_do(monkeypatch):
    monkeypatch.setattr(compiled, "compiled_torch_binding", lambda: None)
    with pytest.raises(ImportError, match="without a compiled process group for this Python"):
        compiled.load()
    monkeypatch.setattr(compiled, "compiled_torch_binding", lambda: "1.0")
    with pytest.raises(ImportError, match="is for torch 1.0, and this is torch"):
        compiled.load()


MAKERS = {
    "compiled": "from headrace._torch.compiled import new_backend as make",
    "python": "from headrace._torch.group import HeadraceProcessGroup as make",
}


@pytest.mark.parametrize("binding, make", [(binding, MAKERS[binding]) for binding in BINDINGS])
def test_ctrl_c_ends_a_wait_alone_and_a_call_with_its_group(binding, make):
    lines = (
        "import datetime, signal, threading, torch, torch.distributed as dist, headrace.distributed",
        "from concurrent.futures import ThreadPoolExecutor",
        make,
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # a shell's background jobs ignore it
        "meet = lambda rank: headrace.new_comm(rank=rank, size=2, meeting='memory:ctrl_c')",
        "with ThreadPoolExecutor() as pool: here, there = pool.map(meet, range(2))",
        "group = make(dist.HashStore(), 0, 2, datetime.timedelta(seconds=30), comm=here)",
        "received = torch.zeros(1)",
        "work = group.recv([received], 1, 5)",
        "try: threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start(); work.wait()",
        "except KeyboardInterrupt: print('interrupted')",
        "there.send(torch.ones(1), 0, tag=5)",
        "work.wait(); print(received.item())",
        "options = dist.BarrierOptions(); options.asyncOp = False",
        "try: threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start(); group.barrier(options)",
        "except KeyboardInterrupt: print(here.is_aborted())",
    )
    assert python(*lines) == ["interrupted", "1.0", "True"]


@for_compiled
@pytest.mark.parametrize("binding", ALL_BINDINGS)
def test_ctrl_c_ends_a_wait_for_a_signal(binding):
    lines = (
        "import signal, threading, torch, torch.distributed as dist, headrace.distributed",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "import headrace.torch_tools, torch.distributed._symmetric_memory as symmetric",
        "headrace.torch_tools.register_symmetric_memory()",
        f"headrace.distributed.register({binding!r})",
        "dist.init_process_group('headrace', store=dist.HashStore(), rank=0, world_size=1)",
        "alone = symmetric.rendezvous(symmetric.empty(4, device='cpu'), dist.group.WORLD)",
        "alone.put_signal(0); alone.wait_signal(0)",
        "try: threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start(); alone.wait_signal(0)",
        "except KeyboardInterrupt: print('no signal')",
        "dist.all_reduce(torch.ones(1))",
        "dist.destroy_process_group()",
    )
    assert python(*lines) == ["no", "signal"]
