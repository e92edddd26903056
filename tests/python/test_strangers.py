# SPDX-License-Identifier: Apache-2.0
"""What an agent believes a program that merely reaches its ports, without and with a shared secret.

`here` and `there` are agents that know each other; a stranger speaks their protocols by itself (stranger.py).
After each attempt pages and notifications still move between the two.
"""

import contextlib
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import headrace
from conftest import introduce, unique, until
from stranger import METADATA, TCP, Connection, FalsePort, Refused, metadata, pack, send, tcp_address

PAGE = 4096
STRANGERS = 8
SECRET = "open sesame"
ROOM = 8192  # of an inbox, for one link
PLACES = 16384  # of immediates that a peer may send and nobody opens: engine/arrival_counters.hpp


class Two:
    """Two agents; the first page of `memory` is registered, the second is not."""

    def __init__(self, here, there, secret):
        self.here, self.there, self.secret = here, there, secret
        self.memory = np.arange(2 * PAGE, dtype=np.uint64).astype(np.uint8)
        self.region = there.register(self.memory[:PAGE], name="page")
        self.buffer = np.full(PAGE, 7, np.uint8)
        here.register(self.buffer)
        introduce(here, there)

    def move(self, operation="write", peer="", region=None, **more):
        """Moves a page between the buffer and the peer's region."""
        remote = [(self.region.id if region is None else region, 0, PAGE)]
        move = self.here.write if operation == "write" else self.here.read
        move(peer or self.there.name, [self.buffer], remote, timeout=10, **more)

    def unharmed(self):
        for backend in "shm", "tcp":
            self.buffer[:] = np.random.default_rng(ord(backend[0])).integers(0, 256, PAGE, dtype=np.uint8)
            self.move(backends=[backend], notification=b"moved over " + backend.encode())
            assert (self.memory[:PAGE] == self.buffer).all()
            assert self.there.wait_notification(10, prefix=b"moved") == (
                self.here.name,
                b"moved over " + backend.encode(),
            )
        self.there.notify(self.here.name, b"hello")
        assert self.here.wait_notification(10, prefix=b"hello") == (self.there.name, b"hello")

    def connect(self, purpose, name, incarnation=7, **more):
        """A stranger's connection to `here`. With a secret there is none: None."""
        exported = self.here.export_metadata()
        address = tcp_address(exported) if purpose == TCP else self.here.listen_address
        if self.secret is None:
            return Connection(address, name, incarnation, purpose, **more)
        for token in None, "guess":
            with pytest.raises(Refused, match="token"):
                Connection(address, name, incarnation, purpose, token=token, **more)
        return None

    def send(self, name, incarnation, data):
        """The answer of `here` to metadata that a stranger sends; None: with a secret it is not heard."""
        connection = self.connect(METADATA, name, incarnation)
        if connection is None:
            return None
        connection.close()
        return send(self.here.listen_address, name, incarnation, data)


def open_two(secret):
    options = {
        "tcp.listen": "127.0.0.1:0",
        "max_strangers": STRANGERS,
        "metadata_bytes": "32MiB",
        "handshake_timeout": "60s",  # a busy machine drops none that asks late
    }
    if secret is not None:
        options["auth_token"] = secret
    return [
        headrace.Agent(unique(name), ["shm", "tcp"], listen="127.0.0.1:0", options=options)
        for name in ("here", "there")
    ]


@pytest.fixture(params=[None, SECRET], ids=["without_a_secret", "with_a_secret"])
def two(request):
    here, there = open_two(request.param)
    with here, there:
        two = Two(here, there, request.param)
        yield two
        two.unharmed()


@pytest.fixture
def open_agents():
    """Without a secret alone: for what a stranger with a link can do."""
    here, there = open_two(None)
    with here, there:
        two = Two(here, there, None)
        yield two
        two.unharmed()


def backends_of(agent, tcp=None):
    return [(backend.name, tcp if backend.name == "tcp" else None) for backend in agent.backends()]


# Addresses and doors


def test_metadata_of_another_agent_is_not_taken_from_a_stranger(two):
    address = two.memory.ctypes.data
    forged = metadata(
        two.there.name,
        two.there.incarnation,
        version=9,
        part=True,
        backends=backends_of(two.there),
        regions=[(two.region.id, address + PAGE, PAGE)],
    )
    answer = two.send("stranger", 7, forged)
    assert answer is None or b"an agent sends its own alone" in answer
    answer = two.send(two.there.name, 7, forged)
    assert answer is None or b"an agent sends its own alone" in answer
    assert two.here.peer_region(two.there.name, "page").address == address


