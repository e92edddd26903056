# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""What torch does with headrace.compat.torchcomms: torch.compile, its switch for torchcomms, its debug
server. Most cases are programs of two processes."""

import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from headrace.compat.torchcomms import functional

BEGIN = """
import os, torch, torch.distributed as dist
from datetime import timedelta
import headrace.compat.torchcomms as torchcomms
from headrace.compat.torchcomms import ReduceOp
store = dist.FileStore(os.environ["MEETING"], 2)
SUM = ReduceOp.SUM

def opened(backend="gloo"):
    return torchcomms.new_comm(backend, torch.device("cpu"), "all", store=store)
"""


def run_ranks(tmp_path, program, **environment):
    """Runs a program as two ranks. Returns what each has printed."""
    given = {**os.environ, "MEETING": str(tmp_path / "store"), "TORCHCOMM_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program],
            env={**given, **environment, "TORCHCOMM_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(texts)
    return texts


# --- torch.compile


compiled = pytest.mark.skipif(
    not functional.is_torch_compile_supported(), reason="torch.compile needs torch 2.12 or later"
)
TRACED = {"TORCHCOMMS_PATCH_FOR_COMPILE": "1"}

OPERATIONS = """
comm = opened()
rank = comm.get_rank()
other = 1 - rank
HINTS = {"algorithm": "one_shot", "of another backend": "x"}
AGES = timedelta(seconds=60)

def of(first, count=4):
    return torch.arange(count, dtype=torch.float32) + first

def begin(is_async):
    def all_of_them(mine):
        def done(work):
            if is_async:
                work.wait()
        summed = mine.clone()
        done(comm.all_reduce(summed, SUM, is_async, hints=HINTS, timeout=AGES))
        scaled = mine.clone()
        done(comm.all_reduce(scaled, ReduceOp_half, is_async, timeout=LONG))
        spread = mine.clone()
        done(comm.broadcast(spread, 1, is_async))
        reduced = mine.clone()
        done(comm.reduce(reduced, 0, ReduceOp.MAX, is_async))
        done(comm.barrier(is_async))
        lists = [torch.zeros(4), torch.zeros(4)]
        done(comm.all_gather(lists, mine, is_async))
        uneven = [torch.zeros(1), torch.zeros(2)]
        done(comm.all_gather_v(uneven, mine[: rank + 1], is_async))
        single = torch.zeros(8)
        done(comm.all_gather_single(single, mine, is_async))
        part = torch.zeros(2)
        done(comm.reduce_scatter(part, [mine[:2], mine[2:]], SUM, is_async))
        part_v = torch.zeros(1 + 2 * rank)
        done(comm.reduce_scatter_v(part_v, [mine[:1], mine[1:]], SUM, is_async))
        part_single = torch.zeros(2)
        done(comm.reduce_scatter_single(part_single, mine, SUM, is_async))
        swapped = [torch.zeros(2), torch.zeros(2)]
        done(comm.all_to_all(swapped, [mine[:2], mine[2:]], is_async))
        swapped_single = torch.zeros(4)
        done(comm.all_to_all_single(swapped_single, mine, is_async))
        rows = torch.zeros(2 + 2 * rank)
        done(comm.all_to_all_v_single(rows, mine[:3], [1 + rank] * 2, [1, 2], is_async))
        got = torch.zeros(4)
        if rank == 0:
            first = comm.send(mine, 1, is_async)
            second = comm.recv(got, 1, is_async)
        else:
            first = comm.recv(got, 0, is_async)
            second = comm.send(mine, 0, is_async)
        done(first)
        done(second)
        given = torch.zeros(4)
        done(comm.scatter(given, [mine, mine + 10] if rank == 0 else [], 0, is_async))
        taken = [torch.zeros(4), torch.zeros(4)] if rank == 0 else [torch.full((1,), 7.0)]
        done(comm.gather(taken, mine, 0, is_async))
        row = torch.full((8,), 7.0)
        done(comm.gather_single(row, mine, 0, is_async))
        return (summed, scaled, spread, lists, uneven, single, part, part_v, part_single, swapped,
                swapped_single, rows, got, given, taken, reduced if rank == 0 else None,
                row if rank == 0 else None)
    return all_of_them

