# SPDX-License-Identifier: Apache-2.0
"""Files: registered by path or descriptor, read into memory and written from it."""

import os
import threading

import numpy as np
import pytest

import headrace
from conftest import unique, until

PAGE = 4096


@pytest.fixture
def agent():
    with headrace.Agent(unique("files"), ["posix", "shm"]) as agent:
        yield agent


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(random_bytes(1 << 20).tobytes())
    return path


def random_bytes(size, seed=None):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def by_path(path):
    return headrace.MemoryRange("file", path=str(path))


def test_the_file_backend_is_open_by_default(path):
    with headrace.Agent(unique("default")) as agent:
        posix = next(backend for backend in agent.backends() if backend.name == "posix")
        assert (
            posix.local
            and posix.query
            and not posix.remote
            and not posix.notifications
            and sorted(posix.kinds) == ["dram", "file"]
        )
        file = agent.register(by_path(path))
        assert file.backends == ["posix"] and file.kind == "file" and file.length_bytes == 0
        here = np.zeros(1000, np.uint8)
        agent.register(here)
        request = agent.read(agent.name, [here], [(file.id, 77, 1000)], timeout=30)
        assert request.backend == "posix" and here.tobytes() == path.read_bytes()[77:1077]


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 1000, 10_000])
@pytest.mark.parametrize("size", [1, 13, 512, PAGE])
def test_pages_of_every_size_are_written_to_a_file_and_read_back(agent, tmp_path, count, size):
    (tmp_path / "new").touch()
    file = agent.register(by_path(tmp_path / "new"))
    source, target = random_bytes(count * size), np.zeros(count * size, np.uint8)
    agent.register([source, target])
    order = np.random.default_rng(count).permutation(count)
    local = agent.prepare([source[i * size : (i + 1) * size] for i in range(count)])
    back = agent.prepare([target[i * size : (i + 1) * size] for i in range(count)])
    # The pages touch, or an odd number of bytes lies between them.
    for gap, offset in ((0, 0), (3, 5)):
        there = agent.prepare(headrace.UniformPages(file.id, offset, size + gap, size, count), agent.name)
        write = agent.make_request("write", local, there, np.arange(count), order)
        write.post()
        write.wait(60)
        target[:] = 0
        read = agent.make_request("read", back, there, np.arange(count), order)
        read.post()
        read.wait(60)
        assert (source == target).all()
        written = np.fromfile(tmp_path / "new", np.uint8)
        place = offset + int(order[count // 2]) * (size + gap)
        assert (written[place : place + size] == source.reshape(count, size)[count // 2]).all()


def test_a_large_page_is_moved_correctly(agent, tmp_path):
    (tmp_path / "large").touch()
    file = agent.register(by_path(tmp_path / "large"))
    source, target = random_bytes((32 << 20) + 13), np.zeros((32 << 20) + 13, np.uint8)
    agent.register([source, target])
    agent.write(agent.name, [source], [(file.id, 1, source.size)], timeout=60)
    agent.read(agent.name, [target], [(file.id, 1, source.size)], timeout=60)
    assert (source == target).all() and (tmp_path / "large").stat().st_size == source.size + 1


def test_a_region_of_a_file_with_a_length_is_limited_to_it(agent, path):
    file = agent.register(headrace.MemoryRange("file", length_bytes=PAGE, path=str(path)))
    here = np.zeros(PAGE, np.uint8)
    agent.register(here)
    agent.read(agent.name, [here], [file], timeout=30)
    assert here.tobytes() == path.read_bytes()[:PAGE]
    with pytest.raises(headrace.InvalidArgument, match=f"has {PAGE} bytes"):
        agent.prepare([(file.id, 1, PAGE)], agent.name)


def test_a_read_beyond_the_end_fails_and_names_the_end(agent, path):
    file = agent.register(by_path(path))
    here = np.zeros(2 * PAGE, np.uint8)
    agent.register(here)
    end = 1 << 20
    with pytest.raises(
        headrace.InvalidArgument,
        match=f"at page 1: read {PAGE} bytes at offset {end - 10} of file {path}, which has {end} bytes",
    ) as refused:
        agent.read(
            agent.name,
            [here[:PAGE], here[PAGE:]],
            [(file.id, 0, PAGE), (file.id, end - 10, PAGE)],
            timeout=30,
        )
    assert refused.value.page == 1
    assert here[:PAGE].tobytes() == path.read_bytes()[:PAGE]


def test_a_file_that_is_not_writable_is_read_and_not_written(agent, path):
    here = random_bytes(PAGE)
    agent.register(here)
    before = path.read_bytes()
    by_name = agent.register(by_path(path), writable=False)
    with pytest.raises(headrace.InvalidArgument, match="registered read-only"):
        agent.write(agent.name, [here], [(by_name.id, 0, PAGE)], timeout=30)
    descriptor = os.open(path, os.O_RDONLY)
    open_for_reading = agent.register(headrace.MemoryRange("file", file_descriptor=descriptor))
    os.close(descriptor)
    with pytest.raises(
        headrace.InvalidArgument, match=f"file {path}.*is open for reading only: open it for writing as well"
    ):
        agent.write(agent.name, [here], [(open_for_reading.id, 0, PAGE)], timeout=30)
    assert path.read_bytes() == before
    for file in (by_name, open_for_reading):
        agent.read(agent.name, [here], [(file.id, 9, PAGE)], timeout=30)
        assert here.tobytes() == before[9 : 9 + PAGE]


def test_with_o_direct_aligned_pages_move_and_others_are_refused_with_the_alignment(agent, path):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:
        pytest.skip("the file system has no O_DIRECT")
    file = agent.register(headrace.MemoryRange("file", file_descriptor=descriptor))
    os.close(descriptor)
    memory = agent.allocate(64 * PAGE)
    here = memory.numpy()
    pages = [(file.id, i * PAGE, PAGE) for i in np.random.default_rng(1).permutation(64)]
    local = [(memory.region.id, i * PAGE, PAGE) for i in range(64)]
    agent.read(agent.name, local, pages, timeout=30)
    expected = np.fromfile(path, np.uint8)
    assert all(
        (here[i * PAGE : (i + 1) * PAGE] == expected[at : at + PAGE]).all()
        for i, (_, at, _) in enumerate(pages)
    )
    here[:] = random_bytes(here.size)
    agent.write(agent.name, [(memory.region.id, 0, here.size)], [(file.id, 0, here.size)], timeout=30)
    assert (np.fromfile(path, np.uint8)[: here.size] == here).all()
    try:
        agent.read(agent.name, [(memory.region.id, 1, 100)], [(file.id, 3, 100)], timeout=30)
    except headrace.InvalidArgument as refused:
        assert "O_DIRECT" in str(refused) and "multiple" in str(refused)
    else:
        assert (
            here[1:101] == np.fromfile(path, np.uint8)[3:103]
        ).all()  # some file systems accept any alignment


@pytest.mark.parametrize("said, why", [
    ({"path": "/"}, "is a directory: name a file in it"), ({"path": "/dev/null"}, "not a regular file"),
    ({"path": "/no/such/file"}, "create it first"),
    ({"file_descriptor": 99_999}, "descriptor 99999 is not open"),
])  # fmt: skip
def test_a_path_that_is_no_regular_file_is_refused_at_registration(agent, said, why):
    with pytest.raises(headrace.NotSupported, match=why):
        agent.register(headrace.MemoryRange("file", **said))


def test_files_move_to_and_from_memory_of_their_own_agent_only(agent, path):
    file = agent.register(by_path(path))
    here = np.zeros(PAGE, np.uint8)
    agent.register(here)
    with pytest.raises(headrace.NotSupported, match="posix"):
        agent.read(agent.name, [(file.id, 0, PAGE)], [(file.id, PAGE, PAGE)], timeout=30)
    with headrace.Agent(unique("peer"), ["posix", "shm"]) as peer:
        peer.import_metadata(agent.export_metadata())
        mine = np.zeros(PAGE, np.uint8)
        peer.register(mine)
        with pytest.raises(headrace.NotSupported, match="posix"):
            peer.read(agent.name, [mine], [(file.id, 0, PAGE)], timeout=30)


def test_a_query_returns_size_mode_and_time_of_a_file(agent, path):
    known = agent.query(by_path(path), "posix")
    status = path.stat()
    assert known == {
        "bytes": str(status.st_size),
        "mode": str(status.st_mode),
        "mtime": str(int(status.st_mtime)),
    }
    assert agent.query(by_path(str(path) + "x"), "posix") is None
    descriptor = os.open(path, os.O_RDONLY)
    assert agent.query(headrace.MemoryRange("file", file_descriptor=descriptor), "posix") == known
    os.close(descriptor)
    with pytest.raises(headrace.NotSupported, match="posix keeps files"):
        agent.query(headrace.MemoryRange("object", path="key"), "posix")


def test_a_canceled_request_writes_no_memory_afterwards_and_can_be_posted_again(agent, tmp_path):
    size = 64 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    region = agent.register(by_path(tmp_path / "large"))
    memory, other = agent.allocate(size), agent.allocate(size)
    here = memory.numpy()
    there = agent.prepare([(region.id, 0, size)], agent.name)
    request = agent.make_request("read", agent.prepare([(memory.region.id, 0, size)]), there)
    canceled = []

    def cancel_in_flight():
        request.post()
        request.cancel()
        try:
            request.wait(60)
        except headrace.Canceled:
            here[:] = 7
            # As long as the canceled read would have taken.
            agent.read(agent.name, [(other.region.id, 0, size)], there, timeout=60)
            assert here.min() == 7
            canceled.append(request.state)
        return len(canceled) == 3

    until(cancel_in_flight, 60)
    assert canceled == ["canceled"] * 3
    request.post()
    request.wait(60)
    assert not here.any()


def test_several_threads_use_one_file_at_once(agent, tmp_path):
    threads, size = 8, 64 * PAGE
    (tmp_path / "shared").touch()
    file = agent.register(by_path(tmp_path / "shared"))
    sources = [random_bytes(size, seed) for seed in range(threads)]
    targets = [np.zeros(size, np.uint8) for _ in range(threads)]
    agent.register(sources + targets)
    failures = []

    def work(i):
        try:
            for _ in range(20):
                targets[i][:] = 0
                agent.write(agent.name, [sources[i]], [(file.id, i * size, size)], timeout=60)
                agent.read(agent.name, [targets[i]], [(file.id, i * size, size)], timeout=60)
                assert (sources[i] == targets[i]).all()
        except Exception as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []


def test_a_region_outlives_the_callers_descriptor_and_closes_its_own(agent, path):
    def open_files():
        return sum(
            os.path.realpath(f"/proc/self/fd/{name}") == str(path) for name in os.listdir("/proc/self/fd")
        )

    with open(path, "r+b") as file:
        region = agent.register(headrace.MemoryRange("file", file_descriptor=file.fileno()))
    assert open_files() == 1
    here = np.zeros(PAGE, np.uint8)
    agent.register(here)
    agent.read(agent.name, [here], [(region.id, 0, PAGE)], timeout=30)
    assert here.tobytes() == path.read_bytes()[:PAGE]
    agent.deregister(region)
    assert open_files() == 0
