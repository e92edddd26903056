# SPDX-License-Identifier: Apache-2.0
"""Backends by name: their abilities and options, and memory and requests that are limited to some of them."""

import numpy as np
import pytest

import headrace
from conftest import introduce, unique

BOTH = ["shm", "tcp"]


@pytest.fixture
def two():
    """Two agents that have both backends."""
    with headrace.Agent(unique("left"), BOTH) as left, headrace.Agent(unique("right"), BOTH) as right:
        yield left, right


def random_bytes(size):
    return np.random.default_rng().integers(0, 256, size, dtype=np.uint8)


def test_an_agent_lists_its_backends_with_kinds_abilities_and_current_options():
    with headrace.Agent("a", ["tcp"], options={"tcp.sockets": 3, "tcp.heartbeat_interval": "700ms"}) as agent:
        tcp, local = agent.backends()
        assert (local.name, local.path, local.local, local.remote) == ("local", "linked in", True, False)
        assert (
            (tcp.name, tcp.loaded, tcp.refusal) == ("tcp", True, "")
            and "dram" in tcp.kinds
            and tcp.path
            and tcp.version
        )
        assert tcp.remote and tcp.notifications and not tcp.mapping
        options = {option.name: option for option in tcp.options}
        assert (options["tcp.sockets"].value, options["tcp.sockets"].source, options["tcp.sockets"].unit) == (
            "3",
            "caller",
            "count",
        )
        assert options["tcp.heartbeat_interval"].value == "700ms"
        assert options["tcp.threads"].source == "default"


def test_options_come_from_the_environment_and_the_caller_overrides_them(monkeypatch):
    monkeypatch.setenv("HEADRACE_INBOX_CAPACITY", "77")
    monkeypatch.setenv("HEADRACE_TCP_SOCKETS", "2")

    def shown(options):
        return {option.name: (option.value, option.source) for option in headrace.list_options(options)}

    options = shown({})
    assert options["inbox_capacity"] == ("77", "environment") and options["tcp.sockets"] == (
        "2",
        "environment",
    )
    assert shown({"tcp.sockets": 5})["tcp.sockets"] == ("5", "caller")


def test_a_secret_option_is_not_shown():
    options = {option.name: option for option in headrace.list_options({"auth_token": "hunter2"})}
    assert options["auth_token"].value == options["tcp.auth_token"].value == "(set)"
    assert "hunter2" not in repr(list(options.values()))


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("how", ["register", "allocate"])
def test_memory_is_registered_with_the_named_backends_only(two, name, how):
    left, right = two
    data = random_bytes(5003)
    if how == "register":
        array = data.copy()
        region = right.register(array, name="r", backends=[name])
    else:
        memory = right.allocate(data.size, name="r", backends=[name])
        memory.numpy()[:] = data
        region = memory.region
    assert region.backends == [name, "local"]
    introduce(left, right)
    here = np.zeros_like(data)
    left.register(here)
    request = left.read(right.name, [here], [left.peer_region(right.name, "r")], timeout=30)
    assert request.backend == name and (here == data).all()
    other = BOTH[1 - BOTH.index(name)]
    with pytest.raises(headrace.NotSupported, match=other):
        left.read(right.name, [here], [left.peer_region(right.name, "r")], timeout=30, backends=[other])


@pytest.mark.parametrize("name", BOTH)
def test_a_request_uses_the_named_backend_and_explains_why_not_the_other(two, name):
    left, right = two
    data = random_bytes(70_001)
    theirs = right.register(data)
    here = np.zeros_like(data)
    left.register(here)
    introduce(left, right)
    local, remote = left.prepare([here[3:]]), left.prepare([(theirs.id, 3, data.size - 3)], right.name)
    request = left.make_request("read", local, remote, backends=[name])
    request.post()
    request.wait(30)
    assert request.backend == name == request.cost().backend
    assert not here[:3].any() and (here[3:] == data[3:]).all()
    text = request.explain()
    assert "shm" in text and "tcp" in text, text


@pytest.mark.parametrize("asked", [[], ["tcp"], ["local"]])
def test_a_move_inside_an_agent_is_of_local_whatever_backends_are_named(asked):
    with headrace.Agent(unique("alone"), asked or ["tcp"]) as agent:
        data, there = random_bytes(5003), np.zeros(5003, dtype=np.uint8)
        agent.register(data, backends=asked or None)
        region = agent.register(there, backends=asked or None)
        assert region.backends == list(dict.fromkeys([*(asked or ["tcp"]), "local"]))
        local, remote = agent.prepare([data]), agent.prepare([(region.id, 0, 5003)], agent.name)
        request = agent.make_request("write", local, remote, backends=asked or None)
        request.post()
        request.wait(30)
        assert request.backend == "local"
        assert request.explain().startswith("write of 1 page, 5003 bytes: local")
        assert (there == data).all()
    with headrace.Agent(unique("alone"), ["tcp"]) as agent, pytest.raises(headrace.NotSupported):
        agent.register(bytearray(1), backends=["no_such"])


@pytest.mark.parametrize("name", BOTH)
def test_connect_makes_a_link_over_the_named_backend(two, name):
    left, right = two
    introduce(left, right)
    assert not left.peers()[0].connected
    left.connect(right.name, timeout=30, backends=[name])
    assert left.peers()[0].connected
    with pytest.raises(headrace.NotSupported, match=right.name):
        left.connect(right.name, timeout=30, backends=["no_such"])


def test_a_backend_is_created_with_its_own_options_and_wrong_ones_are_refused():
    with headrace.Agent("a", ["shm"]) as agent:
        for options, text in (({"sockets": 0}, "sockets"), ({"no_such": 1}, "no_such")):
            with pytest.raises(headrace.InvalidArgument, match=text):
                agent.create_backend("tcp", options)
        with pytest.raises(headrace.BackendFailed, match="no_such"):
            agent.create_backend("no_such")
        assert [backend.name for backend in agent.backends()] == ["shm", "local"]
        agent.create_backend("tcp", {"sockets": 2, "chunk_bytes": "64KiB"})
        assert agent.allocate(4096).region.backends == ["shm", "local", "tcp"]


def test_a_cost_grows_with_the_bytes_and_names_its_method(two):
    left, right = two
    here, there = left.allocate(1 << 24), right.allocate(1 << 24, name="there")
    introduce(left, right)
    for name in BOTH:
        costs = []
        for size in (4096, 1 << 24):
            remote = left.prepare([(there.region.id, 0, size)], right.name)
            costs.append(
                left.make_request(
                    "read", left.prepare([(here.region.id, 0, size)]), remote, backends=[name]
                ).cost()
            )
        assert 0 < costs[0].duration < costs[1].duration
        assert all(cost.backend == name and cost.method and cost.margin >= 0 for cost in costs)
