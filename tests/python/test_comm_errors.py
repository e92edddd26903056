# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""What wrong calls of communicators raise, where ranks meet, and what launchers set."""

import ctypes
import datetime
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import headrace
from conftest import free_ports, unique
from headrace import ReduceOp
from ranks import on_ranks, open_rank, two_ranks


@pytest.fixture
def comm():
    with headrace.new_comm(rank=0, size=1) as comm:
        yield comm


@pytest.fixture
def pair():
    ranks = two_ranks()
    yield ranks
    for comm in ranks:
        comm.abort("the test has ended")


def refuses(match, error=headrace.InvalidArgument):
    return pytest.raises(error, match=match)


ROOM = np.zeros(4)


def read_only():
    memory = np.zeros(4)
    memory.flags.writeable = False
    return memory


def released():
    memory = memoryview(bytearray(16))
    memory.release()
    return memory


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (
            np.zeros((3, 4)).T,
            r"argument tensor is not contiguous: its shape is \[4, 3\], its strides are \[1, 4\]",
        ),
        (
            np.zeros(8)[::2],
            r"is not contiguous: its shape is \[4\], its strides are \[2\] elements; give contig",
        ),
        (read_only(), "argument tensor is read-only: the operation writes to it, give a copy"),
        ([1.0, 2.0], r"argument tensor: \[1.0, 2.0\] is not an array"),
        (
            np.zeros(3, ">f4"),
            "argument tensor: its elements have the format '>f', which collectives do not take",
        ),
        (np.zeros((1,) * 9), "argument tensor: it has 9 dimensions; collectives take at most 8"),
        (
            released(),
            "argument tensor: its memory cannot be used: operation forbidden on released memoryview",
        ),
        (
            SimpleNamespace(__dlpack__=lambda: 5),
            "argument tensor: its __dlpack__ returned 5, which is no capsule of DLPack",
        ),
    ],
)
def test_memory_that_cannot_be_used_is_described(comm, tensor, match):
    with refuses(match):
        comm.all_reduce(tensor, ReduceOp.SUM)


def test_what_is_only_read_may_be_read_only(comm):
    comm.all_reduce(read_only(), ReduceOp.SUM, output=ROOM)
    comm.broadcast(read_only(), 0)
    comm.all_gather([ROOM], read_only())


def test_torch_tensors_that_cannot_be_used_are_described(comm):
    torch = pytest.importorskip("torch")
    with refuses(r"is not contiguous: its shape is \[4, 3\], its strides are \[1, 4\]"):
        comm.all_reduce(torch.zeros(3, 4).T, ReduceOp.SUM)
    with refuses("lazily negated or conjugated"):
        comm.all_reduce(torch.zeros(3, dtype=torch.complex64).conj(), ReduceOp.SUM)
    with refuses("argument tensor: its memory cannot be used"):
        comm.all_reduce(torch.zeros(3, device="meta"), ReduceOp.SUM)


class OnGpu:
    """Memory that DLPack says to be on a GPU."""

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device", ctypes.c_int32),
            ("rank", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("offset", ctypes.c_uint64),
            ("owner", ctypes.c_void_p),
            ("release", ctypes.c_void_p),
        ]

    def __init__(self):
        self.shape = (ctypes.c_int64 * 1)(4)
        cuda, floats = 2, 2
        self.tensor = self.Tensor(4096, cuda, 3, 1, floats, 32, 1, self.shape, None, 0, None, None)

    def __dlpack_device__(self):
        return 2, 3

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_memory_of_a_gpu_is_refused(comm):
    with refuses("argument tensor is on cuda:3: this communicator moves memory of cpu; give a copy there"):
        comm.all_reduce(OnGpu(), ReduceOp.SUM)


