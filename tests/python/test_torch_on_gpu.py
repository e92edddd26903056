# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Groups in Python on a GPU, as far as no GPU is needed: stand-ins for tensors and streams write down what
they are asked for."""

import importlib.util
import threading
import types

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Stream:
    def __init__(self, name, lines):
        self.name, self.lines = name, lines

    def record_event(self):
        self.lines.append(f"{self.name}: mark")
        return f"mark of {self.name}"

    def wait_event(self, event):
        self.lines.append(f"{self.name}: waits for the {event}")


class Streams:
    """The streams of a GPU, of which one is the current one."""

    def __init__(self, monkeypatch):
        import torch

        self.lines, self.device = [], torch.device("cuda:0")
        self.current = self.stream("one")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)

    def stream(self, name):
        return Stream(name, self.lines)


class GpuTensor:
    """A tensor on the GPU of some streams."""

    is_cuda, dtype = True, "float32"

    def __init__(self, name, streams):
        self.name, self.streams, self.device = name, streams, streams.device

    def numel(self):
        return 4

    def detach(self):
        return self

    def view(self, *_):
        return self

    def clone(self):
        self.streams.lines.append(f"{self.streams.current.name}: copies {self.name}")
        return GpuTensor(f"copy of {self.name}", self.streams)

    def copy_(self, other):
        self.streams.lines.append(f"{self.streams.current.name}: copies {other.name} to {self.name}")

    def record_stream(self, stream):
        self.streams.lines.append(f"{self.name} stays for {stream.name}")


def messages():
    from headrace._torch.to_itself import ToItself

    return ToItself(3)


def test_a_send_writes_to_its_receiver_when_the_receivers_stream_has_come_so_far(monkeypatch):
    streams = Streams(monkeypatch)
    itself, sent, got = messages(), GpuTensor("sent", streams), GpuTensor("got", streams)
    received = itself.recv(got)
    streams.current = streams.stream("two")
    itself.send(sent)
    assert streams.lines[:3] == [
        "one: mark",
        "two: waits for the mark of one",
        "two: copies sent to got",
    ]
    assert {"got stays for two", "sent stays for two"} < set(streams.lines)
    streams.current = streams.stream("three")
    received.wait()
    assert streams.lines[-1] == "three: waits for the mark of two"


def test_what_a_send_has_kept_stays_until_the_receivers_stream_has_read_it(monkeypatch):
    streams = Streams(monkeypatch)
    itself, sent, got = messages(), GpuTensor("sent", streams), GpuTensor("got", streams)
    itself.send(sent)
    assert streams.lines[0] == "one: copies sent"
    streams.lines.clear()
    streams.current = streams.stream("two")
    itself.recv(got)
    assert streams.lines[:2] == ["two: waits for the mark of one", "two: copies copy of sent to got"]
    assert {"got stays for two", "copy of sent stays for two"} < set(streams.lines)


def test_outputs_with_gaps_stay_until_they_are_copied(monkeypatch):
    """Their owner may drop them, and wait for the future of the work alone."""
    from headrace._torch.work import GroupWork

    streams = Streams(monkeypatch)
    output, memory = GpuTensor("output", streams), GpuTensor("memory", streams)
    work = GroupWork((), [], [(output, memory)])
    streams.current = streams.stream("two")
    work.wait()
    assert streams.lines[0] == "two: copies memory to output"
    assert {"output stays for two", "memory stays for two"} < set(streams.lines)
    streams.current = streams.stream("three")
    work.wait()
    assert streams.lines[-1] == "three: waits for the mark of two"


class Work:
    """A headrace.Work that says what it is asked for."""

    def __init__(self, lines):
        self.lines = lines

    def wait_on(self, stream):
        self.lines.append(f"wait_on {stream}")

    def wait_blocking(self, timeout):
        self.lines.append(f"wait_blocking {timeout}")


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, ["wait_on 7", "wait_blocking 2.0"]),
        ("0", ["wait_on 7", "wait_blocking 2.0"]),
        ("1", ["wait_blocking None", "wait_blocking 2.0"]),
        ("true", ["wait_blocking None", "wait_blocking 2.0"]),
    ],
)
def test_works_wait_on_the_host_where_torchs_variable_asks_for_it(monkeypatch, value, expected):
    import torch

    from headrace._torch.on_gpu import GpuWork, OnGpu, waits_on_host

    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", value)
    lines = []
    on_gpu = OnGpu(None, torch.device("cuda:0"), waits_on_host=waits_on_host())
    monkeypatch.setattr(on_gpu, "current_stream", lambda: 7)
    work = GpuWork(Work(lines), on_gpu)
    work.wait()
    work.wait(2.0)
    assert lines == expected


# --- batches


class Group:
    """A group in Python, whose operations are written down."""

    def __init__(self):
        self.lines = []

    def as_one(self, device):
        from headrace._torch.operations import Operations

        return Operations.as_one(self, device)

    def _start_coalescing(self, device):
        self.lines.append(f"start {device}")

    def _end_coalescing(self, device):
        self.lines.append("end")
        return "the work"

    def _drop_coalesced(self):
        self.lines.append("drop")


def messages_of(group, *, on_gpu=True):
    import torch
    import torch.distributed as dist

    message = object.__new__(dist.P2POp)
    message.group = group
    message.tensor = types.SimpleNamespace(is_cuda=on_gpu, device=torch.device("cuda:0"))
    return [message, message]


def test_a_batch_of_messages_on_a_gpu_begins_as_one():
    from headrace._torch.batches import _begins_together

    group = Group()
    batch = _begins_together(lambda operations: group.lines.append(len(operations)))
    assert batch(messages_of(group)) == ["the work"]
    assert group.lines == ["start cuda:0", 2, "end"]


def test_nothing_of_a_batch_begins_that_an_exception_leaves():
    from headrace._torch.batches import _begins_together

    group = Group()

    def refuse(operations):
        raise ValueError("no such rank")

    with pytest.raises(ValueError, match="no such rank"):
        _begins_together(refuse)(messages_of(group))
    assert group.lines == ["start cuda:0", "drop"]


def test_other_batches_are_torchs():
    import torch.distributed as dist

    from headrace._torch import batches

    group, of_torch = Group(), types.SimpleNamespace()
    for operations in (messages_of(group, on_gpu=False), messages_of(of_torch), [], "no list"):
        assert batches._begins_together(lambda given: given)(operations) is operations
    assert group.lines == []
    before = dist.batch_isend_irecv
    try:
        batches.install()
        once = dist.batch_isend_irecv
        batches.install()
        assert once is dist.batch_isend_irecv is dist.distributed_c10d.batch_isend_irecv
        with pytest.raises(IndexError):  # torch's own
            dist.batch_isend_irecv([])
    finally:
        dist.batch_isend_irecv = dist.distributed_c10d.batch_isend_irecv = before


# --- symmetric tensors


@pytest.fixture
def group():
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    from headrace._torch.group import HeadraceProcessGroup

    made = HeadraceProcessGroup(dist.HashStore(), 0, 1, name="of symmetric tensors")
    c10d._register_process_group("of symmetric tensors", made)
    yield made
    c10d._unregister_process_group("of symmetric tensors")
    made.shutdown()


def test_symmetric_tensors_of_gpus_meet_at_the_store_of_a_group_in_python(group):
    from torch._C import _distributed_c10d as c10d

    from headrace._torch import symmetric

    seen = []

    def torchs(tensor, name):
        """As torch's C++ does: it resolves the name, and uses the store of what it finds."""
        found = c10d._resolve_process_group(name)
        found.get_group_store().set("a key", "a value")
        seen.append((type(found), found.rank(), found.size()))
        if tensor.fails:
            raise RuntimeError("no memory")

    symmetric.add(group)
    rendezvous = symmetric._rendezvous_by(torchs)
    name = group.group_name
    rendezvous(types.SimpleNamespace(is_cuda=True, fails=False), name)
    with pytest.raises(RuntimeError, match="no memory"):
        rendezvous(types.SimpleNamespace(is_cuda=True, fails=True), name)
    assert seen == [(c10d.ProcessGroup, 0, 1)] * 2
    assert group.get_group_store().get("symmetric/a key") == b"a value"
    assert c10d._resolve_process_group(name) is group
    rendezvous(types.SimpleNamespace(is_cuda=False, fails=False), name)
    assert seen[2][0] is type(group)  # the CPU's allocator asks the group for its communicator


def test_a_group_is_made_while_a_rendezvous_waits_for_another_rank(group):
    from headrace._torch import symmetric

    def torchs(tensor, name):
        made = threading.Thread(target=symmetric.add, args=(group,), daemon=True)
        made.start()
        made.join(60)
        assert not made.is_alive()

    symmetric.add(group)
    symmetric._rendezvous_by(torchs)(types.SimpleNamespace(is_cuda=True), group.group_name)


def test_torchs_own_rendezvous_goes_this_way_once(group):
    import torch
    from torch._C import _distributed_c10d as c10d

    from headrace._torch import symmetric

    symmetric.add(group)
    ours = c10d._SymmetricMemory.rendezvous
    assert ours.__qualname__.startswith("_rendezvous_by")
    symmetric.add(group)
    assert c10d._SymmetricMemory.rendezvous is ours
    with pytest.raises(RuntimeError):  # torch's own: it is no symmetric tensor
        ours(torch.ones(1), group.group_name)
