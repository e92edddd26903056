# SPDX-License-Identifier: Apache-2.0
"""Every GPU to and from every other at once: requests to several peers, one process a GPU, or several
processes on one.

With HEADRACE_TEST_WITHOUT_GPU=1 what does not depend on a GPU runs over host memory and shm: to try these
tests themselves.
"""

import importlib.util

import pytest

from conftest import unique
from test_gpu import BACKEND, GPUS, MIB, STAND_IN, GpuProcess, gpus_only, introduce, runtime, start, two_gpus  # noqa: F401  fixtures

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(GPUS == 0, reason="this machine has no GPU"),
]
four_gpus = [pytest.mark.gpu4, pytest.mark.skipif(GPUS < 4, reason="this machine has fewer than four GPUs")]

# The GPU of each process.
PLACES = [
    pytest.param((0, 0, 0), marks=pytest.mark.gpu1, id="three_processes_on_one_gpu"),
    pytest.param((0, 1), marks=two_gpus, id="two_gpus"),
    pytest.param((0, 1, 0, 1), marks=two_gpus, id="four_processes_on_two_gpus"),
    pytest.param((0, 1, 2, 3), marks=four_gpus, id="four_gpus"),
]
# What a process sends to, or gets from, one other lies in a slot; the second kind begins at odd addresses.
SLOT = MIB if STAND_IN else 128 * MIB
ODD_SLOT = SLOT + 13
SIZES = [(512, 1), (512, 100_000), (4096, 16_384), (65536, 1000), (MIB, 100), (16 * MIB, 5), (64 * MIB, 1)]
SIZES = [(page, min(count, SLOT // page)) for page, count in SIZES if page <= SLOT]
ODD_SIZES = [(1, 1), (513, 100_000), (3001, 20_000), (100_003, 900), (1_000_003, 50)]
ODD_SIZES = [(page, max(1, min(count, SLOT // page // 2))) for page, count in ODD_SIZES if page <= SLOT]
OUT_SEED, IN_SEED = 10, 50


class Exchange:
    """Processes that know each other. Each has a slot for each process in "in", and in "out" what it sends to
    each."""

    def __init__(self, devices, runtime):
        self.devices = devices
        self.processes = [
            GpuProcess(unique(f"rank{rank}"), device, "plain", runtime) for rank, device in enumerate(devices)
        ]
        self.bytes = len(devices) * ODD_SLOT
        self.fill()
        for rank, process in enumerate(self.processes):
            for other in self.processes[:rank]:
                introduce(process, other)
        self.regions = [process.ask("regions_by_name") for process in self.processes]
        self.made = 0

    def all(self, what, arguments):
        """Asks all at once: arguments(rank). Their answers."""
        for rank, process in enumerate(self.processes):
            process.begin(what, **arguments(rank))
        return [process.end() for process in self.processes]

    def fill(self, turn=0):
        self.all(
            "fill", lambda rank: {"key": "out", "bytes": self.bytes, "seed": OUT_SEED + 100 * turn + rank}
        )
        self.all("fill", lambda rank: {"key": "in", "bytes": self.bytes, "seed": IN_SEED + 100 * turn + rank})

    def others(self, rank):
        return [other for other in range(len(self.processes)) if other != rank]

    def plan(self, kind, slot, page, count, sender, receiver, turn=0):
        return [kind, slot, page, count, 10_000 * turn + 100 * sender + receiver]

    def make(self, op, kind, slot, page, count):
        """A request of each process to all others."""
        self.made += 1
        handle = f"exchange {self.made}"

        def parts(rank):
            found = []
            for other in self.others(rank):
                sender, receiver = (other, rank) if op == "read" else (rank, other)
                # A sender's slot for its receiver; a receiver's slot for its sender.
                sides = {"ours": other, "others": rank}
                theirs = self.regions[other]["out" if op == "read" else "in"]
                plan = self.plan(kind, slot, page, count, sender, receiver)
                found.append({"peer": self.processes[other].name, "theirs": theirs, "plan": plan, **sides})
            return {
                "handle": handle,
                "op": op,
                "mine": "in" if op == "read" else "out",
                "slot": slot,
                "parts": found,
            }

        for backends in self.all("make_exchange", parts):
            assert set(backends) == {BACKEND}
        return handle

    def drop(self, handle, graph=False):
        self.all("drop_graph" if graph else "drop", lambda rank: {"handle": handle})
        if graph:
            self.all("drop", lambda rank: {"handle": handle})

    def check(self, kind, slot, page, count, turn=0, fill=0):
        def takes(rank):
            seed = OUT_SEED + 100 * fill
            return {
                "key": "in",
                "target_seed": IN_SEED + 100 * fill + rank,
                "slot": slot,
                "takes": [
                    {
                        "plan": self.plan(kind, slot, page, count, other, rank, turn),
                        "into": other,
                        "out_of": rank,
                        "source_seed": seed + other,
                        "source_bytes": self.bytes,
                    }
                    for other in self.others(rank)
                ],
            }

        assert self.all("check_slots", takes) == [""] * len(self.processes), (
            f"{count} {kind} pages of {page} bytes"
        )
        untouched = self.all(
            "check",
            lambda rank: {
                "key": "out",
                "target_seed": OUT_SEED + 100 * fill + rank,
                "source_seed": 0,
                "plans": [],
            },
        )
        assert untouched == [""] * len(self.processes), "a source was changed"

    def close(self):
        for process in self.processes:
            process.close()


_exchanges = {}


@pytest.fixture(scope="module")
def exchanges(runtime):
    yield _exchanges
    for exchange in _exchanges.values():
        exchange.close()
    _exchanges.clear()


@pytest.fixture(params=PLACES)
def exchange(request, exchanges, runtime):
    """Started when first asked for: torch takes seconds to start."""
    place = request.param
    if place in exchanges and not all(process.alive for process in exchanges[place].processes):
        exchanges.pop(place).close()
    if place not in exchanges:
        exchanges[place] = Exchange(place, runtime)
    return exchanges[place]


def exchange_each(exchange, op, kind, slot, sizes, rounds):
    """All to all of each of these sizes in turn, so often, and looks at every byte."""
    for turn, (page, count) in enumerate(sizes):
        exchange.fill(turn)
        handle = exchange.make(op, kind, slot, page, count)
        exchange.all("exchange", lambda rank, handle=handle: {"handle": handle, "rounds": rounds})
        exchange.check(kind, slot, page, count, fill=turn)
        exchange.drop(handle)


@pytest.mark.parametrize("op", ["read", "write"])
def test_all_to_all_of_every_page_size(exchange, op):
    exchange_each(exchange, op, "uniform", SLOT, SIZES, rounds=5)


@pytest.mark.parametrize("op", ["read", "write"])
def test_all_to_all_of_odd_lengths_at_odd_places(exchange, op):
    exchange_each(exchange, op, "rows", ODD_SLOT, ODD_SIZES, rounds=3)


def test_each_process_is_told_by_every_other_after_its_pages(exchange):
    exchange.fill()
    page, count = 4096, min(10_000, SLOT // 4096)
    handle = exchange.make("write", "uniform", ODD_SLOT, page, count)
    exchange.all("exchange", lambda rank: {"handle": handle, "notification": f"from {rank}"})
    for rank, process in enumerate(exchange.processes):
        told = [process.ask("take") for _ in exchange.others(rank)]
        expected = [
            {"peer": exchange.processes[other].name, "payload": f"from {other}"}
            for other in exchange.others(rank)
        ]
        assert sorted(told, key=str) == sorted(expected, key=str)
    exchange.check("uniform", ODD_SLOT, page, count)
    exchange.drop(handle)


@gpus_only
@pytest.mark.parametrize("op", ["read", "write"])
def test_all_to_all_in_the_order_of_streams(exchange, op):
    exchange.fill()
    handle = exchange.make(op, "uniform", SLOT, 4096, 10_000)
    exchange.all("exchange", lambda rank: {"handle": handle})  # makes the ways
    exchange.fill(1)
    exchange.all("exchange", lambda rank: {"handle": handle, "rounds": 10, "on_stream": True})
    exchange.check("uniform", SLOT, 4096, 10_000, fill=1)
    exchange.drop(handle)


GRAPHED = [
    ("uniform", SLOT, 512, 100_000),
    ("uniform", SLOT, 65536, 500),
    ("uniform", ODD_SLOT, 4096, 10_000),
    ("uniform", SLOT, 64 * MIB, 1),
    ("rows", ODD_SLOT, 3001, 20_000),
]


@gpus_only
@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize(("kind", "slot", "page", "count"), GRAPHED)
def test_all_to_all_by_graphs_that_are_replayed_with_other_pages(exchange, op, kind, slot, page, count):
    exchange.fill()
    handle = exchange.make(op, kind, slot, page, count)
    exchange.all("exchange", lambda rank: {"handle": handle})  # makes the ways
    assert set(exchange.all("capture_exchange", lambda rank: {"handle": handle})) == {"captured"}
    for replay in range(1, 6):
        exchange.fill(replay)
        turn = replay if kind == "uniform" else 0

        def plans(rank, turn=turn):
            sides = [(other, rank) if op == "read" else (rank, other) for other in exchange.others(rank)]
            return (
                [exchange.plan(kind, slot, page, count, sender, receiver, turn) for sender, receiver in sides]
                if turn
                else []
            )

        replayed = exchange.all(
            "replay_exchange", lambda rank, plans=plans: {"handle": handle, "op": op, "plans": plans(rank)}
        )
        assert replayed == [replay] * len(exchange.processes)
        exchange.check(kind, slot, page, count, turn, fill=replay)
    exchange.drop(handle, graph=True)


@pytest.mark.gpu1
def test_of_two_peers_one_is_killed_and_the_others_pages_arrive(start):
    here = start(unique("here"), 0)
    peers = [start(unique("peer"), 0) for _ in range(2)]
    page, count = 4096, SLOT // 4096
    here.ask("fill", key="in", bytes=2 * SLOT, seed=1)
    plans = [["uniform", SLOT, page, count, 7 + number] for number in range(2)]
    parts = []
    for number, peer in enumerate(peers):
        region = peer.ask("fill", key="out", bytes=SLOT, seed=2 + number)
        introduce(here, peer)
        parts.append(
            {"peer": peer.name, "theirs": region, "plan": plans[number], "ours": number, "others": 0}
        )
    here.ask("make_exchange", handle="both", op="read", mine="in", slot=SLOT, parts=parts)
    here.ask("exchange", handle="both")
    takes = [
        {"plan": plan, "into": number, "out_of": 0, "source_seed": 2 + number, "source_bytes": SLOT}
        for number, plan in enumerate(plans)
    ]
    assert here.ask("check_slots", key="in", target_seed=1, slot=SLOT, takes=takes) == ""
    here.begin("exchange_until_lost", handle="both", seconds=60)
    peers[1].kill()
    result = here.end()
    assert result["code"] == "peer_lost" and peers[1].name in result["text"], result
    assert result["parts"] == ["done", "failed"], result
    # The first slot holds the pages of the peer that lives, whatever the other's part came to.
    assert here.ask("check_first_slot", slot=SLOT, plan=plans[0], source_seed=2) == ""