def test_a_communicator_on_a_gpu_takes_memory_of_that_gpu_alone():
    with headrace.new_comm("fake", "cuda:3", rank=0, size=2) as comm:
        assert comm.get_device() == "cuda:3"
        work = comm.all_reduce(OnGpu(), ReduceOp.SUM, stream=7)
        work.wait()
        work.wait_on(7)
        work.wait_blocking(1)
        with refuses(r"argument tensor is on cpu: this communicator moves memory of cuda:3; give .*cuda\(\)"):
            comm.all_reduce(bytearray(4), ReduceOp.SUM)
        with refuses("stream: give a torch.cuda.Stream, or the number of a CUDA stream"):
            comm.barrier(stream="first")


def test_streams_of_a_communicator_on_the_host_are_refused(comm):
    with refuses("a stream is given, and the communicator moves host memory"):
        comm.barrier(stream=7)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda comm: comm.all_gather([ROOM, ROOM], ROOM), "outputs has 2 entries, 1 are expected"),
        (
            lambda comm: comm.all_gather(ROOM, ROOM),
            "argument tensor_list is .*: give a list of arrays, one a rank",
        ),
        (lambda comm: comm.all_gather([None], ROOM), "an entry of tensor_list is None"),
        (lambda comm: comm.all_gather([ROOM[:2]], ROOM), "an output has 2 elements, the input has 4"),
        (lambda comm: comm.broadcast(ROOM, 1), "there is no root 1; there are 1 ranks"),
        (
            lambda comm: comm.all_reduce(ROOM, ReduceOp.SUM, output=np.zeros(4, "i4")),
            "float64, the output is int32",
        ),
        (lambda comm: comm.all_reduce(ROOM, ReduceOp.BAND), "band"),
        (
            lambda comm: comm.all_reduce(ROOM, ReduceOp.SUM, hints={"algoritm": "a"}),
            'did you mean "algorithm"',
        ),
        (lambda comm: comm.all_reduce(ROOM, ReduceOp.SUM, timeout=-1), "the timeout is -1"),
        (lambda comm: comm.all_reduce(ROOM, ReduceOp.SUM, timeout=float("nan")), "the timeout is nan"),
        (lambda comm: comm.all_to_all_v_single(ROOM, ROOM, [3], [4]), "add up to 3, its elements are 4"),
        (
            lambda comm: comm.device_all_to_all_v_single(ROOM, ROOM, ROOM[:1], ROOM[:1]),
            "the splits of the output are float64: int64 is expected",
        ),
        (lambda comm: comm.send(ROOM, 0), "rank 0 is no other rank"),
        (lambda comm: comm.send(ROOM, 0, hints={"a": 1}), 'send and recv have no hints, and "a" is given'),
        (lambda comm: comm.set_hints({"lane_bytes": 4096}), "fixed when the communicator opens"),
        (lambda comm: comm.set_timeout(-1), "the timeout is -1"),
        (lambda comm: comm.split([1], "a"), "there is no rank 1"),
        (lambda comm: comm.split([0], "a", hints={"backend": "shm"}), "backends"),
    ],
)
def test_wrong_arguments_end_nothing(comm, call, match):
    with refuses(match):
        call(comm)
    assert not comm.is_aborted()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda comm: comm.all_reduce(ROOM, "sum"), "op: headrace._headrace.ReduceOp"),
        (lambda comm: comm.broadcast(ROOM, "0"), "root: int"),
        (lambda comm: comm.barrier(timeout="1"), "timeout: float | datetime.timedelta | None = None"),
        (lambda comm: comm.set_timeout(None), "timeout: float | datetime.timedelta) -> None"),
        (lambda comm: comm.all_reduce(None, ReduceOp.SUM), "tensor: object"),
        (lambda comm: comm.barrier(hints=[1]), "hints: dict[str, typing.Any] | None"),
        (
            lambda comm: comm.all_to_all_v_single(ROOM, ROOM, 4, 4),
            "output_split_sizes: collections.abc.Sequence[int]",
        ),
        (lambda comm: comm.all_gather_p_exec(ROOM, ROOM), "handle: AllGatherHandle"),
    ],
)
def test_wrong_types_are_answered_by_what_was_expected(comm, call, expected):
    with pytest.raises(TypeError) as raised:
        call(comm)
    assert expected in str(raised.value)


