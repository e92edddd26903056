# SPDX-License-Identifier: Apache-2.0
"""Metadata: complete, partial, and as updates; passed by hand, by socket and by store; and damaged
metadata."""

import socket

import numpy as np
import pytest

import headrace
from conftest import introduce, unique, until


def names(agent, peer):
    return sorted(region.name for region in agent.peer_regions(peer))


def test_an_import_reports_its_effect(pair):
    left, right = pair
    right.register(bytearray(100), name="x", note=b"note")
    report = left.import_metadata(right.export_metadata())
    assert (report.peer, report.incarnation, report.regions, report.restarted) == (
        right.name,
        right.incarnation,
        1,
        False,
    )
    assert report.version == right.metadata_version
    region = left.peer_region(right.name, "x")
    ours = right.regions()[0]
    assert (region.id, region.address, region.length_bytes, region.kind, region.note) == (
        ours.id,
        ours.address,
        100,
        "dram",
        b"note",
    )
    peer = left.peers()[0]
    assert (peer.name, peer.incarnation, peer.regions, peer.lost) == (right.name, right.incarnation, 1, False)
    assert peer.backends == [left.backends()[0].name]


def test_partial_metadata_follows_the_connection_information_in_any_order(backend):
    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend]) as right,
    ):
        regions = right.register([bytearray(10) for _ in range(3)], name="r")
        left.import_metadata(right.export_metadata(regions=[]))
        assert left.peer_regions(right.name) == []
        left.import_metadata(right.export_metadata(regions=[regions[2]], connection_info=False))
        left.import_metadata(right.export_metadata(regions=[regions[0].id], connection_info=False))
        assert names(left, right.name) == ["r/0", "r/2"]
        with pytest.raises(headrace.NotFound, match="no region 99 to export"):
            right.export_metadata(regions=[99])


def test_an_update_holds_the_changes_since_a_version(pair):
    left, right = pair
    old = right.register(bytearray(10), name="old")
    left.import_metadata(right.export_metadata())
    version = right.metadata_version
    right.register(bytearray(10), name="new")
    update = right.export_metadata(since_version=version)
    assert len(update) < len(right.export_metadata())
    left.import_metadata(update)
    assert names(left, right.name) == ["new", "old"]
    right.deregister(old)
    left.import_metadata(right.export_metadata(since_version=version))
    assert names(left, right.name) == ["new"]
    with pytest.raises(headrace.InvalidArgument, match="still to come"):
        right.export_metadata(since_version=right.metadata_version + 1)


def test_an_update_keeps_lists_and_requests_usable_and_brings_new_regions(pair):
    left, right = pair
    rng = np.random.default_rng()
    arrays = [rng.integers(0, 256, 3001 + i, dtype=np.uint8) for i in range(6)]
    here = left.allocate(4096)
    right.register(arrays[0], name="0")
    left.import_metadata(right.export_metadata())
    first = left.prepare([left.peer_region(right.name, "0")], peer=right.name)
    request = left.make_request("read", left.prepare([(here.region.id, 5, 3001)]), first)
    for i, array in list(enumerate(arrays))[1:]:
        version = right.metadata_version
        right.register(array, name=str(i))
        report = left.import_metadata(right.export_metadata(since_version=version, connection_info=False))
        assert (report.regions, report.version, report.restarted) == (i + 1, right.metadata_version, False)
        left.read(
            right.name, [(here.region.id, 1, array.size)], [left.peer_region(right.name, str(i))], timeout=30
        )
        assert (here.numpy()[1 : 1 + array.size] == array).all()
        request.post()
        request.wait(30)
        assert (here.numpy()[5 : 5 + 3001] == arrays[0]).all()


def test_unknown_names_are_not_found(pair):
    left, right = pair
    for call, name in (
        (lambda: left.peer_regions("nobody"), "nobody"),
        (lambda: left.peer_region("nobody", "x"), "nobody"),
        (lambda: left.peer_region(right.name, "no_region"), "no_region"),
        (lambda: left.connect("nobody", 1), "nobody"),
        (lambda: left.forget("nobody"), "nobody"),
    ):
        with pytest.raises(headrace.NotFound, match=name):
            call()