def test_metadata_in_the_name_of_a_peer_does_not_change_the_way_to_it(two):
    port = FalsePort(two.there.name, two.there.incarnation)
    forged = metadata(
        two.there.name,
        two.there.incarnation,
        version=9,
        part=True,
        backends=backends_of(two.there, port.info()),
    )
    answer = two.send(two.there.name, two.there.incarnation, forged)
    assert answer is None or b"sends another way to reach it over tcp" in answer
    two.move(backends=["tcp"])
    assert (two.memory[:PAGE] == two.buffer).all()


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_page_that_its_owner_has_not_registered_is_not_reached(two, operation):
    kept, ours = two.memory.copy(), two.buffer.copy()
    two.here.import_metadata(
        metadata(
            two.there.name,
            two.there.incarnation,
            version=9,
            part=True,
            backends=backends_of(two.there),
            regions=[(two.region.id, two.memory.ctypes.data + PAGE, PAGE)],
        )
    )
    with pytest.raises(headrace.Error, match="fetch its metadata from the peer itself"):
        two.move(operation, backends=["shm"])
    assert (two.memory == kept).all()
    assert (two.buffer == ours).all()
    two.here.forget(two.there.name)
    introduce(two.here, two.there)


def test_an_agent_of_another_name_gets_no_page(two):
    port = FalsePort("somebody", 99)
    two.here.import_metadata(
        metadata("ghost", 99, version=1, backends=[("tcp", port.info())], regions=[(1, PAGE, PAGE)])
    )
    request = two.here.make_request(
        "write", two.here.prepare([two.buffer]), two.here.prepare([(1, 0, PAGE)], peer="ghost")
    )
    request.post()
    with port.greet() as connection:
        with pytest.raises(headrace.PeerLost, match="was looked for"):
            request.wait(10)
        connection.settimeout(5)
        after_the_hello = b"".join(iter(lambda: connection.recv(4096), b""))
        assert len(after_the_hello) == (0 if two.secret is None else 32), "a proof at most, and no page"


def test_an_agent_that_claims_the_name_does_not_know_the_secret():
    here, there = open_two(SECRET)
    with here, there:
        two = Two(here, there, SECRET)
        port = FalsePort("ghost", 99)
        here.import_metadata(
            metadata("ghost", 99, version=1, backends=[("tcp", port.info())], regions=[(1, PAGE, PAGE)])
        )
        request = here.make_request(
            "write", here.prepare([two.buffer]), here.prepare([(1, 0, PAGE)], peer="ghost")
        )
        request.post()
        port.greet().close()
        with pytest.raises(headrace.Error):
            request.wait(20)
        two.unharmed()


# Names


def test_a_live_peers_name_is_not_taken(two):
    two.here.connect(two.there.name, 10)
    stranger = two.connect(TCP, two.there.name, 12345, link_id=5)
    if stranger is not None:
        stranger.notify(b"from a stranger")
        assert stranger.ended()
        until(lambda: two.here.telemetry().counters.get("peers.refused") == 1)
    assert [(p.name, p.incarnation) for p in two.here.peers()] == [(two.there.name, two.there.incarnation)]
    assert two.here.take_notifications() == []


def test_metadata_of_a_restart_is_not_taken_while_the_peer_answers(two):
    two.here.connect(two.there.name, 10)
    answer = two.send(two.there.name, 12345, metadata(two.there.name, 12345))
    assert answer is None or b"of another incarnation is connected here" in answer
    assert two.here.peers()[0].incarnation == two.there.incarnation


def test_a_peer_that_is_silent_is_replaced(open_agents):
    """The peer is a stranger, too: it takes no part in what the agents ask."""
    two = open_agents
    first = two.connect(TCP, "silent", 1, link_id=5)
    until(lambda: "silent" in [p.name for p in two.here.peers()])
    second = two.connect(TCP, "silent", 2, link_id=6)
    second.notify(b"after the restart")
    assert two.here.take_notifications() == []
    assert two.here.wait_notification(20) == ("silent", b"after the restart")
    assert first.ended()
    assert [p.incarnation for p in two.here.peers() if p.name == "silent"] == [2]


def test_claimed_numbers_make_no_message_a_duplicate(open_agents):
    two = open_agents
    stranger = two.connect(TCP, "stranger", two.there.incarnation, link_id=5)
    for request in range(1, 200):
        stranger.notify(b"", request, (1 << 64) - 1)
    until(lambda: two.here.telemetry().counters["notifications.received"] == 199)
    two.here.take_notifications()
    theirs = np.zeros(PAGE, np.uint8)
    two.there.register(theirs)
    ours = two.here.register(np.zeros(PAGE, np.uint8), name="target")
    two.there.import_metadata(two.here.export_metadata())
    for number in range(20):
        two.there.write(
            two.here.name, [theirs], [(ours.id, 0, PAGE)], notification=b"%d" % number, backends=["tcp"]
        )
    taken = [two.here.wait_notification(10) for _ in range(20)]
    assert taken == [(two.there.name, b"%d" % number) for number in range(20)]