ReduceOp_half = ReduceOp.PREMUL_SUM(0.5)
LONG = torchcomms.Timeout(minutes=2)
total = of(0) + of(1)
expected = (
    total, total / 2, of(1), [of(0), of(1)], [of(0, 1), of(1, 2)], torch.cat([of(0), of(1)]),
    total[2 * rank : 2 * rank + 2], total[:1] if rank == 0 else total[1:], total[2 * rank : 2 * rank + 2],
    [of(0)[2 * rank : 2 * rank + 2], of(1)[2 * rank : 2 * rank + 2]],
    torch.cat([of(0)[2 * rank : 2 * rank + 2], of(1)[2 * rank : 2 * rank + 2]]),
    torch.tensor([0.0, 1.0] if rank == 0 else [1.0, 2.0, 2.0, 3.0]), of(other), of(10 * rank),
    [of(0), of(1)] if rank == 0 else [torch.full((1,), 7.0)], of(1) if rank == 0 else None,
    torch.cat([of(0), of(1)]) if rank == 0 else None,
)
from torch.utils._pytree import tree_leaves
for is_async in (False, True):
    program = torch.compile(begin(is_async), fullgraph=True, backend="aot_eager")
    for number, (found, wanted) in enumerate(zip(tree_leaves(program(of(rank))), tree_leaves(expected))):
        assert found is wanted is None or torch.equal(found, wanted), (is_async, number, found, wanted)
comm.finalize()
print(True)
"""


GRADIENTS = """
comm = opened()
rank = comm.get_rank()
weights = torch.arange(1.0, 5.0) + rank

def all_reduce(x, op):
    y = x * 1.0
    comm.all_reduce(y, op, False)
    return (y * weights).sum()

def all_gather(x):
    y = x * 1.0
    parts, row = [torch.zeros(4), torch.zeros(4)], torch.zeros(8)
    comm.all_gather(parts, y, False)
    comm.all_gather_single(row, y, False)
    return sum((part * weights).sum() for part in parts) + (row[4:] * weights).sum()

def reduce_scatter(x, op):
    y = x * 1.0
    part, single = torch.zeros(2), torch.zeros(2)
    comm.reduce_scatter(part, [y[:2], y[2:]], op, False)
    comm.reduce_scatter_single(single, y, op, False)
    return ((part + single) * weights[:2]).sum()