def test_damaged_metadata_is_refused_or_harmless(pair):
    left, right = pair
    right.register([bytearray(10) for _ in range(20)], name="region", note=b"note")
    good = right.export_metadata()
    rng = np.random.default_rng(5)
    for cut in (0, 1, 5, len(good) // 2, len(good) - 1):
        with pytest.raises(
            headrace.Corrupt, match=r"metadata is corrupt at offset \d+: .*(needs|should have)"
        ):
            left.import_metadata(good[:cut])
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        try:
            left.import_metadata(bad)
        except headrace.Error as error:
            refused += 1
            assert error.code in ("corrupt", "invalid_argument", "not_supported", "not_found"), error
    assert refused > 250
    left.import_metadata(good)
    assert len(names(left, right.name)) == 20
    with pytest.raises(headrace.InvalidArgument, match="this metadata is of this agent itself"):
        left.import_metadata(left.export_metadata())
    with pytest.raises(TypeError, match="the metadata must be bytes"):
        left.import_metadata("text")


def test_a_forgotten_peer_is_unknown_until_its_metadata_is_imported_again(pair):
    left, right = pair
    left.connect(right.name, 30)
    assert left.peers()[0].connected
    left.forget(right.name)
    assert left.peers() == []
    with pytest.raises(headrace.NotFound, match=f"peer {right.name} is unknown"):
        left.notify(right.name, b"")
    introduce(left, right)
    left.notify(right.name, b"again")
    assert right.wait_notification(30) == (left.name, b"again")


def test_a_peer_that_restarts_under_its_name_is_recognized(backend):
    with headrace.Agent(unique("left"), [backend]) as left:
        name = unique("right")
        here = left.allocate(4096)
        lists = []
        for life in range(2):
            with headrace.Agent(name, [backend]) as right:
                memory = right.allocate(4096, name="r")
                memory.numpy()[:] = life + 1
                report = left.import_metadata(right.export_metadata())
                assert report.restarted == (life == 1)
                lists.append(left.prepare([left.peer_region(name, "r")], peer=name))
                left.read(name, [here], lists[-1], timeout=30)
                assert (here.numpy() == life + 1).all()
                if life == 1:
                    with pytest.raises(headrace.PeerLost, match=name):
                        left.read(name, [here], lists[0], timeout=30)


def test_metadata_is_fetched_and_sent_by_socket(backend):
    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend], listen="127.0.0.1:0") as right,
    ):
        right.register(bytearray(10), name="r")
        host, port = right.listen_address.rsplit(":", 1)
        assert host == "127.0.0.1" and int(port) > 0 and left.listen_address == ""
        assert left.fetch_metadata(right.listen_address).peer == right.name
        assert left.fetch_metadata(f"localhost:{port}", timeout=30).regions == 1
        left.register(bytearray(10), name="l")
        left.send_metadata(right.listen_address)
        until(lambda: right.peers())
        assert names(right, left.name) == ["l"]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_agents_listen_and_are_reached_by_ipv4_ipv6_and_host_name(backend, host):
    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend], listen=f"{host}:0") as right,
    ):
        data = np.random.default_rng().integers(0, 256, 4099, dtype=np.uint8)
        here = np.zeros_like(data)
        right.register(data, name="r")
        left.register(here)
        port = right.listen_address.rsplit(":", 1)[1]
        assert int(port) > 0
        assert left.fetch_metadata(f"{host}:{port}", timeout=30).peer == right.name
        left.read(right.name, [here], [left.peer_region(right.name, "r")], timeout=30)
        assert (here == data).all()


def test_partial_metadata_or_an_update_is_sent_by_socket(backend):
    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend], listen="127.0.0.1:0") as right,
    ):
        regions = left.register([bytearray(10) for _ in range(3)], name="r")
        left.send_metadata(right.listen_address, regions=[])
        until(lambda: right.peers())
        assert names(right, left.name) == []
        left.send_metadata(right.listen_address, regions=[regions[1]], connection_info=False)
        until(lambda: names(right, left.name) == ["r/1"])
        left.send_metadata(right.listen_address)
        until(lambda: len(names(right, left.name)) == 3)
        version = left.metadata_version
        left.register(bytearray(10), name="late")
        left.send_metadata(right.listen_address, since_version=version, timeout=30)
        until(lambda: "late" in names(right, left.name))


def test_an_address_without_a_listener_is_an_error_that_names_it(agent):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(headrace.Error, match=address) as caught:
            agent.fetch_metadata(address, timeout=5)
        assert caught.value.code in ("peer_lost", "timed_out")
    with pytest.raises(headrace.InvalidArgument, match='"no port" is not an address: the port is missing'):
        agent.fetch_metadata("no port")


def test_peers_find_each_other_through_a_store(backend, tmp_path):
    store = f"file://{tmp_path}"
    with (
        headrace.Agent(unique("left"), [backend], store=store) as left,
        headrace.Agent(unique("right"), [backend], store=store) as right,
    ):
        events = []
        left.watch_namespace(lambda event, peer: events.append((event, peer)))
        right.register(bytearray(10), name="r")
        right.publish()
        until(lambda: ("joined", right.name) in events)
        assert left.list_namespace() == [right.name]
        assert left.find(right.name).regions == 1
        assert names(left, right.name) == ["r"]
        listed = headrace.list_namespace(store)
        assert [(peer.name, peer.regions) for peer in listed] == [(right.name, 1)]
        right.unpublish()
        until(lambda: ("left", right.name) in events)
        left.watch_namespace(None)
        with pytest.raises(headrace.NotFound, match="nobody"):
            left.find("nobody", timeout=1)


def test_calls_that_need_a_store_are_refused_without_one(agent):
    for call in (
        agent.publish,
        agent.list_namespace,
        lambda: agent.find("x"),
        lambda: agent.watch_namespace(print),
    ):
        with pytest.raises(headrace.InvalidArgument, match="store"):
            call()


def test_wrong_names_backends_and_options_are_refused():
    for name in ("", "x" * 256):
        with pytest.raises(headrace.InvalidArgument, match="1 to 255 bytes"):
            headrace.Agent(name)
    with pytest.raises(headrace.BackendFailed, match="no_such"):
        headrace.Agent("a", backends=["no_such"])
    with pytest.raises(headrace.InvalidArgument, match="no_such"):
        headrace.Agent("a", options={"no_such": "1"})
    with pytest.raises(headrace.InvalidArgument, match="no_such"):
        headrace.Agent("a", store="no_such://x")
    with pytest.raises(headrace.InvalidArgument, match="no port"):
        headrace.Agent("a", listen="no port")


def test_peers_learn_of_a_backend_that_is_opened_later():
    with (
        headrace.Agent(unique("left"), ["shm", "tcp"]) as left,
        headrace.Agent(unique("right"), ["shm"]) as right,
    ):
        left.import_metadata(right.export_metadata())
        assert left.peers()[0].backends == ["shm"]
        right.create_backend("tcp", {"sockets": 2})
        assert [backend.name for backend in right.backends()] == ["shm", "local", "tcp"]
        left.import_metadata(right.export_metadata())
        assert sorted(left.peers()[0].backends) == ["shm", "tcp"]
        with pytest.raises(headrace.InvalidArgument, match="open already"):
            right.create_backend("tcp")
