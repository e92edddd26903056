# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Large reads of a peer's registered memory over shm: the owner copies them into a ring, and attach takes
over if the owner does not."""

import os

import numpy as np
import pytest

import headrace
import peer_process
from conftest import unique, until

PAGE, COUNT = 1021, 1000  # a prime length, so nothing is aligned


@pytest.fixture
def backend():
    return "shm"


@pytest.fixture(autouse=True)
def all_reads_are_large(monkeypatch):
    monkeypatch.setenv("HEADRACE_SHM_RELAY_BYTES", "0")
    monkeypatch.setenv("HEADRACE_SHM_INLINE_BYTES", "0")


@pytest.fixture
def lanes():
    """The log lines about lanes."""
    said = []
    headrace.set_log_sink(lambda level, room, text: said.append(text) if "lane" in text else None)
    headrace.set_log_level("debug")
    yield said
    headrace.set_log_level("warn")
    headrace.set_log_sink(None)


@pytest.fixture
def peer(start_peer):
    return start_peer(unique("peer"))


@pytest.fixture
def agent(peer):
    with headrace.Agent(unique("here"), ["shm"]) as agent:
        agent.fetch_metadata(peer.address)
        yield agent


def read_pages(agent, peer, region_name="registered", seed=9, timeout=60):
    """Reads random pages of a peer's region and compares them with the bytes that the peer put there."""
    size = peer_process.REGION_BYTES
    rng = np.random.default_rng(seed)
    array = np.zeros(size, np.uint8)
    agent.register(array)
    here, there = (rng.permutation(size // PAGE)[:COUNT] * PAGE for _ in range(2))
    region = agent.peer_region(peer.name, region_name)
    local = agent.prepare(
        np.column_stack(
            [here.astype(np.uint64) + np.uint64(array.ctypes.data), np.full(COUNT, PAGE, np.uint64)]
        )
    )
    remote = agent.prepare(
        np.column_stack([np.full(COUNT, region.id), there, np.full(COUNT, PAGE)]).astype(np.uint64),
        peer=peer.name,
    )
    agent.read(peer.name, local, remote, timeout=timeout)
    expected = np.zeros(size, np.uint8)
    contents = peer_process.contents()
    for to, begin in zip(here, there):
        expected[to : to + PAGE] = contents[begin : begin + PAGE]
    assert (array == expected).all()


def test_the_owner_copies_pages_into_a_lane(lanes, agent, peer):
    for seed in range(20):
        read_pages(agent, peer, seed=seed)
    until(lambda: any(peer.name in text for text in lanes))


def test_a_stopped_owner_does_not_stop_reads(agent, peer):
    read_pages(agent, peer)
    peer.stop()
    try:
        for seed in range(5):
            read_pages(agent, peer, seed=seed, timeout=30)
    finally:
        peer.resume()
    for seed in range(5):
        read_pages(agent, peer, seed=seed)


def test_memory_of_a_mapped_file_is_read_by_attach(agent, peer, tmp_path):
    """The owner must not touch this memory: if another process truncates the file, the access ends the
    owner."""
    path = tmp_path / "weights"
    path.write_bytes(peer_process.contents().tobytes())
    peer.ask("map_file", path=str(path))
    agent.fetch_metadata(peer.address)
    for seed in range(3):
        read_pages(agent, peer, "file", seed)
    os.truncate(path, 0)
    with pytest.raises(headrace.Error, match="cross-memory attach"):
        read_pages(agent, peer, "file")
    read_pages(agent, peer)  # the owner is alive


def test_a_killed_owner_is_lost(agent, peer):
    read_pages(agent, peer)
    peer.kill()
    with pytest.raises(headrace.PeerLost, match=peer.name):
        read_pages(agent, peer)