# Bounds


def room_at(here, there):
    """How many notifications of `there` wait at `here` before it has to wait, once its share is in use. It is
    refused for a while then; for long if fewer than half of ROOM wait: the machine may be busy."""

    def send(until_taken):
        sent = taken = 0
        quiet_since = time.monotonic()
        while taken < until_taken or time.monotonic() < quiet_since + (0.5 if sent >= ROOM // 2 else 30):
            try:
                there.notify(here.name, b"x")
                sent += 1
                quiet_since = time.monotonic()
            except headrace.WouldBlock:
                taken += len(here.take_notifications()) if taken < until_taken else 0
                time.sleep(0.001)
        return sent

    send(2 * ROOM)
    until(lambda: not here.take_notifications())
    return send(0)


def test_strangers_that_left_before_they_had_a_name_take_no_room():
    """What they said is held until the name is theirs, and their link is gone by then."""
    options = {"tcp.listen": "127.0.0.1:0", "inbox_capacity": ROOM, "log": "error"}
    with (
        headrace.Agent(unique("here"), ["tcp"], options=options) as here,
        headrace.Agent(unique("there"), ["tcp"], options=options) as there,
    ):
        introduce(here, there)
        there.connect(here.name)
        address = tcp_address(here.export_metadata())
        names = [f"stranger {number}" for number in range(7)]
        holders = [Connection(address, name, 1, TCP, link_id=5 + i) for i, name in enumerate(names)]
        until(lambda: sum(peer.connected for peer in here.peers()) == 1 + len(names))
        for i, name in enumerate(names):
            newcomer = Connection(address, name, 2, TCP, link_id=50 + i)
            newcomer.notify(b"here I am")
            time.sleep(0.05)
            newcomer.close()
        for name in names:
            assert here.wait_notification(30, peer=name) == (name, b"here I am")
        for holder in holders:
            holder.close()
        for name in names:
            here.forget(name)
        assert room_at(here, there) >= ROOM // 2


def test_senders_that_take_no_notice_of_credits_fill_a_bounded_number_of_bytes(open_agents):
    two = open_agents
    here = headrace.Agent(
        unique("here"), ["tcp"], options={"tcp.listen": "127.0.0.1:0", "inbox_bytes": 16 << 20}
    )
    with here:
        address = tcp_address(here.export_metadata())
        senders = [Connection(address, f"sender {i}", 1, TCP, link_id=5 + i) for i in range(4)]
        for sender in senders:
            with contextlib.suppress(OSError):
                for _ in range(400):  # 25 MiB, and a share of one of four is 4 MiB
                    sender.notify(bytes(64 << 10))
        until(lambda: here.telemetry().counters["links.flooded"] > 0)
        waiting = sum(len(payload) for _, payload in here.take_notifications())
        share_of_each = [(16 << 20) / links for links in (1, 2, 3, 4)]  # as they come one after the other
        assert waiting <= sum(share_of_each) * 5 / 4
    two.unharmed()


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_clients_that_do_not_read_their_answer_hold_a_bounded_number_of_bytes(two):
    for _ in range(200):
        two.here.register(np.zeros(16, np.uint8), note=b"n" * 65536)
    size = len(two.here.export_metadata())
    assert size > 10 << 20
    before = resident_bytes()
    clients = [two.connect(METADATA, f"client-{i}") for i in range(40)]
    for client in filter(None, clients):
        client.ask(pack([1, "", 0]))
    if two.secret is None:
        until(lambda: two.here.telemetry().counters.get("metadata.refused", 0) >= 38)
        assert resident_bytes() - before < 150 << 20
        # The agent hears them in any order, and refuses all but two.
        assert any(b"metadata_bytes" in client.answer() for client in clients[-3:])
        for client in clients:
            client.close()
    until(lambda: fetches(two))


def fetches(two):
    try:
        two.there.fetch_metadata(two.here.listen_address)
    except headrace.Exhausted:
        return False
    return True


def test_metadata_that_would_become_gigabytes_is_refused_before_it_is_received(two):
    stranger = two.connect(METADATA, "stranger")
    if stranger is not None:
        stranger.socket.sendall((1 << 30).to_bytes(4, "little") + b"\x92\x02\xc6" + b"x" * 100)
        assert b"this agent takes at most 8388608 in one piece" in stranger.answer()


def test_names_of_strangers_are_forgotten_when_they_are_gone(two):
    for i in range(4 * STRANGERS):
        stranger = two.connect(TCP, f"name-{i}", link_id=5 + i)
        if stranger is not None:
            stranger.close()
            until(lambda: not any(p.connected for p in two.here.peers() if p.name.startswith("name")))
    assert len(two.here.peers()) <= STRANGERS + 1


def test_the_counters_of_refusals_are_there_from_the_start():
    page = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and line.count("|") == 6]
    named = {row[4].strip("` ") for row in rows} - {"", "counter"}
    assert {
        "metadata.refused",
        "links.refused",
        "links.flooded",
        "handshakes_dropped",
        "counters.dropped",
    } <= named
    with headrace.Agent(unique("a"), ["shm", "tcp"]) as agent:
        counters = agent.telemetry().counters
        assert {name: counters.get(name) for name in named} == dict.fromkeys(named, 0)


