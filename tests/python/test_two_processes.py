# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Two agents in two processes: bytes, notifications, the death of a peer and its restart."""

import numpy as np
import pytest

import headrace
import peer_process
from conftest import unique, until


@pytest.fixture
def peer_and_agent(backend, start_peer):
    peer = start_peer(unique("peer"))
    with headrace.Agent(unique("here"), [backend], listen="127.0.0.1:0") as agent:
        agent.fetch_metadata(peer.address)
        peer.ask("fetch", address=agent.listen_address)
        yield peer, agent


@pytest.mark.parametrize("theirs", ["allocated", "registered"])
@pytest.mark.parametrize("ours", ["allocated", "registered"])
def test_pages_are_read_from_and_written_to_another_process(peer_and_agent, ours, theirs):
    peer, agent = peer_and_agent
    size = peer_process.REGION_BYTES
    array = agent.allocate(size).numpy() if ours == "allocated" else np.zeros(size, np.uint8)
    if ours == "registered":
        agent.register(array)
    region = agent.peer_region(peer.name, theirs)
    assert region.note == (b"bytes of a peer" if theirs == "registered" else b"")
    rng = np.random.default_rng(9)
    page, count = 1021, 1000  # a prime length, so nothing is aligned
    offsets = rng.permutation(size // page)[:count] * page
    local = agent.prepare(
        np.column_stack(
            [offsets.astype(np.uint64) + np.uint64(array.ctypes.data), np.full(count, page, np.uint64)]
        )
    )
    remote_offsets = rng.permutation(offsets)
    remote = agent.prepare(
        np.column_stack([np.full(count, region.id), remote_offsets, np.full(count, page)]).astype(np.uint64),
        peer=peer.name,
    )
    agent.read(peer.name, local, remote, timeout=60)
    contents = peer_process.contents()
    for here, there in zip(offsets, remote_offsets):
        assert (array[here : here + page] == contents[there : there + page]).all()

    array[:] = rng.integers(0, 256, size, dtype=np.uint8)
    agent.write(peer.name, local, remote, notification=b"written", timeout=60)
    assert peer.ask("take") == {"peer": agent.name, "payload": "written"}
    for here, there in zip(offsets[:20].tolist(), remote_offsets[:20].tolist()):
        assert (
            peer.ask("bytes", region=theirs, begin=there, end=there + page)["bytes"]
            == array[here : here + page].tolist()
        )


def test_notifications_move_both_ways(peer_and_agent):
    peer, agent = peer_and_agent
    for i in range(20):
        agent.notify(peer.name, b"ping %d" % i)
        assert peer.ask("take") == {"peer": agent.name, "payload": f"ping {i}"}
        peer.ask("notify", peer=agent.name, payload=f"pong {i}")
        assert agent.wait_notification(30) == (peer.name, b"pong %d" % i)


def test_a_region_deregistered_by_its_owner_is_not_found(peer_and_agent):
    peer, agent = peer_and_agent
    memory = agent.allocate(4096)
    region = agent.peer_region(peer.name, "registered")
    request = agent.make_request(
        "read", agent.prepare([memory]), agent.prepare([(region.id, 0, 4096)], peer.name)
    )
    request.post()
    request.wait(30)
    peer.ask("deregister", region="registered")
    with pytest.raises(headrace.NotFound, match=peer.name):
        request.post()
        request.wait(30)


def test_a_killed_peer_is_lost_and_its_successor_is_used(backend, start_peer):
    name = unique("mortal")
    with headrace.Agent(unique("here"), [backend]) as agent:
        memory = agent.allocate(peer_process.REGION_BYTES)
        for life in range(3):
            peer = start_peer(name)
            assert agent.fetch_metadata(peer.address).restarted == (life > 0)
            region = agent.peer_region(name, "allocated")
            agent.read(name, [memory], [region], timeout=60)
            assert (memory.numpy() == peer_process.contents()).all()
            request = agent.make_request(
                "read", agent.prepare([memory]), agent.prepare([region], name), timeout=30
            )
            memory.numpy()[:] = 0
            peer.stop()
            request.post()
            if backend == "shm":  # the memory is mapped, so a dead owner's bytes are still read
                peer.kill()
                try:
                    request.wait(60)
                    assert (memory.numpy() == peer_process.contents()).all()
                except headrace.PeerLost as error:
                    assert name in str(error)
            else:
                assert request.poll() == "posted"
                peer.kill()
                with pytest.raises(headrace.PeerLost, match=name):
                    request.wait(60)
            until(lambda: agent.peers()[0].lost)
            with pytest.raises(headrace.PeerLost, match=name):
                request.post()
                request.wait(60)


@pytest.mark.parametrize("backend", ["shm"], indirect=True)
def test_a_mapping_shows_the_bytes_that_the_other_process_writes(start_peer, backend):
    peer = start_peer(unique("peer"))
    with headrace.Agent(unique("here"), ["shm"]) as agent:
        agent.fetch_metadata(peer.address)
        mapping = agent.map(peer.name, agent.peer_region(peer.name, "allocated"))
        assert (mapping.numpy() == peer_process.contents()).all()
        peer.ask("fill", region="allocated", value=3)
        assert (mapping.numpy() == 3).all()
        peer.kill()
        until(lambda: not mapping.alive)
        assert (mapping.numpy() == 3).all()
