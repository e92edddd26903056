# SPDX-License-Identifier: Apache-2.0
"""Requests to several peers: one post, one completion, and a state for each part."""

import asyncio

import numpy as np
import pytest

import headrace
from conftest import introduce, unique, until

PEERS, PAGES, PAGE = 3, 32, 4096
SIZE = PAGES * PAGE


class Several:
    """One agent with memory for three others, and the memory of these."""

    def __init__(self, backend):
        self.here = headrace.Agent(unique("here"), [backend])
        self.others = [headrace.Agent(unique("there"), [backend]) for _ in range(PEERS)]
        self.ours = self.here.allocate(PEERS * SIZE, name="ours")
        self.theirs = []
        for i, other in enumerate(self.others):
            memory = other.allocate(SIZE, name="theirs")
            memory.numpy()[:] = np.random.default_rng(i).integers(0, 256, SIZE, dtype=np.uint8)
            self.theirs.append(memory.numpy())
            introduce(self.here, other)

    def lists(self, i):
        local = self.here.prepare(headrace.UniformPages(self.ours, i * SIZE, 0, PAGE, PAGES))
        region = self.here.peer_region(self.others[i].name, "theirs")
        return local, self.here.prepare(
            headrace.UniformPages(region, 0, 0, PAGE, PAGES), peer=self.others[i].name
        )

    def parts(self):
        return [self.lists(i) for i in range(PEERS)]

    def slice(self, i):
        return self.ours.numpy()[i * SIZE : (i + 1) * SIZE]

    def close(self):
        for agent in [self.here, *self.others]:
            agent.close()


@pytest.fixture
def several(backend):
    several = Several(backend)
    yield several
    several.close()


@pytest.mark.parametrize("op", ["read", "write"])
def test_pages_of_all_peers_move_in_one_post(several, op):
    several.ours.numpy()[:] = np.random.default_rng(9).integers(0, 256, PEERS * SIZE, dtype=np.uint8)
    request = several.here.make_request(op, several.parts())
    request.post(notification=b"moved")
    request.wait(30)
    for i, other in enumerate(several.others):
        assert np.array_equal(several.slice(i), several.theirs[i])
        assert other.wait_notification(30) == (several.here.name, b"moved")
    assert request.state == "done" and request.error is None
    assert (request.pages, request.bytes, request.times.bytes) == (PEERS * PAGES, PEERS * SIZE, PEERS * SIZE)
    assert [part.peer for part in request.parts] == [other.name for other in several.others]
    assert [(part.state, part.error, part.pages, part.bytes) for part in request.parts] == [
        ("done", None, PAGES, SIZE)
    ] * PEERS
    assert "PartInfo(peer=" in repr(request.parts[0]) and request.parts[0].backend == request.backend
    assert all(f"part {i}, peer {other.name}" in request.explain() for i, other in enumerate(several.others))


@pytest.mark.parametrize("kind", [list, np.uint32, np.int64])
def test_indices_of_any_kind_select_the_pages_of_each_part(several, kind):
    rng = np.random.default_rng(4)
    numbers = [(rng.permutation(PAGES)[:5], rng.permutation(PAGES)[:5]) for _ in range(PEERS)]
    given = [[n.tolist() if kind is list else n.astype(kind) for n in pair] for pair in numbers]
    expected = several.ours.numpy().copy()
    for i, (near, far) in enumerate(numbers):
        for a, b in zip(near, far, strict=True):
            expected[i * SIZE + a * PAGE : i * SIZE + (a + 1) * PAGE] = several.theirs[i][
                b * PAGE : (b + 1) * PAGE
            ]
    request = several.here.make_request(
        "read", ((*several.lists(i), *given[i]) for i in range(PEERS)), timeout=30
    )
    request.post()
    request.wait()
    assert np.array_equal(several.ours.numpy(), expected)
    whole = several.here.make_request(
        "read", [(*several.lists(0), None, range(PAGES)), (*several.lists(1), None, None)]
    )
    assert whole.pages == 2 * PAGES


def test_await_and_callback_report_one_completion(several):
    ends = []
    request = several.here.make_request("read", several.parts())
    request.on_done(ends.append)

    async def twice():
        for _ in range(2):
            request.post()
            await request

    asyncio.run(twice())
    assert np.array_equal(several.slice(2), several.theirs[2])
    until(lambda: len(ends) == 2)  # the callback thread may be later than the awaiting one
    several.here.close()  # after close the callback thread has ended
    assert ends == [None, None]


def test_an_error_names_the_failed_part_and_the_others_have_their_pages(several):
    request = several.here.make_request("read", several.parts())
    several.here.forget(several.others[1].name)
    several.ours.numpy()[:] = 0
    with pytest.raises(headrace.PeerLost, match=f"part 1 of 3: read from peer {several.others[1].name}"):
        request.post()  # raises here if all parts have ended by now
        request.wait(30)
    assert [part.state for part in request.parts] == ["done", "failed", "done"]
    assert isinstance(request.parts[1].error, headrace.PeerLost)
    assert np.array_equal(several.slice(0), several.theirs[0]) and np.array_equal(
        several.slice(2), several.theirs[2]
    )
    assert not several.slice(1).any()


def test_a_wrong_part_is_refused_with_its_number(several):
    here, parts = several.here, several.parts()
    for given, words in [
        ([], "no parts"),
        ([parts[0], parts[0]], "parts 0 and 1 are both of peer"),
        ([parts[0], parts[1][:1]], "part 1 is .*: give"),
        ([parts[0], "xy"], "part 1 is 'xy'"),
        ([parts[0], (*parts[1], [0], [PAGES])], "part 1 of 2"),
        ([parts[0], (*parts[1], [], [])], "part 1 of 2: the request has no pages"),
        (
            [parts[0], (*parts[1], np.empty(0, np.uint32), np.empty(0, np.uint32))],
            "part 1 of 2: the request has no pages",
        ),
    ]:
        with pytest.raises(headrace.InvalidArgument, match=words):
            here.make_request("read", given)
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        here.make_request("read", 7)

    class Mine(headrace.Request):
        pass

    assert type(here.make_request("read", parts, cls=Mine)) is Mine


def test_only_the_part_of_a_killed_peer_fails(backend, start_peer):
    with headrace.Agent(unique("here"), [backend]) as here:
        peers = [start_peer(unique("peer")) for _ in range(3)]
        memory = here.allocate(3 << 20)
        parts = []
        for i, peer in enumerate(peers):
            here.fetch_metadata(peer.address)
            region = here.peer_region(peer.name, "registered")
            local = here.prepare(headrace.UniformPages(memory, i << 20, 0, 4096, 256))
            parts.append(
                (local, here.prepare(headrace.UniformPages(region, 0, 0, 4096, 256), peer=peer.name))
            )
        request = here.make_request("read", parts, timeout=30)
        request.post()
        request.wait(30)
        peers[2].kill()
        memory.numpy()[:] = 0
        with pytest.raises(headrace.PeerLost, match=peers[2].name):
            for _ in range(1000):  # until the loss is noticed
                request.post()
                request.wait(30)
        assert [part.state for part in request.parts] == ["done", "done", "failed"]
        content = memory.numpy()[: 1 << 20]
        assert content.any() and np.array_equal(content, memory.numpy()[1 << 20 : 2 << 20]), (
            "all peers have the same bytes"
        )
