# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Peers that were never introduced to one another find each other in a real etcd."""

import contextlib
import json
import urllib.request

import numpy as np
import pytest

import headrace
import peer_process
from conftest import free_ports, unique, until


@pytest.fixture
def store(etcd):
    return f"etcd://{etcd}/{unique('tests')}"


@pytest.fixture
def two(backend, store):
    with (
        headrace.Agent(unique("left"), [backend], store=store) as left,
        headrace.Agent(unique("right"), [backend], store=store) as right,
    ):
        yield left, right


def watched(agent):
    """The events that the agent reports from now on."""
    events = []
    agent.watch_namespace(lambda event, peer: events.append((event, peer)))
    return events


def test_an_unknown_peer_is_listed_watched_reached_and_forgotten(two, store):
    left, right = two
    events = watched(left)
    data = np.random.default_rng().integers(0, 256, 100_003, dtype=np.uint8)
    right.register(data, name="weights", note=b"uint8")
    right.publish()
    until(lambda: ("joined", right.name) in events)
    assert left.list_namespace() == [right.name]
    assert [(peer.name, peer.incarnation, peer.regions) for peer in headrace.list_namespace(store)] == [
        (right.name, right.incarnation, 1)
    ]
    assert left.find(right.name).regions == 1

    here = np.zeros(data.size, np.uint8)
    left.register(here)
    there = left.peer_region(right.name, "weights")
    left.read(right.name, [here[1:]], [(there.id, 1, data.size - 1)], timeout=60)
    assert here[0] == 0 and (here[1:] == data[1:]).all()

    left.forget(right.name)
    assert left.peers() == []
    assert left.find(right.name).regions == 1
    left.read(right.name, [here], [there], timeout=60)
    assert (here == data).all()


def test_later_regions_are_published_again_and_deregistered_ones_disappear(two):
    left, right = two
    events = watched(left)
    right.publish()
    until(lambda: ("joined", right.name) in events)
    assert left.find(right.name).regions == 0
    region = right.register(bytearray(777), name="later")
    until(lambda: ("updated", right.name) in events)
    until(lambda: left.find(right.name).regions == 1)
    right.deregister(region)
    until(lambda: left.find(right.name).regions == 0)
    right.unpublish()
    until(lambda: ("left", right.name) in events)
    assert left.list_namespace() == []
    left.watch_namespace(None)


def test_partial_metadata_is_published_and_found_under_labels(two):
    left, right = two
    regions = right.register([bytearray(10) for _ in range(3)], name="layer")
    right.publish([regions[0]], label="first")
    right.publish([regions[2]], connection_info=False, label="third")
    with pytest.raises(headrace.NotFound, match=right.name):
        left.find(right.name, timeout=5)  # nothing is published without a label
    left.find(right.name, label="first")
    assert [region.name for region in left.peer_regions(right.name)] == ["layer/0"]
    left.find(right.name, label="third")
    assert sorted(region.name for region in left.peer_regions(right.name)) == ["layer/0", "layer/2"]


def test_a_killed_peer_leaves_the_namespace_when_its_lease_ends(backend, store, start_peer, monkeypatch):
    monkeypatch.setenv("HEADRACE_STORE", store)
    monkeypatch.setenv("HEADRACE_STORE_TTL", "2s")
    with headrace.Agent(unique("here"), [backend]) as agent:  # the store is named by the environment
        events = watched(agent)
        peer = start_peer(unique("mortal"))
        peer.ask("publish")
        until(lambda: ("joined", peer.name) in events)
        agent.find(peer.name)
        memory = agent.allocate(peer_process.REGION_BYTES)
        agent.read(peer.name, [memory], [agent.peer_region(peer.name, "registered")], timeout=60)
        assert (memory.numpy() == peer_process.contents()).all()
        peer.kill()
        until(lambda: ("left", peer.name) in events)
        assert agent.list_namespace() == []
        with pytest.raises(headrace.NotFound, match=peer.name):
            agent.find(peer.name, timeout=5)


def counted(etcd):
    """Watches and leases that etcd has now."""
    with urllib.request.urlopen(f"http://{etcd}/metrics", timeout=10) as answer:
        metrics = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    leases = urllib.request.Request(f"http://{etcd}/v3/lease/leases", b"{}")
    with urllib.request.urlopen(leases, timeout=10) as answer:
        return int(metrics["etcd_debugging_mvcc_watcher_total"]), len(json.load(answer).get("leases", []))


def test_the_agents_of_a_process_share_a_watch_and_a_lease(backend, store, etcd):
    watches, leases = counted(etcd)
    with contextlib.ExitStack() as agents:
        crowd = [agents.enter_context(headrace.Agent(unique("a"), [backend], store=store)) for _ in range(12)]
        events = [watched(agent) for agent in crowd]
        for agent in crowd:
            agent.publish()
        everybody = {("joined", agent.name) for agent in crowd}
        until(lambda: all(everybody <= set(heard) for heard in events))
        assert counted(etcd) == (watches + 1, leases + 1)
        crowd[0].close()
        until(lambda: all(("left", crowd[0].name) in heard for heard in events[1:]))
        assert crowd[1].list_namespace() == sorted(agent.name for agent in crowd[1:])
    until(lambda: counted(etcd) == (watches, leases))


def test_an_etcd_that_is_not_there_is_named(backend):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with headrace.Agent(unique("a"), [backend], store=f"etcd://{address}") as agent:
        for call in (
            agent.publish,
            lambda: agent.find("x", timeout=2),
            lambda: agent.list_namespace(timeout=2),
        ):
            with pytest.raises(headrace.Error, match=address) as caught:
                call()
            assert caught.value.code in ("peer_lost", "timed_out", "backend_failed")