def test_a_finalized_communicator_says_so(pair):
    threads = [threading.Thread(target=comm.finalize) for comm in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with refuses("has been finalized: open another one"):
        pair[0].barrier()


def test_a_late_rank_is_named(pair):
    with refuses(r"rank 0, barrier number 2 of .*: rank 1 has not come within 50 ms", headrace.TimedOut):
        pair[0].barrier(timeout=datetime.timedelta(milliseconds=50))
    assert pair[0].is_aborted()
    with refuses("rank 1 has not come within 50 ms", headrace.Canceled):
        pair[1].barrier()


def test_a_receive_that_is_late_ends_alone(pair):
    with refuses("recv number 1 of .*: rank 1 has not come within 50 ms", headrace.TimedOut):
        pair[0].recv(ROOM, 1, timeout=0.05)
    assert not pair[0].is_aborted()


def test_ranks_in_different_operations_are_told(pair):
    work = pair[0].barrier(async_op=True)
    with refuses("rank 0 is in barrier number 2: all ranks must call the same operations", headrace.Error):
        pair[1].all_reduce(np.zeros(3), ReduceOp.SUM)
    assert isinstance(_error_of(work), headrace.Error)


def _error_of(work):
    try:
        work.wait(30)
    except headrace.Error as error:
        return error


def test_a_message_of_another_length_is_told(pair):
    pair[1].send(np.zeros(3), 0)
    with refuses("the message of rank 1 has 24 bytes, the elements to receive have 32"):
        pair[0].recv(ROOM, 1)


def test_handles_refuse_pickle(comm):
    import pickle

    with pytest.raises(TypeError, match="a Comm cannot be pickled: open one in the other process"):
        pickle.dumps(comm)
    with pytest.raises(TypeError, match="a Work cannot be pickled"):
        pickle.dumps(comm.barrier())


def test_a_forked_child_is_told_to_open_its_own(comm, run_script):
    code, said, errors = run_script(
        """
import os, headrace
comm = headrace.new_comm(rank=0, size=1)
if os.fork() == 0:
    try:
        comm.barrier()
    except headrace.InvalidArgument as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
comm.barrier()
"""
    )
    assert (code, errors) == (0, "")
    assert said == (
        "the communicator belongs to the parent process: open one in this process, after the fork\n"
    )


def test_a_program_that_ends_in_an_operation_aborts_it(run_script, tmp_path):
    code, said, errors = run_script(
        """
import sys, threading, array, headrace
ranks = [None, None]
def open_rank(rank):
    ranks[rank] = headrace.new_comm(rank=rank, size=2, meeting="memory:ends", hints={"backends": "shm"})
threads = [threading.Thread(target=open_rank, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ranks[0].all_reduce(array.array("f", [1]), headrace.ReduceOp.SUM, async_op=True)
threading.Thread(target=lambda: ranks[0].barrier(), daemon=True).start()
print("ends", flush=True)
"""
    )
    assert (code, said) == (0, "ends\n"), errors


# --- opening


@pytest.mark.parametrize(
    ("given", "match", "error"),
    [
        (
            {"backend": "hosts", "rank": 0, "size": 1},
            'there is no backend "hosts": did you mean host?',
            headrace.NotFound,
        ),
        (
            {"device": "cuda:1", "rank": 0, "size": 1},
            "backend host does not move memory of cuda:1: use",
            headrace.NotSupported,
        ),
        ({"rank": 0}, "rank is given and size is not: give both", headrace.InvalidArgument),
        ({"rank": 2, "size": 2}, "rank 2 of size 2: ", headrace.InvalidArgument),
        (
            {"rank": 0, "size": 1, "name": ""},
            "a communicator's name is UTF-8 of 1 to 128",
            headrace.InvalidArgument,
        ),
        ({"rank": 0, "size": 1, "hints": {"lane_byte": 1}}, "lane_bytes", headrace.InvalidArgument),
        ({"rank": 0, "size": 2}, "2 ranks need a place to meet: give `meeting`", headrace.InvalidArgument),
        ({"rank": 0, "size": 2, "meeting": "x", "store": {}}, "give one of them", headrace.InvalidArgument),
        (
            {"rank": 0, "size": 2, "store": {}},
            "which has no method set: give an object like",
            headrace.InvalidArgument,
        ),
    ],
)
def test_options_that_are_wrong_are_named(given, match, error, no_launcher):
    with refuses(match, error):
        headrace.new_comm(**given)


def test_ranks_that_have_not_come_are_named():
    with refuses("waits for ranks that have not come: 1, 2", headrace.TimedOut):
        open_rank(0, 3, unique("comm"), meeting_timeout=0.05)


# --- stores


class Store:
    """The three methods of torch's Store."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: set(keys) <= set(self.values), timeout.total_seconds()):
                raise TimeoutError(f"no value: {keys}")


def test_ranks_meet_in_a_store_of_the_caller():
    store = Store()
    assert on_ranks(3, lambda comm: comm.get_rank(), meeting=None, store=store) == [0, 1, 2]
    assert all(isinstance(value, bytes) for value in store.values.values())


def test_ranks_meet_in_a_store_of_torch():
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    assert on_ranks(2, lambda comm: comm.get_rank(), meeting=None, store=store) == [0, 1]


def test_what_a_store_raises_is_the_cause():
    class Broken(Store):
        def set(self, key, value):
            raise ConnectionError("no route")

    with refuses(r"the store's set raised ConnectionError\('no route'\)", headrace.BackendFailed) as raised:
        open_rank(0, 2, unique("comm"), meeting=None, store=Broken())
    assert isinstance(raised.value.__cause__, ConnectionError)


def test_an_interrupt_in_a_store_is_raised_as_it_is():
    class Interrupted(Store):
        def wait(self, keys, timeout):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_rank(0, 2, unique("comm"), meeting=None, store=Interrupted())


# --- launchers

VARIABLES = (
    "HEADRACE_RANK HEADRACE_SIZE RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PALS_RANKID "
    "PMI_RANK PMI_SIZE SLURM_PROCID SLURM_NTASKS MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE"
).split()


@pytest.fixture
def no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_a_launcher_the_error_lists_what_was_looked_for(no_launcher):
    with refuses("Looked for HEADRACE_RANK and HEADRACE_SIZE; RANK and WORLD_SIZE; OMPI", headrace.NotFound):
        headrace.new_comm()
    no_launcher.setenv("SLURM_PROCID", "1")
    with refuses("the environment has SLURM_PROCID and not SLURM_NTASKS"):
        headrace.new_comm()


def test_a_launcher_gives_rank_and_size(no_launcher):
    no_launcher.setenv("PMI_RANK", "0")
    no_launcher.setenv("PMI_SIZE", "1")
    with headrace.new_comm() as comm:
        assert (comm.get_rank(), comm.get_size()) == (0, 1)


def test_ranks_of_a_launcher_meet_at_its_master():
    [port] = free_ports(1)
    program = (
        "import headrace, array\n"
        "with headrace.new_comm(hints={'backends': 'shm'}) as comm:\n"
        "    mine = array.array('i', [comm.get_rank() + 1])\n"
        "    comm.all_reduce(mine, headrace.ReduceOp.SUM)\n"
        "    print(comm.get_options().meeting, mine[0])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [f"tcp://127.0.0.1:{port} 3\n"] * 2


def test_under_torchrun_ranks_meet_in_its_store(no_launcher):
    torch = pytest.importorskip("torch")
    served = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    no_launcher.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    no_launcher.setenv("MASTER_ADDR", "127.0.0.1")
    no_launcher.setenv("MASTER_PORT", str(served.port))
    assert on_ranks(2, lambda comm: comm.get_rank(), meeting=None) == [0, 1]
