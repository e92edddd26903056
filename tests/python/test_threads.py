# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Many threads on one agent, and memory that does not grow."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import headrace
from conftest import introduce, unique, until
from sleeping import sleeps_in_epoll

THREADS = 8


def test_eight_threads_use_one_agent_at_once(pair):
    left, right = pair
    size = 64 * 1024
    there = right.allocate(THREADS * size, name="there")
    there.numpy()[:] = np.random.default_rng(8).integers(0, 256, THREADS * size, dtype=np.uint8)
    left.import_metadata(right.export_metadata())
    region = left.peer_region(right.name, "there")
    begin = threading.Barrier(THREADS)

    def work(number):
        begin.wait()
        for i in range(15):
            memory = left.allocate(size, name=f"{number}/{i}")
            pages = left.prepare(headrace.UniformPages(memory, 0, 0, 1024, 64))
            far = left.prepare(headrace.UniformPages(region, number * size, 0, 1024, 64), peer=right.name)
            order = np.random.default_rng(i).permutation(64)
            request = left.make_request("read", pages, far, order, order)
            request.post(notification=b"%d" % number)
            request.wait(60)
            assert (memory.numpy() == there.numpy()[number * size : (number + 1) * size]).all()
            assert right.wait_notification(60, prefix=b"%d" % number) == (left.name, b"%d" % number)
            left.peers()
            left.telemetry()
            left.deregister(memory)

    with ThreadPoolExecutor(THREADS) as pool:
        for result in [pool.submit(work, number) for number in range(THREADS)]:
            result.result()
    assert left.regions() == []


def test_regions_are_registered_and_deregistered_while_other_threads_post(pair):
    left, right = pair
    rng = np.random.default_rng()
    source = rng.integers(0, 256, 200_003, dtype=np.uint8)
    right.register(source, name="stays")
    left.import_metadata(right.export_metadata())
    region = left.peer_region(right.name, "stays")
    done = threading.Event()

    def come_and_go():
        known = right.metadata_version
        while not done.is_set():
            passing = right.register([bytearray(100) for _ in range(7)])
            known = left.import_metadata(right.export_metadata(since_version=known)).version
            left.read(right.name, [scratch], [(passing[3].id, 0, 100)], timeout=60)
            right.deregister(passing)

    def transfer():
        for _ in range(20):
            here = np.zeros_like(source)
            mine = left.register(here)
            left.read(right.name, [here[1:]], [(region.id, 1, source.size - 1)], timeout=60)
            assert (here[1:] == source[1:]).all()
            left.deregister(mine)

    scratch = np.zeros(100, np.uint8)
    left.register(scratch)
    with ThreadPoolExecutor(4) as pool:
        churn = pool.submit(come_and_go)
        transfers = [pool.submit(transfer) for _ in range(3)]
        try:
            for result in transfers:
                result.result()
        finally:
            done.set()
        churn.result()
    left.import_metadata(right.export_metadata())
    assert [known.name for known in left.peer_regions(right.name)] == ["stays"]


def test_a_wait_lets_other_threads_run(agent):
    got = []
    thread = threading.Thread(target=lambda: got.append(agent.wait_notification(60)))
    thread.start()
    until(lambda: sleeps_in_epoll(thread.native_id))
    agent.notify(agent.name, b"from another thread")
    thread.join()
    assert got == [(agent.name, b"from another thread")]


CLOSES_WHILE_OTHERS_READ = """
import sys, threading, time, headrace
for _ in range(20):
    left, right = (headrace.Agent(name, [sys.argv[1]]) for name in ("left", "right"))
    there = right.allocate(1 << 22, name="there")
    left.import_metadata(right.export_metadata()); right.import_metadata(left.export_metadata())
    rounds, errors = [0] * 4, []
    here = [left.allocate(1 << 22) for _ in range(4)]
    def read(number):
        try:
            while True:
                left.read("right", [here[number]], [left.peer_region("right", "there")])
                rounds[number] += 1
        except (headrace.Canceled, headrace.PeerLost, headrace.InvalidArgument) as error:
            errors.append(error)
        except headrace.NotSupported as error:  # a path is sought when both agents are closed
            assert "has ended" in str(error), error
            errors.append(error)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    while min(rounds) == 0: time.sleep(0.001)
    left.close(); right.close()
    for thread in threads: thread.join()
    assert len(errors) == 4, errors
print("ended")
"""


def test_closing_an_agent_ends_the_reads_of_other_threads(run_script, backend, monkeypatch):
    monkeypatch.setenv("HEADRACE_LOG", "error")
    monkeypatch.setenv("MALLOC_PERTURB_", "165")  # what is freed does not stay as it was
    assert run_script(CLOSES_WHILE_OTHERS_READ, backend) == (0, "ended\n", "")