def all_to_all(x):
    y = x * 1.0
    parts, single = [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
    comm.all_to_all(parts, [y[:2], y[2:]], False)
    comm.all_to_all_single(single, y, False)
    rows = torch.zeros(6 if rank else 2)
    comm.all_to_all_v_single(rows, y, [3, 3] if rank else [1, 1], [1, 3], False)
    return (torch.cat(parts) * weights).sum() + (single * weights).sum() + rows.sum() * (rank + 1)

def gradient_of(program, *more):
    x = torch.ones(4, requires_grad=True)
    torch.compile(program, fullgraph=True, backend="aot_eager")(x, *more).backward()
    return x.grad.tolist()

both = torch.arange(1.0, 5.0) * 2 + 1
assert gradient_of(all_reduce, SUM) == both.tolist()
assert gradient_of(all_reduce, ReduceOp.AVG) == (both / 2).tolist()
gathered = both * 2 if rank else both
assert gradient_of(all_gather) == gathered.tolist(), gradient_of(all_gather)
assert gradient_of(reduce_scatter, SUM) == [2.0, 4.0, 4.0, 6.0]
assert gradient_of(reduce_scatter, ReduceOp.AVG) == [1.0, 2.0, 2.0, 3.0]
first = torch.tensor([1.0, 2.0, 2.0, 3.0]) if rank == 0 else torch.tensor([3.0, 4.0, 4.0, 5.0])
assert gradient_of(all_to_all) == (2 * first + torch.tensor([1.0, 2.0, 2.0, 2.0])).tolist()
try:
    gradient_of(all_reduce, ReduceOp.MAX)
    print("no error")
except Exception as error:
    print("SUM and AVG alone" in str(error))
comm.finalize()
"""


BATCHES = """
comm = opened()
rank = comm.get_rank()
batch = comm.batch_op_create()
mine, got = torch.full((3,), rank + 1.0), torch.zeros(3)

def add(mine, got, batch):
    batch.send(mine, 1 - rank)
    batch.recv(got, 1 - rank)

torch.compile(add, fullgraph=True, backend="aot_eager")(mine, got, batch)
batch.issue(False)
print(got.tolist() == [2.0 - rank] * 3)

def begin(mine):
    return comm.all_reduce(mine, SUM, True)

work = torch.compile(begin, fullgraph=True, backend="aot_eager")(mine)
work.wait()
print(mine.tolist(), work.is_completed())
comm.finalize()
"""


PROGRAMS = {"operations": OPERATIONS, "gradients": GRADIENTS, "batches": BATCHES}
ONE_BY_ONE = """
import sys, types
for name in NAMES:
    file = os.path.join(os.environ["PROGRAMS"], name)
    os.environ["MEETING"] = f"{file}.store"
    sys.modules[name] = program = types.ModuleType(name)  # where torch's compiler looks for its globals
    print(f"== {name}", flush=True)
    with open(f"{file}.py") as text:
        exec(compile(text.read(), file, "exec"), program.__dict__)
    torch.compiler.reset()
print("== end")
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Of each program what its ranks have printed. The same two processes run all of them: importing torch's
    compiler takes seconds."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o700)
    for name, program in PROGRAMS.items():
        (folder / f"{name}.py").write_text(BEGIN + program)
    folders = {"PROGRAMS": str(folder), "HEADRACE_RUNTIME_DIR": str(folder)}
    program = f"NAMES = {list(PROGRAMS)}\n{ONE_BY_ONE}"
    texts = run_ranks(folder, program, **folders, **TRACED)
    return {
        name: [text.partition(f"== {name}\n")[2].partition("== ")[0] for text in texts] for name in PROGRAMS
    }


@pytest.mark.slow
@compiled
def test_a_compiled_program_calls_every_operation(printed):
    assert [text.splitlines()[-1] for text in printed["operations"]] == ["True", "True"]


@pytest.mark.slow
@compiled
def test_gradients_of_a_compiled_program_go_back_to_their_ranks(printed):
    assert [text.splitlines()[-1] for text in printed["gradients"]] == ["True", "True"]


@pytest.mark.slow
@compiled
def test_a_batch_and_a_work_leave_a_compiled_program(printed):
    assert printed["batches"] == ["True\n[3.0, 3.0, 3.0] True\n"] * 2


@pytest.mark.parametrize("version, is_new", [("2.11.0", False), ("2.12.0", True), ("2.13.0+cpu", True)])
def test_torch_compile_is_for_new_torch_and_by_a_variable(monkeypatch, version, is_new):
    for name in ("TORCHCOMMS_PATCH_FOR_COMPILE", "TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT"):
        monkeypatch.delenv(name, raising=False)
    assert functional.is_torch_compile_supported(_current_version=version) == is_new
    assert not functional.is_torch_compile_supported_and_enabled(_current_version=version)
    monkeypatch.setenv("TORCHCOMMS_PATCH_FOR_COMPILE", "1")
    assert functional.is_torch_compile_supported_and_enabled(_current_version=version) == is_new
    monkeypatch.setenv("TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT", "1")
    assert functional.is_torch_compile_supported_and_enabled(_current_version=version)


ASYNC_TENSOR = """
from headrace.compat.torchcomms.functional.async_tensor import TorchCommsAsyncTensor

class Work:
    waits = 0
    def wait(self):
        Work.waits += 1

x = torch.ones(2, requires_grad=True)
late = TorchCommsAsyncTensor(x * 3, Work())
late.elem.retain_grad()
assert Work.waits == 0 and not late.is_leaf and late.grad_fn is late.elem.grad_fn
(late * 2).sum().backward()
assert Work.waits == 1 and x.grad.tolist() == [6, 6]
assert late.sum().item() == 6 and Work.waits == 1
late.grad = torch.ones(2)
assert late.grad.tolist() == late.elem.grad.tolist() == [1, 1]
"""


def test_an_async_tensor_waits_once_when_it_is_used():
    subprocess.run([sys.executable, "-c", "import torch" + ASYNC_TENSOR], check=True, timeout=100)


# --- torch's switch

SWITCH = """
import headrace.compat.torchcomms.install
import torch.distributed.distributed_c10d as c10d
dist.config.use_torchcomms = True
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
group = dist.group.WORLD
assert isinstance(group, c10d._BackendWrapper) and group.supports_coalescing
comm = group.get_comm()
seen = []
comm.register_pre_hook(lambda name, number, args: seen.append((name.name, getattr(args, "async_op", True))))
mine = torch.ones(2)
dist.all_reduce(mine)
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, 1 - rank),
                                dist.P2POp(dist.irecv, torch.zeros(2), 1 - rank)])
for work in works:
    work.wait()
part = dist.split_group(split_ranks=[[0], [1]])
assert part.size() == 1 and part.get_comm().get_ranks() == [rank]
dist.all_reduce(mine, group=part)
dist.monitored_barrier(timeout=timedelta(seconds=60))
print(mine.tolist(), [name for name, _ in seen], {kind for _, kind in seen} <= {True, False})
dist.destroy_process_group()
print(comm.is_finalized)
"""


def test_torchs_switch_for_torchcomms_takes_this_package(tmp_path):
    texts = run_ranks(tmp_path, SWITCH)
    wanted = "[2.0, 2.0] ['all_reduce', 'send', 'recv', 'split'] True"
    for text in texts:
        assert [line for line in text.splitlines() if line[:1] in "[T"] == [wanted, "True"], text


# --- works

BLOCKING = """
for backend in ("gloo", "host"):
    comm = torchcomms.new_comm(backend, torch.device("cpu"), backend, store=store)
    mine = torch.ones(2)
    work = comm.all_reduce(mine, SUM, True)
    try:
        work.wait_blocking()
        print(backend, mine.tolist())
    except RuntimeError as error:
        print("waitBlocking not implemented" in str(error))
    work.wait()
    comm.all_reduce(mine, SUM, False).wait_blocking()
    comm.finalize()
"""


def test_wait_blocking_is_that_of_torchcomms_where_the_backend_is_gloo(tmp_path):
    assert run_ranks(tmp_path, BLOCKING) == ["True\nhost [2.0, 2.0]\n"] * 2


# --- torch's debug server

SERVER = """
import json, time, urllib.error, urllib.request
from torch._C._distributed_c10d import _WorkerServer
from headrace.compat.torchcomms.hooks import FlightRecorderHook
server = _WorkerServer("127.0.0.1", 0)

def ask(name):
    address = f"http://127.0.0.1:{server.port}/handler/{name}"
    request = urllib.request.Request(address, method="POST", data=b"")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

def check():
    assert ask("torchcomms_fr_dump_file")[0] == 503
    assert json.loads(ask("torchcomms_fr_trace_json")[1])["rank"] == int(os.environ["RANK"])
    comm = opened()
    rank = comm.get_rank()
    FlightRecorderHook().register_with_comm(comm)
    mine = torch.ones(2)
    comm.all_reduce(mine, SUM, False)
    status, text = ask("torchcomms_fr_trace_json")
    assert status == 200 and [entry["state"] for entry in json.loads(text)["entries"]] == ["completed"]
    assert json.loads(ask("torchcomms_fr_trace_json?onlyactive=true")[1])["entries"] == []
    assert "entries" not in json.loads(ask("torchcomms_fr_trace_json?includecollectives=false")[1])
    status, text = ask("torchcomms_fr_trace_json?onlyactive=perhaps")
    assert status == 400 and "true or false" in text
    assert ask("torchcomms_fr_dump_file") == (200, f"wrote {os.environ['TORCHCOMM_FR_DUMP_TEMP_FILE']}{rank}")
    assert ask("torchcomms_health_check") == (200, '{"healthy": true}')
    comm.barrier(False)
    comm.abort()
    assert ask("torchcomms_health_check") == (200, '{"healthy": false}')

check()
server.shutdown()
"""


def test_torchs_debug_server_is_answered(tmp_path):
    run_ranks(tmp_path, SERVER, TORCHCOMM_FR_DUMP_TEMP_FILE=str(tmp_path / "trace_"))
    assert sorted(file.name for file in tmp_path.glob("trace_*")) == ["trace_0", "trace_1"]