def test_connections_that_say_nothing_make_room_for_others(open_agents):
    two = open_agents
    host, port = tcp_address(two.here.export_metadata()).rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(80)]
    two.connect(TCP, "stranger", link_id=5).close()
    assert silent[0].recv(1) == b"", "the oldest is closed"
    until(lambda: two.here.telemetry().counters.get("handshakes_dropped", 0) >= 16)
    for connection in silent:
        connection.close()


def test_strangers_that_stay_have_a_number(open_agents):
    two = open_agents
    strangers = [two.connect(TCP, f"name-{i}", link_id=5 + i) for i in range(STRANGERS)]
    with pytest.raises(Refused, match="takes no connection"):
        two.connect(TCP, "one more", link_id=99)
    assert two.here.telemetry().counters["links.refused"] == 1
    answer = two.send("one more", 7, metadata("one more", 7))
    assert b"max_strangers" in answer
    strangers[0].close()

    def comes():
        try:
            two.connect(TCP, "one more", link_id=99).close()
        except Refused:
            return False
        return True

    until(comes)


def test_links_of_one_peer_have_a_number(open_agents):
    two = open_agents
    links = [two.connect(TCP, "stranger", link_id=5 + i) for i in range(64)]
    with pytest.raises(Refused, match="takes no connection"):
        two.connect(TCP, "stranger", link_id=99)
    for link in links:
        link.close()


def test_immediates_of_one_peer_leave_room_for_those_of_others(open_agents):
    two = open_agents
    stranger = two.connect(TCP, "stranger", link_id=5)
    for value in range(PLACES + 10):
        stranger.say(5, value.to_bytes(4, "little") + b"\1\0\0\0", channel=65535, flags=8)
        if value % 512 == 511:  # no more may be on the way
            stranger.wait_for_acknowledgement(65535, value - 255)
    until(lambda: two.here.telemetry().counters.get("counters.dropped", 0) == 10)
    theirs = np.zeros(PAGE, np.uint8)
    two.there.register(theirs)
    ours = two.here.register(np.zeros(PAGE, np.uint8))
    two.there.import_metadata(two.here.export_metadata())
    two.there.write(two.here.name, [theirs], [(ours.id, 0, PAGE)], immediate=5, scope=9)
    two.here.counter(5, scope=9).wait(1, timeout=10)


# Parts in any order


def test_a_part_and_the_whole_export_from_before_it_give_both(two):
    tcp = [("tcp", None)]
    documents = [
        metadata("stranger", 7, version=3, part=True, backends=tcp, regions=[(3, 3 * PAGE, PAGE)]),
        metadata("stranger", 7, version=2, backends=tcp, regions=[(1, PAGE, PAGE), (2, 2 * PAGE, PAGE)]),
    ]
    for document in documents:
        two.send("stranger", 7, document)
        report = two.here.import_metadata(document)
    assert [region.id for region in two.here.peer_regions("stranger")] == [1, 2, 3]
    assert report.version == 2
    assert report.left_out == 0
    late = two.here.import_metadata(
        metadata(
            "stranger", 7, version=1, part=True, backends=tcp, regions=[(1, PAGE, PAGE), (9, PAGE, PAGE)]
        )
    )
    assert late.left_out == 1
    assert "1 regions in metadata of version 1 were left out" in late.note


def test_a_part_of_a_version_that_no_agent_reaches_is_refused(two):
    absurd = metadata("stranger", 7, version=(1 << 64) - 1, part=True)
    answer = two.send("stranger", 7, absurd)
    assert answer is None or b"which no agent reaches" in answer
    with pytest.raises(headrace.Corrupt, match="which no agent reaches"):
        two.here.import_metadata(absurd)
    for version in 1 << 40, 2:
        two.here.import_metadata(metadata("stranger", 7, version=version, part=version > 2))
    assert [p.version for p in two.here.peers() if p.name == "stranger"] == [2]