@pytest.mark.parametrize("pause", [0, 0.001, 0.02])
def test_every_call_on_another_thread_ends_when_the_agent_is_closed(backend, pause):
    left, right = (headrace.Agent(unique(name), [backend]) for name in ("left", "right"))
    here, theirs = left.allocate(1 << 16, name="here"), right.allocate(1 << 16, name="there")
    left.import_metadata(right.export_metadata())
    right.import_metadata(left.export_metadata())
    there = left.peer_region(right.name, "there")
    assert there.length_bytes == len(theirs.numpy())
    requests = []
    for begin in (0, 1 << 15):  # each with memory of its own
        pages = left.prepare(headrace.UniformPages(here, begin, 0, 1024, 32))
        far = left.prepare(headrace.UniformPages(there, begin, 0, 1024, 32), peer=right.name)
        requests.append(left.make_request("read", pages, far))
    name = right.name

    def post_and_wait():
        requests[0].post()
        requests[0].wait(60)

    def post_and_poll():
        requests[1].post()
        while not requests[1].done:
            requests[1].poll()
        if requests[1].error:
            raise requests[1].error

    def register():
        left.deregister(left.register(bytearray(100)), timeout=60)

    def map_region():
        try:
            left.map(name, there, timeout=60)
        except headrace.NotSupported:  # tcp
            left.connect(name, timeout=60)

    def notify():
        try:
            left.notify(name, b"hello")
        except headrace.WouldBlock:
            pass
        right.take_notifications()

    def wait():
        left.wait_notification()

    errors, begun = {}, threading.Barrier(7)

    def repeat(call):
        begun.wait()
        try:
            while True:
                call()
        except (headrace.Canceled, headrace.InvalidArgument) as error:
            errors[call.__name__] = error

    calls = (post_and_wait, post_and_poll, register, map_region, notify, wait)
    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(pause)
    left.close()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert set(errors) == {call.__name__ for call in calls}
    right.close()


def test_a_deregistration_that_waits_ends_when_the_agent_is_closed():
    left, right = (
        headrace.Agent(unique(name), ["fake"], options={"fake.faults": "drop"}) for name in ("left", "right")
    )
    here, _ = left.allocate(4096), right.allocate(4096, name="there")
    left.import_metadata(right.export_metadata())
    there = left.peer_region(right.name, "there")
    pages = left.prepare(headrace.UniformPages(here, 0, 0, 4096, 1))
    request = left.make_request(
        "read", pages, left.prepare(headrace.UniformPages(there, 0, 0, 4096, 1), peer=right.name)
    )
    left.connect(right.name)  # a post that waits for its link would end as the region goes
    request.post()  # its end does not come
    errors = []

    def deregister():
        try:
            left.deregister(here, timeout=None)
        except headrace.Error as error:
            errors.append(error)

    thread = threading.Thread(target=deregister, daemon=True)
    thread.start()
    until(lambda: sleeps_in_epoll(thread.native_id))
    left.close()
    thread.join(20)
    assert len(errors) == 1 and isinstance(errors[0], headrace.Canceled)
    with pytest.raises(headrace.Canceled):
        request.wait(20)
    right.close()


def resident_bytes():
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def test_memory_does_not_grow_with_use(pair):
    left, right = pair
    right.register(bytearray(1 << 16), name="there")
    left.import_metadata(right.export_metadata())
    region = left.peer_region(right.name, "there")
    table = np.array([(region.id, i * 64, 64) for i in range(1000)], np.uint64)
    calls = []

    def use():
        array = np.zeros(1 << 16, np.uint8)
        ours = left.register(array, note=bytes(1000))
        pages = left.prepare([(ours.id, i * 64, 64) for i in range(1000)])
        far = left.prepare(table, peer=right.name)
        request = left.make_request("read", pages, far, range(1000), None)
        request.on_done(lambda error: calls.append((error, request)))
        request.post(notification=bytes(100))
        request.wait(60)
        right.wait_notification(60)
        try:
            left.prepare([(99, 0, 1)], peer=right.name)
        except headrace.NotFound:
            pass
        left.deregister(ours)
        calls.clear()

    def use_often(rounds):
        for i in range(rounds):
            use()
            if i % 50 == 0:
                gc.collect()  # a request and its callback are a cycle, which only the collector frees

    use_often(200)
    before = resident_bytes()
    use_often(400)
    grown = resident_bytes() - before
    assert grown < 4 << 20, f"{grown} bytes more after 400 rounds"


def test_closed_agents_leave_no_descriptor_no_thread_and_no_memory(backend):
    def use():
        with (
            headrace.Agent(unique("left"), [backend]) as left,
            headrace.Agent(unique("right"), [backend]) as right,
        ):
            there = right.allocate(4096, name="there")
            introduce(left, right)
            here = left.allocate(4096)
            left.read(right.name, [here], [left.peer_region(right.name, "there")], timeout=60)
            del there

    for _ in range(5):
        use()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    before = resident_bytes()
    for _ in range(20):
        use()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    assert len(list(Path("/proc/self/task").iterdir())) <= threads
    assert resident_bytes() - before < 8 << 20
