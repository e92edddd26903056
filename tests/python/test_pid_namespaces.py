# SPDX-License-Identifier: Apache-2.0
"""Agents in containers that share only the runtime folder: each has a PID namespace of its own, and both have
the same process id."""

import base64
import itertools

import numpy as np
import pytest

from conftest import PeerProcess, unique, until
from peer_process import REGION_BYTES
from pid_namespaces import NUMBER, own_pid_namespace

PAGE, COUNT = 1021, 500  # a prime length, so nothing is aligned
KINDS = ("allocated", "registered")


@pytest.fixture
def start():
    """A function that starts an agent with a name and backends. `inside`: in a PID namespace of its own."""
    under, started = own_pid_namespace(), []

    def start(name, backends, inside=True):
        started.append(PeerProcess(name, backends, under if inside else ()))
        return started[-1]

    yield start
    for process in started:
        process.close()


def introduce(one, other):
    for here, there in ((one, other), (other, one)):
        here.ask("load", metadata=there.ask("metadata")["metadata"])


def dump(process, region):
    return np.frombuffer(base64.b64decode(process.ask("dump", region=region)["bytes"]), np.uint8)


def move_and_compare(here, there, op, mine, theirs, seed):
    """Moves pages at random places with a notification, and compares every byte of both regions. Returns the
    backend and its explanation."""
    here.ask("scatter", region=mine, seed=seed)
    there.ask("scatter", region=theirs, seed=seed + 1)
    source, target = (
        (dump(there, theirs), dump(here, mine).copy())
        if op == "read"
        else (dump(here, mine), dump(there, theirs).copy())
    )
    rng = np.random.default_rng(seed)
    ours, others = (rng.permutation(REGION_BYTES // PAGE)[:COUNT] * PAGE for _ in range(2))
    done = here.ask(
        "move",
        op=op,
        peer=there.name,
        mine=mine,
        theirs=theirs,
        here=ours.tolist(),
        there=others.tolist(),
        page=PAGE,
        notification=f"{op} {seed}",
    )
    assert there.ask("take") == {"peer": here.name, "payload": f"{op} {seed}"}
    for into, out_of in zip(*((ours, others) if op == "read" else (others, ours)), strict=True):
        target[into : into + PAGE] = source[out_of : out_of + PAGE]
    after = (dump(here, mine), dump(there, theirs))
    assert (after[0 if op == "read" else 1] == target).all() and (
        after[1 if op == "read" else 0] == source
    ).all()
    return done


@pytest.mark.parametrize(
    "inside", [(True, True), (True, False)], ids=["both_with_the_same_number", "one_inside_and_one_outside"]
)
def test_pages_and_notifications_move_both_ways_between_pid_namespaces(start, inside):
    one, other = (start(unique("agent"), "shm,tcp", within) for within in inside)
    assert one.ask("pid")["pid"] == NUMBER
    assert (other.ask("pid")["pid"] == NUMBER) == inside[1]
    introduce(one, other)
    cases = itertools.product(((one, other), (other, one)), ("read", "write"), KINDS, KINDS)
    for seed, ((here, there), op, mine, theirs) in enumerate(cases):
        done = move_and_compare(here, there, op, mine, theirs, seed)
        # Allocated memory is mapped. Other memory is reached by the process id of its owner, and only a
        # process outside the namespace knows that id.
        numbered = here is other and not inside[1]
        assert done["backend"] == ("shm" if theirs == "allocated" or numbered else "tcp"), done["explain"]
        if done["backend"] == "tcp":
            assert "the peer runs in another PID namespace" in done["explain"], done["explain"]
    one.ask("notify", peer=other.name, payload="ping")
    assert other.ask("take") == {"peer": one.name, "payload": "ping"}


def test_memory_that_shm_cannot_reach_is_refused_with_a_sentence(start):
    one, other = start(unique("agent"), "shm"), start(unique("agent"), "shm")
    introduce(one, other)
    arguments = {
        "op": "read",
        "peer": other.name,
        "mine": "allocated",
        "here": [0],
        "there": [0],
        "page": PAGE,
        "notification": "",
    }
    with pytest.raises(AssertionError, match="another PID namespace, so that its process has no number here"):
        one.ask("move", theirs="registered", **arguments)
    assert move_and_compare(one, other, "write", "registered", "allocated", 7)["backend"] == "shm"


@pytest.mark.parametrize("backends", ["shm", "tcp"])
def test_a_peer_that_is_killed_in_another_pid_namespace_is_lost_and_its_successor_is_used(start, backends):
    here, name = start(unique("here"), backends), unique("mortal")
    for life in range(3):
        peer = start(name, backends)
        assert peer.ask("pid")["pid"] == here.ask("pid")["pid"] == NUMBER
        assert here.ask("load", metadata=peer.ask("metadata")["metadata"]) == {
            "peer": name,
            "restarted": life > 0,
        }
        peer.ask("load", metadata=here.ask("metadata")["metadata"])
        move_and_compare(here, peer, "read", "registered", "allocated", life)
        peer.kill()
        until(lambda: name in here.ask("peers")["lost"])
    if backends == "shm":
        assert "a process of another PID namespace" in here.ask("peers")["lost"][name]
